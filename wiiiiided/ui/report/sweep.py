"""A sweep compared: what each of its jobs was set to, and what came of it. Pure.

    JobRecords of each job ───► result ─┐
    a job that has not begun ─► result ─┴─► Comparison ─► page, and cli/sweep_lines

The smallest last loss comes first, then losses that are no number any more, then jobs that said
none. Of the losses over steps a few are drawn: more lines than colours could not be told apart. The
table has all jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from wiiiiided.cluster.rpc.messages import JobRecords, JobView
from wiiiiided.domain.states import tally
from wiiiiided.domain.sweep import label, short_names
from wiiiiided.text import listed
from wiiiiided.ui.report import formats, ranks
from wiiiiided.ui.report.run_history import length_of
from wiiiiided.ui.report.sanitize import sanitized
from wiiiiided.ui.report.summary import latest
from wiiiiided.ui.report.ticks import Scale, amounts, around, times

LINES = 8  # that are drawn: as many as there are colours
POINTS = 200  # of one line
LETTERS = "abcdefgh"  # which line is whose, also without colours
VALUE = 40  # characters of a value in the table

Said = tuple[int | None, float, float]  # step, seconds since the job began, loss


@dataclass(frozen=True)
class SweepResult:
    """One job of the sweep."""

    job: JobView
    step: int | None = None
    loss: float | None = None  # the last that was a number
    diverged: bool = False  # it is no number any more
    ran_s: float | None = None
    said: tuple[Said, ...] = ()  # thinned; a step that was made twice counts as made last

    @property
    def lowest(self) -> float | None:
        seen = [loss for _, _, loss in self.said] + ([] if self.loss is None else [self.loss])
        return min(seen, default=None)

    @property
    def counts_steps(self) -> bool:
        """Whether its steps go on and on, rather than begin at 0 again with each epoch."""
        steps = [step for step, _, _ in self.said]
        known = [step for step in steps if step is not None]
        return len(known) == len(steps) and known == sorted(known)

    @property
    def order(self) -> tuple[bool, bool, float, int]:
        return (self.loss is None, self.diverged, self.loss or 0.0, self.job.id)


def result_of(records: JobRecords) -> SweepResult:
    records = sanitized(records)
    run = latest(records)
    if run is None:
        return SweepResult(records.job)
    said: list[Said] = []
    before = 0.0
    for one in records.runs:
        points = [point for point in one.points if point.loss is not None]
        first = points[0].step if points else None
        if first is not None:  # it goes on after a checkpoint, and makes some steps again
            said = [past for past in said if past[0] is None or past[0] < first]
        said += [(point.step, before + point.at, point.loss or 0.0) for point in points]
        before += length_of(one)
    every = -(-len(said) // POINTS) or 1
    thinned = [*said[:-1][::every], *said[-1:]]
    steps, loss = ranks.steps_of(run), ranks.loss_of(run)
    return SweepResult(records.job, steps, loss, ranks.diverged(run), before, tuple(thinned))


@dataclass(frozen=True)
class Comparison:
    results: tuple[SweepResult, ...]  # the smallest last loss first
    keys: tuple[str, ...]  # that were swept

    @property
    def sweep(self) -> str:
        return self.results[0].job.sweep

    @property
    def name(self) -> str:
        job = self.results[0].job
        return job.name.removesuffix(f" {label(job.setting)}")

    @property
    def drawn(self) -> tuple[SweepResult, ...]:
        return tuple(result for result in self.results if result.said)[:LINES]

    @property
    def by_steps(self) -> bool:
        """Whether all that are drawn count steps on and on; else they are drawn over time."""
        return all(result.counts_steps for result in self.drawn)

    def lines(self) -> list[list[tuple[float, float]]]:
        """The line of each job that is drawn: step, or seconds, and loss."""
        return [
            [(float(step or 0) if self.by_steps else at, loss) for step, at, loss in result.said]
            for result in self.drawn
        ]

    def scales(self) -> tuple[Scale, Scale]:
        """The two scales: from left to right, and from below to above."""
        points = [point for line in self.lines() for point in line]
        far = max(x for x, _ in points)
        across = amounts(0.0, far, 8) if self.by_steps else times(far)
        return across, around([loss for _, loss in points])


def compare(results: Iterable[SweepResult]) -> Comparison:
    ordered = tuple(sorted(results, key=lambda result: result.order))
    keys = dict.fromkeys(key for result in ordered for key in result.job.setting)
    return Comparison(ordered, tuple(keys))


# ---- in words


def facts(found: Comparison) -> Iterator[tuple[str, str]]:
    yield "jobs", f"{len(found.results)}: {tally(result.job.state for result in found.results)}"
    yield "swept", listed(found.keys)
    best = found.results[0]
    if best.loss is not None and not best.diverged:
        setting = label(best.job.setting)
        yield "smallest", f"{formats.number(best.loss)} at last: job {best.job.id}, {setting}"


def told(found: Comparison) -> str:
    """The sentence of the chart: whose losses it shows."""
    over = "steps" if found.by_steps else "time"
    many = sum(bool(result.said) for result in found.results)
    if many <= LINES:
        return f"Over {over}, of every job that said one"
    return f"Over {over}, of the {LINES} jobs with the smallest last; {many - LINES} are not drawn"


def titles(found: Comparison) -> tuple[str, ...]:
    return ("line", "job", *short_names(found.keys), "state", "steps", "loss", "lowest", "ran for")


def rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    letters = dict(zip((result.job.id for result in found.drawn), LETTERS, strict=False))
    for result in found.results:
        job = result.job
        loss = formats.number(result.loss)
        yield (
            letters.get(job.id, ""),
            str(job.id),
            *(formats.short(job.setting.get(key, formats.UNKNOWN), VALUE) for key in found.keys),
            job.state,
            formats.number(result.step),
            f"nan ({loss} before)" if result.diverged else loss,
            formats.number(result.lowest),
            formats.duration(result.ran_s),
        )
