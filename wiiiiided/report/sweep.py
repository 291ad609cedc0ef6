"""A sweep compared: what each of its jobs was set to, and what came of it. Pure.

    JobRecords of each job ─► trial ─┐
    a job that has not begun ─► trial ┴─► Comparison ─► page here, lines in cli/sweep_lines

The smallest last loss comes first, then losses that are no number any more, then jobs that said
none. Of the losses over steps a few are drawn: more lines than colours could not be told apart. The
table has all jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wiiiiided.domain.states import STATES
from wiiiiided.domain.sweep import label, short_names
from wiiiiided.report import axes, ranks, words
from wiiiiided.report.history import length_of
from wiiiiided.report.line_chart import HEIGHT, Series, path
from wiiiiided.report.markup import Markup, joined, plain, tag
from wiiiiided.report.over_time import figure
from wiiiiided.report.page import document
from wiiiiided.report.sound import sound
from wiiiiided.report.summary import latest
from wiiiiided.report.ticks import Scale, amounts, around, times
from wiiiiided.wire.messages import JobRecords, JobView

LINES = 8  # that are drawn: as many as there are colours
POINTS = 200  # of a line
LETTERS = "abcdefgh"  # which line is whose, also without colours
KINDS = ("one", "two", "good", "waiting", "exchange", "open", "text", "soft")
VALUE = 40  # characters of a value in the table
SHEET = "".join(
    f".line.l{letter}{{stroke:var(--{kind});stroke-dasharray:none;fill:none}}"
    f".key.l{letter}{{background:var(--{kind})}}"
    for letter, kind in zip(LETTERS, KINDS, strict=True)
)

Said = tuple[int | None, float, float]  # step, seconds since the job began, loss


@dataclass(frozen=True)
class Trial:
    """One job of the sweep."""

    job: JobView
    step: int | None = None
    loss: float | None = None  # the last that was a number
    diverged: bool = False  # it is none any more
    ran_s: float | None = None
    said: tuple[Said, ...] = ()  # thinned; a step that was made twice counts as made last

    @property
    def lowest(self) -> float | None:
        seen = [loss for _, _, loss in self.said] + ([] if self.loss is None else [self.loss])
        return min(seen, default=None)

    @property
    def counts_steps(self) -> bool:
        """One that begins each epoch at 0 again does not."""
        steps = [step for step, _, _ in self.said]
        known = [step for step in steps if step is not None]
        return len(known) == len(steps) and known == sorted(known)

    @property
    def order(self) -> tuple[bool, bool, float, int]:
        return (self.loss is None, self.diverged, self.loss or 0.0, self.job.id)


def trial_of(records: JobRecords) -> Trial:
    records = sound(records)
    run = latest(records)
    if run is None:
        return Trial(records.job)
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
    return Trial(records.job, steps, loss, ranks.diverged(run), before, tuple(thinned))


@dataclass(frozen=True)
class Comparison:
    trials: tuple[Trial, ...]  # the smallest last loss first
    keys: tuple[str, ...]  # that were swept

    @property
    def sweep(self) -> str:
        return self.trials[0].job.sweep

    @property
    def name(self) -> str:
        job = self.trials[0].job
        return job.name.removesuffix(f" {label(job.setting)}")

    @property
    def drawn(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.said)[:LINES]

    @property
    def by_steps(self) -> bool:
        """Whether all that are drawn count steps on and on; else they are drawn over time."""
        return all(trial.counts_steps for trial in self.drawn)

    def lines(self) -> list[list[tuple[float, float]]]:
        """Of each that is drawn: step, or seconds, and loss."""
        return [
            [(float(step or 0) if self.by_steps else at, loss) for step, at, loss in trial.said]
            for trial in self.drawn
        ]

    def scales(self) -> tuple[Scale, Scale]:
        """From left to right, and from below to above."""
        points = [point for line in self.lines() for point in line]
        far = max(x for x, _ in points)
        across = amounts(0.0, far, words.number, 8) if self.by_steps else times(far)
        return across, around([loss for _, loss in points])


def compare(trials: Iterable[Trial]) -> Comparison:
    ordered = tuple(sorted(trials, key=lambda trial: trial.order))
    keys = dict.fromkeys(key for trial in ordered for key in trial.job.setting)
    return Comparison(ordered, tuple(keys))


# ---- in words


def facts(found: Comparison) -> Iterator[tuple[str, str]]:
    counts = Counter(trial.job.state for trial in found.trials)
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    yield "jobs", f"{len(found.trials)}: {states}"
    yield "swept", words.listed(found.keys)
    best = found.trials[0]
    if best.loss is not None and not best.diverged:
        setting = label(best.job.setting)
        yield "smallest", f"{words.number(best.loss)} at last: job {best.job.id}, {setting}"


def told(found: Comparison) -> str:
    """The sentence of the chart."""
    over = "steps" if found.by_steps else "time"
    many = sum(bool(trial.said) for trial in found.trials)
    if many <= LINES:
        return f"Over {over}, of every job that said one"
    return f"Over {over}, of the {LINES} jobs with the smallest last; {many - LINES} are not drawn"


def titles(found: Comparison) -> tuple[str, ...]:
    return ("line", "job", *short_names(found.keys), "state", "steps", "loss", "lowest", "ran for")


def rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    letters = dict(zip((trial.job.id for trial in found.drawn), LETTERS, strict=False))
    for trial in found.trials:
        job = trial.job
        loss = words.number(trial.loss)
        yield (
            letters.get(job.id, ""),
            str(job.id),
            *(plain(job.setting.get(key, words.UNKNOWN), VALUE) for key in found.keys),
            job.state,
            words.number(trial.step),
            f"nan ({loss} before)" if trial.diverged else loss,
            words.number(trial.lowest),
            words.span(trial.ran_s),
        )


# ---- as a page


def page(found: Comparison, made_at: float) -> str:
    """The file's text. `made_at` is when, in seconds since 1970."""
    title = f"sweep {found.sweep}: {plain(found.name, VALUE)}"
    pairs = joined(joined((tag("dt", name), tag("dd", text))) for name, text in facts(found))
    made = f"Made by wiiiiide report {found.sweep}, {words.moment(made_at, True)}."
    body = (tag("dl", pairs), *_chart(found), tag("h2", "Jobs"), _table(found))
    return document(title, (tag("h1", title), *body, tag("footer", made)), SHEET)


def _chart(found: Comparison) -> Iterator[Markup]:
    if not found.drawn:
        yield tag("p", "No job of this sweep has said a loss yet.", class_="notice")
        return
    across, up = found.scales()
    drawn = [
        path(
            Series(f"l{letter}", [tuple(line)]),
            across,
            up,
            f"job {trial.job.id}, {_setting(trial)}",
        )
        for letter, trial, line in zip(LETTERS, found.drawn, found.lines(), strict=False)
    ]
    sentence = told(found) + ("; each line across is ten times the one below." if up.log else ".")
    keys = [
        (f"l{letter}", f"{letter}: job {trial.job.id}, {_setting(trial)}")
        for letter, trial in zip(LETTERS, found.drawn, strict=False)
    ]
    chart = axes.drawing(
        HEIGHT + axes.FOOT,
        f"Losses. {sentence}",
        axes.rows(up, HEIGHT),
        axes.columns(across, HEIGHT),
        axes.stretched(HEIGHT, *drawn),
    )
    yield figure("Loss", sentence, chart, axes.legend(keys))


def _setting(trial: Trial) -> str:
    return label(trial.job.setting)


def _table(found: Comparison) -> Markup:
    names = titles(found)
    words_of = {"line", "job", "state", *short_names(found.keys)}
    side: Sequence[str | None] = ["left" if name in words_of else None for name in names]
    head = tag(
        "tr", *(tag("th", t, class_=s, scope="col") for t, s in zip(names, side, strict=True))
    )
    body = (
        tag(
            "tr",
            *(
                tag("td", c, class_=s, data_title=t)
                for c, s, t in zip(row, side, names, strict=True)
            ),
        )
        for row in rows(found)
    )
    return tag("table", tag("thead", head), tag("tbody", *body))
