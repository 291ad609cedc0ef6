"""The common part of the benchmarks' command lines, and how each of them ends.

A benchmark that fails says so in a sentence and leaves no process behind, also when it is
interrupted or told to end.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from lib.fleet import FleetError
from lib.machine import RESULTS, commit, unrepeatable


def parser(
    description: str, rounds: int | None = None, *, saves: bool = True
) -> argparse.ArgumentParser:
    """`rounds` is the default for a benchmark that has rounds at all; `saves`: it keeps its results
    unless told otherwise.
    """
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help="a short look; kept as NAME-quick.*")
    if rounds is not None:
        made.add_argument("--rounds", type=positive, help=f"default {rounds}; with --quick, 3")
    made.add_argument(
        "--save", action=argparse.BooleanOptionalAction, default=saves, help="keep the results"
    )
    made.add_argument(
        "--out", type=Path, default=RESULTS, help="folder for the results (bench/results)"
    )
    return made


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments. A result that could not be kept is refused here, not after the run."""
    given = parser.parse_args()
    given.begun = time.monotonic()
    if given.save and (reason := unrepeatable(commit())):
        parser.error(reason)
    return given


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def several(text: str) -> list[int]:
    return [positive(word) for word in text.split(",")]


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def guarded(run: Callable[[], int]) -> int:
    """Runs a benchmark; an end from outside unwinds it like Ctrl-C, so that ranks are ended."""
    # Ctrl-C as well: a shell that starts a program in the background has it ignore that.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    try:
        return run()
    except KeyboardInterrupt:
        print("\ninterrupted; the ranks were ended and no results written", file=sys.stderr)
        return 130
    except (FleetError, OSError, AssertionError) as problem:  # the last one: from tests/kit
        print(f"the benchmark could not go on: {problem}", file=sys.stderr)
        return 1
