"""Whatever is in a snapshot, and however large the screen is: nothing leaves its place."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from tests.ui.top import snapshots as s
from tests.ui.top.kit import drawn, whole
from wiiiiided.cluster.rpc.messages import JobRow, LogLine, Snapshot
from wiiiiided.domain.metrics import JobNow, NodeNow, RankNow, Rates, Straggler
from wiiiiided.text import columns
from wiiiiided.ui.top.column_memory import learned
from wiiiiided.ui.top.keymap import KEYBOARD, MOVES, press
from wiiiiided.ui.top.marks import COMPUTE, EXCHANGE, WAITING
from wiiiiided.ui.top.paint import lines
from wiiiiided.ui.top.ranks_pane import waited_for
from wiiiiided.ui.top.ui import (
    Detail,
    Draining,
    Gone,
    LogView,
    Question,
    Resuming,
    RowOrder,
    Scene,
    Ui,
)
from wiiiiided.ui.top.view import clamp_scroll, natural, view

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
    waiting=FLOATS,
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
RANKS = st.builds(
    RankNow,
    rank=st.integers(0, 1 << 31),
    node=NASTY,
    rates=RATES,
    step=COUNTS,
    memory=COUNTS,
    cpu=MAYBE,
    waits_for=COUNTS,
)
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
    ranks=st.lists(RANKS, max_size=12).map(tuple),
    metrics=st.dictionaries(NASTY, MAYBE, max_size=3),
)


def _job(number: int, text: tuple[str, str, str], now: JobNow | None, nodes: list[str]) -> JobRow:
    name, state, why = text
    shown = s.view(number, name=name, state=state, why=why, nodes=tuple(nodes), owner=why)
    return JobRow(shown, now)


JOBS = st.builds(
    _job,
    st.just(17) | st.integers(0, 1 << 62),
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
ORDERS = st.builds(RowOrder, st.integers(0, 6), st.booleans(), st.sampled_from(["", "a", "\x1b"]))
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
    page=st.sampled_from(["", "", "", "help", "details"]),
    page_top=st.integers(0, 100),
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
    losses=st.dictionaries(st.just(17), st.lists(st.floats(-1e300, 1e300), min_size=1).map(tuple)),
    detail=st.sampled_from([None, Detail(note="\x1b[2J"), Detail(job=s.training_detail())]),
)


def harmless(text: str) -> bool:
    """Nothing that a terminal would obey, and nothing it cannot be sent."""
    text.encode()
    kinds = {unicodedata.category(char) for char in text}
    return not kinds & {"Cc", "Cs", "Zl", "Zp"}


@given(SCENES, st.integers(40, 250), st.integers(5, 80))
def test_every_row_fits_and_is_harmless(scene: Scene, width: int, height: int) -> None:
    rows = whole(scene, width, height)
    if not scene.ui.once:
        assert len(rows) == height
    for text in rows:
        assert columns(text) <= width
        assert scene.ui.once or columns(text) == width
        assert harmless(text)
        if scene.ui.ascii:
            assert text.isascii()


@given(SCENES, st.integers(1, 39), st.integers(1, 4))
def test_a_screen_that_is_too_small_is_cut_and_not_broken(
    scene: Scene, width: int, height: int
) -> None:
    rows = whole(scene, width, height)
    assert all(columns(row) <= width for row in rows)
    assert scene.ui.once or len(rows) == height


@given(SCENES, st.lists(st.sampled_from([*KEYBOARD, *MOVES, "y", "enter", "漢", "paste x"])))
def test_any_keys_on_any_screen_leave_one_that_can_be_drawn(scene: Scene, keys: list[str]) -> None:
    ui = scene.ui
    for key in keys:
        ui, _ = press(ui, key, scene.snapshot)
        ui = clamp_scroll(Scene(scene.snapshot, ui, scene.gone, scene.log), 80, 24)
    assert all(columns(text) <= 80 for text in whole(Scene(scene.snapshot, ui), 80, 24))


@pytest.mark.parametrize("count", [1, 8, 200])
@pytest.mark.parametrize("height", [5, 16, 34])
def test_no_width_breaks_a_frame(count: int, height: int) -> None:
    scene = Scene(s.many(count), losses={17: (3.0, 2.0, 1.0)})
    for width in range(40, 251, 15):
        for text in whole(scene, width, height):
            assert columns(text) == width
            assert text.count("╭") == text.count("╮")
            assert text.count("╰") == text.count("╯")


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_no_terminal_takes_more_columns_than_we_count(text: str) -> None:
    """By the tables of two others: text on the screen is never wider there."""
    from rich.cells import cell_len

    from wiiiiided.ui.top.pane import words

    shown = words(text, False)
    assert wcswidth(shown) <= columns(shown)
    assert cell_len(shown) == columns(shown)


# ---- single things


def _shown(snapshot: Snapshot, width: int = 120, height: int = 40, **changes: Any) -> str:
    return "\n".join(drawn(Scene(snapshot, Ui(**changes)), width, height))


def _row(text: str, name: str) -> str:
    """The row of a node or job, without its frame and its mark."""
    begins = (f"│ {mark} {name} " for mark in "▸↑↓ ")
    wanted = tuple(begins)
    return next(line for line in text.splitlines() if line.startswith(wanted))[3:-1].strip()


def _heading(text: str, begins: str) -> list[str]:
    found = [line[1:-1].split() for line in text.splitlines()]
    return next(words for words in found if begins in words[:1] and len(words) > 2)


def _styles(scene: Scene, text: str, width: int = 120, height: int = 40) -> set[str]:
    """Codes of the styles in which a piece of text stands on the screen, at 16 colours."""
    rows = lines(view(scene, width, height), width, height, "ansi")
    return {str(piece.style) for row in rows for piece in row if piece.text.strip() == text}


def test_an_unknown_value_is_a_dash_and_never_a_zero() -> None:
    unknown = s.node("a", cpu=None, memory_used=None, rates=Rates(operations=5.0), unit="op/s")
    row = _row(_shown(s.snapshot(unknown), width=200), "a")
    assert row.count("–") == 4  # step/s, ratio, CPU and MEM
    assert " 5.00 " in row


def test_of_a_lost_node_nothing_is_shown_but_its_age() -> None:
    lost = s.node("a", state="lost", age_s=312.0)
    row = _row(_shown(s.snapshot(lost, s.node("b")), width=200), "a").split()
    assert row[:3] == ["a", "✗", "lost"]
    assert row[-1] == "5m"
    assert set(row[3:-1]) == {"–"}


def test_a_lost_node_is_in_no_total() -> None:
    text = _shown(s.snapshot(s.node("a"), s.node("b"), s.node("c", state="lost")))
    assert "824.0 samples/s" in text.splitlines()[0]
    assert "824.0" in _row(text, "total")


@pytest.mark.parametrize(
    ("unit", "value"), [("samples/s", "412.0"), ("step/s", "3.22"), ("op/s", "51.20")]
)
def test_the_heading_says_what_is_counted(unit: str, value: str) -> None:
    text = _shown(s.snapshot(s.node("a", unit=unit)))
    assert _heading(text, "node")[2] == unit
    assert f" {value} " in _row(text, "a")


def test_the_time_bar_tells_the_straggler_from_those_that_wait() -> None:
    text = _shown(s.training())
    bars = {}
    for name in ("m1", "m2", "m3"):
        words = [word for word in _row(text, name).split() if set(word) <= {*"▆▄▂"}]
        bars[name] = words[-1]
    assert {len(bar) for bar in bars.values()} == {24}
    assert bars["m1"] == COMPUTE * 5 + EXCHANGE + WAITING * 18
    assert bars["m3"].count(COMPUTE) == 20


def test_nodes_of_one_synchronous_job_show_one_rate() -> None:
    text = _shown(s.training())
    assert all(" 43.70 " in _row(text, name) for name in ("m1", "m2", "m3"))


def test_the_straggler_moves_no_row() -> None:
    calm = Scene(s.snapshot(*s.training().nodes, jobs=(s.job(),)))
    before, after = drawn(calm, 100, 24), drawn(Scene(s.training()), 100, 24)
    assert [line[:6] for line in before[:6]] == [line[:6] for line in after[:6]]
    assert after[7].startswith("╰─ ◄ straggler: rank 2 on m3")
    assert before[7].startswith("╰───")


def test_the_stragglers_of_several_jobs_say_whose_they_are() -> None:
    text = _shown(s.snapshot(s.node(), jobs=(s.slow_job(), s.job(18))))
    assert "job 17 straggler: rank 4 on c" in text
    assert "rank 4 on c costs +41 % step time" in _shown(s.two_slow())
    assert "(and job 18)" in _shown(s.two_slow())
    assert "rank 1 on vm costs +87 % step time" in _shown(s.two_slow(), job=18)


@pytest.mark.parametrize("width", [44, 60, 80])
def test_a_straggler_sentence_keeps_its_point(width: int) -> None:
    for snapshot in (s.two_slow(), s.three()):
        assert "rank 4 on c costs +41 % step time" in _shown(snapshot, width, 12)


def test_a_job_of_which_nothing_was_seen_yet_is_not_called_queued() -> None:
    header = _shown(s.snapshot(s.node(), jobs=(s.job(18, now=False),))).splitlines()[0]
    assert "1 running" in header
    assert "queued" not in header


def test_held_jobs_are_not_called_queued() -> None:
    rows = (s.queued(18), s.queued(19, state="held"), s.queued(20, state="held"))
    header = _shown(s.snapshot(s.node(), jobs=rows)).splitlines()[0]
    assert "1 queued  2 held" in header


def test_what_stops_a_job_stands_where_its_progress_would() -> None:
    text = _shown(s.training())
    assert "waits for 2 nodes; 0 of 3 are free" in _row(text, " 18 next")
    failed = _row(text, " 15 small")
    assert "ValueError: exploding gradients (on m2 rank 1 ended with exit code 1)" in failed
    assert failed.endswith("3m ago")
    narrow = _shown(s.training(), width=40).splitlines()
    assert any(" 15 small  ✗ ValueError: exp" in line for line in narrow)


def test_a_cancelled_job_does_not_say_so_twice() -> None:
    over = s.ended(19, "cancelled", why="cancelled by ada")
    text = _shown(s.snapshot(s.node(), jobs=(JobRow(over),)))
    assert "⊘ cancelled by ada" in " ".join(_row(text, " 19 digits").split())


@pytest.mark.parametrize("width", range(40, 130, 3))
def test_a_heading_is_whole_or_not_there(width: int) -> None:
    (heading,) = (
        line for line in _shown(s.training(), width=width).splitlines() if " job " in line[:12]
    )
    assert set(heading.strip("│ ").split()) <= {
        *("job", "name", "state", "progress", "step", "loss", "rate", "eta"),
    }


@pytest.mark.parametrize(("width", "there"), [(80, True), (60, False)])
def test_on_paper_the_rate_stays_longer_than_the_bytes(width: int, there: bool) -> None:
    (first, *_) = _shown(s.training(), width=width, once=True).splitlines()
    assert ("samples/s" in first) is there
    assert "MB/s" not in first


def test_a_rank_waits_for_the_one_at_the_end_of_the_chain() -> None:
    def rank(number: int, peer: int | None, waiting: float) -> RankNow:
        return RankNow(number, "abcd"[number], Rates(waiting=waiting), waits_for=peer)

    ring = (rank(0, 1, 0.7), rank(1, 2, 0.75), rank(2, 0, 0.1), rank(3, None, 0.0))
    assert waited_for(ring) == {0: 2, 1: 2}
    assert waited_for(ring[:1]) == {0: 1}  # on a page that has no more ranks


def test_on_a_narrow_screen_the_loss_lies_below_the_ranks() -> None:
    scene = Scene(s.training(), log=s.training_log(), losses=s.training_losses())
    rows = drawn(scene, 80, 41)
    places = {name: at for at, row in enumerate(rows) for name in ("ranks", "loss", "log")
              if row.startswith(f"╭─ {name}")}  # fmt: skip
    assert places["ranks"] < places["loss"] < places["log"]
    assert "╭─ loss" not in "\n".join(drawn(scene, 80, 40))


def test_values_that_were_not_measured_are_dashes() -> None:
    text = _shown(s.unmeasured(), width=200)
    assert not {COMPUTE, WAITING} & set(_row(text, "a")) - set("▂▆")
    assert not set("▁▂▃▄▅▆▇█") & set(_row(text, "b"))
    assert set(_row(text, "total").split()[1:]) == {"–"}


@pytest.mark.parametrize(
    ("column", "title"), [(0, "job name state"), (1, "▴id name"), (2, "job ▴name"), (4, "▾step")]
)
def test_the_mark_stands_at_the_column_that_jobs_are_sorted_by(column: int, title: str) -> None:
    text = " ".join(_shown(s.three(), jobs=RowOrder(column=column)).split())
    assert title in text


def test_clock_and_ages_go_on_between_snapshots() -> None:
    snapshot = s.snapshot(s.node(age_s=2.0), jobs=(s.job(),))
    text = "\n".join(drawn(Scene(snapshot, since_s=5.0), 100, 24))
    assert "14:27:57" in text.splitlines()[0]
    assert "41m17s" in text
    assert _row(text, "a").endswith(" 7s")
    gone = "\n".join(drawn(Scene(snapshot, since_s=5.0, gone=Gone("x")), 100, 24))
    assert "14:27:57" in gone.splitlines()[0]
    assert "41m12s" in gone  # whether it still runs is not known
    assert _row(gone, "a").endswith(" 7s")


def test_columns_without_a_value_give_way_first() -> None:
    heading = _heading(_shown(s.alone(), width=76), "node")
    assert "MEM" in heading
    assert not {"codec", "ratio", "up/s"} & set(heading)
    assert "up/s" in _heading(_shown(s.three(), width=76), "node")


def test_a_column_stays_when_its_value_is_gone_for_a_moment() -> None:
    busy, quiet = s.snapshot(s.node()), s.snapshot(s.idle("a"))
    seen = learned(Ui(), busy).seen
    assert learned(Ui(seen=seen), quiet).seen == seen
    for width in range(40, 140):
        before, after = (_heading(_shown(each, width, seen=seen), "node") for each in (busy, quiet))
        assert before[3:] == after[3:]


def test_a_step_with_a_digit_more_moves_nothing() -> None:
    for total in (None, 23460):
        first = s.snapshot(s.node(), jobs=(s.doing(step=9, total=total),))
        then = s.snapshot(s.node(), jobs=(s.doing(step=1000, total=total),))
        heads = [
            next(line for line in _shown(each, 100).splitlines() if " job name" in line)
            for each in (first, then)
        ]
        assert heads[0] == heads[1]


def test_a_long_name_is_bounded() -> None:
    text = _shown(s.snapshot(s.node("n" * 60), jobs=(s.job(name="j" * 60),)))
    assert "n" * 23 + "…" in text
    assert "j" * 23 + "…" in text


def test_a_filter_without_a_match_says_so_and_keeps_the_frame() -> None:
    for filtered in ({"nodes": RowOrder(filter="zz")}, {"jobs": RowOrder(filter="zz")}):
        text = _shown(s.three(), **filtered)
        assert text.count("nothing matches 'zz'") == 1
        assert "╭─ nodes" in text
        assert "0 of 3" in text


@pytest.mark.parametrize("loss", [None, 0.4])
def test_a_loss_that_is_no_number_is_said(loss: float | None) -> None:
    scene = Scene(s.snapshot(s.node(), jobs=(s.doing(loss=loss, diverged=True),)))
    assert any(" nan " in line for line in drawn(scene, 80, 24))
    assert _styles(scene, "nan", 80, 24) == {"bold red"}


def test_a_picture_has_room_for_everything() -> None:
    scene = Scene(s.training(), log=s.training_log(), losses=s.training_losses())
    text = "\n".join(drawn(scene, 110, natural(scene, 110)))
    for words in ("14 ddp", "ranks 17 charlm", "loss 4.14", "step 1430 loss", "total"):
        assert words in text, words


def test_ranks_and_loss_need_a_tall_screen() -> None:
    scene = Scene(s.training(), losses=s.training_losses())
    assert "─ ranks 17" not in "\n".join(drawn(scene, 120, 33))
    tall = "\n".join(drawn(scene, 120, 34))
    assert "─ ranks 17" in tall
    assert "─ loss 4.14" in tall
    assert "rank 2" in _row(tall.replace("│ 0 m1", "│   0 m1"), "0 m1")


def test_at_80_by_24_nodes_jobs_and_log_have_what_matters() -> None:
    scene = Scene(s.training(), log=s.training_log(), losses=s.training_losses())
    text = "\n".join(drawn(scene, 80, 24))
    for words in ("total", "▆▆▆▂", "▇▆▆▆▇▇▇", "━━━━─", "1430/3000", "▇▄▂▂▁▁▁▁", "m1:0 │ step 1430"):
        assert words in text, words


def test_jobs_that_are_not_listed_are_counted_and_told_of() -> None:
    rows = (
        s.job(17),
        *(s.queued(number) for number in range(18, 218)),
        s.queued(218, state="held"),
    )
    crowd = s.snapshot(s.node(), jobs=rows, more=19_500)
    told = " … 19,500 more; wiiiiide ps lists all"
    assert "19,701 queued or held" in _shown(crowd, 100, 24).splitlines()[0]
    assert told in _shown(crowd, 100, 24)
    assert drawn(Scene(crowd, Ui(once=True)), 100, 0)[-1] == told
    assert told in _shown(crowd, 100, 24, jobs=RowOrder(filter="zz"))
    assert "more" not in _shown(s.three())


def test_the_selected_row_is_always_shown() -> None:
    for place in range(0, 200, 7):
        name = f"node-{place:03}"
        assert f"▸ {name}" in _shown(s.many(200), focus="nodes", node=name)


@pytest.mark.parametrize("name", ["b", "b" * 60])
@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_end_of_a_reason_is_seen_where_it_is_typed(width: int, name: str) -> None:
    question = Draining(name, "the fan is broken, and the new one comes on Tuesday")
    shown = drawn(Scene(s.three(), Ui(question=question)), width, 12)[-1]
    assert "day_" in shown
    assert shown.startswith(" drain b")


def test_the_heading_is_the_unit_of_those_that_have_a_rate() -> None:
    fresh = s.node("b", rates=Rates(measured=False), unit="op/s", history=())
    shown = _shown(s.snapshot(s.node("a"), fresh, jobs=(s.job(),)), 100, 24)
    assert _heading(shown, "node")[2] == "samples/s"


def test_an_idle_node_that_speaks_seldom_is_not_marked_for_it() -> None:
    def styles(node: NodeNow) -> set[str]:
        return _styles(Scene(s.snapshot(node, jobs=(s.job(),))), "6s")

    assert styles(s.idle("b", age_s=6.0)) == {"dim"}
    assert styles(s.node("b", age_s=6.0)) == {"bold magenta"}


def test_a_daemon_that_is_away_leaves_a_dim_frame_without_colours() -> None:
    scene = Scene(s.training(), gone=Gone("no daemon answers", 3.2))
    rows = lines(view(scene, 80, 24), 80, 24, "ansi")
    assert {str(piece.style) for row in rows[2:-1] for piece in row} == {"dim"}
    assert "next try in 3 s" in drawn(scene, 80, 24)[1]


@pytest.mark.parametrize("size", [(40, 8), (80, 24), (250, 60)])
def test_details_open_on_any_size(size: tuple[int, int]) -> None:
    for focus, words in (("jobs", "job 17 charlm"), ("nodes", "node m1")):
        text = _shown(s.training(), *size, focus=focus, page="details")
        assert f"─ {words} ─" in text
        assert "state" in text


def test_the_details_of_a_node_say_its_codec_and_traffic() -> None:
    text = _shown(s.training(), focus="nodes", page="details")
    for words in ("lz4: the link is slower than the codec", "24.9 MB/s up", "2.0x", "rank 2"):
        assert words in text, words


def test_the_details_of_a_job_have_its_settings_and_story() -> None:
    scene = Scene(s.training(), Ui(page="details"), detail=Detail(job=s.training_detail()))
    text = "\n".join(drawn(scene, 100, 60))
    for words in ("resources.nodes = 3", "submitted by ada", "3.0e-04", "1/4"):
        assert words in text, words
