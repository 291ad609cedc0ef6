"""`wiiiiide new`: a job file for the script in this folder, with the keys that people change.

The script is guessed, never asked: train.py, main.py, the only script there is, the only one
that is made to be run. Where there is no telling, the scripts are named.
"""

from __future__ import annotations

import os
import shlex
from typing import Annotated

import typer
from msgspec.structs import replace

from wiiiiided.domain.exit_codes import INVALID
from wiiiiided.errors import HostError
from wiiiiided.text import clean
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.current_folder import refuse_home
from wiiiiided.ui.cli.loaded_job import Shipped, report
from wiiiiided.ui.jobfile.problem import Invalid
from wiiiiided.ui.jobfile.read import default_name, examine
from wiiiiided.ui.jobfile.to_toml import toml

FILE = "job.toml"
LIKELY = ("train.py", "main.py", "run.py")
NEVER = ("setup.py", "conftest.py", "__init__.py", "noxfile.py")
NAMED = 6  # scripts in a question
LOOKED_BYTES = 1 << 20  # of a script, in search of its beginning

TEMPLATE = """\
# A job of WIIIIIDE: wiiiiide check job.toml looks it over, wiiiiide submit -f job.toml runs it.
name = {name}  # what ps shows

[run]
# Started once per rank, without a shell: each argument is a string of its own.
command = {command}
# python = "/srv/venvs/torch"        # a virtual environment that every machine has
# env = {{ OMP_NUM_THREADS = "1" }}    # variables of every rank
# pass_env = ["WANDB_API_KEY"]       # secrets, taken from where you submit

[resources]
workers_per_node = 1                 # ranks on each machine; more than 1 need torch.distributed
# nodes = 2                          # machines: a number, "2-4" or "all"
# cores_per_worker = 4               # with it, jobs share a machine; else each has its own

[policy]
# max_time = "8h"                    # it is ended after so long
# restart = {{ max = 3 }}              # it is started again when it fails: load a checkpoint then
# hang_timeout = "10m"               # no progress for so long is a failure

[output]
# collect = ["runs/**"]              # files that wiiiiide pull brings back
# checkpoints = ["ckpt/**"]          # what every machine is given before the job starts again
"""


def command(
    script: Annotated[
        str | None,
        typer.Argument(metavar="SCRIPT", help="The script it runs; without it, a likely one."),
    ] = None,
) -> int:
    """Write job.toml, with comments, for the script in this folder. Replaces nothing.

    Without SCRIPT it is train.py, main.py or run.py, else the only script there is.
    """
    if os.path.lexists(FILE):
        raise HostError(f"{FILE} is here already, and is not replaced; wiiiiide check {FILE}")
    refuse_home(".")
    words = _command(_script() if script is None else os.path.normpath(script))
    text = TEMPLATE.format(name=toml(default_name(FILE)), command=toml(words))
    try:
        examine(text, FILE, (), Shipped)
        with open(FILE, "x", encoding="utf-8") as file:
            file.write(text)
    except Invalid as invalid:  # of a file that is not written: it has no lines yet
        named = (replace(one, file="wiiiiide new", line=None, key="") for one in invalid.problems)
        return report(Invalid(named), False)
    except OSError as problem:
        raise HostError(f"cannot write {FILE}: {problem.strerror}") from problem
    screen.say(f"{FILE}: written; it runs {clean(shlex.join(words))} as one rank")
    screen.say(f"look at it, then: wiiiiide submit -f {FILE}")
    return 0


def _command(script: str) -> list[str]:
    match os.path.splitext(script)[1]:
        case ".py":
            return ["python", script]
        case ".sh":
            return ["bash", script]
        case _:
            return [script if os.path.isabs(script) else f"./{script}"]


def _script() -> str:
    """The likely script of this folder."""
    folder = Shipped(".")
    names = [name for name in sorted(os.listdir()) if os.path.isfile(name)]
    names = [name for name in names if name.endswith((".py", ".sh")) and not folder.left_out(name)]
    if likely := [name for name in LIKELY if name in names]:
        return likely[0]
    python = [name for name in names if name.endswith(".py") and not _is_helper(name)]
    choices = python or [name for name in names if name.endswith(".sh")]
    if len(choices) > 1:
        choices = [name for name in choices if _is_begun(name)] or choices
    if len(choices) == 1:
        return choices[0]
    if not choices:
        raise CommandFailed(
            INVALID, "there is no script in this folder", "name one: wiiiiide new src/train.py"
        )
    more = ", …" if len(choices) > NAMED else ""
    told = f"several scripts could be meant: {', '.join(choices[:NAMED])}{more}"
    raise CommandFailed(INVALID, told, f"name one: wiiiiide new {choices[0]}")


def _is_helper(name: str) -> bool:
    return name in NEVER or name.startswith("test_") or name.endswith("_test.py")


def _is_begun(name: str) -> bool:
    """Whether a script is made to be run, rather than imported."""
    try:
        with open(name, "rb") as file:
            text = file.read(LOOKED_BYTES)
    except OSError:
        return False
    return any(mark in text for mark in (b"__main__", b"init_process_group"))
