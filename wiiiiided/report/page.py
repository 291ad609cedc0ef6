"""The report as one HTML file: no script, nothing loaded, everything in it escaped.

    job 17: digits            summary      what everybody wants first
    ───────────────           over time    loss, throughput, memory, wire against raw, timeline
                              attempts     a table of all
    state   done              attempt 2    time split, batches, bytes by node; a table of the ranks
    …                         attempt 1    the same, folded away
                              story

The page forbids itself everything by its policy (default-src 'none'): should an escape ever be
forgotten, a browser would still run nothing and ask nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from wiiiiided.report import words
from wiiiiided.report.attempt_table import attempt_table
from wiiiiided.report.history import Attempt, History, history
from wiiiiided.report.markup import Markup, escaped, joined, plain, tag
from wiiiiided.report.over_time import over_time
from wiiiiided.report.rank_charts import rank_charts
from wiiiiided.report.rank_table import rank_table
from wiiiiided.report.sound import sound
from wiiiiided.report.style import SHEET
from wiiiiided.report.summary import Pair, ending, facts, is_loud, why_nothing
from wiiiiided.report.timeline import kind_of
from wiiiiided.wire.messages import JobRecords, StoryLine

NAME = 200  # characters of a job's name in the heading
LINES = 400  # of the story; the middle of a longer one is left out
SETTINGS = 200
FOLDED = 5  # attempts with charts of their own; of earlier ones a line says how they ended
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(records: JobRecords, made_at: float, settings: Sequence[Pair] = ()) -> str:
    """The file's text. `made_at` is when, in seconds since 1970; `settings` are those of the job as
    its file has them."""
    records = sound(records)
    past = history(records)
    title = f"job {records.job.id}: {plain(records.job.name, NAME)}"
    body = (
        tag("h1", title),
        _summary(records),
        *over_time(past),
        *_all_attempts(records),
        *_attempts(past),
        *_settings(settings),
        *_story(records.story),
        tag("footer", f"Made by wiiiiide report {records.job.id}, {words.moment(made_at, True)}."),
    )
    return document(title, body)


def document(title: str, body: Iterable[Markup], sheet: str = "") -> str:
    """A whole file; `sheet` is what its style has more than others'."""
    main = tag("body", tag("main", *body))
    return "<!DOCTYPE html>\n" + tag("html", _head(title, sheet), main, lang="en")


def _head(title: str, sheet: str) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(SHEET + sheet)),
    )


def _summary(records: JobRecords) -> Markup:
    pairs = joined(
        joined((tag("dt", name), tag("dd", text, class_="loud" if is_loud(name, text) else None)))
        for name, text in facts(records)
    )
    said = why_nothing(records)
    notice = tag("p", said, class_="notice") if said else Markup()
    return joined([notice, tag("dl", pairs)])


def _attempts(past: History) -> Iterator[Markup]:
    """The latest in full, those before it folded away, the earliest in a line."""
    if not past.attempts:
        return
    yield tag("h2", _which(past, past.attempts[-1]))
    yield _attempt(past.attempts[-1])
    if len(past.attempts) > 1 or past.earlier:
        yield tag("h2", "Earlier attempts")
    shown = past.attempts[-FOLDED:-1]
    for attempt in reversed(shown):
        yield tag("details", tag("summary", _outline(attempt)), _attempt(attempt))
    rest = past.attempts[: -1 - len(shown)]
    if rest:
        yield tag("ul", *(tag("li", _outline(attempt)) for attempt in reversed(rest)))
    if past.earlier:
        told = f"{words.count(past.earlier, 'attempt')} before these: --json has them."
        yield tag("p", told, class_="soft")


def _all_attempts(records: JobRecords) -> Iterator[Markup]:
    if records.runs:
        yield tag("h2", "Attempts")
        yield attempt_table(records)


def _settings(settings: Sequence[Pair]) -> Iterator[Markup]:
    if not settings:
        return
    yield tag("h2", "Settings")
    shown = settings[:SETTINGS]
    yield tag("dl", *(joined((tag("dt", name), tag("dd", text))) for name, text in shown))
    if len(settings) > SETTINGS:
        left = words.count(len(settings) - SETTINGS, "more setting")
        yield tag("p", f"{left}: --json has them.", class_="soft")


def _which(past: History, attempt: Attempt) -> str:
    only = len(past.attempts) == 1 and not past.earlier
    return "Ranks and nodes" if only else f"Attempt {attempt.run.attempt}: ranks and nodes"


def _outline(attempt: Attempt) -> Markup:
    run = attempt.run
    told = f"attempt {run.attempt}, {words.moment(run.started_at)}, {words.span(attempt.length)}: "
    mark = tag("span", class_=f"key {kind_of(attempt)}", aria_hidden="true")
    return joined([mark, told, plain(ending(run, attempt.running), NAME)])


def _attempt(attempt: Attempt) -> Markup:
    if not attempt.run.ranks:
        return tag("p", "Nothing is known of the ranks of this attempt.", class_="soft")
    return joined([*rank_charts(attempt.run), rank_table(attempt.run)])


def _story(story: tuple[StoryLine, ...]) -> Iterator[Markup]:
    if not story:
        return
    yield tag("h2", "Story")
    left_out = len(story) - LINES
    shown = story if left_out <= 0 else story[: LINES // 2]
    lines = [_line(told) for told in shown]
    if left_out > 0:
        lines.append(tag("li", f"… {words.count(left_out, 'line')} left out: --json has them …"))
        lines += [_line(told) for told in story[-LINES // 2 :]]
    yield tag("ol", *lines, class_="story")


def _line(told: StoryLine) -> Markup:
    return tag("li", tag("time", words.moment(told.at)), escaped(told.text))
