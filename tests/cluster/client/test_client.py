"""The client against a daemon that behaves, refuses, stalls, vanishes and comes back."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.conditions import wait_until
from tests.kit.fake_daemon import FakeConnection, FakeDaemon, ended, line, status, view
from wiiiiided import __version__
from wiiiiided.cluster import client as package
from wiiiiided.cluster.archive.pack import Packed
from wiiiiided.cluster.client import (
    Client,
    DaemonLost,
    DaemonRefused,
    NoDaemon,
    NotAllowed,
    TimedOut,
    VersionMismatch,
    follow_job,
)
from wiiiiided.cluster.client import (
    client as client_module,
)
from wiiiiided.cluster.client.connection import ANSWER_S, PATIENT_S, Connection
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.framing import BLOB, frame
from wiiiiided.config import Paths
from wiiiiided.domain.spec import JobSpec, Run

SPEC = JobSpec("digits", Run(("python", "train.py")))


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon() as fake:
        yield fake


@pytest.fixture
def heard() -> list[str]:
    return []


@pytest.fixture
def client(daemon: FakeDaemon, heard: list[str]) -> Client:
    return Client(daemon.paths, heard.append)


@pytest.fixture
def archive(tmp_path: Path) -> Packed:
    (tmp_path / "tar").write_bytes(os.urandom(700_000))
    return Packed(str(tmp_path / "tar"), "ab" * 32, 700_000, 3, ())


# ---- one question, one answer


@pytest.mark.parametrize(
    ("method", "arguments", "request_", "answer", "result"),
    [
        ("jobs", (), m.ListJobs(0), m.JobList((view(),)), m.JobList((view(),))),
        ("jobs", (5,), m.ListJobs(5), m.JobList(()), m.JobList(())),
        ("history", (7,), m.ListHistory(7), m.JobList((ended(),)), (ended(),)),
        ("why", (17,), m.Why(17), m.JobReason(17, "queued", "x"), m.JobReason(17, "queued", "x")),
        ("requeue", (17,), m.Requeue(17), view(), view()),
        ("hold", (17,), m.Hold(17), view(), view()),
        ("release", (17,), m.Release(17), view(), view()),
        ("status", (), m.GetStatus(), status(), status()),
        (
            "stacks",
            (17,),
            m.Stacks(17),
            m.StackDumps((m.StackDump(0, 5, "x"),)),
            (m.StackDump(0, 5, "x"),),
        ),
    ],
)
def test_a_question_gets_its_answer(
    daemon: FakeDaemon,
    client: Client,
    method: str,
    arguments: tuple[int, ...],
    request_: m.Request,
    answer: m.Answer,
    result: object,
) -> None:
    daemon.answers(type(request_), answer)
    assert getattr(client, method)(*arguments) == result
    assert daemon.requests == [request_]


def test_a_refusal_carries_the_daemons_code_and_words(daemon: FakeDaemon, client: Client) -> None:
    daemon.answers(m.Show, m.Refusal(6, "there is no job 3", "look with ps"))
    with pytest.raises(DaemonRefused, match="there is no job 3") as caught:
        client.show(3)
    assert (caught.value.code, caught.value.hint) == (6, "look with ps")


def test_an_answer_to_another_question_is_no_answer(daemon: FakeDaemon, client: Client) -> None:
    daemon.answers(m.Show, m.JobList(()))
    with pytest.raises(VersionMismatch, match="no wiiiiided that wiiiiide"):
        client.show(3)


# ---- no daemon


def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(NoDaemon, match=f"no daemon answers on {tmp_path}/wiiiiided.sock") as caught:
        Client(Paths.private(str(tmp_path))).status()
    assert (caught.value.code, caught.value.hint) == (
        4,
        f"start it: WIIIIIDE_HOME={tmp_path} wiiiiided",
    )


def test_the_machines_daemon_and_ones_own_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WIIIIIDE_HOME", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    paths = Paths("system", tmp_path / "machine.sock", tmp_path, tmp_path, tmp_path)
    with pytest.raises(NoDaemon) as caught:
        Client(paths).status()
    assert str(tmp_path / "machine.sock") in str(caught.value)
    assert str(tmp_path / "wiiiiide" / "wiiiiided.sock") in str(caught.value)
    assert "systemctl start wiiiiided" in caught.value.hint


def test_a_socket_that_a_killed_daemon_left_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    with pytest.raises(NoDaemon, match="the one that made it is gone") as caught:
        Client(Paths("user", path, tmp_path, tmp_path, tmp_path)).status()
    assert f"to use the machine's, remove {path}" in caught.value.hint


@pytest.mark.parametrize("mode", ["system", "user"])
def test_a_socket_of_others_says_how_to_join_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    class Closed(socket.socket):
        def connect(self, address: object) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "socket", Closed)
    with pytest.raises(NotAllowed) as caught:
        Client(Paths(mode, tmp_path / "s", tmp_path, tmp_path, tmp_path)).status()
    assert caught.value.code == 5
    if mode == "system":
        assert "group wiiiiide" in str(caught.value)
        assert "usermod -aG wiiiiide" in caught.value.hint
        assert "log out and in again" in caught.value.hint


# ---- another version


@pytest.mark.parametrize(
    ("protocol", "hint"), [(m.PROTOCOL - 1, "restart the daemon"), (m.PROTOCOL + 1, "install")]
)
def test_another_protocol_names_both_versions_and_what_to_do(
    daemon: FakeDaemon, client: Client, protocol: int, hint: str
) -> None:
    daemon.hello = m.Hello(protocol, "9.8.7")
    with pytest.raises(VersionMismatch, match=r"9\.8\.7") as caught:
        client.status()
    assert __version__ in str(caught.value)
    assert caught.value.hint.startswith(hint)
    assert caught.value.code == 4


@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 200 OK\r\n\r\n", frame(BLOB, b"x"), frame(b"J", b"{}"), frame(b"J", b"\xff")],
)
def test_what_is_no_daemon_is_noticed(daemon: FakeDaemon, client: Client, data: bytes) -> None:
    daemon.does(m.GetStatus, lambda _, link: link.link.sendall(data))
    daemon.hello = m.Hello(m.PROTOCOL, "")
    with pytest.raises(VersionMismatch):
        client.status()


# ---- a daemon that goes away


def test_a_daemon_that_goes_away_is_a_sentence(daemon: FakeDaemon, client: Client) -> None:
    daemon.answers(m.GetStatus)
    with pytest.raises(DaemonLost, match="went away in the middle of the request"):
        client.status()


def test_a_daemon_that_does_not_answer_is_not_waited_for_for_ever(
    daemon: FakeDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client._ask, "__defaults__", (0.1,))
    daemon.does(m.Why, lambda _, link: _until_gone(link))
    with pytest.raises(DaemonLost, match="has not answered for"):
        client.why(3)


def _until_gone(link: FakeConnection) -> None:
    with pytest.raises(EOFError):
        link.frame()


# ---- submit


def test_an_archive_is_sent_when_it_is_wanted(
    daemon: FakeDaemon, client: Client, archive: Packed
) -> None:
    got: list[bytes] = []

    def take(_: m.Submit, link: FakeConnection) -> None:
        link.say(m.SendArchive())
        got.append(link.blob())
        link.say(m.Submitted(17, "waits"))

    daemon.does(m.Submit, take)
    told: list[tuple[int, int]] = []
    answer = client.submit(SPEC, archive, {"KEY": "x"}, progress=lambda *sent: told.append(sent))
    assert answer == m.Submitted(17, "waits")
    assert got == [Path(archive.path).read_bytes()]
    (asked,) = daemon.asked(m.Submit)
    assert asked == m.Submit(SPEC, "ab" * 32, 700_000, {"KEY": "x"}, False, asked.nonce)
    assert len(asked.nonce) == 32
    assert told[-1] == (700_000, 700_000)


def test_an_archive_the_daemon_has_is_not_sent(
    daemon: FakeDaemon, client: Client, archive: Packed
) -> None:
    daemon.answers(m.Submit, m.Submitted(17, "waits"))
    assert client.submit(SPEC, archive, {}, hold=True).id == 17
    assert daemon.requests[0].hold  # type: ignore[union-attr]


def test_a_refusal_in_the_middle_of_an_archive_is_heard(
    daemon: FakeDaemon, client: Client, archive: Packed
) -> None:
    Path(archive.path).write_bytes(bytes(20 << 20))  # more than a socket holds

    def refuse(_: m.Submit, link: FakeConnection) -> None:
        link.say(m.SendArchive())
        link.frame()
        link.say(m.Refusal(1, "the disk is full"))

    daemon.does(m.Submit, refuse)
    with pytest.raises(DaemonRefused, match="the disk is full"):
        client.submit(SPEC, archive, {})


def test_a_daemon_lost_while_submitting_says_that_nothing_is_certain(
    daemon: FakeDaemon, client: Client, archive: Packed
) -> None:
    """It is an older one, and would queue the job again if it were told again."""
    daemon.answers(m.Submit, m.SendArchive())
    daemon.answers(m.FindSubmission, m.Refusal(2, "it does not understand the request"))
    with pytest.raises(DaemonLost) as caught:
        client.submit(SPEC, archive, {})
    assert "whether the job was queued is not known" in caught.value.hint
    assert len(daemon.asked(m.Submit)) == 1


def test_an_answer_that_is_lost_is_asked_for_again(
    daemon: FakeDaemon, client: Client, archive: Packed, heard: list[str]
) -> None:
    daemon.does(m.Submit, lambda _, link: daemon.restart())  # stored, and gone
    daemon.answers(m.FindSubmission, m.Submitted(17, "waits"))
    assert client.submit(SPEC, archive, {}) == m.Submitted(17, "waits")
    (submit,), (asked, *_) = daemon.asked(m.Submit), daemon.asked(m.FindSubmission)
    assert asked.nonce == submit.nonce
    assert heard[-1] == "the daemon is back"


def test_a_request_that_was_not_stored_is_said_again_with_its_nonce(
    daemon: FakeDaemon, client: Client, archive: Packed
) -> None:
    def second(_: m.Submit, link: FakeConnection) -> None:
        link.say(m.SendArchive())
        assert link.blob() == Path(archive.path).read_bytes()
        link.say(m.Submitted(17, "waits"))

    def first(_: m.Submit, link: FakeConnection) -> None:
        daemon.does(m.Submit, second)
        link.say(m.SendArchive())
        daemon.restart()

    daemon.does(m.Submit, first)
    daemon.answers(m.FindSubmission, m.Refusal(6, "no job was queued by that request"))
    assert client.submit(SPEC, archive, {"KEY": "x"}).id == 17
    one, other = daemon.asked(m.Submit)
    assert one == other


# ---- wait


def test_waiting_ends_when_the_job_is_over(daemon: FakeDaemon, client: Client) -> None:
    daemon.answers(m.Wait, view(state="queued"), view(), ended(), m.EndOfAnswers())
    assert [job.state for job in client.wait(17)] == ["queued", "running", "done"]


def test_waiting_outlives_a_restart(daemon: FakeDaemon, client: Client, heard: list[str]) -> None:
    _restarts_after(daemon, m.Wait, [view()], [ended(), m.EndOfAnswers()])
    assert [job.state for job in client.wait(17)] == ["running", "done"]
    assert heard == [
        "the daemon went away; jobs go on. Waiting up to 30 s for it",
        "the daemon is back",
    ]


def _restarts_after(daemon: FakeDaemon, kind: type, first: list[Any], then: list[Any]) -> None:
    """The daemon says `first`, is away for a moment, and says `then` when it is asked again."""

    def vanish(_: object, link: FakeConnection) -> None:
        link.say(*first)
        daemon.answers(kind, *then)
        daemon.restart()

    daemon.does(kind, vanish)


def test_a_daemon_that_does_not_come_back_is_given_up(
    daemon: FakeDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RETURN_S", 0.3)

    def vanish(_: object, link: FakeConnection) -> None:
        link.say(view())
        daemon.stop()

    daemon.does(m.Wait, vanish)
    with pytest.raises(NoDaemon):
        list(client.wait(17))


def test_a_daemon_that_was_never_there_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(NoDaemon):
        list(Client(Paths.private(str(tmp_path))).wait(17))


def test_a_deadline_ends_the_waiting(
    daemon: FakeDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stay(_: object, link: FakeConnection) -> None:
        link.say(view())
        _until_gone(link)

    daemon.does(m.Wait, stay)
    found = client.wait(17, timeout_s=3000.0)
    assert next(found).state == "running"
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 3600.0)
    with pytest.raises(TimedOut):
        next(found)


def test_a_deadline_also_ends_the_waiting_for_a_daemon(daemon: FakeDaemon, client: Client) -> None:
    def vanish(_: object, link: FakeConnection) -> None:
        link.say(view())
        daemon.stop()

    daemon.does(m.Wait, vanish)
    with pytest.raises(TimedOut):
        list(client.wait(17, timeout_s=0.3))


# ---- logs and follow


def test_lines_come_in_order(daemon: FakeDaemon, client: Client) -> None:
    lines = (line("a"), line("b", 1), line("c"))
    daemon.answers(m.Logs, m.LogLines(lines[:2]), m.LogLines(lines[2:]), m.EndOfAnswers())
    assert tuple(client.logs(17, (0, 1), tail=5, attempt=2)) == lines
    assert daemon.requests == [m.Logs(17, (0, 1), False, 5, 2)]


def test_following_gives_lines_and_changes(daemon: FakeDaemon, client: Client) -> None:
    daemon.answers(m.Wait, view(), ended(), m.EndOfAnswers())
    daemon.answers(m.Logs, m.LogLines((line("a"), line("b"))), m.EndOfAnswers())
    found = list(client.follow(17))
    assert [x.text for x in found if isinstance(x, m.LogLine)] == ["a", "b"]
    assert [x.state for x in found if isinstance(x, m.JobView)] == ["running", "done"]


def test_following_outlives_a_restart_without_repeating_a_line(
    daemon: FakeDaemon, client: Client
) -> None:
    """Lines with the same time, of two ranks, of two attempts: each is seen once."""
    first = [line("a", 0, 1.0), line("b", 0, 2.0), line("same", 0, 2.0), line("x", 1, 5.0)]
    rest = [line("same", 0, 2.0), line("c", 0, 3.0), line("y", 1, 6.0)]
    second = [line("again", 0, 0.5, attempt=2)]
    away = threading.Event()

    def states(_: object, link: FakeConnection) -> None:
        link.say(view())
        assert away.wait(30)
        daemon.answers(m.Wait, ended(), m.EndOfAnswers())
        daemon.restart()

    def lines(request: m.Logs, link: FakeConnection) -> None:
        if not away.is_set():
            link.say(m.LogLines(tuple(first)))
            _until_gone(link)
        elif request.attempt == 1:
            link.say(m.LogLines((*first, *rest)), m.EndOfAnswers())
        else:
            link.say(m.LogLines(tuple(second)), m.EndOfAnswers())

    daemon.does(m.Wait, states)
    daemon.does(m.Logs, lines)
    assert _followed(client.follow(17), len(first), away) == [*first, *rest, *second]


def _followed(
    items: Iterator[m.JobView | m.LogLine], seen: int, away: threading.Event
) -> list[m.LogLine]:
    """All lines; when so many have come, the daemon may go away."""
    found = []
    for item in items:
        if isinstance(item, m.LogLine):
            found.append(item)
            if len(found) == seen:
                away.set()
    return found


def test_after_a_restart_the_same_attempt_is_not_shown_twice(
    daemon: FakeDaemon, client: Client
) -> None:
    away = threading.Event()

    def states(_: object, link: FakeConnection) -> None:
        link.say(view())
        assert away.wait(30)
        daemon.answers(m.Wait, ended(), m.EndOfAnswers())
        daemon.restart()

    def lines(request: m.Logs, link: FakeConnection) -> None:
        everything = (line("a", 0, 1.0), line("b", 0, 2.0), line("c", 0, 3.0))
        if not away.is_set():
            assert request.tail == 2
            link.say(m.LogLines(everything[:2]))
            _until_gone(link)
        else:
            assert request.tail is None
            link.say(m.LogLines(everything), m.EndOfAnswers())

    daemon.does(m.Wait, states)
    daemon.does(m.Logs, lines)
    found = _followed(client.follow(17, tail=2), 2, away)
    assert [line.text for line in found] == ["a", "b", "c"]


def test_a_log_that_does_not_end_does_not_hold_up_the_end(
    daemon: FakeDaemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_job, "LINGER_S", 0.2)
    daemon.answers(m.Wait, ended(), m.EndOfAnswers())
    daemon.does(m.Logs, lambda _, link: _until_gone(link))
    assert [x.state for x in client.follow(17) if isinstance(x, m.JobView)] == ["done"]


# ---- cancel


def test_cancelling_returns_the_job_as_it_ended(daemon: FakeDaemon, client: Client) -> None:
    daemon.answers(m.Cancel, ended(state="cancelled", code=None))
    assert client.cancel(17, now=True).state == "cancelled"
    assert daemon.asked(m.Cancel) == [m.Cancel(17, True)]


def test_cancelling_outlives_a_restart(daemon: FakeDaemon, client: Client) -> None:
    """The daemon had taken the request, and went away before the job was over."""
    over = m.JobDetail(ended(state="cancelled", code=None), {}, (), (), "")

    def vanish(_: object, link: FakeConnection) -> None:
        daemon.answers(m.Show, over)
        daemon.restart()

    daemon.does(m.Cancel, vanish)
    assert [job.state for job in client.cancel_all([17])] == ["cancelled"]  # type: ignore[union-attr]
    assert len(daemon.asked(m.Cancel)) == 1


def test_several_jobs_are_cancelled_together(daemon: FakeDaemon, client: Client) -> None:
    """Neither is answered before both were asked for."""
    both = threading.Event()

    def cancel(request: m.Cancel, link: FakeConnection) -> None:
        if request.id == 99:
            link.say(m.Refusal(6, "there is no job 99"))
            return
        wait_until(lambda: len(daemon.asked(m.Cancel)) == 3, 30, "three requests")
        both.set()
        link.say(ended(request.id, "cancelled", None))

    daemon.does(m.Cancel, cancel)
    first, no, second = client.cancel_all([17, 99, 18])
    assert (first.id, second.id) == (17, 18)  # type: ignore[union-attr]
    assert isinstance(no, DaemonRefused)


def test_a_job_is_cancelled_before_the_one_it_waits_for(daemon: FakeDaemon, client: Client) -> None:
    """Else it would be over, because of that one, when it is asked for."""
    over: set[int] = set()

    def cancel(request: m.Cancel, link: FakeConnection) -> None:
        if 3 in over:
            link.say(m.Refusal(1, f"job {request.id} is over already"))
            return
        over.add(request.id)
        link.say(ended(request.id, "cancelled", None))

    daemon.does(m.Cancel, cancel)
    answers = list(client.cancel_all([3, 5, 4]))
    assert [answer.id for answer in answers if isinstance(answer, m.JobView)] == [3, 5, 4]


# ---- pull


def test_a_blob_is_read_in_any_steps(daemon: FakeDaemon, client: Client) -> None:
    data = os.urandom(200_000)

    def send(_: object, link: FakeConnection) -> None:
        link.send_blob(data)
        link.say(m.EndOfAnswers())

    daemon.does(m.Pull, send)
    with client.pull(17, ("runs/**",)) as blob:
        assert blob.read(7) == data[:7]
        rest = b""
        while piece := blob.read(50_000):
            rest += piece
    assert rest == data[7:]
    assert daemon.requests == [m.Pull(17, ("runs/**",))]


def test_what_the_daemon_says_before_it_answers_is_shown_and_is_no_answer(
    daemon: FakeDaemon,
) -> None:
    def tell(request: m.Request, client: FakeConnection) -> None:
        client.say(m.Notice("waiting up to 4 s for the coordinator a"))
        if isinstance(request, m.ListJobs):
            client.say(m.JobList(()))
        else:
            client.send_blob(b"tar")
            client.say(m.EndOfAnswers())

    for kind in (m.ListJobs, m.Pull):
        daemon.does(kind, tell)
    said: list[str] = []
    client = Client(daemon.paths, said.append)
    assert client.jobs().jobs == ()
    with client.pull(17) as blob:
        assert blob.read(10) == b"tar"
        assert blob.read(10) == b""
    assert said == ["waiting up to 4 s for the coordinator a"] * 2
    assert Client(daemon.paths).jobs().jobs == ()


def test_a_refused_pull_is_raised_before_anything_is_read(
    daemon: FakeDaemon, client: Client
) -> None:
    daemon.answers(m.Pull, m.Refusal(6, "there is no job 17"))
    with pytest.raises(DaemonRefused):
        client.pull(17)


def test_a_refusal_behind_the_blob_is_raised(daemon: FakeDaemon, client: Client) -> None:
    def send(_: object, link: FakeConnection) -> None:
        link.send_blob(b"half")
        link.say(m.Refusal(1, "a file could not be read"))

    daemon.does(m.Pull, send)
    with client.pull(17) as blob:
        assert blob.read(100) == b"half"
        with pytest.raises(DaemonRefused, match="a file could not be read"):
            blob.read(100)


def test_no_descriptor_is_left(daemon: FakeDaemon, client: Client, archive: Packed) -> None:
    daemon.answers(m.GetStatus, m.Refusal(1, "no"))
    daemon.answers(m.Pull, m.Refusal(1, "no"))
    daemon.answers(m.Submit, m.SendArchive())
    for _ in range(2):
        before = len(os.listdir("/proc/self/fd"))
        for ask in (
            client.status,
            lambda: client.pull(1),
            lambda: client.submit(SPEC, archive, {}),
        ):
            with pytest.raises(package.ClientError):
                ask()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, 30, "all closed")


def test_a_plain_question_has_less_patience_than_what_takes_work() -> None:
    """A person sits before it; a daemon that unpacks or reads logs is not stuck yet."""
    assert Client._ask.__defaults__ == (ANSWER_S,)
    assert ANSWER_S <= 10.0 < PATIENT_S


def test_a_daemon_that_does_not_even_greet_is_given_up() -> None:
    """As one that was stopped: its socket takes callers all the same."""
    ours, theirs = socket.socketpair()
    with (
        theirs,
        Connection(ours, 0.1) as client,
        pytest.raises(DaemonLost, match="has not answered for"),
    ):
        client.begin(m.GetStatus())
