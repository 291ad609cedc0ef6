"""The control plane's state machine by itself: no socket, no disk, no process.

A fixed number of jobs lives in it. One turn takes one of each of them through the machine, so that
the number stays:

    submitted · started · ended (and the next of the queue is placed) · submitted · cancelled
"""

from __future__ import annotations

import time

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Owner
from wiiiiided.cluster.control.state import State
from wiiiiided.cluster.control.step import step
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import JobSpec, Policy, Resources, Run

EVENTS_PER_TURN = 5
_OWNER = Owner("a", 1000, "ada")
_NODE = Node("a", 16, 64 << 30)
# Priorities of a job's place in the queue: in the middle, so that it is found and not appended.
_SPECS = [
    JobSpec(
        "bench",
        Run(("python", "train.py")),
        resources=Resources(cores_per_worker=4),
        policy=Policy(priority=priority, max_time_s=3600.0),
    )
    for priority in (30, 50, 70)
]


class LoadedMachine:
    """A state with so many jobs in it, four of them running."""

    def __init__(self, jobs: int) -> None:
        self.state = State([_NODE])
        self.now = 1e9
        self.next = 1
        for _ in range(jobs):
            self._submit()
        for job in self._on_node():
            self._started(job)

    def turn(self) -> None:
        """Five events; afterwards there are as many jobs as before."""
        self.now += 1.0
        self._submit()
        running = self._on_node()[0]
        self._ended(running)
        self._started(self._on_node()[-1])
        self._feed(e.CancelRequested(self.now, self._submit(), "ada"))

    def turns(self, number: int) -> float:
        """Seconds for so many turns."""
        begin = time.perf_counter()
        for _ in range(number):
            self.turn()
        return time.perf_counter() - begin

    def _on_node(self) -> list[int]:
        return list(self.state.claims["a"])

    def _submit(self) -> int:
        number, self.next = self.next, self.next + 1
        spec = _SPECS[number % len(_SPECS)]
        self._feed(e.JobSubmitted(self.now, number, spec, _OWNER, "0" * 64))
        return number

    def _started(self, job: int) -> None:
        self._feed(e.WorkersStarted(self.now, job, 1, "a"))

    def _ended(self, job: int) -> None:
        code = job % 7 == 0  # some fail
        self._feed(e.WorkersEnded(self.now, job, 1, "a", int(code), "rank 0 ended with code 1"))

    def _feed(self, event: e.AnyEvent) -> None:
        step(self.state, event)
        self.state.committed()


def rates(jobs: int, turns: int, rounds: int) -> list[float]:
    """Events per second with so many jobs that are not over."""
    machine = LoadedMachine(jobs)
    machine.turns(turns // 10)
    return [EVENTS_PER_TURN * turns / machine.turns(turns) for _ in range(rounds)]


def filling_rates(jobs: int, rounds: int) -> list[float]:
    """Events per second while the queue grows from nothing to so many jobs."""
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        LoadedMachine(jobs)
        found.append(jobs / (time.perf_counter() - begin))
    return found


def after_finished(
    finished: list[int], waiting: int, turns: int, rounds: int
) -> dict[int, list[float]]:
    """Seconds per event when so many jobs are over, taking turns: machines of one age each."""
    machines = {}
    for number in finished:
        machine = machines[number] = LoadedMachine(waiting)
        for _ in range(number // 2):  # each turn ends two jobs
            machine.turn()
    found: dict[int, list[float]] = {number: [] for number in finished}
    for _ in range(rounds):
        for number, machine in machines.items():
            found[number].append(machine.turns(turns) / (turns * EVENTS_PER_TURN))
    return found
