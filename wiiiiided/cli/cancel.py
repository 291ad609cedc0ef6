"""`wiiiiide cancel`: jobs are ended; it returns when nothing of them runs any more."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from wiiiiided.cli.daemon import connect
from wiiiiided.cli.jobs import base_name, ending
from wiiiiided.cli.options import Ids
from wiiiiided.cli.screen import say
from wiiiiided.cli.several import refused, split, tally
from wiiiiided.client import Client, ClientError, DaemonRefused
from wiiiiided.domain.codes import FAILED
from wiiiiided.domain.sweep import sweep_id

QUIET_S = 1.5


def command(
    jobs: Ids,
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
        with _patience(client):
            for sweep in dict.fromkeys(sweep for _, _, sweep in given if sweep):
                codes += _sweep(client, sweep, now)
            for ended in client.cancel_all(ids, now):
                if isinstance(ended, ClientError):
                    codes.append(refused(ended))
                else:
                    say(ending(ended))
    except KeyboardInterrupt:
        say("wiiiiide: stopped waiting; what was asked goes on: the jobs are being ended")
        raise
    return codes[0] if codes else 0


def _sweep(client: Client, sweep: int, now: bool) -> Iterator[int]:
    """End what is not over of a sweep, and say how many; a code where nothing was to be done."""
    try:
        ended = list(client.cancel_sweep(sweep, now))
        jobs = client.sweep(sweep)
    except DaemonRefused as problem:
        yield refused(problem)
        return
    name = f"sweep {sweep_id(sweep)} ({base_name(jobs[0])})"
    if not ended:
        say(f"wiiiiide: {name} is over already: {tally(jobs)}")
        yield FAILED
        return
    rest = [job for job in jobs if job.id not in {one.id for one in ended}]
    before = f"; {tally(rest)} before" if rest else ""
    say(f"{name}: {tally(ended)}{before}")


@contextmanager
def _patience(client: Client) -> Iterator[None]:
    """After a moment of silence, a person is told what is waited for; not after the end of it."""
    over = threading.Event()

    def explain() -> None:
        if not _is_in_trouble(client) and not over.is_set():
            say("waiting for the workers to end by themselves; cancel --now kills them")

    timer = threading.Timer(QUIET_S, explain)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        over.set()
        timer.cancel()


def _is_in_trouble(client: Client) -> bool:
    """Whether it may be the daemon that is waited for: a coordinator that is away is told by it."""
    with suppress(ClientError):
        return bool(client.status().problem)
    return False
