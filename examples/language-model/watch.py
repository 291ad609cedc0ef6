"""The jobs' logs and states, as they come, without ever keeping the demo from a tick.

`Client.follow` waits until there is something. Each job has a thread that waits in it; what it
hears goes into one queue.
"""

import json
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from private import PrivateDaemon
from stop import Failed

from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.cluster.rpc.messages import JobView, LogLine

TICK_S = 0.1
STALL_S = 90.0  # generous: the first import of torch from a cold disk can take half a minute

Item = JobView | LogLine
News = tuple[int, Item | ClientError | None]  # None: there is no more of this job


def listen(client: Client, job: int, news: "queue.SimpleQueue[News]") -> None:
    """One job, from now to its end."""
    try:
        for item in client.follow(job):
            news.put((job, item))
        news.put((job, None))
    except ClientError as problem:
        news.put((job, problem))


def watch(daemon: PrivateDaemon, jobs: Sequence[int]) -> Iterator[tuple[int, Item] | None]:
    """Everything of all jobs until they are over, and None whenever a tick passes without.

    Raises Stopped, or Failed when the daemon dies or nothing happens any more.
    """
    news: queue.SimpleQueue[News] = queue.SimpleQueue()
    for job in jobs:
        threading.Thread(target=listen, args=(daemon.client, job, news), daemon=True).start()
    going_on = set(jobs)
    heard = time.monotonic()
    while going_on:
        daemon.stop.check()
        daemon.check()
        try:
            job, item = news.get(timeout=TICK_S)
        except queue.Empty:
            if time.monotonic() - heard > STALL_S:
                sentence = f"Nothing was heard of the jobs for {STALL_S:.0f} seconds."
                raise Failed(sentence, daemon.last_lines()) from None
            yield None
            continue
        heard = time.monotonic()
        if item is None:
            going_on.discard(job)
        elif isinstance(item, ClientError):
            raise Failed(f"Job {job} cannot be followed: {item}.", daemon.last_lines())
        else:
            yield job, item


def event_in(line: LogLine) -> dict[str, Any] | None:
    """The report of train.py in a line; nothing for one that some library printed in between."""
    try:
        value = json.loads(line.text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "event" in value else None
