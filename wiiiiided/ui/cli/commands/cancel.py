"""`wiiiiide cancel`: jobs are ended; it returns when nothing of them runs any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated

import typer

from wiiiiided.cluster.client import Client, ClientError, DaemonRefused
from wiiiiided.cluster.rpc.messages import JobView
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.domain.states import tally
from wiiiiided.domain.sweep import sweep_id
from wiiiiided.ui.cli.bulk import refused, split
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.job_lines import base_name, ending
from wiiiiided.ui.cli.options import LiveIds
from wiiiiided.ui.cli.progress import waiting
from wiiiiided.ui.cli.screen import say

GRACE = "waiting for the workers to end by themselves; cancel --now kills them"


def command(
    jobs: LiveIds,
    now: Annotated[
        bool, typer.Option("--now", help="SIGKILL at once, without a grace period.")
    ] = False,
) -> int:
    """End jobs, and return when they are really over.

    Workers get SIGTERM, then policy.grace (10 s unless the job says otherwise), then SIGKILL.
    A job that waits just leaves the queue.
    """
    codes: list[int] = []
    given, client = [split(text) for text in jobs], connect()
    ids = list(dict.fromkeys(number for _, number, _ in given if number))
    try:
        with waiting(GRACE, lambda: _is_in_trouble(client)):
            for sweep in dict.fromkeys(sweep for _, _, sweep in given if sweep):
                codes += _sweep(client, sweep, now)
            for ended in client.cancel_all(ids, now):
                if isinstance(ended, ClientError):
                    codes.append(refused(ended))
                else:
                    say(ending(ended))
    except KeyboardInterrupt:
        say("wiiiiide: stopped waiting; the jobs are being ended all the same")
        raise
    return codes[0] if codes else 0


def _sweep(client: Client, sweep: int, now: bool) -> Iterator[int]:
    """End the jobs of a sweep that are not over, and say how many; a code where there are none."""
    try:
        ended = list(client.cancel_sweep(sweep, now))
        jobs = client.sweep(sweep)
    except DaemonRefused as problem:
        yield refused(problem)
        return
    name = f"sweep {sweep_id(sweep)} ({base_name(jobs[0])})"
    if not ended:
        say(f"wiiiiide: {name} is over already: {_tally(jobs)}")
        yield FAILED
        return
    rest = [job for job in jobs if job.id not in {one.id for one in ended}]
    before = f"; {_tally(rest)} before" if rest else ""
    say(f"{name}: {_tally(ended)}{before}")


def _tally(jobs: Iterable[JobView]) -> str:
    return tally(job.state for job in jobs)


def _is_in_trouble(client: Client) -> bool:
    """Whether it may be the daemon that is waited for: it tells when its coordinator is away."""
    with suppress(ClientError):
        return bool(client.status().problem)
    return False
