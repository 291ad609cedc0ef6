"""The other end of the daemon's socket: one blocking call per request, for commands and programs.

    Client(Paths.for_client()).submit(spec, packed, secrets)

client      what can be asked about jobs and nodes: one question, one connection
machines    the wait until this machine has a new role
connection  one request on its socket, and a blob that comes over it
follow_job  log lines after a restart of the daemon: none twice, none missed
errors      everything that can go wrong, each with the command's exit code
"""

from __future__ import annotations

from wiiiiided.cluster.client.client import Client
from wiiiiided.cluster.client.connection import Blob, Progress
from wiiiiided.cluster.client.errors import (
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
