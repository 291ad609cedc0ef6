"""The demo itself: a daemon, a job for each way to train, what becomes of them."""

import argparse

from closing import summarize
from commands import farewell, introduce, say, submission, type_in
from killing import kill_a_rank
from private import QUOTED_LINES, PrivateDaemon
from record import WAYS, Record
from rich.console import Console
from stop import Failed, Stopped, StopRequest
from view import View
from watch import Item, event_in, watch

from wiiiiided.cluster.client import ClientError
from wiiiiided.cluster.rpc.messages import LogLine

WORLD = 2  # job.toml's workers_per_node
FIRST, NEXT = "a job: train.py, as two processes", "the same once more: it has to wait"
ENDINGS = {"failed": "failed", "cancelled": "was cancelled"}
DEFAULTS = {"steps": 200, "batch": 4, "seed": 1}  # train.py's own


def play(options: argparse.Namespace, stop: StopRequest) -> bool:
    """From the first word to the last; whether all runs computed the same."""
    console = Console(highlight=False)
    samples = options.batch * WORLD
    records = [Record(WAYS[name], options.steps, samples) for name in options.ways]
    with PrivateDaemon(stop) as daemon:
        introduce(console, records, daemon.home)
        for record in records:
            arguments = submission(record, settings(options))
            why = FIRST if record is records[0] else NEXT
            type_in(console, ["wiiiiide", "submit", *arguments], why)
            record.job, said = daemon.submit(arguments)
            say(console, said)
        type_in(console, ["wiiiiide", "logs", "-f", str(records[0].job)], "what it says, drawn:")
        with View(console, records) as shown:
            follow(daemon, records, shown)
        agree = summarize(console, records)
        agree = kill_a_rank(console, daemon) and agree
    farewell(console)
    return agree


def settings(options: argparse.Namespace) -> dict[str, str]:
    """The environment of train.py: lines for a program, and what differs from its defaults."""
    asked = {name: getattr(options, name) for name in DEFAULTS}
    changed = {name.upper(): str(asked[name]) for name in asked if asked[name] != DEFAULTS[name]}
    return {"PROGRESS": "json", **changed}


def follow(daemon: PrivateDaemon, records: list[Record], shown: View) -> None:
    """The jobs from now to their ends, shown as they go."""
    of_job = {record.job: record for record in records}
    try:
        for news in watch(daemon, list(of_job)):
            if news is not None:
                job, item = news
                take(daemon, of_job[job], item, shown)
            shown.tick()
        for record in records:
            if record.sample is None:
                raise failure(daemon, record, "ended", "its run is not complete")
    except (Stopped, Failed):
        for record in records:
            record.is_given_up = True
        raise


def take(daemon: PrivateDaemon, record: Record, item: Item, shown: View) -> None:
    """One line of a job's log, or a change of its state."""
    if not isinstance(item, LogLine):
        record.view = item
        shown.job_changed(record)
        if record.is_over and item.state != "done":
            raise failure(daemon, record, ENDINGS.get(item.state, "ended"), item.why)
    elif item.rank == 0 and (event := event_in(item)) is not None:
        record.take(event)
        if event["event"] == "step":
            shown.step_done(record)


def failure(daemon: PrivateDaemon, record: Record, what: str, why: str) -> Failed:
    """Words about a job that did not end well, with its last words."""
    done = len(record.losses)
    where = f"after step {done}" if done else "before the first step"
    try:
        words = daemon.client.show(record.job).error
    except ClientError:
        words = ""
    sentence = f"Job {record.job}, with {record.way.name}, {what} {where}: {why}."
    return Failed(sentence, words.splitlines()[-QUOTED_LINES:])
