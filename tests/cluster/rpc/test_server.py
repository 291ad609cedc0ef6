"""The daemon's socket: which users may do what, and what malformed bytes can do (nothing)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.connections import answers, pair, run, until
from tests.cluster.daemon.test_jobs import FOREVER
from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_daemon
from wiiiiided.cluster.client import DaemonRefused
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.cluster.rpc.server import RpcServer

STRANGER = 54321  # a uid that owns nothing here


@pytest.fixture(scope="module")
def daemon() -> Iterator[PrivateDaemon]:
    with private_daemon() as made:
        yield made


def connect(daemon: PrivateDaemon) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(60)
    link.connect(str(daemon.paths.socket))
    return link


def hello(protocol: int = m.PROTOCOL) -> bytes:
    return framing.frame(framing.MESSAGE, m.encode(m.Hello(protocol, "9.9")))


def all_of(link: socket.socket) -> bytes:
    data = b""
    while piece := link.recv(65536):
        data += piece
    return data


def test_a_private_socket_is_its_owners_alone(daemon: PrivateDaemon) -> None:
    mode = daemon.paths.socket.stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00" * 100,
        b"J\xff\xff\xff\xff",
        b"B\x00\x00\x00\x01x",
        b"J\x00\x00\x00\x02{}",
        os.urandom(4096),
    ],
)
def test_bytes_of_another_protocol_end_their_connection_only(
    daemon: PrivateDaemon, garbage: bytes
) -> None:
    with connect(daemon) as link:
        link.sendall(garbage)
        link.shutdown(socket.SHUT_WR)
        all_of(link)
    assert daemon.client.status().problem == ""


def test_a_request_it_does_not_know_is_refused_with_its_version(daemon: PrivateDaemon) -> None:
    with connect(daemon) as link:
        link.sendall(hello() + framing.frame(framing.MESSAGE, b'{"type": "Dance"}'))
        answer = all_of(link)
    assert b"does not understand the request" in answer
    assert b"Dance" in answer


@pytest.mark.parametrize(
    "spoiled", [b'{"type": "FindSubmission", "nonce": "\xff"}', b'{"more": ' + b"[" * 100_000]
)
def test_a_request_that_is_no_text_is_refused_and_leaves_no_line(
    daemon: PrivateDaemon, spoiled: bytes
) -> None:
    before = len(daemon.said())
    with connect(daemon) as link:
        link.sendall(hello() + framing.frame(framing.MESSAGE, spoiled))
        assert b"does not understand the request: JSON is malformed" in all_of(link)
    assert daemon.said()[before:] == ""


def test_another_protocol_number_hears_ours(daemon: PrivateDaemon) -> None:
    with connect(daemon) as link:
        link.sendall(hello(protocol=99) + framing.frame(framing.MESSAGE, b"{}"))
        (_, payload), *more = framing.Parser().feed(all_of(link))
    assert m.decode_hello(payload).protocol == m.PROTOCOL
    assert not more


def test_silent_connections_do_not_keep_others_out(daemon: PrivateDaemon) -> None:
    silent = [connect(daemon) for _ in range(200)]
    try:
        assert daemon.client.status().pid
    finally:
        for link in silent:
            link.close()


def test_a_silent_connection_is_ended(daemon: PrivateDaemon) -> None:
    began = time.monotonic()
    with connect(daemon) as link:
        assert all_of(link) == b""
    assert time.monotonic() - began < 50  # five times the ten seconds it is given


def test_a_client_that_goes_away_in_the_middle_of_an_upload_leaves_nothing(
    daemon: PrivateDaemon,
) -> None:
    spec = _spec()
    submit = m.Submit(spec, "ab" * 32, 1 << 20)
    with connect(daemon) as link:
        link.sendall(hello() + framing.frame(framing.MESSAGE, m.encode(submit)))
        link.recv(65536)
        link.sendall(framing.frame(framing.BLOB, b"x" * 1000))
    archives = daemon.paths.state / "archives"
    wait_until(lambda: not list(archives.glob(".*")), 30, "the half upload is gone")
    assert not [view for view in daemon.client.jobs().jobs if view.name == spec.name]


def test_an_archive_that_is_not_what_it_was_said_to_be_is_refused(daemon: PrivateDaemon) -> None:
    submit = m.Submit(_spec(), "cd" * 32, 1000)
    with connect(daemon) as link:
        link.sendall(hello() + framing.frame(framing.MESSAGE, m.encode(submit)))
        link.sendall(framing.frame(framing.BLOB, b"x" * 1000) + framing.frame(framing.BLOB_END))
        assert b"not the one that was announced" in all_of(link)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"policy": {"priority": 10**9}}, "priority"),
        ({"resources": {"workers_per_node": 10**6}}, "workers_per_node"),
        ({"name": "x\x1b[2J"}, "name"),
        ({"run": {"command": []}}, "command"),
        ({"run": {"command": ["a\0b"]}}, "impossible text"),
        ({"policy": {"grace_s": 1e300}}, "duration"),
        ({"resources": {"use": ["x" * 300_000]}}, "all its texts together; at most 262144 are"),
        ({"notify": {"command": ["x" * 200_000]}}, "notify.command is too long"),
    ],
)
def test_a_spec_that_no_job_file_could_give_is_refused(
    daemon: PrivateDaemon, change: dict[str, object], sentence: str
) -> None:
    import msgspec

    raw = {**msgspec.to_builtins(_spec()), **change}
    body = {"type": "Submit", "spec": raw, "archive": "ab" * 32, "archive_bytes": 1}
    with connect(daemon) as link:
        link.sendall(hello() + framing.frame(framing.MESSAGE, msgspec.json.encode(body)))
        answer = all_of(link).decode()
    assert '"code":3' in answer
    assert sentence in answer


@pytest.mark.needs("root")
def test_a_member_may_look_and_submit_and_change_only_what_is_theirs(
    daemon: PrivateDaemon,
) -> None:
    job = daemon.submit(FOREVER)
    daemon.wait_for(job, "running")
    daemon.paths.socket.chmod(0o666)  # as if the stranger were in the group
    daemon.home.chmod(0o711)
    found = as_stranger(lambda: try_everything(daemon, job))
    lines = found.splitlines()
    assert lines[0].startswith("running ")
    assert len(lines) == 5
    assert all(line.startswith("5 job") and "may not change it" in line for line in lines[1:])
    assert daemon.state(job) == "running"
    daemon.client.cancel(job, now=True)


def try_everything(daemon: PrivateDaemon, job: int) -> str:
    """What another user is told who looks at a job and then tries to change it."""
    client = daemon.client
    said = [f"{client.show(job).job.state} {len(client.jobs().jobs)}"]
    for change in (client.cancel, client.requeue, client.hold, client.release):
        try:
            change(job)
        except DaemonRefused as no:
            said.append(f"{no.code} {no}")
    return "\n".join(said)


def as_stranger(action: Callable[[], str]) -> str:
    """Do it as another user: in a fork, since that user may not read this interpreter."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            said = action()
        except BaseException as problem:
            said = f"{type(problem).__name__}: {problem}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.needs("root")  # to see the descriptors of a process that must not be traced
def test_the_daemon_listens_on_no_network(daemon: PrivateDaemon) -> None:
    job = daemon.submit(FOREVER, workers=2)
    daemon.wait_for(job, "running")
    assert daemon.process is not None
    inodes = _socket_inodes([daemon.process.pid, *daemon.processes()])
    listening = [address for address, inode in _listeners() if inode in inodes]
    assert all(address.startswith("0100007F:") for address in listening), listening
    daemon.client.cancel(job, now=True)


def _socket_inodes(pids: list[int]) -> set[str]:
    found = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(entry)
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def _listeners() -> list[tuple[str, str]]:
    """(local address, inode) of every listening TCP and every bound UDP socket."""
    found = []
    for table, state in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state:
                found.append((fields[1], fields[9]))
    return found


def test_an_answer_that_is_too_large_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(framing.LIMITS, framing.MESSAGE, 5000)

    async def much(connection: RpcConnection, request: m.Request) -> None:
        await connection.say(m.Refusal(1, "x" * 6000))

    async def scene() -> None:
        api = RpcServer(tmp_path / "socket", False, much)
        here, there = await pair()
        await here.say(m.ListJobs())
        await api.serve(there, Caller(1000, "eve", False, "b"))
        (no,) = await answers(here)
        assert no.message.startswith("the answer is too large: this would be a message of 5.9 KiB")

    run(scene())


def test_no_user_of_any_machine_can_take_all_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.rpc.server.PER_USER", 2)

    async def wait(connection: RpcConnection, request: m.Request) -> None:
        await asyncio.Event().wait()

    async def scene() -> None:
        api = RpcServer(tmp_path / "socket", False, wait)
        eve, others = Caller(1000, "eve", False, "b"), []
        for caller in (eve, eve, Caller(1000, "ada", False, "c")):
            here, there = await pair()
            await here.say(m.ListJobs())
            others.append((here, asyncio.ensure_future(api.serve(there, caller))))
        await until(lambda: len(api._open) == 3, "all are served")
        here, there = await pair()
        await api.serve(there, eve)
        (no,) = await answers(here)
        assert "eve has 2 requests under way" in no.message
        for here, serving in others:
            here.close()
            await serving
        assert not api._callers
        assert not api._open

    run(scene())


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_comes_while_it_closes_is_not_left_waiting(
    tmp_path: Path, turns: int
) -> None:
    """The loop is that many turns on with the connection when the socket closes. init, join and
    leave make another Api in the same process: nothing else would end that connection."""

    async def never(connection: RpcConnection, request: m.Request) -> None:
        raise AssertionError("nothing was asked")

    async def scene() -> None:
        api = RpcServer(tmp_path / "socket", False, never)
        await api.listen()
        with socket.socket(socket.AF_UNIX) as came:
            came.connect(str(tmp_path / "socket"))
            came.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
            await api.close()
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(came, 1) == b""

    run(scene())


def test_old_jobs_are_pruned_with_their_files() -> None:
    with private_daemon(start=False) as daemon:
        daemon.paths.config.write_text("[limits]\nkeep = 2\n")
        daemon.start()
        jobs = [daemon.submit(f"print({n})") for n in range(4)]
        daemon.end_of(jobs[-1])  # each has the whole node: the others are over, or gone already
        folders = daemon.paths.jobs

        def pruned() -> bool:
            return sorted(p.name for p in folders.iterdir()) == [str(n) for n in jobs[2:]]

        wait_until(pruned, 30, "the older two are gone")
        with pytest.raises(DaemonRefused, match="there is no job"):
            daemon.client.show(jobs[0])


def test_settings_are_read_again_on_sighup_and_a_mistake_changes_nothing() -> None:
    import signal

    with private_daemon() as daemon:
        assert daemon.process is not None
        daemon.paths.config.write_text("[limits]\nqueue = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "settings read again" in daemon.said(), 30, "it says so")
        daemon.submit("print(1)", hold=True)
        with pytest.raises(DaemonRefused, match="the queue is full"):
            daemon.submit("print(1)", hold=True)
        daemon.paths.config.write_text("queue = \n")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "stay as they were" in daemon.said(), 30, "it says so")
        with pytest.raises(DaemonRefused, match="the queue is full"):
            daemon.submit("print(1)", hold=True)


def test_a_broken_configuration_is_exit_code_78() -> None:
    with private_daemon(start=False) as daemon:
        daemon.paths.config.write_text("lgo = 1\n")
        daemon.start(wait=False)
        assert daemon.ended_by_itself() == 78
        assert "lgo: unknown" in daemon.said()
        assert "Traceback" not in daemon.said()


def _spec() -> object:
    from wiiiiided.domain.spec import JobSpec, Run

    return JobSpec("hostile", Run(("python", "-c", "")))


def test_files_of_a_job_that_is_forgotten_go_at_the_next_start() -> None:
    """Rows go first, so that no user can requeue a job whose files are being removed."""
    with private_daemon() as daemon:
        forgotten, job = daemon.submit("print(1)"), daemon.submit("print(2)")
        daemon.end_of(forgotten)
        daemon.end_of(job)
        daemon.stop()
        with contextlib.closing(sqlite3.connect(daemon.paths.state / "state.sqlite")) as store:
            store.execute("DELETE FROM jobs WHERE id = ?", (forgotten,))
            store.commit()
        daemon.start()
        gone = daemon.paths.jobs / str(forgotten)
        wait_until(lambda: not gone.exists(), 30, "it is gone")
        assert (daemon.paths.jobs / str(job)).exists()
