"""The running program on a terminal: keys, sizes, a daemon that comes and goes, every way out."""

from __future__ import annotations

import os
import re
import signal
import termios
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.kit.conditions import wait_until
from tests.kit.fake_daemon import FakeConnection
from tests.ui.top import snapshots as s
from tests.ui.top.kit import PATIENCE_S, Pushing, Screen
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.metrics import Point, Rates, RunRecord
from wiiiiided.domain.node import Node

UP, DOWN, BACKTAB = "\x1b[A", "\x1b[B", "\x1b[Z"


@pytest.fixture
def daemon() -> Iterator[Pushing]:
    with Pushing(s.three()) as made:
        yield made


@pytest.fixture
def screen(daemon: Pushing, tmp_path: Path) -> Iterator[Screen]:
    with Screen(daemon.home, tmp_path) as made:
        made.shows("total")
        yield made


def test_it_shows_nodes_and_jobs_and_q_ends_it(screen: Screen) -> None:
    for words in ("WIIIIIDE   lab", "◄ slow", "straggler: rank 4 on c", "7951/23460"):
        assert words in screen.text, words
    assert screen.taken
    screen.types("q")
    assert screen.ended() == 0
    assert screen.restored


def test_arrows_and_tab_move_the_selection(screen: Screen) -> None:
    screen.types(DOWN)
    screen.shows("▸  18 lm")
    screen.types(UP)
    screen.shows("▸  17 digits")
    screen.types(BACKTAB + DOWN + DOWN)
    screen.shows("▸ c ")


def test_rows_are_sorted_and_reversed(screen: Screen) -> None:
    screen.types(BACKTAB + "r")
    screen.shows("nodes in reverse")
    lines = screen.look()
    names = [line[4] for line in lines[3:6]]
    assert names == ["c", "b", "a"]
    screen.types("s")
    screen.shows("nodes sorted by name")


def test_a_filter_is_typed(screen: Screen) -> None:
    screen.types("/LM")
    screen.shows("/ LM_")
    screen.hides("▸  17 digits")
    screen.types("\r")
    screen.shows("/LM (1 of 3)")
    screen.types("\x1b")  # alone: the key
    screen.shows(" 17 digits ▶ running")


def test_the_help_lists_the_keys(screen: Screen) -> None:
    screen.types("?")
    screen.shows("cancel the selected job; asks first")
    screen.types("q")  # closes the page, not the program
    screen.shows("straggler")


def test_enter_tells_all_of_a_job_and_of_a_node(screen: Screen, daemon: Pushing) -> None:
    daemon.answers(m.Show, s.training_detail())
    alone = m.NodeView(Node("a", 8, 1 << 34, address="10.0.0.5", port=9461), "ok", "runs job 17")
    daemon.answers(m.ListNodes, m.NodeList("lab", (alone,)))
    screen.types("\r")
    screen.shows("─ job 17 digits")
    screen.shows("directory")
    screen.types("\x1b[F")  # End
    screen.shows("submitted by ada")
    screen.types("z")
    screen.shows("─ nodes 3")
    screen.types(f"{BACKTAB}\r")
    screen.shows("─ node a ─")
    screen.shows("10.0.0.5:9461")


def test_the_loss_of_a_job_begins_where_its_record_does(daemon: Pushing, tmp_path: Path) -> None:
    points = tuple(Point(float(n), 1.0, Rates(), step=n, loss=9.0 - n / 10) for n in range(80))
    record = RunRecord(17, "charlm", 1, ("m1",), 3, 0.0, points=points)
    daemon.shown = s.training()
    daemon.answers(m.GetRecords, m.JobRecords(s.training().jobs[0].job, (), (record,)))
    with Screen(daemon.home, tmp_path, size=(120, 40)) as screen:
        screen.shows("─ loss 9.000 → 0.3520")


def test_x_cancels_a_job_after_a_yes(screen: Screen, daemon: Pushing) -> None:
    daemon.answers(m.Cancel, s.ended(17, "cancelled", None, why="cancelled by ada"))
    screen.types("x")
    screen.shows("cancel job 17 digits? y/n")
    screen.types("n")
    screen.shows("job 17 goes on")
    assert daemon.asked(m.Cancel) == []
    screen.types("xy")
    screen.shows("job 17 (digits): cancelled by ada")
    assert daemon.asked(m.Cancel) == [m.Cancel(17, now=False)]


def test_a_refusal_is_shown(screen: Screen, daemon: Pushing) -> None:
    daemon.answers(m.Cancel, m.Refusal(5, "job 17 is ada's; only ada or root may cancel it"))
    screen.types("xy")
    screen.shows("only ada or root may cancel it")


def test_pasted_text_cancels_nothing(screen: Screen, daemon: Pushing) -> None:
    screen.types("\x1b[200~xy\x1b[201~?")
    screen.shows("any other key closes")
    assert daemon.asked(m.Cancel) == []


def test_read_only_asks_nothing(daemon: Pushing, tmp_path: Path) -> None:
    with Screen(daemon.home, tmp_path, "--readonly") as screen:
        screen.shows("total")
        assert "cancel" not in screen.text
        screen.types("xy")
        screen.types("d")
        screen.shows("read-only: nothing can be drained here")
    assert daemon.asked(m.Cancel) == []


def drained(name: str, why: str) -> m.NodeView:
    return m.NodeView(Node(name, 8, 1 << 34), "drained", why)


def test_d_drains_a_node_for_a_reason(screen: Screen, daemon: Pushing) -> None:
    daemon.answers(m.Drain, drained("b", "drained by ada: fan broken"))
    screen.types(f"{BACKTAB}{DOWN}d")
    screen.shows("drain b, because: _")
    screen.types("\x1b")
    screen.shows("b is not drained")
    assert daemon.asked(m.Drain) == []
    screen.types("dfan broken\r")
    screen.shows("b: drained by ada: fan broken")
    assert daemon.asked(m.Drain) == [m.Drain("b", "fan broken")]


def test_d_gives_a_drained_node_jobs_again(screen: Screen, daemon: Pushing) -> None:
    daemon.answers(m.Resume, m.NodeView(Node("e", 8, 1 << 34), "idle", "resumed by ada"))
    daemon.shown = s.with_lost()
    screen.shows("fan broken")
    screen.types(f"{BACKTAB}{DOWN}{DOWN}{DOWN}d")
    screen.shows("give jobs to e, drained for: fan broken? y/n")
    screen.types("y")
    screen.shows("e: resumed by ada")
    assert daemon.asked(m.Resume) == [m.Resume("e")]


def test_a_user_who_may_not_drain_is_told_so(screen: Screen, daemon: Pushing) -> None:
    daemon.answers(m.Drain, m.Refusal(5, "only root may drain a machine"))
    screen.types(BACKTAB + "d\r")
    screen.shows("drain a: only root may drain a machine")


def test_the_log_follows_the_selected_job(screen: Screen, daemon: Pushing) -> None:
    def logs(request: m.Logs, connection: object) -> None:
        connection.say(m.LogLines((s.line(f"hello from {request.id}"),)))  # type: ignore[attr-defined]
        connection.link.recv(1)  # type: ignore[attr-defined]

    daemon.does(m.Logs, logs)
    screen.types("l")  # away, and here again
    screen.hides("─ log")
    screen.types("l")
    screen.shows("0 │ hello from 17")
    screen.types(DOWN)
    screen.shows("0 │ hello from 18")
    screen.hides("hello from 17")
    screen.types("l")
    screen.hides("hello from 18")
    assert {request.id for request in daemon.asked(m.Logs)} == {17, 18}
    assert all(request.follow and request.tail for request in daemon.asked(m.Logs))


def test_a_log_that_was_scrolled_stays_there_and_anothers_begins_at_its_end(
    screen: Screen, daemon: Pushing
) -> None:
    count = [40]

    def logs(request: m.Logs, connection: FakeConnection) -> None:
        lines = (s.line(f"{request.id}: line {n} of it", at=n) for n in range(count[0]))
        connection.say(m.LogLines(tuple(lines)))
        connection.link.recv(1)

    daemon.does(m.Logs, logs)
    screen.types("l")
    screen.hides("─ log")
    screen.types("l")
    screen.shows("17: line 39 of it")
    screen.types("\t" + UP * 4)
    screen.shows("4 lines back")
    daemon.stop()
    screen.shows("out of touch")
    count[0] += 3  # written meanwhile
    daemon.start()
    screen.hides("out of touch")
    screen.shows("7 lines back")
    screen.shows("17: line 35 of it")
    screen.types("\t\t" + DOWN)
    screen.shows("18: line 42 of it")
    screen.hides("lines back")


def test_an_answer_gives_the_keys_their_place_back(screen: Screen) -> None:
    screen.types("s")
    screen.shows("sorted by")
    screen.hides("sorted by")
    screen.shows(" q  quit")


def test_a_flood_of_lines_holds_nothing_up(screen: Screen, daemon: Pushing) -> None:
    def logs(request: m.Logs, connection: object) -> None:
        for number in range(2000):
            lines = tuple(s.line(f"{number} {'x' * 200}") for _ in range(20))
            connection.say(m.LogLines(lines))  # type: ignore[attr-defined]
        connection.say(m.EndOfAnswers())  # type: ignore[attr-defined]

    daemon.does(m.Logs, logs)
    screen.types("l")
    screen.hides("─ log")
    screen.types("l")
    screen.shows("log 17 digits")
    screen.types("\t?")
    screen.shows("any other key closes")
    screen.types("q")
    screen.shows("end of the log")
    screen.types("\x1b[H")  # Home: the oldest that is kept
    screen.shows("lines back")


def test_an_escape_is_heard_in_a_flood_of_lines(screen: Screen, daemon: Pushing) -> None:
    def logs(request: m.Logs, connection: object) -> None:
        while True:  # until the program has ended
            lines = tuple(s.line("x" * 200) for _ in range(20))
            connection.say(m.LogLines(lines))  # type: ignore[attr-defined]

    daemon.does(m.Logs, logs)
    screen.types("l")
    screen.hides("─ log")
    screen.types("l")
    screen.shows("0 │ xxx")
    screen.types("/LM")
    screen.shows("/ LM_")
    screen.types("\x1b")
    screen.shows("▸  17 digits")


def test_a_pause_keeps_the_picture(screen: Screen, daemon: Pushing) -> None:
    screen.types("p")
    screen.shows("PAUSED")
    daemon.shown = msgspec.structs.replace(daemon.shown, cluster="elsewhere")
    screen.types("?")  # it is alive, and draws
    screen.shows("any other key closes")
    screen.types("q")
    screen.shows("straggler")
    assert "WIIIIIDE   lab" in screen.text
    screen.types("p")
    screen.shows("WIIIIIDE   elsewhere")


def test_plus_asks_the_daemon_for_more(screen: Screen, daemon: Pushing) -> None:
    screen.types("+")
    screen.shows("  0.5s")
    wanted = m.WatchSnapshots(0.5)
    wait_until(lambda: daemon.asked(m.WatchSnapshots)[-1] == wanted, PATIENCE_S, "it is asked for")
    screen.types("--")
    wait_until(
        lambda: daemon.asked(m.WatchSnapshots)[-1].every_s == 2.0, PATIENCE_S, "and for less"
    )


@pytest.mark.parametrize("size", [(40, 5), (59, 12), (80, 24), (250, 60)])
def test_a_new_size_is_filled_and_kept(screen: Screen, size: tuple[int, int]) -> None:
    screen.resize(*size)

    def drawn() -> bool:
        lines = screen.look()
        ends = lines[0].startswith(" WIIIIIDE"), lines[-1].startswith(" q  quit   ?  help")
        return all(ends) and screen.fits(*size)

    wait_until(drawn, PATIENCE_S, "the header is in the first line and the keys are in the last")


def test_hostile_names_stay_in_their_cells(daemon: Pushing, tmp_path: Path) -> None:
    daemon.shown = s.nasty()
    with Screen(daemon.home, tmp_path, size=(80, 16)) as screen:
        screen.shows("\\x1b[31mred")
        assert screen.look()[0].startswith(" WIIIIIDE   lab\\x1b[0m")
        assert screen.look()[-1].startswith(" q  quit")
        assert b"\x1b]0;" not in screen.raw
        assert b"\x1b[31mred" not in screen.raw


def test_without_colours_no_colour_is_sent(daemon: Pushing, tmp_path: Path) -> None:
    with Screen(daemon.home, tmp_path, NO_COLOR="1") as screen:
        screen.shows("total")
        assert not {b"\x1b[32m", b"\x1b[1;35m", b"\x1b[1;31m"} & set(_codes(screen.raw))


def _codes(raw: bytes) -> list[bytes]:
    return [b"\x1b[" + each.partition(b"m")[0] + b"m" for each in raw.split(b"\x1b[")]


def test_ascii_sends_nothing_else(daemon: Pushing, tmp_path: Path) -> None:
    with Screen(daemon.home, tmp_path, "--ascii") as screen:
        screen.shows("< slow")
        assert screen.raw.isascii()


# ---- the daemon comes and goes


def test_a_daemon_that_is_gone_leaves_its_last_frame_and_comes_back(
    screen: Screen, daemon: Pushing
) -> None:
    daemon.stop()
    screen.shows("out of touch (next try in ")
    assert "7951/23460" in screen.text
    daemon.shown = msgspec.structs.replace(daemon.shown, cluster="again")
    daemon.start()
    screen.hides("out of touch")
    screen.shows("WIIIIIDE   again")
    screen.types("q")
    assert screen.ended() == 0


def test_clock_and_age_go_on_without_a_daemon(screen: Screen, daemon: Pushing) -> None:
    daemon.stop()
    screen.shows("out of touch")

    def age() -> int:
        """Of node a, in seconds; not every one of them is drawn."""
        return max((int(found) for found in re.findall(r"38% +(\d+)s", screen.text)), default=0)

    wait_until(lambda: age() >= 2, PATIENCE_S, "it grows, though no snapshot has come")
    assert "14:27:52" not in screen.look()[0]


def test_the_log_comes_back_with_the_daemon(screen: Screen, daemon: Pushing) -> None:
    told = ["before"]

    def logs(request: m.Logs, connection: object) -> None:
        connection.say(m.LogLines((s.line(f"told {told[-1]}"),)))  # type: ignore[attr-defined]
        connection.link.recv(1)  # type: ignore[attr-defined]

    daemon.does(m.Logs, logs)
    screen.types("l")
    screen.hides("─ log")
    screen.types("l")
    screen.shows("told before")
    daemon.stop()
    screen.shows("out of touch")
    told.append("after")
    daemon.start()
    screen.shows("told after")
    assert "told before" not in screen.text


def test_no_daemon_is_a_sentence_and_no_screen(daemon: Pushing, tmp_path: Path) -> None:
    daemon.stop()
    with Screen(daemon.home, tmp_path) as screen:
        assert screen.ended() == 4
        assert "no daemon answers on" in screen.text
        assert b"\x1b" not in screen.raw


def test_a_daemon_that_refuses_is_a_sentence_too(daemon: Pushing, tmp_path: Path) -> None:
    daemon.answers(m.WatchSnapshots, m.Refusal(5, "you may not look"))
    with Screen(daemon.home, tmp_path) as screen:
        assert screen.ended() == 5
        assert "you may not look" in screen.text
        assert screen.restored


# ---- every way out


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGQUIT, 131)],
)
def test_a_signal_ends_it_and_gives_the_terminal_back(
    screen: Screen, number: signal.Signals, code: int
) -> None:
    os.kill(screen.pid, number)
    assert screen.ended() == code
    assert screen.restored


def test_ctrl_c_ends_it(screen: Screen) -> None:
    screen.types("\x03")
    assert screen.ended() == 130
    assert screen.restored


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(screen: Screen) -> None:
    for _ in range(2):
        screen.types("\x1a")
        wait_until(lambda: screen.state() == "T", PATIENCE_S, "it is stopped")
        wait_until(lambda: screen.restored, PATIENCE_S, "its last words are here")
        os.kill(screen.pid, signal.SIGCONT)
        wait_until(lambda: screen.taken, PATIENCE_S, "it has the terminal again")
        wait_until(lambda: not screen.restored, PATIENCE_S, "it draws again")
    screen.types("?")
    screen.shows("any other key closes")
    screen.types("qq")
    assert screen.ended() == 0
    assert screen.restored


def test_a_stop_that_cannot_be_heard_is_mended_when_it_goes_on(screen: Screen) -> None:
    os.kill(screen.pid, signal.SIGSTOP)
    wait_until(lambda: screen.state() == "T", PATIENCE_S, "it is stopped")
    screen.look()
    drawn = screen.raw.count(b"\x1b[?1049h")
    os.kill(screen.pid, signal.SIGCONT)
    wait_until(
        lambda: bool(screen.look()) and screen.raw.count(b"\x1b[?1049h") > drawn,
        PATIENCE_S,
        "it takes the terminal again",
    )
    screen.types("q")
    assert screen.ended() == 0
    assert screen.restored


def test_killed_while_it_is_stopped_it_touches_nothing(screen: Screen) -> None:
    screen.types("\x1a")
    wait_until(lambda: screen.state() == "T", PATIENCE_S, "it is stopped")
    os.kill(screen.pid, signal.SIGTERM)
    os.kill(screen.pid, signal.SIGCONT)
    assert screen.ended() == 143
    assert screen.restored


def test_a_terminal_that_takes_nothing_does_not_keep_it(screen: Screen) -> None:
    screen.types("\x13")  # Ctrl-S
    os.kill(screen.pid, signal.SIGTERM)
    assert screen.ended() == 143
    assert termios.tcgetattr(screen.theirs) == screen.before


def test_a_closed_terminal_ends_it(daemon: Pushing, tmp_path: Path) -> None:
    with Screen(daemon.home, tmp_path) as screen:
        screen.shows("total")
        os.close(screen.theirs)
        os.close(screen.ours)
        wait_until(lambda: screen._session.poll() is not None, PATIENCE_S, "it ends")
        assert screen._session.returncode == 129


BROKEN = """
import sys
from wiiiiided.ui.top import loop
def broken(*_):
    raise ZeroDivisionError("drawn by nobody")
loop.view = broken
from wiiiiided.ui.cli.main import main
sys.exit(main(["top"]))
"""


def test_a_bug_gives_the_terminal_back_and_says_so(daemon: Pushing, tmp_path: Path) -> None:
    with Screen(daemon.home, tmp_path, program=("-c", BROKEN)) as screen:
        assert screen.ended() == 1
        assert screen.restored
        assert "ZeroDivisionError: drawn by nobody" in screen.text
