"""What do the daemon, its shims and its commands cost, idle and with a thousand jobs queued?

A daemon runs for months beside a training: it must not be felt. And a person who queues a
job must not wait for it.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass

from lib import machine, measure, program, report
from lib.daemon import size, speed, state_machine
from lib.fleet import FleetError
from lib.measure import RATE, RATIO, SECONDS, Chapter, Measure, ratios
from lib.measured_daemon import MeasuredDaemon
from lib.report import console
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
    rates = state_machine.rates(plan.jobs, plan.turns, plan.rounds)
    filling = state_machine.filling_rates(plan.jobs, plan.memory_rounds)
    times = state_machine.after_finished(list(plan.finished), 100, plan.turns, plan.rounds)
    base = times[plan.finished[0]]
    what = f"events with {plan.jobs:,} jobs that are not over"
    measures = [
        Measure(what, RATE, rates, EVENTS_PER_S, at_least=True),
        Measure(f"submits, from none to {plan.jobs:,}", RATE, filling, at_least=True),
        Measure("an event, no job over yet", SECONDS, base),
    ]
    for number in plan.finished[1:]:
        what = f"the same after {number:,} jobs are over"
        measures.append(Measure(what, RATIO, ratios(times[number], base), GROWTH))
    return Chapter("The state machine alone", measures)


def _run(plan: DaemonPlan, screen: Console) -> list[Chapter]:
    chapters = []
    with report.progress(screen) as say:
        say("the state machine alone")
        alone = _state_machine(plan)
        say("memory")
        memory = size.small(plan.memory_rounds)
        say("from submit to the first line")
        chapters.append(speed.first_line(plan.rounds))
        say("commands")
        chapters.append(speed.command_line(2 * plan.rounds))
        say("a killed rank")
        chapters.append(speed.killed_rank(plan.rounds))
        with MeasuredDaemon() as daemon:
            say(f"queueing {plan.queue:,} jobs")
            chapters.append(speed.fill(daemon, plan.queue))
            after = size.full(daemon, plan.queue)
            memory = Chapter(memory.title, [*memory.measures, *after])
            say(f"commands with {plan.queue:,} jobs queued")
            chapters.append(speed.long_queue(daemon, plan.queue, plan.rounds))
            say(f"{plan.idle_s:.0f} s of doing nothing")
            idle = size.idle(daemon, plan.queue, plan.idle_s, plan.idle_rounds)
    return [idle, memory, *chapters, alone]


def main() -> int:
    given = program.arguments(program.parser(__doc__ or ""))
    plan = QUICK if given.quick else DaemonPlan()
    about, screen = machine.about(), console()
    try:
        chapters = _run(plan, screen)
    except WiiiiideError as problem:
        raise FleetError(str(problem)) from problem
    method = METHOD.format(idle=plan.idle_s)
    result = measure.result("daemon", about, method, chapters, not given.quick)
    state = machine.file_system(tempfile.gettempdir())
    result.notes.append(f"the daemons' state lay on {state}")
    report.finish(result, given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
