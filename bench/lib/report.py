"""One form for every benchmark's result: a table on the terminal, Markdown and JSON in a folder.

The same rows go to both, so that what was seen is what is kept.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lib.fleet import FleetError
from lib.machine import busy_notes, scrub, unrepeatable

# Where the output goes to a file or a pipe, a width at which the widest table stays whole.
_PLAIN_WIDTH = 150
# Rounds further apart than this factor say little in either direction.
UNSTEADY = 3.0


@dataclass(frozen=True)
class Value:
    """A measured value: the median over rounds, and the least and most of them."""

    median: float
    low: float
    high: float

    @property
    def steady(self) -> bool:
        return self.high <= UNSTEADY * self.low


@dataclass
class Sheet:
    """A table that does not know yet where it is shown. A line break sets off a second line."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)


@dataclass
class BenchResult:
    """Everything a benchmark has to say, under the name its files get. `finish` adds what all say:
    how busy the machine was, and that a quick look is none of the full runs.
    """

    name: str
    about: dict[str, str]
    method: str
    sheets: list[Sheet]
    notes: list[str]
    data: dict[str, Any]


def console() -> Console:
    shown = Console(highlight=False)
    return shown if shown.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def seconds_text(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{_three_digits(seconds / unit)} {name}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def value_text(value: Value | None) -> str:
    """The median, and below it the spread in the median's own unit."""
    if value is None:
        return "–"
    text = seconds_text(value.median)
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[text.split()[1]]
    spread = "–".join(_three_digits(bound / scale) for bound in (value.low, value.high))
    return f"{text}\n({spread})"


def ratio_text(ratio: float | None) -> str:
    return "–" if ratio is None else f"{_three_digits(ratio)}×"


def _three_digits(number: float) -> str:
    if number >= 100:
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def show_sheet(sheet: Sheet, screen: Console) -> None:
    table = Table(title=sheet.title, box=box.SIMPLE_HEAD, title_justify="left", show_lines=True)
    for number, column in enumerate(sheet.columns):
        last = number == len(sheet.columns) - 1
        table.add_column(column, justify="left" if number == 0 or last else "right")
    for row in sheet.rows:
        table.add_row(*(_coloured(cell) for cell in row))
    screen.print(table)


@contextmanager
def progress(screen: Console) -> Iterator[Callable[[str], None]]:
    """For what is done now: a line that changes on a terminal, and many where there is none."""
    with screen.status("") as status:

        def say(what: str) -> None:
            status.update(what)
            if not screen.is_terminal:
                print(f"… {what}", file=sys.stderr)

        yield say


def finish(
    result: BenchResult,
    given: argparse.Namespace,
    screen: Console,
    left: Sequence[Sheet] | None = None,
) -> None:
    """Shows a result and keeps it, if it is to be kept. `left`: sheets that were not shown yet."""
    ended = [f"load at the end: {os.getloadavg()[0]:.2f}"]
    if given.quick:
        # It must not replace the numbers of a full run.
        result = replace(result, name=f"{result.name}-quick")
        ended.append("a quick look: only a full run is held against what is asked")
    notes = [*busy_notes(result.about), *result.notes, *ended]
    result = replace(result, notes=notes)
    for sheet in result.sheets if left is None else left:
        show_sheet(sheet, screen)
    _show_notes(result, screen)
    written = write(result, given.out) if given.save else []
    names = ", ".join(path.name for path in written) or "nothing"
    took = time.monotonic() - given.begun
    screen.print(f"written: {names}, after {took:.0f} s", style="dim", markup=False)


def _show_notes(result: BenchResult, screen: Console) -> None:
    for note in result.notes:
        screen.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
    about = result.about
    screen.print(
        f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']},"
        f" torch {about['torch']}, commit {about['commit']}",
        style="dim",
        markup=False,
    )


def _coloured(cell: str) -> str:
    cell = cell.replace("[", r"\[")
    for word, colour in (("met", "green"), ("missed", "red"), ("not decided", "yellow")):
        cell = cell.replace(f": {word}", f": [{colour}]{word}[/]")
    return cell


def markdown(result: BenchResult) -> str:
    lines = [f"# {result.name}", "", result.method, ""]
    lines += [f"- {name.replace('_', ' ')}: `{text}`" for name, text in result.about.items()]
    for sheet in result.sheets:
        lines += ["", f"## {sheet.title}", "", _markdown_row(sheet.columns)]
        lines.append(_markdown_row(["---"] + ["---:"] * (len(sheet.columns) - 2) + ["---"]))
        lines += [_markdown_row(row) for row in sheet.rows]
    if result.notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in result.notes)]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return (
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"
    )


def write(result: BenchResult, folder: Path) -> list[Path]:
    """Writes Markdown and JSON. Whatever an error message brought in is scrubbed here, once.

    Raises FleetError for a result that names no commit it can be repeated from.
    """
    if reason := unrepeatable(result.about["commit"]):
        raise FleetError(reason)
    folder.mkdir(parents=True, exist_ok=True)
    kept = {
        "about": result.about,
        "method": result.method,
        "notes": result.notes,
        **result.data,
    }
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    files = {folder / f"{result.name}.md": markdown(result)}
    files[folder / f"{result.name}.json"] = text + "\n"
    for path, content in files.items():
        path.write_text(scrub(content), encoding="utf-8")
    return list(files)
