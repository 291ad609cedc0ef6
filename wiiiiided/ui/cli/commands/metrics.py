"""`wiiiiide metrics`: what nodes and jobs do now, for Prometheus.

    wiiiiide metrics -o /var/lib/prometheus/node-exporter/wiiiiide.prom
        └─► .wiiiiide.prom.812 ──rename──► wiiiiide.prom ──► node_exporter ──► Prometheus

The collector reads the file at any moment, so it is replaced, never written into; and it reads
only names that end in .prom, so it never sees the other one.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from wiiiiided.cluster.client import ClientError
from wiiiiided.cluster.monitoring.prometheus import absent, exposition
from wiiiiided.errors import HostError
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.whole_file import write_whole

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
    if os.path.exists(path) and not os.path.isfile(path):
        # As root, a rename onto /dev/null would take it away from every program.
        raise HostError(f"cannot write {path}: it is not a plain file; without -o stdout gets it")
    try:
        write_whole(path, text.encode(errors="replace"), MODE)
    except OSError as problem:
        raise HostError(f"cannot write {path}: {problem.strerror}") from problem
