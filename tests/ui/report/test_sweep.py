"""Jobs of a sweep beside each other: which is first, what is drawn, and nothing that harms."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from tests.kit.fake_daemon import view
from tests.ui.report.runs import HOSTILE, point, rank, run
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.metrics import RunRecord
from wiiiiided.text import columns
from wiiiiided.ui.cli import text_charts
from wiiiiided.ui.cli.report_lines import ReportStyle
from wiiiiided.ui.cli.sweep_lines import lines
from wiiiiided.ui.report.page import sweep_page as page
from wiiiiided.ui.report.sweep import LINES, POINTS, Comparison, SweepResult, compare, result_of

ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "main", "footer", "h1", "h2", "p", "b"),
    *("dl", "dt", "dd", "figure", "figcaption", "ul", "li", "span"),
    *("table", "thead", "tbody", "tr", "th", "td", "svg", "text", "line", "path"),
}


def job(number: int, **changes: Any) -> m.JobView:
    setting = {"run.env.LR": f"0.{number}", "policy.priority": "3"}
    fields = {"name": f"digits LR=0.{number} priority=3", "setting": setting, "sweep": "s1"}
    return view(number, **{**fields, **changes})


def result(number: int, *runs: RunRecord, **changes: Any) -> SweepResult:
    return result_of(m.JobRecords(job(number, **changes), (), runs))


def lossy(loss: float, **changes: Any) -> RunRecord:
    """Its lines are apart from those of another loss."""
    points = tuple(point(float(at), loss=4 * loss + 1 / at) for at in range(1, 101))
    return run(ranks=(rank(0, loss=loss, **changes),), points=points)


def several() -> Comparison:
    return compare(
        [
            SweepResult(job(1, state="queued", attempt=0)),
            result(2, lossy(0.5)),
            result(3, lossy(0.1, diverged=True)),
            result(4, lossy(0.2), state="running"),
            result(5),
        ]
    )


def test_the_smallest_last_loss_comes_first_and_what_has_none_last() -> None:
    assert [one.job.id for one in several().results] == [4, 2, 3, 1, 5]
    assert several().keys == ("run.env.LR", "policy.priority")
    assert (several().sweep, several().name) == ("s1", "digits")


def test_an_attempt_that_goes_on_after_a_checkpoint_counts_its_steps_once() -> None:
    first = run(points=tuple(point(float(at)) for at in range(1, 41)))
    again = run(2, points=tuple(point(float(at), step=10 * at + 200) for at in range(1, 41)))
    said = result(1, first, again).said
    steps = [step for step, _, _ in said]
    assert steps == sorted(set(steps), key=lambda step: step or 0)
    assert (steps[0], steps[-1], len(steps)) == (10, 600, 60)
    assert said[-1][1] == 140.0  # 100 s of the first attempt, and 40


def test_a_job_that_counts_each_epoch_from_0_is_drawn_over_time() -> None:
    epochs = run(points=tuple(point(float(at), step=at % 10) for at in range(1, 41)))
    found = compare([result(1, epochs), result(2, run())])
    assert not found.by_steps
    assert found.lines()[0][-1][0] in (40.0, 100.0)
    assert compare([result(2, run())]).by_steps


def test_lines_and_their_points_are_bounded_and_the_table_is_not() -> None:
    long = run(points=tuple(point(float(at)) for at in range(1, 513)))
    found = compare([result(number, long) for number in range(1, 1001)])
    assert len(found.drawn) == LINES
    assert all(len(one.said) <= POINTS + 1 for one in found.results)
    assert found.results[0].said[-1][0] == 5120
    text = page(found, 0.0)
    assert text.count("<path") == LINES
    assert text.count("<tr") == 1001
    assert "992 are not drawn" in text
    assert len(text) < 1 << 20


def test_the_page_loads_nothing_and_escapes_all() -> None:
    nasty = job(7, name=HOSTILE, setting={HOSTILE: HOSTILE, "b": "</td><script>"}, state="done")
    found = compare([result_of(m.JobRecords(nasty, (), (run(),))), result(2, lossy(0.5))])
    root = ElementTree.fromstring(page(found, 0.0).removeprefix("<!DOCTYPE html>\n"))
    for element in root.iter():
        assert element.tag in ELEMENTS, element.tag
        assert not {"src", "href", "style", "srcset", "action"} & set(element.keys())
    for line in lines(found, ReportStyle(80)):
        assert line.isprintable()


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("marks", [text_charts.BLOCKS, text_charts.ASCII])
def test_a_terminal_shows_the_same(width: int, marks: text_charts.Marks) -> None:
    drawn = list(lines(several(), ReportStyle(width, marks)))
    assert all(columns(line) <= width for line in drawn)
    assert drawn[0] == "sweep s1: digits"
    assert all(line.isascii() for line in drawn) == (marks is text_charts.ASCII)
    letters = {
        char for line in drawn if marks.side in line for char in line.partition(marks.side)[2]
    }
    assert letters - {" "} == {"a", "b", "c"}


def test_losses_that_say_nothing_make_no_chart() -> None:
    nothing = compare([SweepResult(job(1, state="queued")), result(2, run(points=(), ranks=()))])
    assert "No job of this sweep has said a loss yet." in page(nothing, 0.0)
    assert not any(line == "loss" for line in lines(nothing, ReportStyle(80)))


@pytest.mark.parametrize("loss", [0.0, -3.5, 1e-40, 1e29, float("inf"), float("nan")])
def test_any_loss_can_be_drawn(loss: float) -> None:
    odd = run(points=(point(1.0, loss=loss), point(2.0, loss=0.5, step=None)), ranks=())
    found = compare([result(1, odd), result(2, lossy(loss))])
    assert "</html>" in page(found, 0.0)
    assert list(lines(found, ReportStyle(80)))
