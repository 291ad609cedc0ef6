"""One allocation, this node's part of an attempt: step(allocation, event, at) → new state, actions.

Reads no clock, file or socket; `workers` does the I/O. An allocation that has not begun is
preparing, prepared or waiting; from its start to its end its shim is followed. Both are possible at
once for one number: a coordinator that was restored from an old copy gives numbers anew, and the
shim then is of another job, which has to end first.

    absent ─ prepare ─► preparing ─ done ─► prepared ─start─┬───────────► following ─ended─► absent
                            └─ failed ─► absent             └─► waiting ──────┘
                                                                for another job's shim

MOVES has every legal move. An event that the table does not have for a stage comes too late, or a
second time, and changes nothing: the control plane repeats its orders after a crash or a broken
link, and this node then repeats its reports.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, assert_never

import msgspec

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import AttemptKey, Job, Running, Starting
from wiiiiided.cluster.peering.messages import Assignment
from wiiiiided.cluster.shim.exit_reason import exception
from wiiiiided.cluster.shim.protocol import AttemptEnd
from wiiiiided.domain.exit_codes import TERMINATED
from wiiiiided.errors import WiiiiideError
from wiiiiided.text import plain

FORFEITED = "it was stopped before it began"
UNKNOWN = "the queue does not know this attempt any more"

Stage = Literal["absent", "preparing", "prepared", "waiting", "following"]


# ---- the state


@dataclass(frozen=True)
class Preparing:
    """The archive is fetched, the interpreter examined, checkpoints are placed."""

    job: Job
    start: Assignment | None = None  # the order to start, if it has come meanwhile


@dataclass(frozen=True)
class Prepared:
    """Reported as prepared, and not ordered to start yet."""

    job: Job
    report: e.WorkersPrepared


@dataclass(frozen=True)
class Waiting:
    """Ordered to start, once the shim of another job that had this number has ended."""

    start: Assignment

    @property
    def job(self) -> Job:
        return self.start.job


# Why a shim was told to end; the first cause stays.
#   asked       the control plane ordered it, and waits for the end
#   unasked     this node found that the queue does not know the attempt, which counts as lost
#   superseded  … and another job has the number now: an end would be taken for that job's
Ending = Literal["", "asked", "unasked", "superseded"]


@dataclass(frozen=True)
class Following:
    """A shim has the attempt, or is about to."""

    job: Job
    started: bool = False  # every rank has begun
    ending: Ending = ""


@dataclass(frozen=True)
class Allocation:
    """Everything this node knows of its part of one attempt."""

    key: AttemptKey
    node: str
    beginning: Preparing | Prepared | Waiting | None = None
    shim: Following | None = None  # where there is a beginning too: another job's

    @property
    def stage(self) -> Stage:
        match self.beginning:
            case Preparing():
                return "preparing"
            case Prepared():
                return "prepared"
            case Waiting():
                return "waiting"
        return "absent" if self.shim is None else "following"

    def is_of(self, job: Job) -> bool:
        """Whether a shim is followed for this very job, not for another that had its number."""
        return self.shim is not None and not is_another(self.shim.job, job)


# ---- events: orders of the control plane, and their results here


@dataclass(frozen=True)
class PrepareOrdered:
    job: Job


@dataclass(frozen=True)
class StartOrdered:
    given: Assignment


@dataclass(frozen=True)
class StopOrdered:
    job: Job
    grace_s: float
    reason: str
    ranks_end_first: bool = False  # ranks may end by themselves first


@dataclass(frozen=True)
class RunningFound:
    """Files or the queue say that the attempt may run here."""

    job: Job


@dataclass(frozen=True)
class UnknownFound:
    """The queue does not know the attempt (any more)."""

    reason: str
    grace_s: float


@dataclass(frozen=True)
class NumberReused:
    """Another job has this number now, and its shim has to end."""


@dataclass(frozen=True)
class PreparationDone:
    python: str
    torch: str
    wiiiiided: str
    note: str  # which files were moved aside for it


@dataclass(frozen=True)
class PreparationFailed:
    code: int
    reason: str
    idle: bool = False  # another attempt would fail the same way


@dataclass(frozen=True)
class ShimStarted:
    """Every rank has begun."""


@dataclass(frozen=True)
class ShimEnded:
    """No process of the attempt is left."""

    end: AttemptEnd
    missing: str = ""  # why the shim could not be started
    worked: bool = True  # a rank has finished an operation


AllocationEvent = (
    PrepareOrdered
    | StartOrdered
    | StopOrdered
    | RunningFound
    | UnknownFound
    | NumberReused
    | PreparationDone
    | PreparationFailed
    | ShimStarted
    | ShimEnded
)


# ---- actions


@dataclass(frozen=True)
class Prepare:
    job: Job


@dataclass(frozen=True)
class CancelPreparation:
    pass


@dataclass(frozen=True)
class Follow:
    """Follow the shim of the attempt; with `starts`, start one if there is none."""

    given: Assignment
    starts: bool


@dataclass(frozen=True)
class StopShim:
    grace_s: float
    reason: str
    ranks_end_first: bool = False


@dataclass(frozen=True)
class ReportEvent:
    event: e.AnyEvent


AllocationAction = Prepare | CancelPreparation | Follow | StopShim | ReportEvent


# ---- the table

_ORDERS: Final[dict[str, tuple[Stage, ...]]] = {  # of an allocation that has not begun
    "StartOrdered": ("waiting", "following"),
    "StopOrdered": ("following",),
    "RunningFound": ("following",),
    "UnknownFound": ("absent", "following"),
}
MOVES: Final[dict[Stage, dict[str, tuple[Stage, ...]]]] = {
    "absent": {
        "PrepareOrdered": ("preparing",),
        "StartOrdered": ("following",),
        "StopOrdered": ("following",),  # the daemon takes the claim, so that no late shim begins
        "RunningFound": ("following",),
    },
    "preparing": {
        **_ORDERS,
        "PrepareOrdered": ("preparing",),
        "StartOrdered": ("preparing", "waiting", "following"),
        "NumberReused": ("preparing",),
        "PreparationDone": ("prepared", "waiting", "following"),
        "PreparationFailed": ("absent", "following"),
        "ShimStarted": ("preparing",),
        "ShimEnded": ("preparing",),
    },
    "prepared": {
        **_ORDERS,
        "PrepareOrdered": ("prepared", "preparing"),
        "NumberReused": ("prepared",),
        "ShimStarted": ("prepared",),
        "ShimEnded": ("prepared",),
    },
    "waiting": {
        **_ORDERS,
        "PrepareOrdered": ("waiting", "preparing"),
        "UnknownFound": ("following",),
        "NumberReused": ("waiting",),
        "ShimStarted": ("waiting",),
        "ShimEnded": ("following",),
    },
    "following": {
        "PrepareOrdered": ("following", "preparing"),
        "StartOrdered": ("following", "waiting"),
        "StopOrdered": ("following",),
        "RunningFound": ("following",),
        "UnknownFound": ("following",),
        "NumberReused": ("following",),
        "ShimStarted": ("following",),
        "ShimEnded": ("absent",),
    },
}


class IllegalAllocationMove(WiiiiideError):
    """A defect: a move that the table does not have."""


def step(
    allocation: Allocation, event: AllocationEvent, at: float
) -> tuple[Allocation, list[AllocationAction]]:
    """Apply an event to the allocation; the new state, and the actions in their order."""
    kind, stage = type(event).__name__, allocation.stage
    legal = MOVES[stage].get(kind)
    if legal is None:
        return allocation, []
    move = _Move(allocation, at)
    move.take(event)
    if move.now.stage not in legal:
        text = f"{stage} --{kind}--> {move.now.stage} is not in the table: {legal}"
        raise IllegalAllocationMove(text)
    return move.now, move.actions


class _Move:
    """One event being applied: the state as it changes, and the actions."""

    def __init__(self, allocation: Allocation, at: float) -> None:
        self.now, self.at = allocation, at
        self.actions: list[AllocationAction] = []

    def take(self, event: AllocationEvent) -> None:
        match event:
            case PrepareOrdered(job):
                self.prepare_ordered(job)
            case StartOrdered(given):
                self.start_ordered(given)
            case StopOrdered():
                self.stop_ordered(event)
            case RunningFound(job):
                self.running_found(job)
            case UnknownFound(reason, grace_s):
                self.drop_beginning()
                self.end_shim("unasked", grace_s, reason)
            case NumberReused():
                self.end_shim("superseded", 0.0, UNKNOWN)
            case PreparationDone():
                self.preparation_done(event)
            case PreparationFailed(code, reason, idle):
                self.set(beginning=None)
                self.report_end(code, reason, idle=idle)
            case ShimStarted():
                self.shim_started()
            case ShimEnded():
                self.shim_ended(event)
            case _:
                assert_never(event)

    # ---- orders

    def prepare_ordered(self, job: Job) -> None:
        beginning = self.now.beginning
        if self.now.is_of(job):
            self.repeat_started()
        elif beginning is None or is_another(beginning.job, job):
            self.drop_beginning()
            self.set(beginning=Preparing(job))
            self.actions.append(Prepare(job))
        elif isinstance(beginning, Prepared):
            self.actions.append(ReportEvent(msgspec.structs.replace(beginning.report, at=self.at)))

    def start_ordered(self, given: Assignment) -> None:
        beginning = self.now.beginning
        if beginning is not None and is_another(beginning.job, given.job):
            self.drop_beginning()
        if self.now.is_of(given.job):
            self.repeat_started()
        elif isinstance(beginning := self.now.beginning, Preparing):
            # An earlier daemon has reported this node as prepared. Checkpoints may be on their
            # way into the working directory: no rank begins before they are there.
            self.set(beginning=replace(beginning, start=given))
        elif not isinstance(beginning, Waiting):
            self.start(given)

    def start(self, given: Assignment) -> None:
        if self.now.shim is None:
            self.set(beginning=None, shim=Following(given.job))
            self.actions.append(Follow(given, starts=True))
        else:
            self.set(beginning=Waiting(given))
            self.end_shim("superseded", 0.0, UNKNOWN)

    def stop_ordered(self, event: StopOrdered) -> None:
        had_beginning = self.now.beginning is not None
        self.drop_beginning()
        shim = self.now.shim
        if shim is None:
            self.set(shim=Following(event.job))
            self.actions.append(Follow(Assignment(event.job, ""), starts=False))
        elif had_beginning or shim.ending == "superseded":
            # The shim is another job's: its end says nothing about the job that is to stop.
            self.end_shim("superseded", 0.0, UNKNOWN)
            self.report_end(0, FORFEITED)
            return
        else:
            self.set(shim=replace(shim, job=event.job))
        self.mark_ending("asked")
        self.actions.append(StopShim(event.grace_s, event.reason, event.ranks_end_first))

    def running_found(self, job: Job) -> None:
        self.drop_beginning()
        if self.now.shim is not None:
            self.repeat_started()
            self.set(shim=replace(self.now.shim, job=job))
        else:
            self.set(shim=Following(job))
            self.actions.append(Follow(Assignment(job, ""), starts=False))

    # ---- results

    def preparation_done(self, done: PreparationDone) -> None:
        beginning = self.now.beginning
        assert isinstance(beginning, Preparing)
        found = (plain(text) for text in (done.python, done.torch, done.wiiiiided, done.note))
        python, torch, wiiiiided, note = found
        report = e.WorkersPrepared(
            *(self.at, *self.now.key, self.now.node),
            python=python,
            torch=torch,
            wiiiiided=wiiiiided,
            note=note,
        )
        self.set(beginning=Prepared(beginning.job, report))
        if beginning.start is not None:
            self.start(beginning.start)
        self.actions.append(ReportEvent(report))

    def shim_started(self) -> None:
        shim = self.now.shim
        if shim is None:
            return
        job = shim.job
        if isinstance(job.phase, Starting):
            job = msgspec.structs.replace(job, phase=Running(self.at))
        self.set(shim=replace(shim, job=job, started=True))
        self.repeat_started()

    def shim_ended(self, event: ShimEnded) -> None:
        shim, beginning = self.now.shim, self.now.beginning
        if shim is None:
            return
        self.set(shim=None)
        if isinstance(beginning, Waiting):
            self.start(beginning.start)
        elif beginning is None and shim.ending != "superseded":
            self.actions.append(ReportEvent(self.ended(shim, event)))

    def ended(self, shim: Following, event: ShimEnded) -> e.WorkersEnded:
        """The report of an end to the control plane."""
        end, asked = event.end, shim.ending == "asked"
        # After a stop that the control plane did not order, as when the machine shuts down, ranks
        # may have ended with code 0, but not because their work was done.
        lost = end.lost or (bool(end.stopped) and not asked)
        lost = lost or (shim.ending == "unasked" and not end.codes)
        code = min(max(0, end.code), 255) or (TERMINATED if lost else 0)
        if asked and end.reason == FORFEITED and not end.codes:
            code = 0  # no rank ever began: there was nothing but the stop
        reason = plain((not end.codes and event.missing) or end.reason) or "all ranks ended"
        return e.WorkersEnded(
            *(self.at, *self.now.key, self.now.node, code, reason, lost),
            ended_at=end.ended_at or None,
            failed_at=end.failed_at or None,
            error=plain(exception(end.error)),
            idle=bool(code) and not event.worked,
        )

    # ---- verbs

    def set(self, **changes: object) -> None:
        self.now = replace(self.now, **changes)  # type: ignore[arg-type]

    def drop_beginning(self) -> None:
        if isinstance(self.now.beginning, Preparing):
            self.actions.append(CancelPreparation())
        self.set(beginning=None)

    def mark_ending(self, cause: Ending) -> bool:
        """Note why the shim ends; whether that is the first cause. The first one stays, except that
        "superseded" replaces any: no report of the old job may be taken for the new one's."""
        shim = self.now.shim
        assert shim is not None
        if not shim.ending or cause == "superseded":
            self.set(shim=replace(shim, ending=cause))
        return not shim.ending

    def end_shim(self, cause: Ending, grace_s: float, reason: str) -> None:
        """End a shim for which there is no order to stop; repeated calls change nothing."""
        if self.now.shim is not None and self.mark_ending(cause):
            self.actions.append(StopShim(grace_s, reason))

    def repeat_started(self) -> None:
        """Report that the ranks have begun, if they have and their job still has the number."""
        shim = self.now.shim
        if shim is not None and shim.started and shim.ending != "superseded":
            self.actions.append(
                ReportEvent(e.WorkersStarted(self.at, *self.now.key, self.now.node))
            )

    def report_end(self, code: int, reason: str, idle: bool = False) -> None:
        event = e.WorkersEnded(
            *(self.at, *self.now.key, self.now.node, code, plain(reason)), idle=idle
        )
        self.actions.append(ReportEvent(event))


def is_another(kept: Job, job: Job) -> bool:
    """Whether the job kept here under that number is another one, or has attempts that the queue
    does not remember."""
    if kept.submitted_at != job.submitted_at:
        return True
    old, new = kept.attempt, job.attempt
    if old is None or new is None:
        return False
    return old.number > new.number or (old.number == new.number and old.placed_at != new.placed_at)
