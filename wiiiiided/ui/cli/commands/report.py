"""`wiiiiide report`: how a run went: on the terminal, or as one HTML file to keep and to send.

The file is written beside its place and moved there when it is whole: a reader sees the old
one or the new one. A device, a pipe or a folder in its place is not touched.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wiiiiided.errors import HostError
from wiiiiided.text import format_size
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.bulk import split
from wiiiiided.ui.cli.daemon import connect, fields
from wiiiiided.ui.cli.options import IdOrSweep, Json
from wiiiiided.ui.cli.progress import waiting
from wiiiiided.ui.cli.whole_file import write_whole

if TYPE_CHECKING:
    from wiiiiided.cluster.rpc.messages import JobRecords
    from wiiiiided.ui.cli.report_lines import ReportStyle
    from wiiiiided.ui.report.sweep import SweepResult

DRAWN = "█▓░▁│└─…·–"  # what must be printable before a chart is drawn with it


def command(
    job: IdOrSweep,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write an HTML page; - is stdout."),
    ] = None,
    ascii_only: Annotated[
        bool, typer.Option("--ascii", help="Draw with plain characters only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show how a job ran: loss and throughput over time, where time went, which ranks were slow.

    With -o FILE as one HTML page that needs nothing else: no network, no script. Of a sweep (s12)
    the settings and losses of all its jobs.
    """
    if as_json and output is not None:
        raise typer.BadParameter("--json and -o exclude each other; --json > FILE keeps it")
    _, number, sweep = split(job)
    if output is not None:
        check_place(output)
    plain = ascii_only or not screen.can_print(DRAWN, sys.stdout)
    if sweep:
        _sweep(sweep, output, plain, as_json)
        return
    records = connect().records(number)
    if as_json:
        screen.put_json({**fields(records), "job": fields(records.job)})
    elif output is not None:
        from wiiiiided.ui.report.page import page

        write(output, page(records, time.time(), _settings(records)))
    else:
        from wiiiiided.ui.cli.report_lines import lines

        _print(lines(records, _style(plain), _settings(records)))


def _settings(records: JobRecords) -> list[tuple[str, str]]:
    from wiiiiided.ui.cli.commands.show import settings_of

    return list(settings_of(records.spec))


def _style(plain: bool) -> ReportStyle:
    from wiiiiided.ui.cli import text_charts
    from wiiiiided.ui.cli.report_lines import FRAME, FRAMED, ReportStyle

    width = screen.width()
    if width is not None and sys.stdout.isatty() and width >= FRAMED:
        width -= FRAME
    return ReportStyle(width, text_charts.ASCII if plain else text_charts.BLOCKS)


def _print(lines: Iterable[str]) -> None:
    """Print lines: framed on a terminal, plain in a pipe."""
    if sys.stdout.isatty():
        from wiiiiided.ui.cli import rich_drawing

        rich_drawing.report(lines)
        return
    for line in lines:
        screen.put(line)


def _sweep(sweep: int, output: str | None, plain: bool, as_json: bool) -> None:
    """Compare all jobs of a sweep. The records of each are asked for alone: they are large, and
    only a little of them stays."""
    from wiiiiided.ui.report.sweep import SweepResult, compare, result_of

    client = connect()
    with waiting("reading the jobs' records"):
        found = compare(
            result_of(client.records(job.id)) if job.attempt else SweepResult(job)
            for job in client.sweep(sweep)
        )
    if as_json:
        screen.put_json({"sweep": found.sweep, "jobs": [_result(one) for one in found.results]})
    elif output is not None:
        from wiiiiided.ui.report.page import sweep_page

        write(output, sweep_page(found, time.time()))
    else:
        from wiiiiided.ui.cli.sweep_lines import lines

        _print(lines(found, _style(plain)))


def _result(one: SweepResult) -> dict[str, Any]:
    numbers = {"step": one.step, "loss": one.loss, "diverged": one.diverged, "lowest": one.lowest}
    return {"job": fields(one.job), **numbers, "ran_s": one.ran_s, "said": one.said}


def check_place(path: str) -> None:
    """Refuse a place where no file can be put, before the daemon is asked."""
    if path == "-":
        return
    if not path:
        raise typer.BadParameter("-o needs the name of a file, as in -o run.html")
    try:
        there: os.stat_result | None = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        there = None
    except (OSError, ValueError) as problem:
        raise HostError(f"cannot write {path}: {_reason(problem)}") from problem
    if there is not None and stat.S_ISDIR(there.st_mode):
        name = os.path.join(path, "run.html")
        raise HostError(f"{path} is a folder; name a file, as in -o {name}")
    if there is not None and not stat.S_ISREG(there.st_mode):
        raise HostError(f"{path} is no plain file; -o - writes to stdout")
    parent = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(parent):
        raise HostError(f"cannot write {path}: there is no folder {parent}; make it first")


def write(path: str, text: str) -> None:
    """Write the page to its place, whole or not at all."""
    data = text.encode()
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    place = os.path.realpath(path)  # of a link, the file it leads to is replaced
    try:
        write_whole(place, data)
    except OSError as problem:
        raise HostError(f"cannot write {path}: {_reason(problem)}") from problem
    screen.say(f"{path}: {format_size(len(data))}; open it in any browser")


def _reason(problem: Exception) -> str:
    return getattr(problem, "strerror", None) or str(problem)
