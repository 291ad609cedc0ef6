"""What every key does, without a terminal."""

from __future__ import annotations

import pytest

from tests.ui.top import snapshots as s
from wiiiiided.cluster.rpc.messages import JobRow, Snapshot
from wiiiiided.domain.metrics import Rates
from wiiiiided.ui.top.keymap import press
from wiiiiided.ui.top.order import jobs_of, nodes_of
from wiiiiided.ui.top.ui import (
    REASON_CHARS,
    CancelJob,
    Draining,
    DrainNode,
    Pane,
    Quit,
    ResumeNode,
    Resuming,
    RowOrder,
    Ui,
)


def keys(ui: Ui, *pressed: str, snapshot: Snapshot | None = None) -> Ui:
    for key in pressed:
        ui, action = press(ui, key, snapshot or s.three())
        assert action is None
    return ui


def test_q_quits() -> None:
    assert press(Ui(), "q", None)[1] == Quit()


def test_any_key_closes_the_help_and_does_nothing_else() -> None:
    ui = keys(Ui(), "?")
    assert ui.page == "help"
    assert press(ui, "q", s.three()) == (Ui(), None)
    assert keys(ui, "x") == Ui()


def test_arrows_select_and_stop_at_the_ends() -> None:
    assert keys(Ui(), "down").job == 18
    assert keys(Ui(), "down", "down", "down", "down").job == 16
    assert keys(Ui(), "end", "up").job == 18
    assert keys(Ui(focus="nodes"), "down", "pagedown").node == "c"
    assert keys(Ui(focus="nodes"), "down", "home").node == "a"
    assert keys(Ui(), "down", snapshot=s.snapshot()) == Ui()


def test_a_selection_stays_with_its_job_when_rows_move() -> None:
    ui = keys(Ui(), "down", "s", "s", "s")
    assert ui.job == 18
    assert keys(ui, "x").question.job == 18  # type: ignore[union-attr]


def test_tab_goes_round_the_panes_there_are() -> None:
    assert keys(Ui(), "tab").focus == "log"
    assert keys(Ui(), "tab", "tab").focus == "nodes"
    assert keys(Ui(), "backtab").focus == "nodes"
    assert keys(Ui(), "tab", "backtab").focus == "jobs"
    assert keys(Ui(), "l", "tab").focus == "nodes"
    assert keys(Ui(), "tab", "l").focus == "jobs"


def test_enter_opens_the_details_and_any_key_closes_them() -> None:
    ui = keys(Ui(), "enter")
    assert ui.page == "details"
    assert keys(ui, "down", "pagedown").page_top == 11
    assert keys(ui, "down", "x") == Ui()
    assert keys(Ui(), "enter", snapshot=s.snapshot()).message == "there is no job to tell of"
    nodes = keys(Ui(focus="nodes"), "enter", snapshot=s.snapshot())
    assert nodes.message == "there is no node to tell of"


def test_s_sorts_by_the_next_column_and_comes_back_to_the_order_of_the_daemon() -> None:
    ui, orders = Ui(focus="nodes"), []
    for _ in range(11):
        ui = keys(ui, "s")
        orders.append(tuple(node.name for node in nodes_of(s.three(), ui)))
    assert orders[0] == ("a", "b", "c")
    assert orders[7] == ("c", "a", "b")  # by CPU, the largest first
    assert ui.nodes == RowOrder()


def test_r_reverses_the_pane_in_focus() -> None:
    ui = keys(Ui(), "r")
    assert [row.job.id for row in jobs_of(s.three(), ui)] == [16, 18, 17]
    assert [node.name for node in nodes_of(s.three(), ui)] == ["a", "b", "c"]
    assert keys(ui, "r").jobs == RowOrder()


def test_a_filter_is_typed_kept_and_cleared() -> None:
    ui = keys(Ui(), "/", "L", "x", "backspace")
    assert ui.typing
    assert [row.job.name for row in jobs_of(s.three(), ui)] == ["lm"]
    kept = keys(ui, "enter")
    assert (kept.typing, kept.jobs.filter) == (False, "L")
    assert keys(kept, "esc").jobs.filter == ""
    assert keys(ui, "esc").jobs.filter == ""
    assert keys(ui, "clear").jobs.filter == ""
    assert keys(ui, "up", "q", "漢").jobs.filter == "Lq漢"


def test_a_filter_takes_pasted_text_and_is_bounded() -> None:
    assert keys(Ui(), "/", "paste lm").jobs.filter == "lm"
    assert len(keys(Ui(), "/", "paste " + "x" * 500).jobs.filter) == 40


def test_pasted_text_presses_no_keys() -> None:
    assert keys(Ui(), "paste xy") == Ui()


def test_x_asks_and_only_y_says_yes() -> None:
    asked = keys(Ui(), "x")
    assert asked.question is not None
    for key in ("n", "x", "enter", "esc", "q", "down", "paste y"):
        ui, action = press(asked, key, s.three())
        assert (ui.question, action, ui.message) == (None, None, "job 17 goes on")
    ui, action = press(asked, "y", s.three())
    assert (ui.question, action) == (None, CancelJob(17, now=False))


def test_x_on_a_job_that_is_being_stopped_kills_it() -> None:
    stopping = s.snapshot(s.node(), jobs=(s.job(17, state="stopping"),))
    asked, _ = press(Ui(), "x", stopping)
    assert press(asked, "y", stopping)[1] == CancelJob(17, now=True)


def test_a_no_to_a_kill_does_not_say_that_the_job_goes_on() -> None:
    stopping = s.snapshot(s.node(), jobs=(s.job(34, state="stopping"),))
    ui = keys(Ui(), "x", "n", snapshot=stopping)
    assert ui.message == "job 34 is still being stopped"


def test_a_loss_that_is_no_number_comes_first() -> None:
    rows = s.snapshot(jobs=(s.doing(1, loss=9.0), s.doing(2, loss=None, diverged=True)))
    ui = Ui(jobs=RowOrder(column=5))
    assert [row.job.id for row in jobs_of(rows, ui)] == [2, 1]


def test_what_is_not_known_is_sorted_last() -> None:
    unknown = Rates(operations=9e9, exchange=1.0, measured=False)
    rows = s.snapshot(s.node("a", rates=unknown, unit="op/s"), s.node("b", unit="op/s"))
    for column in (3, 4):
        found = nodes_of(rows, Ui(nodes=RowOrder(column=column)))
        assert [node.name for node in found] == ["b", "a"]


def test_what_is_over_cannot_be_cancelled() -> None:
    over = s.snapshot(s.node(), jobs=(JobRow(s.ended(16)),))
    assert keys(Ui(), "x", snapshot=over).message == "job 16 is over already: done"
    assert keys(Ui(), "x", snapshot=s.snapshot()).message == "there is no job to cancel"


@pytest.mark.parametrize("key", ["x", "d"])
def test_a_read_only_screen_changes_nothing(key: str) -> None:
    ui = keys(Ui(readonly=True), key)
    assert ui.question is None
    assert ui.message.startswith("read-only: ")


def test_d_asks_why_and_only_enter_drains() -> None:
    asked = keys(Ui(focus="nodes", node="b"), "d")
    assert asked.question == Draining("b")
    typed = keys(asked, " ", "f", "a", "n", "x", "backspace", " ", "q", "up", "tab")
    assert typed.question == Draining("b", " fan q")
    ui, action = press(typed, "enter", s.three())
    assert (ui.question, ui.message) == (None, "b is being drained")
    assert action == DrainNode("b", "fan q")
    ui, action = press(typed, "esc", s.three())
    assert (ui.question, action, ui.message) == (None, None, "b is not drained")


def test_a_reason_may_be_pasted_cleared_left_out_and_is_bounded() -> None:
    asked = keys(Ui(focus="nodes"), "d")
    assert keys(asked, "paste new disk").question == Draining("a", "new disk")
    assert keys(asked, "paste x", "clear").question == Draining("a")
    assert keys(asked, "paste " + "x" * 500).question == Draining("a", "x" * REASON_CHARS)
    assert press(asked, "enter", s.three())[1] == DrainNode("a", "")


def test_a_selection_that_moves_does_not_change_which_node_is_drained() -> None:
    asked = keys(Ui(focus="nodes", node="c"), "d")
    assert press(asked, "enter", s.alone())[1] == DrainNode("c", "")


def test_d_on_a_drained_node_asks_whether_it_gets_jobs_again() -> None:
    asked = keys(Ui(focus="nodes", node="e"), "d", snapshot=s.with_lost())
    assert asked.question == Resuming("e", "fan broken")
    for key in ("n", "d", "enter", "esc", "paste y"):
        ui, action = press(asked, key, s.with_lost())
        assert (ui.question, action, ui.message) == (None, None, "e stays drained")
    assert press(asked, "y", s.with_lost())[1] == ResumeNode("e")


@pytest.mark.parametrize("focus", ["jobs", "log"])
def test_d_needs_the_nodes_in_focus(focus: Pane) -> None:
    ui = keys(Ui(focus=focus, log=True, node="b"), "d")
    assert (ui.question, ui.message) == (None, "d drains a node: Tab to the nodes first")


def test_x_needs_the_jobs_or_their_log_in_focus() -> None:
    ui = keys(Ui(focus="nodes"), "x")
    assert (ui.question, ui.message) == (None, "x cancels a job: Tab to the jobs first")
    assert keys(Ui(focus="log", log=True), "x").question is not None


def test_without_a_node_there_is_nothing_to_drain() -> None:
    assert keys(Ui(), "d", snapshot=s.snapshot()).message == "there is no node to drain"


def test_p_pauses_and_goes_on() -> None:
    assert keys(Ui(), "p").paused
    assert not keys(Ui(), "p", "p").paused


def test_plus_looks_more_often_and_minus_less() -> None:
    assert keys(Ui(), "+").every_s == 0.5
    assert keys(Ui(), "+", "+", "+", "=").every_s == 0.25
    assert keys(Ui(), "-").every_s == 2.0
    assert keys(Ui(every_s=7.0), "-").every_s == 10.0
    assert keys(Ui(every_s=60.0), "-").every_s == 60.0


def test_l_closes_the_log_and_opens_it_where_there_is_a_job() -> None:
    assert not keys(Ui(), "l").log
    assert keys(Ui(), "l", "l").log
    ui = keys(Ui(log=False), "l", snapshot=s.snapshot())
    assert not ui.log
    assert "no job" in ui.message


def test_a_message_stays_until_the_next_key() -> None:
    assert keys(Ui(message="said"), "tab").message == ""


def test_every_key_is_harmless_before_the_first_snapshot() -> None:
    for key in ("up", "down", "tab", "s", "r", "/", "l", "x", "d", "p", "+", "-", "esc", "z"):
        assert press(Ui(), key, None)[1] is None
