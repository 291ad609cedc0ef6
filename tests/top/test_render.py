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
from wiiiiided.top.spans import lines, plain
from wiiiiided.top.ui import Gone, LogView, Order, Question, Scene, Ui
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
)
ORDERS = st.builds(Order, st.integers(0, 6), st.booleans(), st.sampled_from(["", "a", "\x1b"]))
UIS = st.builds(
    Ui,
    focus=st.sampled_from(["nodes", "jobs", "log"]),
    nodes=ORDERS,
    jobs=ORDERS,
    typing=st.booleans(),
    question=st.none() | st.builds(Question, st.integers(0, 1 << 62), NASTY, st.booleans()),
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


def test_a_picture_has_room_for_everything() -> None:
    scene = Scene(s.three())
    frame = lines(render(scene, 110, natural(scene, 110)))
    assert any("16 first" in line for line in frame)
    assert frame[-2] != ""


def test_the_selected_row_is_always_shown() -> None:
    for place in range(0, 200, 7):
        name = f"node-{place:03}"
        text = _shown(s.many(200), focus="nodes", node=name)
        assert f"▸{name}" in text
