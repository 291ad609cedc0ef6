"""Lines for systemd's journal, with fields to ask for: `journalctl WIIIIIDE_JOB=17`.

journald's native protocol: one datagram a line, of fields.

    MESSAGE=job 17 (digits): runs on a\\n
    PRIORITY=6\\n
    WIIIIIDE_JOB=17\\n
    MESSAGE\\n <8 bytes, little endian: length> a text with several lines \\n

An entry too large for a datagram goes as a sealed memfd, its descriptor in an empty datagram. One
that cannot be sent goes to stderr, which systemd reads too: without fields, but not lost.

Rejected: python-systemd, for a compiled module that needs libsystemd's headers to install.
"""

from __future__ import annotations

import array
import errno
import fcntl
import logging
import os
import socket
import struct

from wiiiiided.log import logger

SOCKET = "/run/systemd/journal/socket"
IDENTIFIER = "wiiiiided"
# syslog's numbers, which journalctl -p knows by name
PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
DEBUG_PRIORITY = 7
MESSAGE_CHARS = 1 << 20  # a traceback has thousands; journald itself takes 768 MiB
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class JournalHandler(logging.Handler):
    """Sends records to the journal; those that it cannot send to `fallback`."""

    def __init__(self, fallback: logging.Handler, path: str = SOCKET) -> None:
        super().__init__()
        self.node = ""  # of lines that name none
        self._path = path
        self._fallback = fallback
        # A journal that is stuck must not hold up the daemon.
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(encode(self.fields(record)))
        except OSError:
            self._fallback.handle(record)
        except Exception:
            self.handleError(record)

    def fields(self, record: logging.LogRecord) -> list[tuple[str, str]]:
        """All of a record, as the journal shows it."""
        found = [
            ("MESSAGE", self.format(record)[:MESSAGE_CHARS]),
            ("PRIORITY", str(priority(record.levelno))),
            ("SYSLOG_IDENTIFIER", IDENTIFIER),
        ]
        subjects = {name: getattr(record, name, None) for name in ("job", "rank")}
        found += [
            (f"WIIIIIDE_{name.upper()}", f"{n}") for name, n in subjects.items() if n is not None
        ]
        nodes = getattr(record, "node", ()) or filter(None, (self.node,))
        return found + [("WIIIIIDE_NODE", node) for node in nodes]  # a field may come several times

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendto(data, self._path)
        except OSError as problem:
            if problem.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            self._send_large(data)

    def _send_large(self, data: bytes) -> None:
        fd = os.memfd_create("journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)  # journald reads only what cannot change
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
            self._socket.sendmsg([], [rights], 0, self._path)
        finally:
            os.close(fd)


def encode(fields: list[tuple[str, str]]) -> bytes:
    """The datagram of these fields."""
    parts = []
    for name, text in fields:
        value = text.encode(errors="replace")
        if b"\n" in value:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n")
        else:
            parts.append(name.encode() + b"=" + value + b"\n")
    return b"".join(parts)


def priority(level: int) -> int:
    return next((number for least, number in PRIORITIES if level >= least), DEBUG_PRIORITY)


def say_node(name: str) -> None:
    """Name the node of all lines from now on that name none."""
    for handler in logger.handlers:
        if isinstance(handler, JournalHandler):
            handler.node = name
