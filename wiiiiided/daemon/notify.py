"""Telling systemd how the service is: sd_notify's datagrams, in a few lines of our own.

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

from wiiiiided.config import Notification

WAIT_S = 5  # for room in the manager's queue, with what is said only once


class Notifier:
    """Sends to the service manager, if there is one that listens."""

    def __init__(self, how: Notification) -> None:
        self.watchdog_s = how.watchdog_s if how.socket else 0.0
        self._address = "\0" + how.socket[1:] if how.socket.startswith("@") else how.socket
        self._status = ""
        self._is_ready = False
        self._socket: socket.socket | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            limit = struct.pack("ll", WAIT_S, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def ready(self, status: str) -> None:
        """Once a process: a daemon that has changed its role has been ready all the time."""
        if self._is_ready:
            self.status(status)
            return
        self._send(f"READY=1\nSTATUS={_line(status)}", wait=True)
        self._status, self._is_ready = status, True

    def status(self, text: str) -> None:
        """One line; sent only when it differs from the last."""
        if text != self._status and self._send(f"STATUS={_line(text)}"):
            self._status = text

    def watchdog(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self, text: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={_line(text)}", wait=True)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _send(self, text: str, wait: bool = False) -> bool:
        """Whether it was taken. Without `wait` nobody stands still for a manager that is busy."""
        if self._socket is None:
            return False
        try:
            self._socket.setblocking(wait)
            self._socket.sendto(text.encode(), self._address)
        except OSError:
            return False  # the manager is restarting or its queue is full: the next one will arrive
        return True


def _line(text: str) -> str:
    return text.replace("\n", " ")
