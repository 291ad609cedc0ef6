"""Things that happened: past tense, with the time it happened at. Nothing else changes the state.

`at` is seconds since 1970, given by the daemon that saw it; the state machine has no clock.
"""

from __future__ import annotations

import msgspec

from wiiiiided.cluster.control.job import Job, Owner, Saved
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import JobSpec


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=True):
    """Every event has its tag written at its class: stories in the store and the table of moves
    (domain/states) have it, whatever the class is called."""

    at: float

    @property
    def tag(self) -> str:
        return str(self.__struct_config__.tag)


class JobSubmitted(Event, frozen=True, tag="JobSubmitted"):
    id: int
    spec: JobSpec
    owner: Owner
    archive: str
    waits_for: tuple[int, ...] = ()  # of policy.after: those that are not done yet
    hold: bool = False
    sweep: int = 0  # that it belongs to
    setting: dict[str, str] = {}  # in that
    nonce: str = ""  # of the request: the same one again is the same job
    resumes: Saved | None = None  # another job's checkpoints, with which it begins


class SweepSubmitted(Event, frozen=True, tag="SweepSubmitted"):
    """All jobs of a sweep are queued at once, or none. The first has the nonce of the request."""

    id: int
    jobs: tuple[JobSubmitted, ...]


class HoldRequested(Event, frozen=True, tag="HoldRequested"):
    id: int
    by: str


class ReleaseRequested(Event, frozen=True, tag="ReleaseRequested"):
    id: int
    by: str


class CancelRequested(Event, frozen=True, tag="CancelRequested"):
    id: int
    by: str
    now: bool = False


class SweepCancelRequested(Event, frozen=True, tag="SweepCancelRequested"):
    """All these jobs are to end in one step: none of them starts because another has ended."""

    jobs: tuple[int, ...]
    by: str
    now: bool = False


class RequeueRequested(Event, frozen=True, tag="RequeueRequested"):
    id: int
    by: str
    ended: Job | None = None  # the job itself when it is over, which the state has forgotten
    waits_for: tuple[int, ...] = ()  # of policy.after: those that are not done yet


class WorkersPrepared(Event, frozen=True, tag="WorkersPrepared"):
    """A node has all it needs to start its allocation, and these versions."""

    id: int
    attempt: int
    node: str
    python: str  # "3.11.7"
    torch: str  # "2.13.0+cpu"; empty: there is none
    wiiiiided: str  # of the job's interpreter; empty: there is none
    note: str = ""  # what of its files was changed for it, a sentence


class WorkersStarted(Event, frozen=True, tag="WorkersStarted"):
    id: int
    attempt: int
    node: str


class WorkersEnded(Event, frozen=True, tag="WorkersEnded"):
    """Confirmed: nothing of that allocation runs any more."""

    id: int
    attempt: int
    node: str
    code: int
    reason: str
    lost: bool = False
    ended_at: float | None = None  # when it really was, if it became known only later
    failed_at: float | None = None  # when the first of its ranks failed by itself
    error: str = ""  # the exception that rank ended with, one line
    idle: bool = False  # none of its ranks had finished an operation or said a step


class ProgressSampled(Event, frozen=True, tag="ProgressSampled"):
    """The rank that has made no progress for the longest, among those that ever made any."""

    id: int
    attempt: int
    rank: int
    silent_s: float


class StepsCompared(Event, frozen=True, tag="StepsCompared"):
    """Which ranks train at other steps than the first, a sentence; empty: none do any more."""

    id: int
    attempt: int
    apart: str


class StacksDumped(Event, frozen=True, tag="StacksDumped"):
    id: int
    attempt: int
    node: str


class NodeSeen(Event, frozen=True, tag="NodeSeen"):
    """A node is heard: for the first time, again, or with other resources."""

    node: Node


class NodeLeft(Event, frozen=True, tag="NodeLeft"):
    """A node is not heard of any more; jobs that are on it may go on."""

    node: str
    silent_s: float = 0.0  # for how long already


class NodeDrained(Event, frozen=True, tag="NodeDrained"):
    node: str
    by: str
    reason: str


class NodeResumed(Event, frozen=True, tag="NodeResumed"):
    node: str
    by: str


class NodeDeclaredLost(Event, frozen=True, tag="NodeDeclaredLost"):
    """An operator vouches that nothing runs on it any more."""

    node: str
    by: str


class NodeRemoved(Event, frozen=True, tag="NodeRemoved"):
    """A node is no member any more; its allocations count as ended."""

    node: str
    by: str


class Ticked(Event, frozen=True, tag="Ticked"):
    """Time has passed: whatever was due by `at` happens, to all jobs or to one of them."""

    id: int | None = None


class ClockJumped(Event, frozen=True, tag="ClockJumped"):
    """The clock was set: by so many seconds all times of before are off."""

    by: float


# Of a job that is known and of the attempt it is in, or else of the job alone.
AttemptEvent = (
    WorkersPrepared | WorkersStarted | WorkersEnded | ProgressSampled | StepsCompared | StacksDumped
)
JobEvent = HoldRequested | ReleaseRequested | CancelRequested | AttemptEvent
AnyEvent = (
    JobSubmitted
    | SweepSubmitted
    | SweepCancelRequested
    | RequeueRequested
    | JobEvent
    | NodeSeen
    | NodeLeft
    | NodeDrained
    | NodeResumed
    | NodeDeclaredLost
    | NodeRemoved
    | Ticked
    | ClockJumped
)
