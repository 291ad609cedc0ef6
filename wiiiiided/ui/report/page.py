"""The report as one HTML file: no script, nothing loaded, everything in it escaped.

    job 17: digits            summary      the most important facts
    ───────────────           over time    loss, throughput, memory, wire against raw, timeline
                              attempts     a table of all
    state   done              attempt 2    time split, batches, bytes by node; a table of the ranks
    …                         attempt 1    the same, folded away
                              story

jinja2 fills the templates beside this module and escapes what it puts in; every text is bounded
and cleaned before (`_written`). It takes 40 ms to load: only the commands that write a page do.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from wiiiiided.cluster.rpc.messages import JobRecords
from wiiiiided.domain.sweep import label, short_names
from wiiiiided.text import count
from wiiiiided.ui.report import attempt_table, charts, formats, rank_table, sweep
from wiiiiided.ui.report.charts import ChartFigure, Curve, LineChart
from wiiiiided.ui.report.over_time import over_time
from wiiiiided.ui.report.rank_charts import rank_charts
from wiiiiided.ui.report.run_history import PlacedAttempt, history
from wiiiiided.ui.report.sanitize import sanitized
from wiiiiided.ui.report.summary import Pair, ending, facts, is_loud, why_nothing
from wiiiiided.ui.report.timeline import kind_of

NAME = 200  # characters of a job's name in the heading
LINES = 400  # lines of the story; the middle of a longer one is left out
FOLDED = 5  # attempts with charts of their own; of earlier ones a line says how they ended


@dataclass(frozen=True)
class Table:
    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: frozenset[str]  # titles of columns of words; the others are numbers
    divided: dict[str, str] = field(default_factory=dict)  # where titles may be hyphenated


@dataclass(frozen=True)
class AttemptPart:
    """One attempt on the page."""

    number: int
    kind: str
    told: str
    figures: Sequence[ChartFigure]
    ranks: Table | None
    more: int  # ranks that are not in the table


def page(records: JobRecords, made_at: float, settings: Sequence[Pair] = ()) -> str:
    """The file's text. `made_at` is when, in seconds since 1970; `settings` are those of the job as
    its file has them."""
    records = sanitized(records)
    past = history(records)
    pairs = list(facts(records))
    seen = past.attempts[::-1]
    return _filled(
        "job.html",
        id=records.job.id,
        title=f"job {records.job.id}: {formats.short(records.job.name, NAME)}",
        made_at=made_at,
        nothing=why_nothing(records),
        facts=pairs,
        loud=next((name for name, text in pairs if is_loud(name, text)), ""),
        cut=past.cut,
        over_time=list(over_time(past)),
        attempts=Table(
            attempt_table.TITLES,
            attempt_table.attempt_rows(records),
            frozenset(attempt_table.TITLES),
        ),
        alone=len(seen) <= 1 and not past.earlier,
        latest=_attempt(seen[0]) if seen else None,
        folded=[_attempt(attempt) for attempt in seen[1:FOLDED]],
        outlined=[_attempt(attempt, whole=False) for attempt in seen[FOLDED:]],
        earlier=past.earlier,
        settings=settings,
        story=records.story,
        story_lines=LINES,
    )


def sweep_page(found: sweep.Comparison, made_at: float) -> str:
    names = short_names(found.keys)
    return _filled(
        "sweep.html",
        id=found.sweep,
        title=f"sweep {found.sweep}: {formats.short(found.name, sweep.VALUE)}",
        made_at=made_at,
        facts=list(sweep.facts(found)),
        losses=_losses(found) if found.drawn else None,
        jobs=Table(
            sweep.titles(found),
            list(sweep.rows(found)),
            frozenset({"line", "job", "state", *names}),
        ),
    )


def draw(figure: ChartFigure) -> str:
    """One chart by itself."""
    return str(_templates().get_template("charts.html").module.figure(figure))  # type: ignore[attr-defined]


def _attempt(attempt: PlacedAttempt, whole: bool = True) -> AttemptPart:
    run = attempt.run
    began, lasted = formats.moment(run.started_at), formats.duration(attempt.length)
    told = f"attempt {run.attempt}, {began}, {lasted}: "
    told += formats.short(ending(run, attempt.running), NAME)
    rows = rank_table.rank_rows(run) if whole else []
    shown = rank_table.shown_columns(rows)
    table = Table(
        [rank_table.TITLES[n] for n in shown],
        [[row[n] for n in shown] for row in rows],
        rank_table.LEFT,
        rank_table.DIVIDED,
    )
    return AttemptPart(
        run.attempt,
        kind_of(attempt),
        told,
        list(rank_charts(run)) if whole else [],
        table if rows else None,
        len(run.ranks) - len(rows),
    )


def _losses(found: sweep.Comparison) -> ChartFigure:
    across, up = found.scales()
    drawn = [
        (f"l{letter}", f"job {result.job.id}, {label(result.job.setting)}", tuple(line))
        for letter, result, line in zip(sweep.LETTERS, found.drawn, found.lines(), strict=False)
    ]
    told = sweep.told(found) + ("; each line across is ten times the one below." if up.log else ".")
    keys = tuple((kind, f"{kind[1:]}: {job}") for kind, job, _ in drawn)
    curves = [Curve(kind, [line], job) for kind, job, line in drawn]
    return ChartFigure("Loss", told, LineChart(across, up, curves), keys)


def _filled(template: str, **values: object) -> str:
    return _templates().get_template(template).render(**values)


@functools.cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=_written,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(formats=formats, charts=charts, count=count)
    made.filters.update(short=formats.short, percent=_percent)
    return made


def _written(value: object) -> object:
    """All text is bounded and cleaned; only what a template made goes in as it is.
    Coordinates get two decimals: finer than any screen, and a chart stays small."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return formats.short(value) if type(value) is str else value


def _percent(part: float) -> str:
    return f"{100 * part:.2f}".rstrip("0").rstrip(".") + "%"
