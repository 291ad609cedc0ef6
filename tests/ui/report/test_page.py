"""The page as text: whole, escaped, bounded, for any records there may be."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import HealthCheck, given, settings

from tests.ui.report import strategies
from tests.ui.report.runs import (
    HOSTILE,
    diverged,
    hostile,
    point,
    rank,
    records,
    restarted,
    run,
    unmeasured,
)
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.ui.report.charts import Bar, BarChart, ChartFigure
from wiiiiided.ui.report.formats import short
from wiiiiided.ui.report.page import LINES, draw, page
from wiiiiided.ui.report.ticks import Scale

ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "main", "footer", "h1", "h2", "p", "b"),
    *("dl", "dt", "dd", "figure", "figcaption", "ul", "ol", "li", "span", "time", "details"),
    *("summary", "table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "g", "text", "tspan", "rect", "line", "path"),
}


def parsed(text: str) -> ElementTree.Element:
    """The page is XML, too: what is not closed or not escaped does not parse."""
    return ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def said(text: str) -> str:
    return "\n".join(parsed(text).itertext())


def test_everything_the_issue_asks_for_is_there() -> None:
    told = said(page(restarted(), 0.0))
    for wanted in (
        *("job 17: digits", "Loss", "Throughput, samples/s", "Memory", "Wire against raw"),
        *("Attempts and stragglers", "Time by node", "Time by rank", "Batches by node"),
        *("Sent to other hosts", "40 % saved by lz4", "waits most for", "Story"),
        *("Earlier attempts", "failed, exit code 137 (SIGKILL)", "was submitted by ada"),
    ):
        assert wanted in told, wanted


def test_nothing_is_loaded_and_no_script_is_in_it() -> None:
    root = parsed(page(hostile(), 0.0))
    for element in root.iter():
        assert element.tag in ELEMENTS, element.tag
        assert not {"src", "href", "style", "srcset", "action"} & set(element.keys())
        assert not any(key.startswith("on") for key in element.keys())  # noqa: SIM118
    sheet = root.find("head/style")
    assert sheet is not None
    assert "url(" not in (sheet.text or "")
    assert "@import" not in (sheet.text or "")


def test_a_page_of_hostile_text_stays_small() -> None:
    assert len(page(hostile(), 0.0)) < 1_000_000


def test_many_ranks_attempts_and_lines_are_bounded() -> None:
    ranks = tuple(rank(number, f"n{number // 8}") for number in range(2000))
    seen = tuple(point(at / 5, 0.2) for at in range(1, 501))
    story = tuple(m.StoryLine(1e6 + n, f"line {n}") for n in range(5000))
    attempts = [run(n, ranks=ranks, points=seen) for n in range(1, 61)]
    text = page(records(*attempts, story=story), 0.0)
    assert len(text) < 6_000_000
    assert f"{5000 - LINES:,} lines left out" in text
    assert "40 attempts before these" in text
    assert "1,744 more ranks" in text


def test_a_job_without_figures_says_so_and_shows_what_is_known() -> None:
    told = said(page(records(attempt=0, started_at=None), 0.0))
    assert "has not run" in told
    assert "was submitted by ada" in told
    assert "Over time" not in told


def test_a_script_that_never_used_the_backend_still_has_its_times() -> None:
    told = said(page(records(run(points=(), ranks=())), 0.0))
    assert "neither used the wiiiiide backend" in told
    assert "ran for" in told
    assert "Nothing is known of the ranks" in told


def test_without_a_group_of_the_backend_the_page_says_so_once() -> None:
    told = said(page(unmeasured(), 0.0)).partition("@media print")[2].partition("}\n}")[2]
    assert told.count("exchange and waiting are not measured") == 1
    for wrong in ("compute", "Time by", "Wire", "Sent to", "slowest", "straggler", "exchange 20"):
        assert wrong not in told, wrong
    for kept in ("Throughput, samples/s", "Loss", "Memory", "Batches by node"):
        assert kept in told, kept


def test_a_loss_that_is_no_number_is_loud() -> None:
    assert '<dd class="loud">nan at last (0.412 before)</dd>' in page(diverged(), 0.0)


def test_text_is_escaped_wherever_it_stands() -> None:
    """As text of an element and in an attribute; it is cut and cleaned before."""
    bars = BarChart(Scale(0, 1, ()), [Bar("<b>", "x & y", ())])
    text = draw(ChartFigure('"', "</svg>", bars))
    assert 'aria-label="&#34;. &lt;/svg&gt;"' in text
    assert ">&lt;b&gt;<title>" in text
    assert "x &amp; y" in text
    assert short(HOSTILE, 60)[-1] == "…"
    assert "\\u202e" in short(HOSTILE)


@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(strategies.records)
def test_any_records_make_a_whole_page(made: m.JobRecords) -> None:
    parsed(page(made, 0.0))


def test_a_page_has_command_settings_and_all_attempts() -> None:
    text = page(restarted(), 0.0, [("run.env.LR", '"0.1"'), ("policy.max_time", '"8h"')])
    for wanted in ("python train.py &#39;a b&#39;", "run.env.LR", "&#34;8h&#34;", "Attempts"):
        assert wanted in text
    assert "rank 3 was killed by SIGKILL" in text


def test_metrics_and_cores_have_charts() -> None:
    points = tuple(
        point(float(at), cpu=2.0, metrics={"accuracy": at / 100, "lr": 0.1}) for at in range(1, 101)
    )
    text = page(records(run(points=points)), 0.0)
    assert "<b>accuracy</b>. From 0.01 to 1." in text
    assert "<b>CPU, cores in use</b>. Up to 2 cores, all ranks together." in text
