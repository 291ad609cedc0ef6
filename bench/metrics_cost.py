"""What does watching a job cost it: counters, the daemon's samples, `wiiiiide top`, the log?

A training under a real daemon, in blocks that take turns: everything on, everything off, and with
the verbose log. The targets are for the ratio of neighbouring blocks.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lib import machine, program, report
from lib.fleet import FleetError
from lib.measure import Measure, MeasureUnit
from lib.measured_daemon import MeasuredDaemon, console_script
from lib.metrics_cost import processor_time
from lib.report import BenchResult, Sheet, console, seconds_text

from wiiiiided.backend.shm import stats

ON_COSTS, VERBOSE_COSTS = 0.005, 0.03
RANKS = 2
WITHIN_S = 900.0
COUNTS = (stats.OPERATIONS, stats.BYTES, stats.EXCHANGE_NS, stats.WAITING_NS, stats.PEERS_AT)
METHOD = (
    "A job of {ranks} ranks (DDP, a perceptron of half a million parameters, one thread each) under"
    " a daemon of its own. Blocks of about {seconds:g} s of training take turns in {rounds} rounds:"
    " off (daemon and top are stopped by SIGSTOP, the script reports nothing), on (the daemon"
    " samples once a second, `wiiiiide top` shows it once a second, the script reports step, loss"
    " and samples at every step), verbose (as on, and the backend's verbose log). A block's"
    " figure is the mean time of its steps, of the slower rank. Shown is the median of the ratios"
    " within a round, less one, and the interval that holds the true median with at least"
    " 95 % (order statistics): all of it must keep to what is asked. The page's counters cannot be"
    " turned off: what counting one operation takes is measured by itself."
)


@dataclass(frozen=True)
class MetricsPlan:
    rounds: int = 80  # many short blocks: a shared machine changes its pace within seconds
    seconds: float = 1.0


QUICK = MetricsPlan(5, 1.0)
Blocks = dict[str, list[float]]


def cost_text(share: float) -> str:
    return f"{100 * share:+.2f} %"


COST = MeasureUnit("share of a step", cost_text)


def measure(plan: MetricsPlan) -> Blocks:
    """The blocks' figures, by mode."""
    script = str(Path(processor_time.__file__).with_name("rank.py"))
    with MeasuredDaemon() as daemon:
        top = subprocess.Popen(
            [sys.executable, console_script("wiiiiide"), "top", "--json", "-i", "1"],
            env=daemon.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            argv = ("python", script, "--rounds", str(plan.rounds), "--seconds", str(plan.seconds))
            job = daemon.queue([*argv, str(daemon.pid), str(top.pid)], RANKS)
            return _blocks(daemon, job)
        finally:
            top.kill()
            top.wait()


def _blocks(daemon: MeasuredDaemon, job: int) -> Blocks:
    log = daemon.attempt(job) / "rank-0.log"
    deadline = time.monotonic() + WITHIN_S
    end = daemon.attempt(job) / "exit.json"  # the daemon stands still half of the time
    while not end.exists():
        if time.monotonic() > deadline:
            raise FleetError(f"the training took more than {WITHIN_S:g} s")
        time.sleep(0.5)
    if daemon.end_of(job).state != "done":
        raise FleetError(f"the training failed; {log.name} says why")
    blocks: Blocks = {}
    for line in daemon.client.logs(job, [0]):
        if line.stream == "out" and line.text.startswith("{"):
            found = json.loads(line.text)
            blocks.setdefault(found["mode"], []).append(found["step_s"])
    return blocks


def counting_s() -> float:
    """The time of counting one operation: the words that a small all_reduce adds to."""
    words, rounds = stats.StatsPage().words, 20_000
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(rounds):
            for word in COUNTS:
                words[word] += 1
        taken.append((time.perf_counter() - begin) / rounds)
    return min(taken)


def _row(found: Measure, judged: bool) -> list[str]:
    low, high = (cost_text(end) for end in found.interval)
    return [found.what, cost_text(found.median), f"{low} … {high}", found.ask(judged)]


def main() -> int:
    given = program.arguments(program.parser(__doc__ or ""))
    plan, judged = (QUICK, False) if given.quick else (MetricsPlan(), True)
    about, screen = machine.about(), console()
    with screen.status("training, in turns"):
        blocks = measure(plan)
    with screen.status("processor time of top and of the daemon"):
        look = processor_time.QUICK if given.quick else processor_time.WatchPlan()
        watching = processor_time.chapter(look)
    off = blocks["off"]
    rows: list[Sequence[str]] = []
    data = {}
    for mode, asked in (("on", ON_COSTS), ("verbose", VERBOSE_COSTS)):
        costs = [mine / theirs - 1 for mine, theirs in zip(blocks[mode], off, strict=True)]
        found = Measure(mode, COST, costs, asked, by_interval=True)
        rows.append(_row(found, judged))
        data[mode] = {**found.data(judged), "interval": found.interval}
    step, counting = statistics.median(off), counting_s()
    notes = [
        f"a step with everything off takes {seconds_text(step)}",
        f"counting one operation takes {1e6 * counting:.2f} µs",
    ]
    sheet = Sheet("What it adds to a step", ("", "median", "95 % interval", "asked"), rows)
    method = METHOD.format(ranks=RANKS, seconds=plan.seconds, rounds=plan.rounds)
    method += " " + processor_time.METHOD.format(seconds=look.seconds, parts=look.parts)
    kept = {
        "blocks": blocks,
        "costs": data,
        "watching": [found.data(judged) for found in watching.measures],
    }
    sheets = [sheet, watching.sheet(judged)]
    report.finish(BenchResult("metrics_cost", about, method, sheets, notes, kept), given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
