"""What the soak test does to a daemon: many jobs of several kinds, each with a known right end.

    kind      what its ranks do                         how it must end
    ends      nothing for a moment                      done, in its first attempt
    leaves    start a child that stays, and end         done, and the child is gone
    fails     rank 0 ends with code 3                   failed, in its first attempt
    once      rank 0 fails in the first attempt         done, in its second attempt
    always    rank 0 fails every time                   failed, after the same end twice
    sleeps    sleep, until the job is cancelled         cancelled, running or not

Every rank of every attempt makes a directory with its name: mkdir succeeds once. A second start
of the same attempt leaves a mark of its own and fails the job.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from wiiiiided.cluster.archive.pack import Packed
from wiiiiided.cluster.client import Client, DaemonLost, DaemonRefused, NoDaemon
from wiiiiided.cluster.rpc.messages import JobView
from wiiiiided.domain.spec import JobSpec, Policy, Resources, Restart, Run
from wiiiiided.domain.states import ENDED

Answer = TypeVar("Answer")

BACKLOG = 25  # jobs that are not over: submitting and running go on side by side
AWAY_S = 30.0  # a daemon that is started again and again is back by then
CODE = 3  # of ranks that fail on purpose
RESTARTS = 2
KINDS = {"ends": 40, "leaves": 3, "fails": 17, "once": 15, "always": 5, "sleeps": 20}  # of 100

RANK_PROGRAM = """\
import os, pathlib, subprocess, sys, time

kind, marks, pause_s = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])
job, attempt, rank = (os.environ[name] for name in ("WIIIIIDE_JOB_ID", "WIIIIIDE_ATTEMPT", "RANK"))
mark = f"{job}-{attempt}-{rank}"
try:
    (marks / mark).mkdir()
except FileExistsError:
    (marks / f"twice-{mark}-{os.getpid()}").mkdir()
    sys.exit(97)
print("rank", rank, "of attempt", attempt, flush=True)
if kind == "leaves":
    child = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(child, start_new_session=True)
time.sleep(600 if kind == "sleeps" else pause_s)
fails = kind in ("fails", "always") or (kind == "once" and attempt == "1")
sys.exit(3 if fails and rank == "0" else 0)
"""


@dataclass(frozen=True)
class Plan:
    """One job, decided before it is submitted."""

    number: int
    kind: str
    workers: int
    cores: int | None  # None: it has the node for itself
    priority: int
    pause_s: float  # of each rank
    hold: bool  # queued held, and released
    later_s: float  # until it is cancelled or released
    now: bool  # cancelled with SIGKILL
    follows: bool  # comes after a job that is sure to be done, if there is one

    def spec(self, marks: str, after: tuple[int, ...]) -> JobSpec:
        restarts = {"once": RESTARTS, "always": RESTARTS}.get(self.kind, 0)
        return JobSpec(
            name=str(self.number),
            run=Run(("python", "rank.py", self.kind, marks, str(self.pause_s))),
            resources=Resources(workers_per_node=self.workers, cores_per_worker=self.cores),
            policy=Policy(
                priority=self.priority,
                after=after,
                grace_s=2.0,
                restart=Restart(max=restarts, backoff_s=0.05),
            ),
        )


def draw(chance: random.Random, number: int, cores: int) -> Plan:
    """A job by chance."""
    (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
    workers = chance.choice((1, 1, 2, 3))
    shares = workers <= cores and chance.random() < 0.8
    return Plan(
        number,
        kind,
        workers,
        1 if shares else None,
        chance.choice((40, 50, 50, 60)),
        round(chance.uniform(0.0, 0.3), 3),
        hold=chance.random() < 0.1,
        later_s=round(chance.uniform(0.0, 1.5), 3),
        now=chance.random() < 0.5,
        follows=chance.random() < 0.1,
    )


def wrong(plan: Plan, view: JobView, marks: set[str]) -> list[str]:
    """What about this job is not as it must be; `marks` are its own."""
    ends = {
        "ends": ("done", 0, 1),
        "leaves": ("done", 0, 1),
        "fails": ("failed", CODE, 1),
        "once": ("done", 0, 2),
        "always": ("failed", CODE, 2),  # the same end twice, before any operation
    }
    found = []
    if plan.kind == "sleeps":
        if view.state != "cancelled" or view.attempt > 1:
            found.append(f"is {view.state} in attempt {view.attempt}, not cancelled")
    elif (view.state, view.code, view.attempt) != ends[plan.kind]:
        end = (view.state, view.code, view.attempt)
        found.append(f"is {end}, not {ends[plan.kind]}: {view.why}")
    every = {
        f"{view.id}-{attempt}-{rank}"
        for attempt in range(1, view.attempt + 1)
        for rank in range(plan.workers)
    }
    # When rank 0 fails, or a job is cancelled, other ranks may be ended before they begin.
    firsts = {mark for mark in every if mark.endswith("-0")}
    needed = {"done": every, "failed": firsts}.get(view.state, set())
    if not needed <= marks <= every:
        found.append(f"ran as {sorted(marks)}, not as {sorted(every)}")
    return found


class Users:
    """Clients that submit, cancel and release while the daemon comes and goes."""

    def __init__(self, client: Client, plans: Sequence[Plan], marks: str, packed: Packed) -> None:
        self.client = client
        self.plans = plans
        self.marks = marks
        self.packed = packed
        self.acknowledged: set[int] = set()
        self.cut_off = 0  # submits that the daemon did not live to answer
        self.done = threading.Event()
        self._sure: list[int] = []  # jobs that will be done

    def work(self) -> None:
        """Submit, release and cancel everything; returns when nearly all of it is over."""
        followups: list[Future[None]] = []
        try:
            with ThreadPoolExecutor(8) as pool:
                for plan in self.plans:
                    self._wait_for_room(BACKLOG)
                    job = self._submit(plan)
                    if plan.kind == "ends":
                        self._sure.append(job)
                    if plan.hold or plan.kind == "sleeps":
                        followups.append(pool.submit(self._follow_up, job, plan))
            for followup in followups:
                followup.result()
            self._wait_for_room(4)
        finally:
            self.done.set()

    def _submit(self, plan: Plan) -> int:
        """The job's number. A submit that was cut off is looked for, and made again if need be."""
        after = tuple(self._sure[-1:]) if plan.follows else ()
        spec = plan.spec(self.marks, after)
        while True:
            try:
                job = self._patiently(
                    lambda: self.client.submit(spec, self.packed, {}, hold=plan.hold).id
                )
            except DaemonLost:
                self.cut_off += 1
                everything = self._again(lambda: self.client.jobs(ended=2 * len(self.plans)).jobs)
                found = [view.id for view in everything if view.name == spec.name]
                if found:
                    return found[0]
            else:
                self.acknowledged.add(job)
                return job

    def _follow_up(self, job: int, plan: Plan) -> None:
        time.sleep(plan.later_s)  # a moment by chance: it waits for nothing
        if plan.hold:
            self.release(job)
        if plan.kind == "sleeps":
            self.cancel(job, plan.now)

    def release(self, job: int) -> None:
        while self._state(job) == "held":
            with contextlib.suppress(DaemonLost, DaemonRefused):  # it may have been heard
                self._patiently(lambda: self.client.release(job))

    def cancel(self, job: int, now: bool) -> None:
        while self._state(job) not in ENDED:
            with contextlib.suppress(DaemonLost, DaemonRefused):
                self._patiently(lambda: self.client.cancel(job, now))

    def _state(self, job: int) -> str:
        return self._again(lambda: self.client.show(job).job.state)

    def _wait_for_room(self, jobs: int) -> None:
        while len(self._again(self.client.jobs).jobs) >= jobs:
            time.sleep(0.05)

    def _again(self, ask: Callable[[], Answer]) -> Answer:
        """What changes nothing can be asked again when the daemon died over it."""
        while True:
            try:
                return self._patiently(ask)
            except DaemonLost:
                continue

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask; again as long as no daemon listens."""
        deadline = time.monotonic() + AWAY_S
        while True:
            try:
                return ask()
            except NoDaemon:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.01)
