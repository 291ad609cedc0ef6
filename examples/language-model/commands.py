"""The commands of the demo as a person would type them: built, shown, and explained.

Commands are shown as run, word for word; `WIIIIIDE_HOME` makes it work in another terminal too.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from record import Record
from rich.console import Console
from rich.text import Text
from view import MAX_WIDTH

JOB = Path(__file__).with_name("job.toml")
TO_COPY = "examples/ddp/job.toml"
PROMPT = "$ "
COMMENT_COLUMN = 49  # where the longest of the short commands ends


def submission(record: Record, settings: dict[str, str]) -> list[str]:
    """The arguments of `wiiiiide submit` for a run; `settings` are variables for train.py."""
    sets = [*record.way.settings, *(f"run.env.{name}={value}" for name, value in settings.items())]
    return [os.path.relpath(JOB), *(word for pair in sets for word in ("--set", pair))]


def introduce(console: Console, records: Sequence[Record], home: Path) -> None:
    """The plan of the demo, and how the daemon was started."""
    first = records[0]
    names = ", then ".join(record.way.name for record in records)
    say(
        console,
        "The daemon wiiiiided runs jobs. A job is a folder with a job.toml; here it trains a small "
        f"language model with two processes, by {names}; {first.steps} steps of "
        f"{first.samples_per_step} samples each. Below is what you would type.",
    )
    console.print()
    type_in(console, ["export", f"WIIIIIDE_HOME={home}"], "apart from other daemons")
    type_in(console, ["wiiiiided", "&"], "queues and runs jobs")


def farewell(console: Console) -> None:
    """How to do all this for real."""
    console.print()
    say(console, "The private daemon is stopped and its directory removed. For real you type:")
    console.print()
    if shutil.which("wiiiiide") is None:
        activate = os.path.relpath(Path(sys.prefix, "bin", "activate"))
        type_in(console, [".", activate], "where make put it all")
    type_in(console, ["wiiiiided", "&"], "a daemon of your own")
    type_in(console, ["wiiiiide", "submit", TO_COPY, "-f"], "a folder to copy")
    type_in(console, ["wiiiiide", "service", "install", "--user"], "always there: systemd")


def type_in(console: Console, words: Sequence[str], comment: str = "") -> None:
    """A command after a prompt, broken so that it can still be copied, and why it is typed."""
    width = min(console.width, MAX_WIDTH) - len(PROMPT)
    lines = broken(words, width)
    aligned, close = (f"{lines[0]:<{column}}  # {comment}" for column in (COMMENT_COLUMN, 0))
    beside = aligned if len(aligned) <= width else close
    if comment and (len(lines) > 1 or len(beside) > width):
        console.print(Text(f"# {comment}", "dim"))
        comment = ""
    for index, line in enumerate(lines):
        prompt = "  " if index else PROMPT
        reason = beside[len(line) :] if comment else ""
        shown = Text.assemble((prompt, "green"), (line, "bold"), (reason, "dim"))
        console.print(shown, soft_wrap=True)


def broken(words: Sequence[str], width: int) -> list[str]:
    """The command in as many lines as it needs; an option stays with its value."""
    pieces = " ".join(word if word == "&" else shlex.quote(word) for word in words)
    first, *options = pieces.split(" --set ")
    lines = [first]
    for option in options:
        longer = f"{lines[-1]} --set {option}"
        if len(longer) + len(" \\") <= width:
            lines[-1] = longer
        else:
            lines[-1] += " \\"
            lines.append(f"  --set {option}")
    return lines


def say(console: Console, words: str) -> None:
    console.print(Text(words), width=min(console.width, MAX_WIDTH))
