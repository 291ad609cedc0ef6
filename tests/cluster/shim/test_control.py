"""The shim's socket: which users may connect, its lines, and that none can hold the shim up."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.shims import PATIENCE_S, Attempt, Listener
from wiiiiided.cluster.shim import control, protocol


def connect(attempt: Attempt) -> socket.socket:
    """A connection without any manners."""
    link = socket.socket(socket.AF_UNIX)
    folder = os.open(attempt.path, os.O_RDONLY)
    link.connect(f"/proc/self/fd/{folder}/{attempt.claim().socket}")
    os.close(folder)
    link.settimeout(PATIENCE_S)
    return link


def stop(attempt: Attempt, listener: Listener) -> None:
    listener.send(do="stop", grace_s=0, reason="seen enough")
    assert attempt.end().stopped == "seen enough"


def heard_listener(attempt: Attempt) -> Listener:
    """One that was not turned away, as those are that come before others have quite left."""
    found: list[Listener] = []

    def there() -> bool:
        found.append(attempt.listen())
        return found[-1].next() is not None

    wait_until(there, PATIENCE_S, "there is room for a listener")
    return found[-1]


def test_the_status_is_said_at_once_and_at_every_change(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    program = "while [ ! -e go-$RANK ]; do sleep 0.01; done; exit $RANK"
    with Attempt(tmp_path, ["sh", "-c", program], workers=2) as attempt:
        attempt.start()
        listener = attempt.listen()
        first = listener.next()
        assert first is not None
        assert (first["event"], first["format"]) == ("status", protocol.FORMAT)
        running = first if first["phase"] == "running" else listener.phase("running")
        for number, rank in enumerate(running["ranks"]):
            assert (rank["rank"], rank["code"]) == (number, None)
            assert rank["ticks"] == protocol.start_ticks(rank["pid"])
        (tmp_path / "work" / "go-0").touch()
        changed = listener.until(lambda line: line["ranks"][0]["code"] is not None)
        assert (changed["phase"], changed["ranks"][0]["code"]) == ("running", 0)
        late = attempt.listen().next()
        assert late == changed
        (tmp_path / "work" / "go-1").touch()
        ended = listener.phase("ended")
        assert [rank["code"] for rank in ended["ranks"]] == [0, 1]
        assert (attempt.path / protocol.EXIT).exists()
        assert listener.next() is None
        attempt.end()


def test_a_listener_that_goes_away_is_not_missed(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"]) as attempt:
        attempt.start()
        for _ in range(3 * control.LISTENERS):
            with connect(attempt) as link, contextlib.suppress(BrokenPipeError):
                link.sendall(b'{"do": "stacks"}\n')  # not heard if too many are still leaving
        stop(attempt, heard_listener(attempt))


@pytest.mark.parametrize(
    "line",
    [
        b"stop\n",
        b'"stop"\n',
        b"[" * 5000 + b"\n",
        b"\xff\xff\n",
        b"\n",
        b"x" * (protocol.LINE_BYTES + 100_000),
    ],
    ids=["word", "string", "nested", "bytes", "nothing", "no end"],
)
def test_a_line_that_is_no_command_ends_its_connection(tmp_path: Path, line: bytes) -> None:
    with Attempt(tmp_path, ["sleep", "1000"]) as attempt:
        attempt.start()
        with connect(attempt) as link:
            try:
                link.sendall(line)
                while link.recv(10_000):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass
        stop(attempt, attempt.listen())


@pytest.mark.parametrize(
    "command",
    [
        {},
        {"do": "dance"},
        {"do": ["stop"]},
        {"do": "signal"},
        {"do": "signal", "signal": "SIGNOTHING"},
        {"do": "signal", "signal": 9},
    ],
)
def test_a_command_that_is_unknown_changes_nothing(
    tmp_path: Path, command: dict[str, object]
) -> None:
    with Attempt(tmp_path, ["sleep", "1000"]) as attempt:
        attempt.start()
        listener = attempt.listen()
        listener.phase("running")
        listener.send(**command)
        listener.send(do="stacks")
        listener.until(lambda line: line["event"] == "stacks")
        stop(attempt, listener)


@pytest.mark.parametrize("grace", [None, "soon", float("nan"), [1], True])
def test_a_grace_that_is_no_number_is_the_orders(tmp_path: Path, grace: object) -> None:
    with Attempt(tmp_path, ["sleep", "1000"], grace_s=30.0) as attempt:
        attempt.start()
        listener = attempt.listen()
        listener.phase("running")
        listener.send(do="stop", grace_s=grace)
        end = attempt.end()
        assert (end.codes, end.stopped) == ({"0": 143}, "no reason was given")


def test_a_listener_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"], workers=64) as attempt:
        attempt.start()
        listener = attempt.listen()
        listener.phase("running")
        with connect(attempt) as deaf:
            # 64 ranks without a handler answer with some 16 KiB each time.
            asked, most = 0, 3 * control.UNSENT_BYTES // (20 * 10_000)
            try:
                for _ in range(most):
                    deaf.sendall(20 * b'{"do": "stacks"}\n')
                    asked += 1
                    listener.stacks()
            except BrokenPipeError:
                pass
            assert asked < most
        stop(attempt, listener)


CATCHER = """
import os, signal, sys, time
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGUSR1, lambda *_: print("caught", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def test_a_signal_goes_only_to_ranks_that_catch_it(tmp_path: Path) -> None:
    with Attempt(tmp_path, [sys.executable, "-c", CATCHER], workers=2) as attempt:
        attempt.start()
        listener = attempt.listen()
        for rank in range(2):
            attempt.wait_for("ready", rank)
        for name in ("SIGUSR2", "SIGKILL", "SIGSTOP", "SIGUSR1"):  # the last one is caught
            listener.send(do="signal", signal=name)
        attempt.wait_for("caught")
        stop(attempt, listener)
        assert attempt.texts(1) == ["ready"]


@pytest.mark.needs("root")
def test_only_root_the_own_user_and_the_listener_are_heard(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:-2]:
        parent.chmod(0o755)
    with Attempt(tmp_path, ["sleep", "1000"], listener_uid=12345, file_mode=0o666) as attempt:
        attempt.start()
        listener = attempt.listen()
        listener.phase("running")
        heard = {}
        for uid in (0, 12345, 12346):
            program = (
                f"import os, socket; os.setuid({uid}); s = socket.socket(socket.AF_UNIX)\n"
                f"s.connect({str(attempt.path / attempt.claim().socket)!r})\n"
                "print(s.recv(20).decode())"
            )
            command = [sys.executable, "-c", program]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            heard[uid] = answer.stdout.strip()
        assert heard == {0: '{"event": "status",', 12345: '{"event": "status",', 12346: ""}
        stop(attempt, listener)


def test_more_listeners_than_there_is_room_for_are_turned_away(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"]) as attempt:
        attempt.start()
        listeners = [attempt.listen() for _ in range(control.LISTENERS)]
        for listener in listeners:
            listener.phase("running")
        with connect(attempt) as link:
            assert link.recv(100) == b""
        listeners[0].close()

        def heard() -> bool:
            with connect(attempt) as link:
                return link.recv(100) != b""

        wait_until(heard, PATIENCE_S, "the place of the one that left")
        stop(attempt, listeners[1])
