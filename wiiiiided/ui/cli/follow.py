"""A job watched until it is over: its lines on stdout, what becomes of it on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from wiiiiided.cluster.client import Client, DaemonLost
from wiiiiided.cluster.rpc.messages import JobView, LogLine
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.daemon import fields
from wiiiiided.ui.cli.job_lines import ending, exit_code, is_over, line
from wiiiiided.ui.cli.log_lines import ALL, Lines, Wanted, check_node, check_ranks


def follow(
    client: Client,
    job: int,
    *,
    ranks: Sequence[int] = (),
    tail: int | None = None,
    wanted: Wanted = ALL,
    times: bool = False,
    as_json: bool = False,
    told: str = "",
) -> int:
    """Show everything until the job is over; its exit code. `told` is what was said already."""
    view: JobView | None = None
    lines = Lines(times=times)
    for item in client.follow(job, ranks, tail, wanted.nodes):
        if isinstance(item, LogLine):
            if wanted.takes(item, view):
                _line(lines, item, as_json)
            continue
        check_ranks(item, ranks)
        lines.job = item
        changed = view is None or item.state != view.state
        if view is None or item.nodes != view.nodes:
            _note_node(item, wanted.node)
        view = item
        if changed and not is_over(item) and line(item) != told and not as_json:
            screen.say(line(item))
    if view is None or not is_over(view):
        raise DaemonLost(f"the daemon said nothing more about job {job}", "wiiiiide ps may")
    sys.stdout.flush()
    if as_json:
        screen.put_json({"job": fields(view)})
    else:
        screen.say(ending(view))
    return exit_code(view)


def _note_node(job: JobView, node: str | None) -> None:
    """Say when the wanted node has no part of this attempt: silence would not tell."""
    try:
        check_node(job, node)
    except CommandFailed as nothing:
        screen.say(f"note: {nothing}")


def _line(lines: Lines, item: LogLine, as_json: bool) -> None:
    if as_json:
        screen.put_json(fields(item))
    else:
        lines.put(item)
    sys.stdout.flush()  # a person looks, or a pipe's reader waits
