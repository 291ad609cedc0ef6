"""Whatever is in a snapshot, and however large the screen is: nothing leaves its place."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from tests.top import snapshots as s
from wiiiiided.domain.figures import JobNow, NodeNow, Rates, Straggler
from wiiiiided.text import columns
from wiiiiided.top.press import KEYBOARD, MOVES, press
from wiiiiided.top.render import natural, render, settled
from wiiiiided.top.seen import learned
from wiiiiided.top.spans import lines, plain
from wiiiiided.top.ui import Draining, Gone, LogView, Order, Question, Resuming, Scene, Ui
from wiiiiided.wire.messages import JobRow, LogLine, Snapshot

NASTY = st.one_of(
    st.text(max_size=40),
    st.text(st.characters(categories=("Cc", "Cf", "Mn", "Cs", "Zl")), max_size=12),
    st.sampled_from(["漢字" * 30, "e\u0301" * 50, "\x1b[2J", "👩‍👩‍👧", "\t\r\n", "a" * 2000, ""]),
)
FLOATS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -1.0, 1e300, 5e-324, 999.5, 999499.9, 0.9999]),
)
MAYBE = st.none() | FLOATS
COUNTS = st.none() | st.integers(0, 1 << 63)
RATES = st.builds(
    Rates,
    **dict.fromkeys(("steps", "samples"), MAYBE),
    **dict.fromkeys(("operations", "shm", "wire_out", "wire_in", "wire_out_raw"), FLOATS),
    exchange=FLOATS,
    measured=st.booleans(),
)
NODES = st.builds(
    NodeNow,
    name=NASTY,
    state=st.sampled_from(["ok", "slow", "idle", "drained", "lost"]),
    note=NASTY,
    coordinator=st.booleans(),
    age_s=FLOATS,
    cores=st.integers(0, 1 << 40),
    memory=st.integers(0, 1 << 62),
    cpu=MAYBE,
    memory_used=MAYBE,
    rates=RATES,
    codec=NASTY,
    codec_why=NASTY,
    jobs=st.sampled_from([(), (17,), tuple(range(100))]),
    history=st.lists(FLOATS, max_size=60).map(tuple),
    unit=st.sampled_from(["samples/s", "step/s", "op/s"]),
)
STRAGGLERS = st.none() | st.builds(Straggler, rank=st.just(1), node=NASTY, behind=FLOATS, why=NASTY)
NOWS = st.none() | st.builds(
    JobNow,
    id=st.integers(0, 1 << 62),
    rates=RATES,
    step=COUNTS,
    total=COUNTS,
    loss=MAYBE,
    diverged=st.booleans(),
    eta_s=MAYBE,
    straggler=STRAGGLERS,
)


def _job(number: int, text: tuple[str, str, str], now: JobNow | None, nodes: list[str]) -> JobRow:
    name, state, why = text
    shown = s.view(number, name=name, state=state, why=why, nodes=tuple(nodes), owner=why)
    return JobRow(shown, now)


JOBS = st.builds(
    _job,
    st.integers(0, 1 << 62),
    st.tuples(NASTY, st.sampled_from(["running", "queued", "done", "?" * 30]), NASTY),
    NOWS,
    st.lists(NASTY, max_size=4),
)
SNAPSHOTS = st.builds(
    Snapshot,
    at=st.floats(-1e18, 1e18) | st.just(s.AT),
    every_s=st.sampled_from([0.25, 1.0, 60.0]),
    cluster=NASTY,
    nodes=st.lists(NODES, max_size=6).map(tuple),
    jobs=st.lists(JOBS, max_size=5).map(tuple),
    problem=NASTY,
    more=st.sampled_from([0, 19_500, 1 << 62]),
)
ORDERS = st.builds(Order, st.integers(0, 6), st.booleans(), st.sampled_from(["", "a", "\x1b"]))
UIS = st.builds(
    Ui,
    focus=st.sampled_from(["nodes", "jobs", "log"]),
    nodes=ORDERS,
    jobs=ORDERS,
    typing=st.booleans(),
    question=st.one_of(
        st.none(),
        st.builds(Question, st.integers(0, 1 << 62), NASTY, st.booleans()),
        st.builds(Resuming, NASTY, NASTY),
        st.builds(Draining, NASTY, NASTY),
    ),
    help=st.booleans(),
    help_top=st.integers(0, 100),
    log=st.booleans(),
    log_back=st.integers(0, 100),
    paused=st.booleans(),
    message=NASTY,
    readonly=st.booleans(),
    ascii=st.booleans(),
    once=st.booleans(),
)
LOGS = st.none() | st.builds(
    LogView,
    job=st.integers(0, 1 << 62),
    lines=st.lists(
        st.builds(
            LogLine,
            node=NASTY,
            at=st.just(0.0),
            rank=st.integers(0, 1000),
            stream=st.sampled_from(["out", "err", "note"]),
            text=NASTY,
        ),
        max_size=8,
    ).map(tuple),
    note=NASTY,
)
SCENES = st.builds(
    Scene,
    snapshot=st.none() | SNAPSHOTS,
    ui=UIS,
    gone=st.none() | st.builds(Gone, NASTY, st.none() | st.floats(0, 60)),
    log=LOGS,
    since_s=st.floats(0, 1e9),
)


def harmless(text: str) -> bool:
    """Nothing that a terminal would obey, and nothing it cannot be sent."""
    text.encode()
    kinds = {unicodedata.category(char) for char in text}
    return not kinds & {"Cc", "Cs", "Zl", "Zp"}


@given(SCENES, st.integers(40, 250), st.integers(5, 80))
def test_every_row_fits_and_is_harmless(scene: Scene, width: int, height: int) -> None:
    frame = render(scene, width, height)
    assert len(frame) <= (10_000 if scene.ui.once else height)
    if not scene.ui.once:
        assert len(frame) == height
    for row in frame:
        text = "".join(span.text for span in row)
        assert columns(text) <= width
        assert harmless(text)
        if scene.ui.ascii:
            assert text.isascii()


@given(SCENES, st.integers(1, 39), st.integers(1, 4))
def test_a_screen_that_is_too_small_is_cut_and_not_broken(
    scene: Scene, width: int, height: int
) -> None:
    frame = render(scene, width, height)
    assert all(columns(plain(row)) <= width for row in frame)
    assert scene.ui.once or len(frame) <= height


@given(SCENES, st.lists(st.sampled_from([*KEYBOARD, *MOVES, "y", "enter", "漢", "paste x"])))
def test_any_keys_on_any_screen_leave_one_that_can_be_drawn(scene: Scene, keys: list[str]) -> None:
    ui = scene.ui
    for key in keys:
        ui, _ = press(ui, key, scene.snapshot)
        ui = settled(Scene(scene.snapshot, ui, scene.gone, scene.log), 80, 24)
    assert all(columns(text) <= 80 for text in lines(render(Scene(scene.snapshot, ui), 80, 24)))


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_no_terminal_takes_more_columns_than_we_count(text: str) -> None:
    """By the tables of another: what we show is never wider there."""
    from wiiiiided.top.grid import words

    assert wcswidth(words(text, False)) <= columns(words(text, False))


def _shown(snapshot: Snapshot, **changes: Any) -> str:
    return "\n".join(lines(render(Scene(snapshot, Ui(**changes)), 120, 40)))


def test_what_is_not_known_is_a_dash_and_never_a_zero() -> None:
    unknown = s.node("a", cpu=None, memory_used=None, rates=Rates(operations=5.0), unit="op/s")
    row = next(line for line in _shown(s.snapshot(unknown)).splitlines() if line.startswith("▸a"))
    # step/s, ratio, CPU and MEM
    assert row.count("–") == 4
    assert " 5.00 " in row


def test_of_a_lost_node_nothing_is_shown_but_its_age() -> None:
    text = _shown(s.snapshot(s.node("a", state="lost", age_s=312.0)))
    row = next(line for line in text.splitlines() if line.startswith("▸a"))
    assert row.split() == ["▸a", "lost", *["–"] * 10, "5m"]


@pytest.mark.parametrize(
    ("unit", "value"), [("samples/s", "412.0"), ("step/s", "3.22"), ("op/s", "51.20")]
)
def test_the_heading_says_what_is_counted(unit: str, value: str) -> None:
    text = _shown(s.snapshot(s.node("a", unit=unit)))
    heading = next(line for line in text.splitlines() if line.startswith(" NODE"))
    assert heading.split()[2] == unit
    assert f" {value} " in text


def test_the_stragglers_of_several_jobs_say_whose_they_are() -> None:
    text = _shown(s.snapshot(s.node(), jobs=(s.slow_job(), s.job(18))))
    assert "job 17 straggler: rank 4 on c" in text


def test_a_job_of_which_nothing_was_seen_yet_is_not_called_queued() -> None:
    header = _shown(s.snapshot(s.node(), jobs=(s.job(18, now=False),))).splitlines()[0]
    assert "job 18" in header
    assert "queued" not in header


def test_held_jobs_are_not_called_queued() -> None:
    rows = (s.queued(18), s.queued(19, state="held"), s.queued(20, state="held"))
    header = _shown(s.snapshot(s.node(), jobs=rows)).splitlines()[0]
    assert "1 queued  2 held" in header


def test_figures_that_nobody_measured_are_dashes() -> None:
    text = _shown(s.unmeasured())
    rows = [line for line in text.splitlines() if line[1:3] in ("a ", "b ")]
    assert [row.count("–") for row in rows] == [6, 8]
    assert not set("▁▂▃▄▅▆▇█") & set(rows[1])
    total = next(line for line in text.splitlines() if line.startswith(" total"))
    assert total.split() == ["total", "–", "–", "–"]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_straggler_line_keeps_its_point(width: int) -> None:
    text = "\n".join(lines(render(Scene(s.two_slow()), width, 12)))
    assert "rank 4 on c costs +41 % step time" in text
    assert "rank 1 on vm costs +87 % step time" in text
    one = "\n".join(lines(render(Scene(s.three()), width, 12)))
    assert "rank 4 on c costs +41 % step time" in one


@pytest.mark.parametrize(
    ("column", "title"), [(0, " JOB NAME"), (1, "▴JOB NAME"), (2, " JOB▴NAME")]
)
def test_the_mark_stands_at_what_jobs_are_sorted_by(column: int, title: str) -> None:
    assert f"\n{title}" in _shown(s.three(), jobs=Order(column=column))


def test_clock_and_ages_go_on_between_snapshots() -> None:
    snapshot = s.snapshot(s.node(age_s=2.0), jobs=(s.job(),))
    frame = lines(render(Scene(snapshot, since_s=5.0), 100, 24))
    assert "14:27:57" in frame[0]
    assert "running 00:41:17" in frame[0]
    assert frame[2].endswith(" 7s")
    gone = lines(render(Scene(snapshot, since_s=5.0, gone=Gone("x")), 100, 24))
    assert "14:27:57" in gone[0]
    assert "running 00:41:12" in gone[0]  # whether it still does is not known
    assert gone[3].endswith(" 7s")


def _heading(snapshot: Snapshot, ui: Ui, width: int, begins: str = " NODE") -> str:
    frame = lines(render(Scene(snapshot, ui), width, 24))
    return next(line for line in frame if line.startswith(begins))


def test_columns_without_a_figure_give_way_first() -> None:
    heading = _heading(s.alone(), Ui(), 70)
    assert "CPU" in heading
    assert not {"codec", "ratio", "tx/s"} & set(heading.split())
    assert "CPU" not in _heading(s.three(), Ui(), 70)


def test_a_column_stays_when_its_figure_is_gone_for_a_moment() -> None:
    busy, quiet = s.snapshot(s.node()), s.snapshot(s.idle("a"))
    ui = learned(Ui(), busy)
    assert learned(ui, quiet) == ui
    for width in range(40, 140):
        before, after = (_heading(each, ui, width) for each in (busy, quiet))
        assert before.split()[3:] == after.split()[3:]


def test_a_step_with_a_digit_more_moves_nothing() -> None:
    for total in (None, 23460):
        first = s.snapshot(s.node(), jobs=(s.doing(step=9, total=total),))
        then = s.snapshot(s.node(), jobs=(s.doing(step=1000, total=total),))
        assert _heading(first, Ui(), 100, " JOB") == _heading(then, Ui(), 100, " JOB")


def test_a_long_name_is_bounded_and_its_place_is_kept() -> None:
    long = s.snapshot(s.node("n" * 60), jobs=(s.job(name="j" * 60),))
    text = _shown(long)
    assert "n" * 23 + "…" in text
    assert "j" * 23 + "…" in text
    ui, short = learned(Ui(), long), s.snapshot(s.node("n"), jobs=(s.job(),))
    assert _heading(long, ui, 120, " JOB") == _heading(short, ui, 120, " JOB")


def test_a_filter_without_a_match_says_so_and_keeps_the_heading() -> None:
    for filtered in ({"nodes": Order(filter="zz")}, {"jobs": Order(filter="zz")}):
        text = _shown(s.three(), **filtered)
        assert text.count("nothing matches 'zz'") == 1
        assert " samples/s " in text


def test_a_wide_screen_says_how_fast_each_job_is() -> None:
    assert {"RATE", "COMM%"} <= set(_heading(s.three(), Ui(), 120, " JOB").split())
    assert "RATE" not in _heading(s.three(), Ui(), 119, " JOB")
    assert "412.0 smp     18" in _shown(s.three())


@pytest.mark.parametrize("loss", [None, 0.4])
def test_a_loss_that_is_no_number_is_said(loss: float | None) -> None:
    frame = render(Scene(s.snapshot(s.node(), jobs=(s.doing(loss=loss, diverged=True),))), 80, 12)
    # The selected row is in one style: another is selected here.
    rows = s.snapshot(s.node(), jobs=(s.queued(16), s.doing(loss=loss, diverged=True)))
    spans = [span for row in render(Scene(rows), 80, 12) for span in row]
    assert any(span.text.strip() == "nan" and span.style == "bad" for span in spans)
    assert any(" nan " in line for line in lines(frame))


def test_a_picture_has_room_for_everything() -> None:
    scene = Scene(s.three())
    frame = lines(render(scene, 110, natural(scene, 110)))
    assert any("16 first" in line for line in frame)
    assert frame[-2] != ""


def test_jobs_that_are_not_listed_are_counted_and_told_of() -> None:
    rows = (
        s.job(17),
        *(s.queued(number) for number in range(18, 218)),
        s.queued(218, state="held"),
    )
    crowd = s.snapshot(s.node(), jobs=rows, more=19_500)
    shown = lines(render(Scene(crowd), 100, 24))
    assert "19,701 queued or held" in shown[0]
    assert shown[-4] == " … 19,500 more; wiiiiide ps lists all"  # then two details and the keys
    scene = Scene(crowd, Ui(once=True))
    assert lines(render(scene, 100, 1000))[-1] == " … 19,500 more; wiiiiide ps lists all"
    found = lines(render(Scene(crowd, Ui(jobs=Order(filter="zz"))), 100, 24))
    assert " … 19,500 more; wiiiiide ps lists all" in found
    assert "more" not in _shown(s.three())


def test_the_selected_row_is_always_shown() -> None:
    for place in range(0, 200, 7):
        name = f"node-{place:03}"
        text = _shown(s.many(200), focus="nodes", node=name)
        assert f"▸{name}" in text


@pytest.mark.parametrize("name", ["b", "b" * 60])
@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_end_of_a_reason_is_seen_where_it_is_typed(width: int, name: str) -> None:
    question = Draining(name, "the fan is broken, and the new one comes on Tuesday")
    shown = lines(render(Scene(s.three(), Ui(question=question)), width, 12))[-1]
    assert "day_" in shown
    assert shown.startswith(" drain b")


def test_the_heading_is_the_unit_of_those_that_have_a_rate() -> None:
    fresh = s.node("b", rates=Rates(measured=False), unit="op/s", history=())
    shown = lines(render(Scene(s.snapshot(s.node("a"), fresh, jobs=(s.job(),))), 100, 12))
    assert " samples/s " in shown[1]


def test_an_idle_node_that_speaks_seldom_is_not_marked_for_it() -> None:
    def styles(node: NodeNow) -> set[str]:
        rows = render(Scene(s.snapshot(node, jobs=(s.job(),))), 100, 12)
        return {span.style for span in rows[2] if span.text.strip().endswith("6s")}

    assert styles(s.idle("b", age_s=6.0)) == {"dim"}
    assert styles(s.node("b", age_s=6.0)) == {"bold"}
