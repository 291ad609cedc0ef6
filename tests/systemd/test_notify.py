"""What the daemon tells the service manager: heard by a socket in systemd's place."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.machines import BIN
from wiiiiided.cluster.client import Client
from wiiiiided.config import Paths

UNITS = Path(__file__).parents[2] / "systemd"
WATCHDOG_S = 0.2
DEADLINE_S = 30.0


class Manager:
    """Starts the daemon as systemd would, and listens."""

    def __init__(self, home: Path, address: str) -> None:
        self.home = home
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(DEADLINE_S)
        self.environment = {
            "PATH": os.defpath,
            "WIIIIIDE_HOME": str(home),
            "NOTIFY_SOCKET": address,
        }
        self.daemon: subprocess.Popen[str] | None = None

    def want_watchdog(self) -> None:
        """Not for every test: ten datagrams that are not read leave no room for another."""
        self.environment["WATCHDOG_USEC"] = str(int(WATCHDOG_S * 1e6))

    def start(self) -> subprocess.Popen[str]:
        self.daemon = subprocess.Popen(
            [BIN / "wiiiiided"], env=self.environment, stderr=subprocess.PIPE, text=True
        )
        return self.daemon

    def heard(self, start: str) -> str:
        """The next datagram that begins so; others before it are passed over."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            text = self.socket.recv(4096).decode()
            if text.startswith(start):
                return text
        raise AssertionError(f"no {start} within {DEADLINE_S:g} s")

    def everything(self) -> list[str]:
        """What has arrived and was not read yet."""
        self.socket.setblocking(False)
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.socket.recv(4096).decode())
        return found

    def close(self) -> None:
        if self.daemon is not None:
            if self.daemon.poll() is None:
                self.daemon.kill()
            self.daemon.communicate(timeout=DEADLINE_S)
        self.socket.close()


@pytest.fixture
def home() -> Iterator[Path]:
    path = tempfile.mkdtemp(prefix="w")  # short: a socket's path has 107 bytes
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture
def manager(home: Path) -> Iterator[Manager]:
    manager = Manager(home, str(home / "notify"))
    yield manager
    manager.close()


def test_ready_is_said_when_clients_are_answered(manager: Manager) -> None:
    daemon = manager.start()
    ready = manager.heard("READY=1")
    assert Client(Paths.private(str(manager.home))).status().pid == daemon.pid
    assert "\nSTATUS=" in ready
    assert "\n" not in ready.partition("STATUS=")[2]


def test_the_watchdog_is_fed_for_as_long_as_it_runs(manager: Manager) -> None:
    manager.want_watchdog()
    manager.start()
    manager.heard("READY=1")
    for _ in range(5):
        manager.heard("WATCHDOG=1")


PRIVATE = """
import asyncio, ctypes
from wiiiiided.cluster.daemon import main

def instead(work):
    work.close()
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE

asyncio.run = instead
raise SystemExit(main.main([]))
"""


def test_no_core_file_is_made_of_a_process_with_keys(home: Path) -> None:
    environment = {"PATH": os.defpath, "WIIIIIDE_HOME": str(home)}
    command = [sys.executable, "-c", PRIVATE]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "0\n"
    for unit in (UNITS / "wiiiiided.service", UNITS / "user" / "wiiiiided.service"):
        assert "\nLimitCORE=0:infinity\n" in unit.read_text()


def test_a_stopped_daemon_says_so_and_ends_well(manager: Manager) -> None:
    daemon = manager.start()
    manager.heard("READY=1")
    daemon.send_signal(signal.SIGTERM)
    assert "no job is running" in manager.heard("STOPPING=1")
    assert daemon.wait(timeout=DEADLINE_S) == 0


def test_a_broken_configuration_is_never_ready(manager: Manager) -> None:
    (manager.home / "wiiiiided.toml").write_text("[limits]\nkep = 3\n")
    daemon = manager.start()
    assert daemon.wait(timeout=DEADLINE_S) == 78
    heard = manager.everything()
    assert not [text for text in heard if "READY" in text]
    assert [text for text in heard if "limits.kep" in text]


def test_an_abstract_socket_is_heard_too(home: Path) -> None:
    manager = Manager(home, f"@wiiiiide-test-{os.getpid()}")
    try:
        manager.start()
        manager.heard("READY=1")
    finally:
        manager.close()


def test_a_watchdog_meant_for_another_process_is_left_alone(manager: Manager) -> None:
    manager.want_watchdog()
    manager.environment["WATCHDOG_PID"] = "1"
    daemon = manager.start()
    manager.heard("READY=1")
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(timeout=DEADLINE_S)
    assert "WATCHDOG=1" not in manager.everything()
