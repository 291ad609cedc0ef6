"""Telling systemd how the service is: sd_notify's datagrams, in a few lines of our own.

    EXTEND_TIMEOUT_USEC=…   a large state is still being read; from a thread, since reading blocks
    READY=1       state open, jobs adopted, socket listening
    STATUS=…      one line for `systemctl status`
    WATCHDOG=1    the loop turns
    STOPPING=1    on the way out

Without NOTIFY_SOCKET every call does nothing. The variable is removed from the environment when it
is read: no worker may speak in the service's name.
"""

from __future__ import annotations

import socket
import struct
import threading

from wiiiiided.config import Notification

WAIT_S = 5  # for room in the manager's queue, with what is said only once
EXTEND_EVERY_S = (
    20.0  # while it starts; several fit into systemd's 90 s, and into what is asked for
)
EXTEND_S = 60.0
STARTS_WITHIN_S = 3600.0  # a start that takes longer is stuck, and is ended


class Notifier:
    """Sends to the service manager, if there is one that listens."""

    def __init__(self, how: Notification) -> None:
        self.watchdog_s = how.watchdog_s if how.socket else 0.0
        self._address = "\0" + how.socket[1:] if how.socket.startswith("@") else how.socket
        self._status = ""
        self._is_ready = False
        self._started = threading.Event()
        self._extending: threading.Thread | None = None
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            limit = struct.pack("ll", WAIT_S, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def starting(self) -> None:
        """Ask the manager for more time, again and again, until the daemon is ready."""
        if self._socket is not None:
            self._extending = threading.Thread(target=self._extend, daemon=True)
            self._extending.start()

    def _extend(self) -> None:
        text = f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1e6:.0f}\nSTATUS=reading the state"
        for _ in range(int(STARTS_WITHIN_S / EXTEND_EVERY_S)):
            if self._started.wait(EXTEND_EVERY_S):
                return
            self._send(text)

    def _has_started(self) -> None:
        self._started.set()
        if self._extending is not None:
            self._extending.join()
            self._extending = None

    def ready(self, status: str) -> None:
        """Tell the manager that the service is ready, once a process: a daemon that has changed its
        role has been ready all the time."""
        if self._is_ready:
            self.status(status)
            return
        self._has_started()
        self._send(f"READY=1\nSTATUS={_line(status)}", wait=True)
        self._status, self._is_ready = status, True

    def status(self, text: str) -> None:
        """Tell the manager one line; sent only when it differs from the last."""
        if text != self._status and self._send(f"STATUS={_line(text)}"):
            self._status = text

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self, text: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={_line(text)}", wait=True)

    def close(self) -> None:
        self._has_started()
        if self._socket is not None:
            self._socket.close()

    def _send(self, text: str, wait: bool = False) -> bool:
        """Whether it was taken. Without `wait` the daemon does not block on a busy manager."""
        if self._socket is None:
            return False
        try:
            flags = 0 if wait else socket.MSG_DONTWAIT
            self._socket.sendto(text.encode(), flags, self._address)
        except OSError:
            return False  # the manager is restarting or its queue is full: the next one will arrive
        return True


def _line(text: str) -> str:
    return text.replace("\n", " ")
