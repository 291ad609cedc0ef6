"""The program of a command, looked for where it will be started: in the folder that is shipped.

    ["python", "train.py"]       the script must be there
    ["python", "-m", "a.b"]      so must the rest of a package whose beginning is there
    ["./train.sh"]               there, and executable
    ["pyhton", "train.py"]       a name that this machine does not know is asked about

A command that is certain to fail is a problem, one that may be meant is a warning. A path from the
root is the nodes' affair, and so is how another program reads its arguments: neither is checked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Protocol

from wiiiiided.ui.jobfile.argv import (
    LAUNCHERS,
    PYTHON,
    Argv,
    Script,
    is_python,
    is_shell,
    launcher_of,
    python_file,
    script_of,
)
from wiiiiided.ui.jobfile.check import Values
from wiiiiided.ui.jobfile.describe import as_list, show
from wiiiiided.ui.jobfile.findings import Findings
from wiiiiided.ui.jobfile.rules import Complaint

KNOWN = ("python", "python3", "torchrun", "accelerate", "deepspeed")  # whose misspelling is seen
SLIP = 100  # characters; what is longer is no slip of the pen, and comparing it would take long
LISTED = 2000  # names of the folder, among which the one that was meant is searched for

_COMMAND = ("run", "command")


class Folder(Protocol):
    """The working directory as it would be shipped."""

    @property
    def path(self) -> str: ...

    def left_out(self, name: str) -> Complaint | None:
        """Why this path, which is there, is not shipped; None where it is."""


def look(values: Values, folder: Folder, findings: Findings) -> None:
    """Note each file of run.command that will be missing when the command is started."""
    argv = values.get(_COMMAND, ())
    if not argv or None in argv or not argv[0] or " " in argv[0].partition("/")[0]:
        return  # a problem about the command is noted already
    seen = _Look(argv, folder, findings)
    seen.program()
    meant = (_misspelled(argv[0]) or argv[0], *argv[1:])
    script = script_of(meant)
    if script is not None and script.is_module:
        seen.module(script)
        script = python_file(meant) if launcher_of(meant) else None
    if script is not None:
        seen.script(script)


class _Look:
    """The search for the files of one command."""

    def __init__(self, argv: Argv, folder: Folder, findings: Findings) -> None:
        self._argv = argv
        self._folder = folder
        self._findings = findings

    def _note(self, at: int, message: str, suggestion: str) -> None:
        self._findings.add((*_COMMAND, at), message, suggestion)

    def _warn(self, at: int, message: str, suggestion: str) -> None:
        self._findings.warn((*_COMMAND, at), message, suggestion)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder.path, name)

    # ---- the program

    def program(self) -> None:
        name, *words = self._argv
        if "/" not in name:
            if shutil.which(name) is None:
                self._not_in_path(name)
        elif not self._is_shipped(0, name):
            return
        elif os.path.isdir(self._path(name)):
            self._note(0, f"{show(name)} is a folder, not a program", "name the program in it")
        elif not os.stat(self._path(name)).st_mode & 0o100:
            shell = "python" if name.endswith(".py") else "bash"
            suggestion = f"chmod +x {name}, or {_write(shell, name, *words)}"
            self._note(0, f"{show(name)} is not executable", suggestion)

    def _not_in_path(self, name: str) -> None:
        if os.path.isfile(self._path(name)):
            words = ["python", name] if name.endswith(".py") else [f"./{name}"]
            message = f"{show(name)} is searched for in PATH, not in the working directory"
            self._note(0, message, _write(*words, *self._argv[1:]))
        elif PYTHON.fullmatch(name) or name in LAUNCHERS:
            return  # the job's Python has them beside it
        elif meant := _misspelled(name):
            self._note(0, f"there is no program {show(name)}", f"did you mean {show(meant)}?")
        else:
            self._warn(0, f"{show(name)} is not in PATH here", "every node must have it in its own")

    # ---- what the program runs

    def script(self, script: Script) -> None:
        at, name, _ = script
        if is_shell(self._argv) and "/" not in name and shutil.which(name):
            return  # a shell searches in PATH, too
        if not self._is_shipped(at, name) or not os.path.isdir(self._path(name)):
            return
        if not is_python(self._argv):
            self._note(at, f"{show(name)} is a folder, not a script", "name the script in it")
        elif not _has(self._path(name), "__main__.py"):
            message = f"{show(name)} is a folder without a __main__.py, which Python cannot run"
            self._note(at, message, "name the script in it")

    def module(self, script: Script) -> None:
        """A package of the folder is searched here; any other may be installed on the nodes."""
        at, name, _ = script
        parts = name.split(".")
        if "/" in name or parts[-1] == "py":
            guess = os.path.normpath(name).removesuffix(".py").replace("/", ".")
            message = f"{show(name)} is the name of a file, and -m takes a module's"
            self._note(at, message, f"write {show(guess)}")
            return
        top, path = self._path(parts[0]), self._path(os.path.join(*parts))
        if not os.path.isfile(f"{top}.py") and not _has(top, "__init__.py"):
            if not os.path.isdir(top):  # else it may be a part of one that is installed
                self._installed(at, parts[0])
        elif os.path.isfile(f"{path}.py"):
            self._is_shipped(at, f"{os.path.join(*parts)}.py")
        elif _has(path, "__main__.py"):
            self._is_shipped(at, os.path.join(*parts, "__main__.py"))
        elif os.path.isdir(path):
            message = f"the package {show(name)} has no __main__.py, so -m cannot run it"
            self._note(at, message, "add one, or name a module in it")
        else:
            message = f"there is no module {show(name)} in the working directory"
            guess = self._similar(f"{os.path.join(*parts)}.py").removesuffix(".py")
            self._note(at, message, _did_you_mean(guess.replace("/", ".")))

    def _installed(self, at: int, name: str) -> None:
        from importlib.util import find_spec  # it searches, and imports nothing

        try:
            found = find_spec(name) is not None
        except (ImportError, ValueError):  # an odd name: it may be right
            found = True
        if not found:
            message = f"the module {show(name)} is neither in the working directory nor installed"
            self._warn(at, f"{message} here", "the Python of every node must have it")

    # ---- the folder

    def _is_shipped(self, at: int, name: str) -> bool:
        """Whether this path will be on the nodes; where it certainly will not, that is noted."""
        place = os.path.normpath(name)
        if os.path.isabs(name):
            return False  # on the nodes, perhaps
        if name.startswith(("~", "$")):
            self._note(at, f"{show(name)}: no shell expands it", "write the whole path")
        elif place.split("/")[0] == "..":
            message = f"{show(name)} leads out of the working directory, and only that is shipped"
            self._note(at, message, "set run.workdir to a folder that has it inside")
        elif not os.path.exists(self._path(place)):
            message = f"{show(name)} is not in the working directory"
            self._note(at, message, _did_you_mean(self._similar(place)))
        elif complaint := self._folder.left_out(place):
            self._note(
                at, f"{show(name)} is not shipped: {complaint.message}", complaint.suggestion
            )
        else:
            return True
        return False

    def _similar(self, name: str) -> str:
        """The file that was probably meant: the same name in another folder, or a like one."""
        from difflib import get_close_matches

        if len(name) > SLIP:
            return ""
        found = list(_names(self._folder.path))
        same = [one for one in found if os.path.basename(one) == os.path.basename(name)]
        return min(same or get_close_matches(name, found, 1, 0.75), key=len, default="")


def _misspelled(name: str) -> str:
    """The known program that an unknown name was meant to be."""
    if "/" in name or len(name) > SLIP or PYTHON.fullmatch(name) or shutil.which(name):
        return ""
    from difflib import get_close_matches  # only for problems

    return "".join(get_close_matches(name.lower(), KNOWN, 1, 0.8))


def _write(*words: str) -> str:
    whole = as_list(list(words))  # nothing where it would be too long
    return f"write {whole}" if whole else f"begin with {as_list(list(words[:2]))}"


def _did_you_mean(guess: str) -> str:
    return f"did you mean {show(guess)}?" if guess else "add it, or correct the name"


def _has(folder: str, name: str) -> bool:
    return os.path.isfile(os.path.join(folder, name))


def _names(folder: str) -> Iterator[str]:
    """Files of the folder and of the folders in it, as many as make sense to compare with."""
    left = LISTED
    for directory, folders, files in os.walk(folder):
        inner = os.path.relpath(directory, folder)
        folders[:] = [one for one in folders if one[0] != "."] if inner == "." else []
        for name in files[:left]:
            yield os.path.normpath(os.path.join(inner, name))
        left -= len(files[:left])
        if not left:
            return
