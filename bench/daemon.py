"""What do the daemon, its shims and its commands cost, idle and with a thousand jobs queued?

A daemon runs for months beside a training: it must not be felt. And a person who queues a
job must not wait for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass

from lib import control, daemon_size, daemon_speed, program, report
from lib import machine as _machine
from lib.fleet import FleetError
from lib.host import PrivateDaemon
from lib.measure import RATE, RATIO, SECONDS, Chapter, Measure
from lib.report import BenchResult, console
from rich.console import Console

from wiiiiided.errors import WiiiiideError

EVENTS_PER_S = 10_000.0
# An event's cost must not grow with the jobs that are over; this much is noise.
GROWTH = 1.2
METHOD = (
    "Every daemon is private to the run: the real program under a directory of its own, jobs with"
    " the node for themselves, an empty working directory. The median over rounds is held against"
    " what is asked; the best round says what the program does when nothing else wants the"
    " machine. Processor time is utime + stime of a process's stat, or its threads' schedstat"
    " where that is more, all processes over the same {idle:.0f} s. RSS counts every page a process"
    " has, PSS divides those of libraries among all that map them; 1 MB is 1,000,000 bytes."
    " Commands are whole processes with their output in a pipe. The log is looked at every"
    " millisecond. The state machine runs alone: no disk, no socket."
)


@dataclass(frozen=True)
class DaemonPlan:
    """How often and how long."""

    rounds: int = 11
    memory_rounds: int = 3
    idle_s: float = 60.0
    idle_rounds: int = 3
    queue: int = 1000
    jobs: int = 10_000  # in the state machine
    turns: int = 2000
    finished: tuple[int, ...] = (0, 10_000, 100_000)


QUICK = DaemonPlan(3, 1, 3.0, 1, 50, 2000, 200, (0, 1000, 5000))


def _state_machine(plan: DaemonPlan) -> Chapter:
    """The control plane alone."""
    rates = control.rates(plan.jobs, plan.turns, plan.rounds)
    filling = control.filling_rates(plan.jobs, plan.memory_rounds)
    times = control.after_finished(list(plan.finished), 100, plan.turns, plan.rounds)
    base = times[plan.finished[0]]
    what = f"events with {plan.jobs:,} jobs that are not over"
    measures = [
        Measure(what, RATE, rates, EVENTS_PER_S, at_least=True),
        Measure(f"submits, from none to {plan.jobs:,}", RATE, filling, at_least=True),
        Measure("an event, no job over yet", SECONDS, base),
    ]
    for number in plan.finished[1:]:
        # Round by round: both saw the same machine.
        ratios = [late / early for late, early in zip(times[number], base, strict=True)]
        what = f"the same after {number:,} jobs are over"
        measures.append(Measure(what, RATIO, ratios, GROWTH))
    return Chapter("The state machine alone", measures)


def _run(plan: DaemonPlan, screen: Console) -> list[Chapter]:
    chapters = []
    with screen.status("") as status:

        def now(what: str) -> None:
            status.update(what)
            if not screen.is_terminal:
                print(f"… {what}", file=sys.stderr)

        now("the state machine alone")
        machine = _state_machine(plan)
        now("memory")
        memory = daemon_size.small(plan.memory_rounds)
        now("from submit to the first line")
        chapters.append(daemon_speed.first_line(plan.rounds))
        now("commands")
        chapters.append(daemon_speed.command_line(2 * plan.rounds))
        now("a killed rank")
        chapters.append(daemon_speed.killed_rank(plan.rounds))
        with PrivateDaemon() as host:
            now(f"queueing {plan.queue:,} jobs")
            chapters.append(daemon_speed.fill(host, plan.queue))
            after = daemon_size.full(host, plan.queue)
            memory = Chapter(memory.title, [*memory.measures, *after])
            now(f"commands with {plan.queue:,} jobs queued")
            chapters.append(daemon_speed.long_queue(host, plan.queue, plan.rounds))
            now(f"{plan.idle_s:.0f} s of doing nothing")
            idle = daemon_size.idle(host, plan.queue, plan.idle_s, plan.idle_rounds)
    return [idle, memory, *chapters, machine]


def _result(
    name: str, plan: DaemonPlan, chapters: list[Chapter], about: dict[str, str]
) -> BenchResult:
    judged = plan is not QUICK
    notes = _machine.busy_notes(about)
    notes.append(f"load at the end: {os.getloadavg()[0]:.2f}")
    notes.append(f"the daemons' state lay on {_machine.file_system(tempfile.gettempdir())}")
    if not judged:
        notes.append("a quick look: only a full run is held against what is asked")
    data = {
        chapter.title: [measure.data(judged) for measure in chapter.measures]
        for chapter in chapters
    }
    method = METHOD.format(idle=plan.idle_s)
    sheets = [chapter.sheet(judged) for chapter in chapters]
    return BenchResult(name, about, method, sheets, notes, {"chapters": data})


def _arguments() -> argparse.Namespace:
    return program.arguments(program.parser(__doc__ or ""))


def main() -> int:
    given = _arguments()
    plan = QUICK if given.quick else DaemonPlan()
    about = _machine.about()
    screen = console()
    begin = time.monotonic()
    try:
        chapters = _run(plan, screen)
    except WiiiiideError as problem:
        raise FleetError(str(problem)) from problem
    name = program.file_name("daemon", given.quick)
    result = _result(name, plan, chapters, about)
    report.show(result, screen)
    written = report.write(result, given.out) if given.save else []
    names = ", ".join(path.name for path in written) or "nothing (--no-save)"
    screen.print(f"written: {names}, after {time.monotonic() - begin:.0f} s", style="dim")
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
