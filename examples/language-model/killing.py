"""The last act: a rank is killed on purpose, and that costs nothing but the restart.

    job 4   step 1 ─────────────────────────────────────────► 40     undisturbed
    job 5   step 1 ──────────────► 25, SIGKILL to rank 1
                          20 ──────────────────────────────► 40     from its last checkpoint

Both are examples/resume, one epoch of it. Every rank says the numbers of the samples of each of its
steps, so what the finished model has seen can be counted, and losses are compared bit by bit.
"""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from commands import say, type_in
from private import PrivateDaemon
from record import Record, Way
from rich.console import Console
from stop import Failed
from view import View
from watch import event_in, watch

from wiiiiided.cluster.rpc.messages import LogLine

FOLDER = Path(__file__).parents[1] / "resume"
SETTINGS = {"EPOCHS": "1", "SAVE_EVERY": "10", "TRACE": "json"}
STEPS, SAMPLES, BATCH = 40, 20_000, 512  # of an epoch of resume.py
KILL_AFTER, VICTIM = 25, 1


class Trace(Record):
    """A run of resume.py: what every rank trained in each step, of the attempt that counts."""

    def __init__(self, name: str) -> None:
        super().__init__(Way(name, closing="saving"), STEPS, BATCH)
        self.seen: dict[tuple[int, int], list[int]] = {}  # (step, rank) → numbers of samples
        self.killed_at = self.resumed_after = self.made = 0
        self.reached: list[float] = []  # when rank 0 had made step KILL_AFTER

    def hear(self, line: LogLine, event: dict[str, Any]) -> None:
        if event["event"] == "start" and line.rank == 0:
            self.parameters = 1  # it trains from here on
            self.resumed_after = event["after"]
            del self.losses[self.resumed_after :]
        elif event["event"] == "step":
            self.seen[event["step"], line.rank] = event["samples"]
            if line.rank == 0:
                self.losses.append(event["loss"])
                self.made += 1
                self.reached += [line.at] if event["step"] == KILL_AFTER else []

    @property
    def times_seen(self) -> Counter[int]:
        return Counter(number for numbers in self.seen.values() for number in numbers)

    @property
    def is_whole(self) -> bool:
        """Every step once, and every sample of the epoch once."""
        seen = self.times_seen
        return len(self.losses) == STEPS and len(seen) == SAMPLES and max(seen.values()) == 1


def kill_a_rank(console: Console, daemon: PrivateDaemon) -> bool:
    """Both runs, one of them disturbed; whether both made the same."""
    runs = [Trace("undisturbed"), Trace(f"rank {VICTIM} killed")]
    sets = [
        word for name, value in SETTINGS.items() for word in ("--set", f"run.env.{name}={value}")
    ]
    console.print()
    say(console, "And if a rank dies? A job that saves, twice; in the second run one is killed.")
    console.print()
    for run in runs:
        arguments = [os.path.relpath(FOLDER), *sets]
        type_in(console, ["wiiiiide", "submit", *arguments], run.way.name)
        run.job, said = daemon.submit(arguments)
        say(console, said)
    with View(console, runs) as shown:
        _follow(console, daemon, runs, shown)
    for sentence in _sentences(*runs):
        say(console, sentence)
    return all(run.is_whole for run in runs) and runs[0].losses == runs[1].losses


def _follow(console: Console, daemon: PrivateDaemon, runs: list[Trace], shown: View) -> None:
    of_job = {run.job: run for run in runs}
    for news in watch(daemon, list(of_job)):
        shown.tick()
        if news is None:
            continue
        run, item = of_job[news[0]], news[1]
        if not isinstance(item, LogLine):
            run.view = item
            shown.job_changed(run)
            if run.is_over and item.state != "done":
                raise Failed(f"Job {run.job}, {run.way.name}, ended: {item.why}.", [])
        elif (event := event_in(item)) is not None:
            run.hear(item, event)
            is_victim = run is runs[1] and item.rank == VICTIM and not run.killed_at
            if is_victim and event.get("step") == KILL_AFTER:
                run.killed_at = KILL_AFTER
                _kill(console, daemon, run.job)


def _kill(console: Console, daemon: PrivateDaemon, job: int) -> None:
    pid = daemon.client.show(job).ranks[VICTIM].pid
    try:
        if pid is None:
            raise ProcessLookupError
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        sentence = f"Rank {VICTIM} of job {job} ended before it could be killed."
        raise Failed(sentence, []) from None
    type_in(console, ["kill", "-9", str(pid)], f"rank {VICTIM}, after step {KILL_AFTER}")


def _sentences(calm: Trace, killed: Trace) -> list[str]:
    again = killed.made - STEPS
    what = (
        f"Rank {VICTIM} of job {killed.job} was killed after step {killed.killed_at}; the daemon "
        f"started the job again, and it went on after step {killed.resumed_after}, its last "
        "checkpoint."
    )
    if not killed.is_whole:
        return [what, "BUT SAMPLES WERE LOST OR COUNTED TWICE."]
    lost_s = killed.reached[-1] - killed.reached[0]
    cost = f"That cost {lost_s:.1f} s, the restart and {again} steps that were made again"
    once = f"each of the {SAMPLES:,} samples of the epoch counted once"
    if killed.losses == calm.losses:
        same = f"all {STEPS} losses are equal to the last bit to those of job {calm.job}"
    else:
        same = f"BUT THE LOSSES DIFFER from those of job {calm.job}"
    return [what, f"{cost}; {once}, and {same}."]
