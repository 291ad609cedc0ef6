"""`wiiiiide metrics`: what nodes and jobs do now, for Prometheus.

    wiiiiide metrics -o /var/lib/prometheus/node-exporter/wiiiiide.prom
        └─► .wiiiiide.prom.x7 ──rename──► wiiiiide.prom ──► node_exporter ──► Prometheus

The collector reads the file at any moment, so it is replaced, never written into; and it reads
only names that end in .prom, so it never sees the other one.
"""

from __future__ import annotations

import contextlib
import os
from typing import Annotated

import typer

from wiiiiided.cluster.client import ClientError
from wiiiiided.cluster.monitoring.prometheus import absent, exposition
from wiiiiided.errors import HostError
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.daemon import connect

MODE = 0o644  # node_exporter is another user


def command(
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Replace this file, as a whole; - is stdout."
        ),
    ] = None,
) -> None:
    """Print metrics of nodes and jobs in Prometheus' text format.

    With -o they go into a file for node_exporter's textfile collector. When no daemon answers, the
    file says that (wiiiiide_up 0) and the exit code is 4.
    """
    if output == "-":
        output = None
    try:
        client = connect()
        page = exposition(client.snapshot(), client.status())
    except ClientError:
        if output is not None:
            replace(output, absent())
        raise
    if output is None:
        screen.put(page.removesuffix("\n"))
    else:
        replace(output, page)


def replace(path: str, text: str) -> None:
    """The file with this text, or as it was: never half of it."""
    if os.path.exists(path) and not os.path.isfile(path):
        # As root, a rename onto /dev/null would take it away from every program.
        raise HostError(f"cannot write {path}: it is not a plain file; without -o stdout gets it")
    folder, name = os.path.split(path)
    made = os.path.join(folder, f".{name[:200]}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(made)  # of one that was killed, and had our number
        _write(made, text)
        os.rename(made, path)
    except OSError as problem:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise HostError(f"cannot write {path}: {problem.strerror}") from problem


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    with open(fd, "wb") as file:
        os.fchmod(fd, MODE)  # whatever the umask is
        file.write(text.encode(errors="replace"))
