"""`wiiiiide`: from the words of a command line to an exit code. Never a traceback.

    0 done · 1 job failed · 2 usage · 3 job file invalid · 4 no daemon · 5 not allowed
    6 no such job or node · 7 can never run here · 8 too many at once · 124 timed out
    130 interrupted · 141 the reader of the output is gone

`run`, `wait` and `submit -f` end with the job's own code.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any

import typer

from wiiiiided import __version__
from wiiiiided.config import Config, completion_asked
from wiiiiided.domain.exit_codes import FAILED, INTERRUPTED, PIPE_CLOSED, USAGE
from wiiiiided.errors import UsageError, WiiiiideError
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.command_table import CommandTable, plain_app
from wiiiiided.ui.cli.commands.completion import COMPLETE, complete

# Errors of writing to stdout: all others are explained where they are raised.
OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def main(argv: list[str] | None = None) -> int:
    """The program: from its arguments to its exit code."""
    screen.prepare()
    try:
        code = _guarded(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except BrokenPipeError:
        screen.silence()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as problem:  # a full disk behind stdout
        screen.silence()
        screen.say(f"wiiiiide: cannot write the output: {problem.strerror}")
        return FAILED
    return code


def _guarded(argv: list[str]) -> int:
    try:
        return run(argv)
    except BrokenPipeError:
        raise
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno in OUTPUT_ERRORS:
            raise
        return explain(problem)


def run(argv: list[str]) -> int:
    """One command, to its exit code."""
    group: Any = typer.main.get_command(_app())
    if instruction := completion_asked(COMPLETE):
        return complete(group, instruction)
    try:
        with group.make_context("wiiiiide", list(argv)) as context:
            code = group.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return code if isinstance(code, int) else 0


def explain(problem: Exception) -> int:
    """Say on stderr what went wrong; the exit code for it."""
    if hasattr(problem, "show") and hasattr(problem, "exit_code"):  # typer's own, or click's
        problem.show()
        return int(problem.exit_code)
    if isinstance(problem, WiiiiideError):
        screen.say(f"wiiiiide: {problem}")
        if hint := getattr(problem, "hint", ""):
            screen.say(hint)
        return int(getattr(problem, "code", USAGE if isinstance(problem, UsageError) else FAILED))
    if isinstance(problem, FileNotFoundError) and not _has_current_folder():
        screen.say("wiiiiide: the current folder was removed; cd to one that exists")
        return FAILED
    if _verbose():
        import traceback  # it brings tokenize along, and is hardly ever wanted

        traceback.print_exception(problem)
    screen.say(f"wiiiiide: {type(problem).__name__}: {problem}")
    screen.say("this is a bug; run again with WIIIIIDE_LOG=verbose for the traceback")
    return FAILED


def _has_current_folder() -> bool:
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _verbose() -> bool:
    try:
        return Config.read().log == "verbose"
    except UsageError:
        return False


def _app() -> typer.Typer:
    app = plain_app(cls=CommandTable, no_args_is_help=True)
    app.callback()(_root)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        screen.put(f"wiiiiide {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Queue PyTorch jobs on the machines you already have.

    wiiiiide run -- python train.py runs a script, wiiiiide submit job.toml queues a job, wiiiiide
    ps lists them, wiiiiide logs -f ID shows one.
    """


if __name__ == "__main__":
    sys.exit(main())
