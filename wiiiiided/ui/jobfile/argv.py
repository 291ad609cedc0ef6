"""Which word of a command is the script it runs, and which commands start ranks by themselves.

    ["python", "-u", "train.py"]     the script is the third word
    ["python", "-m", "pkg.train"]    a module, the third word
    ["bash", "-e", "run.sh"]         the third word
    ["sh", "-c", "…"]                no telling, and none is tried

Pure, and cautious: where the words are not understood, no script is found.
"""

from __future__ import annotations

import os.path
import re
from typing import NamedTuple

Argv = tuple[str, ...]

PYTHON = re.compile(r"(python|pypy)[0-9.]*")
SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
LAUNCHERS = (*TORCHRUN, "accelerate", "accelerate.commands.launch", "deepspeed")


class Script(NamedTuple):
    """A word of a command that names what is run."""

    at: int
    word: str
    is_module: bool = False


def program_of(argv: Argv) -> str:
    return os.path.basename(argv[0])


def is_python(argv: Argv) -> bool:
    return PYTHON.fullmatch(program_of(argv)) is not None


def is_shell(argv: Argv) -> bool:
    return program_of(argv) in SHELLS


def script_of(argv: Argv) -> Script | None:
    """The script or module that a command runs; None where there is no telling."""
    if is_python(argv):
        return _of_python(argv)
    if is_shell(argv):
        return _of_shell(argv)
    return python_file(argv) if program_of(argv) in LAUNCHERS else None


def _of_python(argv: Argv) -> Script | None:
    """The script behind Python's options: -m takes a module, -c a program, -W and -X a value."""
    at = 1
    while at < len(argv):
        word = argv[at]
        if not word.startswith("-"):
            return Script(at, word)
        found = re.fullmatch("-[A-Za-z]*?([cmWX])(.*)", word, re.DOTALL)
        if word.startswith("--") or word == "-" or (found and found[1] == "c"):
            return None
        value = "" if found is None else found[2]
        if found is not None and found[1] == "m":
            module = value or "".join(argv[at + 1 : at + 2])
            return Script(at if value else at + 1, module, True) if module else None
        at += 1 if found is None or value else 2
    return None


def _of_shell(argv: Argv) -> Script | None:
    """The first word that is no option: -c takes a program, -s reads one, -o has a value."""
    at = 1
    while at < len(argv):
        word = argv[at]
        if not word.startswith(("-", "+")):
            return Script(at, word)
        if word.startswith("--") or "c" in word or "s" in word:
            return None
        at += 2 if word.endswith(("o", "O")) else 1
    return None


def python_file(argv: Argv) -> Script | None:
    """The first word that looks like a script of Python's, behind a launcher's own."""
    files = (Script(at, word) for at, word in enumerate(argv) if at and word.endswith(".py"))
    return next((script for script in files if not script.word.startswith("-")), None)


def launcher_of(argv: Argv) -> str:
    """The name of a launcher, a program that starts ranks by itself; empty: it is none."""
    script = script_of(argv)
    name = script.word if script is not None and script.is_module else program_of(argv)
    return name if name in LAUNCHERS else ""


def knows_of_nodes(argv: Argv) -> bool:
    """Whether torchrun was told that there are others: --nnodes, of more than one."""
    for at, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name == "--nnodes":
            return (value or "".join(argv[at + 1 : at + 2])) not in ("1", "1:1")
    return False
