"""What systemd hears, and that no other process can speak in the service's name."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from wiiiiided.cluster.system import sd_notify
from wiiiiided.cluster.system.sd_notify import Notifier
from wiiiiided.config import Notification


def listener(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.settimeout(10)
    sock.bind(address)
    return sock


def test_the_datagrams_of_a_service(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with listener(path) as systemd:
        notifier = Notifier(Notification(path, 10.0))
        assert notifier.watchdog_s == 10.0
        notifier.ready("idle")
        notifier.status("idle")  # the same again is not sent
        notifier.status("2 running")
        notifier.watchdog()
        notifier.stopping("job 1\ngoes on")
        heard = [systemd.recv(4096).decode() for _ in range(4)]
        notifier.close()
    assert heard == [
        "READY=1\nSTATUS=idle",
        "STATUS=2 running",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=job 1 goes on",
    ]


def test_a_long_start_asks_for_more_time_until_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sd_notify, "EXTEND_EVERY_S", 0.01)
    path = str(tmp_path / "notify")
    with listener(path) as systemd:
        notifier = Notifier(Notification(path))
        notifier.starting()
        for _ in range(3):
            assert systemd.recv(4096) == b"EXTEND_TIMEOUT_USEC=60000000\nSTATUS=reading the state"
        drains = threading.Thread(target=hear, args=(systemd, b"READY=1"))
        drains.start()
        notifier.ready("idle")
        drains.join()
        notifier.status("2 running")
        assert systemd.recv(4096) == b"STATUS=2 running"  # and nothing in between
        notifier.close()


def test_one_that_never_is_ready_asks_no_more_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sd_notify, "EXTEND_EVERY_S", 600.0)
    with listener(str(tmp_path / "notify")):
        notifier = Notifier(Notification(str(tmp_path / "notify")))
        notifier.starting()
        notifier.close()  # at once


def test_an_abstract_address(tmp_path: Path) -> None:
    name = f"wiiiiide-test-{os.getpid()}"
    with listener("\0" + name) as systemd:
        notifier = Notifier(Notification("@" + name))
        notifier.ready("x")
        assert systemd.recv(100).startswith(b"READY=1")
        notifier.close()


def fill(address: str) -> None:
    """Leave no room for another datagram."""
    sent = 1
    while sent:  # each socket has room of its own, too
        sent = 0
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other,
            contextlib.suppress(BlockingIOError),
        ):
            while other.sendto(b"of another service", address):
                sent += 1


def hear(manager: socket.socket, start: bytes) -> bytes:
    """The next that begins so; others before it are passed over."""
    while not (heard := manager.recv(4096)).startswith(start):
        pass
    return heard


@pytest.mark.parametrize(("say", "start"), [("ready", b"READY=1"), ("stopping", b"STOPPING=1")])
def test_what_is_said_once_waits_for_a_manager_that_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, say: str, start: bytes
) -> None:
    monkeypatch.setattr(sd_notify, "WAIT_S", 60)
    path = str(tmp_path / "notify")
    heard: list[bytes] = []
    with listener(path) as systemd:
        notifier = Notifier(Notification(path))
        fill(path)
        reads = threading.Timer(0.2, lambda: heard.append(hear(systemd, start)))
        reads.start()
        getattr(notifier, say)("idle")
        reads.join()
        notifier.close()
    assert heard == [start + b"\nSTATUS=idle"]


def test_a_status_that_was_not_taken_is_said_again(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with listener(path) as systemd:
        notifier = Notifier(Notification(path))
        notifier.ready("idle")
        fill(path)
        notifier.status("2 running")
        notifier.watchdog()  # neither waits
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            hear(systemd, b"STATUS=")
        notifier.status("2 running")
        assert systemd.recv(4096) == b"STATUS=2 running"
        notifier.close()


def test_without_a_manager_nothing_happens_and_a_dead_one_is_no_error(tmp_path: Path) -> None:
    silent = Notifier(Notification("", 5.0))
    assert silent.watchdog_s == 0.0
    silent.ready("x")
    dead = Notifier(Notification(str(tmp_path / "nobody")))
    dead.ready("x")
    dead.close()


def test_the_variables_are_taken_away_from_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert Notification.take() == Notification("/run/x", 3.0)
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)


def test_a_watchdog_meant_for_another_process_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert Notification.take().watchdog_s == 0.0
