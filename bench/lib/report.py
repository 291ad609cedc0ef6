"""One form for every benchmark's result: a table on the terminal, Markdown and JSON in a folder.

The same rows go to both, so that what was seen is what is kept.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from lib.cells import Value
from lib.fleet import FleetError
from lib.machine import scrub, unrepeatable

# Where the output goes to a file or a pipe, a width at which the widest table stays whole.
_PLAIN_WIDTH = 150


@dataclass
class Sheet:
    """A table that does not know yet where it is shown. A line break sets off a second line."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)


@dataclass
class BenchResult:
    """Everything a benchmark has to say, under the name its files get."""

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


def show(result: BenchResult, screen: Console) -> None:
    for sheet in result.sheets:
        show_sheet(sheet, screen)
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


def keep(result: BenchResult, folder: Path, screen: Console) -> None:
    """Writes a result and says so."""
    written = write(result, folder)
    screen.print("written: " + ", ".join(path.name for path in written), style="dim")
