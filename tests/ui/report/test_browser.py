"""The page in a real browser: nothing asked of any network, nothing run, nothing sticking out."""

from __future__ import annotations

import pytest

from tests.ui.report.conftest import Open
from tests.ui.report.runs import HOSTILE, diverged, hostile, records, restarted, unmeasured
from wiiiiided.cluster.rpc.messages import JobRecords
from wiiiiided.ui.report.page import page

pytestmark = pytest.mark.needs("chromium")

PROBLEMS = (
    *("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"),
    "Page.javascriptDialogOpening",
)
# Everything that sticks out to the right, by what it is; of a drawing its words count, too.
STICKS_OUT = """[...document.querySelectorAll("body *")]
  .filter(e => e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
  .map(e => e.tagName + ": " + e.textContent.slice(0, 60))"""
STICKS_OUT_LEFT = STICKS_OUT.replace(
    ".right > document.documentElement.clientWidth + 0.5", ".left < -0.5"
)
# Words of one chart that lie upon each other.
OVERLAPS = """[...document.querySelectorAll("svg.chart")].flatMap(chart => {
  const texts = [...chart.querySelectorAll("text")].filter(t => t.getClientRects().length)
    .map(t => [t.textContent, t.getBoundingClientRect()]).filter(([, r]) => r.width);
  return texts.flatMap(([a, p], n) => texts.slice(n + 1)
    .filter(([, q]) => p.left < q.right && q.left < p.right && p.top + 2 < q.bottom
                       && q.top + 2 < p.bottom)
    .map(([b]) => a + " and " + b)); })"""


@pytest.mark.parametrize("script", [True, False], ids=["script allowed", "script forbidden"])
def test_a_page_loads_by_itself_with_or_without_script(tab: Open, script: bool) -> None:
    opened = tab(page(restarted(), 0.0), script=script)
    assert opened.requests() == [opened.url]
    assert opened.happened(*PROBLEMS) == []
    root = opened.call("DOM.getDocument")["root"]["nodeId"]
    charts = opened.call("DOM.querySelectorAll", nodeId=root, selector="svg[role=img]")
    assert len(charts["nodeIds"]) == 13  # 5 over time, and 4 of each attempt


@pytest.mark.parametrize(
    "made",
    [restarted(), hostile(), diverged(), unmeasured(), records()],
    ids=["two", "hostile", "diverged", "unmeasured", "no"],
)
def test_nothing_sticks_out_or_lies_upon_each_other(tab: Open, made: JobRecords) -> None:
    opened = tab(page(made, 0.0))
    wide = "document.documentElement"
    for width in (320, 360, 480, 720, 721, 761, 900, 1081, 1400):
        opened.resize(width)
        assert opened.value(f"{wide}.clientWidth") == width
        assert opened.value(f"{wide}.scrollWidth") == width
        assert opened.value(STICKS_OUT) == []
        assert opened.value(STICKS_OUT_LEFT) == []
        assert opened.value(OVERLAPS) == []


@pytest.mark.parametrize("width", [320, 800, 1400])
def test_all_axes_of_time_begin_and_end_below_each_other(tab: Open, width: int) -> None:
    opened = tab(page(restarted(), 0.0), width)
    charts = "[...document.querySelectorAll('h2')][0].parentNode.querySelectorAll"
    bases = f"[...{charts}('svg.chart:not(.bars) > line.base')]"
    places = opened.value(
        f"{bases}.map(e => e.getBoundingClientRect()).map(r => [r.left, r.right])"
    )
    assert len(places) == 5
    assert all(place == places[0] for place in places)


def test_ranks_are_a_table_but_on_a_telephone(tab: Open) -> None:
    opened = tab(page(restarted(), 0.0), 721)
    shown = "getComputedStyle(document.querySelector('thead')).display"
    assert opened.value(shown) == "table-header-group"
    opened.resize(700)
    assert opened.value(shown) == "none"


def test_hostile_text_is_shown_as_text(tab: Open) -> None:
    opened = tab(page(hostile(), 0.0))
    assert opened.value("document.scripts.length") == 0
    assert opened.happened(*PROBLEMS) == []
    start = HOSTILE.partition("\u202e")[0]
    assert start in opened.value("document.querySelector('h1').textContent")
    assert start in opened.value("document.querySelector('ol.story').textContent")
    shown = opened.value("document.documentElement.outerHTML")
    assert not set("\u202e\x1b\x00") & set(shown)
    assert opened.value("[...document.querySelectorAll('*')].map(e => e.tagName)").count("B") < 30


def test_a_page_would_run_no_script_and_load_nothing_even_if_an_escape_were_forgotten(
    tab: Open,
) -> None:
    smuggled = "<script>document.title = 'run'</script><img src='http://192.0.2.1/x.png'>"
    opened = tab(page(records(), 0.0).replace("<footer>", smuggled + "<footer>"))
    assert opened.value("document.title") == "job 17: digits"
    refused = opened.happened("Log.entryAdded")
    assert len(refused) == 2
    assert all("Content Security Policy" in e["params"]["entry"]["text"] for e in refused)


def test_dark_and_light_differ_and_both_can_be_read(tab: Open) -> None:
    grounds = []
    for dark in (False, True):
        opened = tab(page(restarted(), 0.0), dark=dark)
        style = "getComputedStyle(document.body)"
        ground, text = (
            _brightness(opened.value(f"{style}.{n}")) for n in ("backgroundColor", "color")
        )
        assert abs(ground - text) > 150
        grounds.append(ground)
    assert grounds[0] > 200 > 50 > grounds[1]


def _brightness(colour: str) -> float:
    """Of "rgb(1, 2, 3)"."""
    return sum(map(float, colour.partition("(")[2].rstrip(")").split(",")[:3])) / 3


def test_paper_gets_all_columns_and_light_colours(tab: Open) -> None:
    opened = tab(page(restarted(), 0.0), 720, dark=True)
    opened.call("Emulation.setEmulatedMedia", media="print")
    assert opened.value("getComputedStyle(document.querySelector('thead')).display") != "none"
    assert _brightness(opened.value("getComputedStyle(document.body).backgroundColor")) == 255
    assert opened.value(STICKS_OUT) == []
