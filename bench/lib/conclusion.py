"""The end of a benchmark that is written in chapters: its result, shown and kept."""

import argparse

from rich.console import Console

from lib import machine, program, report
from lib.measure import Chapter
from lib.report import BenchResult


def conclude(
    name: str,
    given: argparse.Namespace,
    about: dict[str, str],
    method: str,
    chapters: list[Chapter],
    screen: Console,
) -> None:
    """A quick run is not held against what is asked, and kept under a name of its own."""
    judged = not given.quick
    notes = machine.busy_notes(about)
    if not judged:
        notes.append("a quick look: only a full run is held against what is asked")
    data = {chapter.title: [one.data(judged) for one in chapter.measures] for chapter in chapters}
    sheets = [chapter.sheet(judged) for chapter in chapters]
    file = program.file_name(name, given.quick)
    result = BenchResult(file, about, method, sheets, notes, {"chapters": data})
    report.show(result, screen)
    if given.save:
        report.keep(result, given.out, screen)
