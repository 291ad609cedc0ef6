"""What systemd hears, and that nobody else can speak in the service's name."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from wiiiiided.config import Notification
from wiiiiided.daemon.notify import Notifier


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


def test_an_abstract_address(tmp_path: Path) -> None:
    name = f"wiiiiide-test-{os.getpid()}"
    with listener("\0" + name) as systemd:
        notifier = Notifier(Notification("@" + name))
        notifier.ready("x")
        assert systemd.recv(100).startswith(b"READY=1")
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
