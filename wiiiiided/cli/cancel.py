"""`wiiiiide cancel`: jobs are ended; it returns when nothing of them runs any more."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from wiiiiided.cli.daemon import connect
from wiiiiided.cli.jobs import ending
from wiiiiided.cli.options import Ids
from wiiiiided.cli.screen import say
from wiiiiided.cli.several import ids_of, refused
from wiiiiided.client import Client, ClientError

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
    codes = []
    ids, client = ids_of(jobs), connect()
    try:
        with _patience(client):
            for ended in client.cancel_all(ids, now):
                if isinstance(ended, ClientError):
                    codes.append(refused(ended))
                else:
                    say(ending(ended))
    except KeyboardInterrupt:
        say("wiiiiide: stopped waiting; what was asked goes on: the jobs are being ended")
        raise
    return codes[0] if codes else 0


@contextmanager
def _patience(client: Client) -> Iterator[None]:
    """After a moment of silence, a person is told what is waited for; not after the end of it."""
    over = threading.Event()

    def explain() -> None:
        text = _waited_for(client)
        if not over.is_set():
            say(text)

    timer = threading.Timer(QUIET_S, explain)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        over.set()
        timer.cancel()


def _waited_for(client: Client) -> str:
    """The workers, unless the daemon has a trouble of its own: a coordinator that is away."""
    with suppress(ClientError):
        if problem := client.status().problem:
            return f"still trying; the daemon says: {problem}"
    return "waiting for the workers to end by themselves; cancel --now kills them"
