"""The other end of the daemon's socket: one blocking call per request, for commands and programs.

    Client(Paths.for_client()).submit(spec, packed, secrets)

client      what can be asked about jobs
machines    what can be asked about nodes, and the wait for a new role
asking      one question, one connection
connection  one request on its socket, and a blob that comes over it
resume      log lines after a restart of the daemon: none twice, none missed
errors      everything that can go wrong, each with the command's exit code
"""

from __future__ import annotations

from wiiiiided.client.client import Client
from wiiiiided.client.connection import Blob, Progress
from wiiiiided.client.errors import (
    ClientError,
    DaemonLost,
    DaemonRefused,
    NoDaemon,
    NotAllowed,
    NotSettled,
    TimedOut,
    VersionMismatch,
)

__all__ = [
    "Blob",
    "Client",
    "ClientError",
    "DaemonLost",
    "DaemonRefused",
    "NoDaemon",
    "NotAllowed",
    "NotSettled",
    "Progress",
    "TimedOut",
    "VersionMismatch",
]
