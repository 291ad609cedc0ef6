"""Passing connections to a job's processes: what may be a door, and who then has them."""

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
    """Somebody behind a door: takes one byte with a descriptor, answers, and keeps both."""

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


class House:
    """Attempts' directories, their doors, and a connection to be passed on."""

    def __init__(self, root: Path) -> None:
        self.runs = JobDirs(root, JobAccount.this())
        self.live: list[tuple[int, int]] = []
        self.handoff = FdHandoff(self.runs, lambda: self.live)
        self.mine, self.theirs = socket.socketpair()
        self.mine.setblocking(False)
        self._listeners: list[Listener] = []

    def attempt(self, job: int, attempt: int = 1) -> Path:
        self.runs.make(job, attempt)
        self.live.append((job, attempt))
        return self.runs.attempt(job, attempt)

    def listener(self, path: Path, *args: Any) -> Listener:
        self._listeners.append(Listener(path, *args))
        return self._listeners[-1]

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self.mine.close()
        self.theirs.close()


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(module, "ANSWER_S", WITHIN_S)  # who answers here is a thread
    before = set(open_descriptors())
    house = House(tmp_path)
    yield house
    house.close()
    # Fewer is no fault: what earlier tests left may have been collected meanwhile.
    assert not set(open_descriptors()) - before


def test_a_connection_passed_to_a_worker_is_the_workers(house: House) -> None:
    worker = house.listener(house.attempt(7) / f"door-{UID}")
    asyncio.run(house.handoff.worker(7, 1, UID, house.mine, lambda: b"come in"))
    house.mine.close()  # the daemon's copy
    worker.close()
    assert worker.said == [b"W"]
    assert house.theirs.recv(100) == b"come in"
    assert house.theirs.recv(100) == b""  # the worker's copy was the last


def test_the_store_of_another_machine_is_passed_to_the_shim(house: House) -> None:
    shim = house.listener(house.attempt(7) / "door", b"+")
    asyncio.run(house.handoff.store(7, 1, house.mine))
    shim.close()
    assert shim.said == [b"R"]


def test_a_shim_that_keeps_no_store_is_no_door(house: House) -> None:
    house.listener(house.attempt(7) / "door", b"-")
    with pytest.raises(NoEndpoint, match="keeps no store"):
        asyncio.run(house.handoff.store(7, 1, house.mine))


def test_a_local_client_is_offered_until_somebody_takes_it_the_youngest_first(
    house: House,
) -> None:
    shims = {
        job: house.listener(house.attempt(job) / "door", b"+" if job == 8 else b"-")
        for job in (8, 9)
    }
    house.attempt(10)  # it has no door yet
    assert asyncio.run(house.handoff.local_store(house.mine)) is True
    for shim in shims.values():
        shim.close()
    assert [shim.said for shim in shims.values()] == [[b"L"], [b"L"]]


def test_an_older_attempts_shim_is_not_asked_when_a_younger_one_has_it(house: House) -> None:
    older = house.attempt(3)
    house.listener(house.attempt(4) / "door", b"+")
    asked = socket.socket(socket.AF_UNIX)
    with asked:
        asked.bind(str(older / "door"))
        asked.listen(1)
        asked.setblocking(False)
        assert asyncio.run(house.handoff.local_store(house.mine)) is True
        with pytest.raises(BlockingIOError):
            asked.accept()


def test_a_client_of_nobody_is_not_taken(house: House) -> None:
    house.listener(house.attempt(8) / "door", b"-")
    assert asyncio.run(house.handoff.local_store(house.mine)) is False


def test_a_shim_that_does_not_answer_is_not_waited_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    knock = house.handoff._connect

    def knocked(job: int, attempt: int, name: str) -> socket.socket:
        # Short for the one that never answers; the other one may take its time.
        monkeypatch.setattr(module, "ANSWER_S", 0.05 if job == 9 else WITHIN_S)
        return knock(job, attempt, name)

    monkeypatch.setattr(house.handoff, "_connect", knocked)
    stopped = socket.socket(socket.AF_UNIX)
    with stopped:
        stopped.bind(str(house.attempt(9) / "door"))
        stopped.listen(8)
        house.listener(house.attempt(8) / "door", b"+")
        assert asyncio.run(house.handoff.local_store(house.mine)) is True


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
def test_what_is_no_door_is_none(house: House, what: Callable[[Path], None]) -> None:
    what(house.attempt(7) / f"door-{UID}")
    said: list[bool] = []
    with pytest.raises(NoEndpoint):
        asyncio.run(house.handoff.worker(7, 1, UID, house.mine, lambda: bytes(said.append(True))))
    assert said == []  # who knocks has heard nothing yet, and can be refused


def test_a_link_in_place_of_a_door_is_not_followed(house: House) -> None:
    door = house.attempt(7) / f"door-{UID}"
    with socket.socket(socket.AF_UNIX) as elsewhere:
        elsewhere.bind(str(door.with_name("elsewhere")))
        elsewhere.listen(1)
        elsewhere.setblocking(False)
        door.symlink_to(door.with_name("elsewhere"))
        with pytest.raises(NoEndpoint):
            asyncio.run(house.handoff.worker(7, 1, UID, house.mine))
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


def test_a_door_of_another_user_is_none(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    path = house.attempt(7) / f"door-{UID}"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)
        monkeypatch.setattr(module.os, "getuid", lambda: 12345)
        house.runs.user = JobAccount("nobody", 12346, 12346, "/", other=False)
        with pytest.raises(NoEndpoint, match="no socket of the job's"):
            asyncio.run(house.handoff.worker(7, 1, UID, house.mine))


def test_a_door_with_a_full_queue_is_busy_and_not_absent(house: House) -> None:
    path = house.attempt(7) / f"door-{UID}"
    with socket.socket(socket.AF_UNIX) as worker:
        worker.bind(str(path))
        worker.listen(0)
        with (
            house.handoff._connect(7, 1, path.name),
            pytest.raises(EndpointBusy, match="too many waiting"),
        ):
            asyncio.run(house.handoff.worker(7, 1, UID, house.mine))


def test_a_path_longer_than_a_sockets_may_be_is_no_problem(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    house = House(deep)
    handle = os.open(house.attempt(7), os.O_PATH)
    worker = house.listener(Path(f"/proc/self/fd/{handle}/door-{UID}"))
    os.close(handle)
    asyncio.run(house.handoff.worker(7, 1, UID, house.mine))
    house.close()
    assert worker.said == [b"W"]


def test_the_key_is_that_of_a_live_attempt_and_no_other(house: House) -> None:
    house.attempt(7)
    house.runs.write(7, 1, "key", KEY)
    assert house.handoff.key(7, 1) == KEY
    assert house.handoff.key(7, 2) is None
    assert house.handoff.key(8, 1) is None
    assert house.handoff.key(2**64 - 1, 2**32 - 1) is None
    house.live.clear()  # it is over: its directory is still there
    assert house.handoff.key(7, 1) is None


@pytest.mark.parametrize("data", [b"", KEY[:-1], KEY + b"!"])
def test_a_key_of_another_size_is_none(house: House, data: bytes) -> None:
    house.attempt(7)
    house.runs.write(7, 1, "key", data)
    assert house.handoff.key(7, 1) is None


def test_a_key_that_is_no_plain_file_is_none(house: House, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(KEY)
    (house.attempt(7) / "key").symlink_to(secret)
    assert house.handoff.key(7, 1) is None
    os.mkfifo(house.attempt(8) / "key")
    assert house.handoff.key(8, 1) is None
