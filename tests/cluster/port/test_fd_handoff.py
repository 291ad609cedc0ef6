"""Passing connections to a job's processes: what is an endpoint, and which process gets them."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.leaks import open_descriptors
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.port import fd_handoff as module
from wiiiiided.cluster.port.fd_handoff import EndpointBusy, FdHandoff, NoEndpoint

KEY, UID = bytes(range(32)), "0123456789abcdef"
WITHIN_S = 20.0


class Listener:
    """A process at an endpoint: takes one byte with a descriptor, answers, and keeps both."""

    def __init__(self, path: Path, answer: bytes = b"", accepts: int = 1) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.bind(str(path))
        self.sock.listen(max(8, accepts))
        self.sock.settimeout(WITHIN_S)
        self.said: list[bytes] = []
        self.taken: list[socket.socket] = []
        self._answer, self._accepts = answer, accepts
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for _ in range(self._accepts):
            link, _ = self.sock.accept()
            with link:
                link.settimeout(WITHIN_S)
                said, fds, _, _ = socket.recv_fds(link, 1, 4)
                self.said.append(said)
                self.taken += [socket.socket(fileno=fd) for fd in fds]
                if self._answer:
                    link.sendall(self._answer)

    def close_listening(self) -> None:
        """When all that it accepts have come."""
        self._thread.join()
        self.sock.close()

    def close(self) -> None:
        self.close_listening()
        for one in self.taken:
            one.close()


class AttemptRig:
    """Attempts' directories, their endpoints, and a connection to be passed on."""

    def __init__(self, root: Path) -> None:
        self.job_dirs = JobDirs(root, JobAccount.this())
        self.live: list[tuple[int, int]] = []
        self.handoff = FdHandoff(self.job_dirs, lambda: self.live)
        self.mine, self.theirs = socket.socketpair()
        self.mine.setblocking(False)
        self._listeners: list[Listener] = []

    def attempt(self, job: int, attempt: int = 1) -> Path:
        self.job_dirs.make(job, attempt)
        self.live.append((job, attempt))
        return self.job_dirs.attempt(job, attempt)

    def listener(self, path: Path, *args: Any) -> Listener:
        self._listeners.append(Listener(path, *args))
        return self._listeners[-1]

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self.mine.close()
        self.theirs.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AttemptRig]:
    monkeypatch.setattr(module, "ANSWER_S", WITHIN_S)  # a thread answers here
    before = set(open_descriptors())
    rig = AttemptRig(tmp_path)
    yield rig
    rig.close()
    # Fewer is no fault: what earlier tests left may have been collected meanwhile.
    assert not set(open_descriptors()) - before


def test_a_connection_passed_to_a_worker_is_the_workers(rig: AttemptRig) -> None:
    worker = rig.listener(rig.attempt(7) / f"door-{UID}")
    asyncio.run(rig.handoff.worker(7, 1, UID, rig.mine, lambda: b"come in"))
    rig.mine.close()  # the daemon's copy
    worker.close()
    assert worker.said == [b"W"]
    assert rig.theirs.recv(100) == b"come in"
    assert rig.theirs.recv(100) == b""  # the worker's copy was the last


def test_the_store_of_another_machine_is_passed_to_the_shim(rig: AttemptRig) -> None:
    shim = rig.listener(rig.attempt(7) / "door", b"+")
    asyncio.run(rig.handoff.store(7, 1, rig.mine))
    shim.close()
    assert shim.said == [b"R"]


def test_a_shim_without_the_store_is_no_endpoint(rig: AttemptRig) -> None:
    rig.listener(rig.attempt(7) / "door", b"-")
    with pytest.raises(NoEndpoint, match="keeps no store"):
        asyncio.run(rig.handoff.store(7, 1, rig.mine))


def test_a_local_client_is_offered_until_a_shim_takes_it_the_youngest_first(
    rig: AttemptRig,
) -> None:
    shims = {
        job: rig.listener(rig.attempt(job) / "door", b"+" if job == 8 else b"-") for job in (8, 9)
    }
    rig.attempt(10)  # it has no endpoint yet
    assert asyncio.run(rig.handoff.local_store(rig.mine)) is True
    for shim in shims.values():
        shim.close()
    assert [shim.said for shim in shims.values()] == [[b"L"], [b"L"]]


def test_an_older_attempts_shim_is_not_asked_when_a_younger_one_has_it(rig: AttemptRig) -> None:
    older = rig.attempt(3)
    rig.listener(rig.attempt(4) / "door", b"+")
    asked = socket.socket(socket.AF_UNIX)
    with asked:
        asked.bind(str(older / "door"))
        asked.listen(1)
        asked.setblocking(False)
        assert asyncio.run(rig.handoff.local_store(rig.mine)) is True
        with pytest.raises(BlockingIOError):
            asked.accept()


def test_a_client_of_no_job_is_not_taken(rig: AttemptRig) -> None:
    rig.listener(rig.attempt(8) / "door", b"-")
    assert asyncio.run(rig.handoff.local_store(rig.mine)) is False


def test_a_shim_that_does_not_answer_is_not_waited_for(
    rig: AttemptRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = rig.handoff._connect

    def connected(job: int, attempt: int, name: str) -> socket.socket:
        # Short for the one that never answers; the other one may take its time.
        monkeypatch.setattr(module, "ANSWER_S", 0.05 if job == 9 else WITHIN_S)
        return connect(job, attempt, name)

    monkeypatch.setattr(rig.handoff, "_connect", connected)
    stopped = socket.socket(socket.AF_UNIX)
    with stopped:
        stopped.bind(str(rig.attempt(9) / "door"))
        stopped.listen(8)
        rig.listener(rig.attempt(8) / "door", b"+")
        assert asyncio.run(rig.handoff.local_store(rig.mine)) is True


def no_file(path: Path) -> None:
    pass


def a_plain_file(path: Path) -> None:
    path.write_bytes(b"")


def nobody_behind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def a_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("what", [no_file, a_plain_file, nobody_behind, a_directory])
def test_what_is_no_endpoint_is_refused(rig: AttemptRig, what: Callable[[Path], None]) -> None:
    what(rig.attempt(7) / f"door-{UID}")
    said: list[bool] = []
    with pytest.raises(NoEndpoint):
        asyncio.run(rig.handoff.worker(7, 1, UID, rig.mine, lambda: bytes(said.append(True))))
    assert said == []  # the client has got no answer yet, and can be refused


def test_a_link_in_place_of_an_endpoint_is_not_followed(rig: AttemptRig) -> None:
    endpoint = rig.attempt(7) / f"door-{UID}"
    with socket.socket(socket.AF_UNIX) as elsewhere:
        elsewhere.bind(str(endpoint.with_name("elsewhere")))
        elsewhere.listen(1)
        elsewhere.setblocking(False)
        endpoint.symlink_to(endpoint.with_name("elsewhere"))
        with pytest.raises(NoEndpoint):
            asyncio.run(rig.handoff.worker(7, 1, UID, rig.mine))
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


def test_an_endpoint_of_another_user_is_refused(
    rig: AttemptRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = rig.attempt(7) / f"door-{UID}"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)
        monkeypatch.setattr(module.os, "getuid", lambda: 12345)
        rig.job_dirs.user = JobAccount("nobody", 12346, 12346, "/", other=False)
        with pytest.raises(NoEndpoint, match="no socket of the job's"):
            asyncio.run(rig.handoff.worker(7, 1, UID, rig.mine))


def test_an_endpoint_with_a_full_queue_is_busy_and_not_absent(rig: AttemptRig) -> None:
    path = rig.attempt(7) / f"door-{UID}"
    with socket.socket(socket.AF_UNIX) as worker:
        worker.bind(str(path))
        worker.listen(0)
        with (
            rig.handoff._connect(7, 1, path.name),
            pytest.raises(EndpointBusy, match="too many waiting"),
        ):
            asyncio.run(rig.handoff.worker(7, 1, UID, rig.mine))


def test_a_path_longer_than_a_sockets_may_be_is_no_problem(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    rig = AttemptRig(deep)
    handle = os.open(rig.attempt(7), os.O_PATH)
    worker = rig.listener(Path(f"/proc/self/fd/{handle}/door-{UID}"))
    os.close(handle)
    asyncio.run(rig.handoff.worker(7, 1, UID, rig.mine))
    rig.close()
    assert worker.said == [b"W"]


def test_the_key_is_that_of_a_live_attempt_and_no_other(rig: AttemptRig) -> None:
    rig.attempt(7)
    rig.job_dirs.write(7, 1, "key", KEY)
    assert rig.handoff.key(7, 1) == KEY
    assert rig.handoff.key(7, 2) is None
    assert rig.handoff.key(8, 1) is None
    assert rig.handoff.key(2**64 - 1, 2**32 - 1) is None
    rig.live.clear()  # it is over: its directory is still there
    assert rig.handoff.key(7, 1) is None


@pytest.mark.parametrize("data", [b"", KEY[:-1], KEY + b"!"])
def test_a_key_of_another_size_is_none(rig: AttemptRig, data: bytes) -> None:
    rig.attempt(7)
    rig.job_dirs.write(7, 1, "key", data)
    assert rig.handoff.key(7, 1) is None


def test_a_key_that_is_no_plain_file_is_none(rig: AttemptRig, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(KEY)
    (rig.attempt(7) / "key").symlink_to(secret)
    assert rig.handoff.key(7, 1) is None
    os.mkfifo(rig.attempt(8) / "key")
    assert rig.handoff.key(8, 1) is None
