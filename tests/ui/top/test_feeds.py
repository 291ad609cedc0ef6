"""Snapshots and log lines from a daemon that is slow, silent, or gone; with a clock of our own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from tests.kit.conditions import wait_until
from tests.kit.fake_daemon import FakeConnection, FakeDaemon
from tests.ui.top import snapshots as s
from wiiiiided.cluster.client import Client, ClientError, DaemonRefused
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.framing import MESSAGE, frame
from wiiiiided.ui.top import log_feed, snapshot_feed
from wiiiiided.ui.top.background import AT_ONCE, BackgroundRequests
from wiiiiided.ui.top.log_feed import LogFeed
from wiiiiided.ui.top.snapshot_feed import SnapshotFeed
from wiiiiided.ui.top.ui import Gone

PATIENCE_S = 30.0


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon() as made:
        yield made


@pytest.fixture
def requests() -> Iterator[BackgroundRequests]:
    """As a loop has them: with a pipe, and closed before it. A result is there before its byte."""
    reads, writes = os.pipe2(os.O_NONBLOCK)
    made = BackgroundRequests(writes)
    yield made
    made.close()
    os.close(reads)
    os.close(writes)


def _watch(daemon: FakeDaemon, requests: BackgroundRequests) -> SnapshotFeed:
    client = Client(daemon.paths)
    return SnapshotFeed(client, requests, client.watching(1.0), 1.0, now=0.0)


def _until_read(feed: SnapshotFeed, now: float) -> m.Snapshot:
    found: list[m.Snapshot] = []

    def read() -> bool:
        found.extend(each for each in [feed.read(now)] if each)
        return bool(found)

    wait_until(read, PATIENCE_S, "a snapshot comes")
    return found[0]


def _done(requests: BackgroundRequests, name: str) -> object:
    found: list[object] = []

    def one() -> bool:
        found.extend(each.result for each in requests.done() if each.name == name)
        return bool(found)

    wait_until(one, PATIENCE_S, f"{name} is done")
    return found[0]


def _idle(requests: BackgroundRequests, name: str) -> bool:
    """Whether none of this name is under way: one can begin."""
    return requests.run(name, lambda: None) and _done(requests, name) is None


def test_half_a_frame_is_waited_for_without_waiting(
    daemon: FakeDaemon, requests: BackgroundRequests
) -> None:
    rest = threading.Event()

    def push(request: m.WatchSnapshots, connection: FakeConnection) -> None:
        whole = frame(MESSAGE, m.encode(s.many(200)))
        connection.link.sendall(whole[:1000])
        assert rest.wait(PATIENCE_S)
        connection.link.sendall(whole[1000:])
        connection.link.recv(1)

    daemon.does(m.WatchSnapshots, push)
    with contextlib.closing(_watch(daemon, requests)) as feed:
        for _ in range(3):
            assert feed.read(1.0) is None
        rest.set()
        assert len(_until_read(feed, 2.0).nodes) == 200


def test_a_silent_daemon_is_gone_and_may_speak_again(
    daemon: FakeDaemon, requests: BackgroundRequests
) -> None:
    speak = threading.Event()

    def push(request: m.WatchSnapshots, connection: FakeConnection) -> None:
        connection.say(s.three())
        assert speak.wait(PATIENCE_S)
        connection.say(s.three())
        connection.link.recv(1)

    daemon.does(m.WatchSnapshots, push)
    with contextlib.closing(_watch(daemon, requests)) as feed:
        _until_read(feed, 10.0)
        assert feed.gone(14.9) is None
        assert feed.gone(17.0) == Gone("the daemon has said nothing for 7 s")
        speak.set()
        _until_read(feed, 18.0)
        assert feed.gone(18.5) is None


def test_a_silent_coordinator_is_named_and_not_the_daemon(
    daemon: FakeDaemon, requests: BackgroundRequests
) -> None:
    speak = threading.Event()
    text = "the coordinator a (10.0.0.1:9461) has said nothing for 4 s"

    def push(request: m.WatchSnapshots, connection: FakeConnection) -> None:
        connection.say(s.three())
        connection.say(m.Notice(text))
        assert speak.wait(PATIENCE_S)
        connection.say(s.three())
        with contextlib.suppress(EOFError):
            connection.frame()

    daemon.does(m.WatchSnapshots, push)
    feed = _watch(daemon, requests)
    _until_read(feed, now=1.0)
    wait_until(lambda: feed.read(2.0) or feed.gone(2.0) == Gone(text), PATIENCE_S, "it says so")
    assert feed.gone(60.0) == Gone(text)
    speak.set()
    _until_read(feed, now=61.0)
    assert feed.gone(61.0) is None
    feed.close()


def test_pauses_between_tries_grow_and_end_with_the_return(
    daemon: FakeDaemon, requests: BackgroundRequests
) -> None:
    daemon.answers(m.WatchSnapshots, s.three())  # and the connection ends
    with contextlib.closing(_watch(daemon, requests)) as feed:
        _until_read(feed, 0.0)
        wait_until(lambda: feed.read(0.0) is None and feed.connection is None, PATIENCE_S, "gone")
        daemon.stop()
        now = 0.0
        for pause in (1.0, 2.0, 5.0, 5.0):
            gone = feed.gone(now)
            assert gone is not None
            assert gone.retry_s == pause
            feed.tick(now + pause - 0.1, 1.0)
            assert _idle(requests, snapshot_feed.REQUEST)
            now += pause
            feed.tick(now, 1.0)
            result = _done(requests, snapshot_feed.REQUEST)
            assert isinstance(result, ClientError)
            feed.opened(result, now)
        daemon.start()
        feed.tick(now + 5.0, 1.0)
        feed.opened(_done(requests, snapshot_feed.REQUEST), now + 5.0)
        assert feed.gone(now + 5.0) == Gone(str(result))  # until something comes: that is old
        _until_read(feed, now + 5.0)
        assert feed.gone(now + 5.0) is None


def test_a_first_refusal_is_raised(daemon: FakeDaemon, requests: BackgroundRequests) -> None:
    daemon.answers(m.WatchSnapshots, m.Refusal(5, "no"))
    with contextlib.closing(_watch(daemon, requests)) as feed, pytest.raises(DaemonRefused):
        _until_read(feed, 0.0)


def test_lines_of_a_job_that_is_not_selected_any_more_are_not_shown(
    daemon: FakeDaemon, requests: BackgroundRequests
) -> None:
    def logs(request: m.Logs, connection: FakeConnection) -> None:
        connection.say(m.LogLines((s.line(f"of {request.id}"),)))
        connection.link.recv(1)

    daemon.does(m.Logs, logs)
    with contextlib.closing(LogFeed(Client(daemon.paths), requests)) as pane:
        pane.want(17)
        pane.want(18)  # before the first connection is there
        pane.opened(_done(requests, log_feed.REQUEST))
        pane.want(18)
        pane.opened(_done(requests, log_feed.REQUEST))
        wait_until(lambda: pane.read() > 0, PATIENCE_S, "a line comes")
        view = pane.view()
        assert view is not None
        assert (view.job, [line.text for line in view.lines]) == (18, ["of 18"])
        pane.want(None)
        assert pane.view() is None
        assert pane.connection is None


def test_a_log_keeps_its_newest_lines_and_says_when_it_is_over(
    daemon: FakeDaemon, requests: BackgroundRequests
) -> None:
    many = tuple(s.line(str(number)) for number in range(log_feed.LINES + 5))
    daemon.answers(m.Logs, m.LogLines(many), m.EndOfAnswers())
    with contextlib.closing(LogFeed(Client(daemon.paths), requests)) as pane:
        pane.want(17)
        pane.opened(_done(requests, log_feed.REQUEST))
        wait_until(lambda: pane.read() >= 0 and pane.connection is None, PATIENCE_S, "it is over")
        view = pane.view()
        assert view is not None
        assert (len(view.lines), view.lines[-1].text) == (log_feed.LINES, str(log_feed.LINES + 4))
        assert view.note == log_feed.OVER
        pane.again()
        pane.want(17)
        assert _idle(requests, log_feed.REQUEST)  # what is over is not asked for again


def test_lines_of_several_machines_are_in_the_order_of_time() -> None:
    def told(at: float, rank: int, text: str, attempt: int = 1) -> m.LogLine:
        return m.LogLine(at, rank, "out", text, attempt, "ab"[rank % 2])

    lines = log_feed.merged([], (told(1.0, 0, "a1"), told(3.0, 0, "a3"), told(5.0, 0, "a5")))
    lines = log_feed.merged(lines, (told(2.0, 1, "b2"), told(4.0, 1, "b4"), told(6.0, 1, "b6")))
    assert [line.text for _, line in lines] == ["a1", "b2", "a3", "b4", "a5", "b6"]
    lines = log_feed.merged(lines, (told(0.5, 1, "set back"), told(7.0, 0, "a7")))
    assert [line.text for _, line in lines][-3:] == ["b6", "set back", "a7"]
    lines = log_feed.merged(lines, (told(0.1, 0, "again", attempt=2),))
    assert lines[-1][1].text == "again"
    many = log_feed.merged(
        lines, tuple(told(10.0 + n, 0, str(n), 2) for n in range(log_feed.LINES))
    )
    assert len(many) == log_feed.LINES


def test_a_log_that_is_refused_says_why(daemon: FakeDaemon, requests: BackgroundRequests) -> None:
    daemon.answers(m.Logs, m.Refusal(6, "there is no job 17"))
    with contextlib.closing(LogFeed(Client(daemon.paths), requests)) as pane:
        pane.want(17)
        pane.opened(_done(requests, log_feed.REQUEST))
        wait_until(lambda: pane.read() == 0 and pane.connection is None, PATIENCE_S, "refused")
        view = pane.view()
        assert view is not None
        assert view.note == "there is no job 17"


def test_requests_of_one_name_are_one_and_all_are_bounded(requests: BackgroundRequests) -> None:
    go = threading.Event()

    def request() -> bool:
        return go.wait(PATIENCE_S)

    assert requests.run("a", request)
    assert not requests.run("a", request)
    assert all(requests.run(str(number), request) for number in range(AT_ONCE - 1))
    assert not requests.run("one more", request)
    go.set()
    assert _done(requests, "a") is True
    wait_until(lambda: not requests.done() and _idle(requests, "0"), PATIENCE_S, "all done")


def test_a_request_that_ends_too_late_writes_to_no_pipe() -> None:
    reads, writes = os.pipe2(os.O_NONBLOCK)
    requests, go = BackgroundRequests(writes), threading.Event()
    requests.run("late", lambda: go.wait(PATIENCE_S))
    requests.close()
    go.set()
    _done(requests, "late")
    os.close(writes)
    assert os.read(reads, 1) == b""
    os.close(reads)


def test_a_bug_in_a_request_is_a_sentence(requests: BackgroundRequests) -> None:
    requests.run("a", lambda: 1 // 0)
    result = _done(requests, "a")
    assert isinstance(result, ClientError)
    assert "ZeroDivisionError" in str(result)
