"""What happened: past tense, with the time it happened at. Nothing else changes the state.

`at` is seconds since 1970, given by whoever saw it; the machine has no clock.
"""

from __future__ import annotations

import msgspec

from wiiiiided.control.job import Job, Owner
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import JobSpec


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=True):
    at: float


class JobSubmitted(Event, frozen=True):
    id: int
    spec: JobSpec
    owner: Owner
    archive: str
    waits_for: tuple[int, ...] = ()  # of policy.after: those that are not done yet
    hold: bool = False


class HoldRequested(Event, frozen=True):
    id: int
    by: str


class ReleaseRequested(Event, frozen=True):
    id: int
    by: str


class CancelRequested(Event, frozen=True):
    id: int
    by: str
    now: bool = False


class RequeueRequested(Event, frozen=True):
    id: int
    by: str
    ended: Job | None = None  # the job itself when it is over, which the machine has forgotten
    waits_for: tuple[int, ...] = ()  # of policy.after: those that are not done yet


class WorkersStarted(Event, frozen=True):
    id: int
    attempt: int
    node: str


class WorkersEnded(Event, frozen=True):
    """Confirmed: nothing of that share runs any more."""

    id: int
    attempt: int
    node: str
    code: int
    reason: str
    lost: bool = False
    ended_at: float | None = None  # when it really was, if it became known only later


class ProgressSampled(Event, frozen=True):
    """The rank that has made no progress for the longest, among those that ever made any."""

    id: int
    attempt: int
    rank: int
    silent_s: float


class StacksDumped(Event, frozen=True):
    id: int
    attempt: int
    node: str


class NodeSeen(Event, frozen=True):
    """A node is there, for the first time or with other resources."""

    node: Node


class Ticked(Event, frozen=True):
    """Time has passed: whatever was due by `at` happens."""


class ClockJumped(Event, frozen=True):
    """The clock was set: by so many seconds all times of before are off."""

    by: float


AnyEvent = (
    JobSubmitted
    | HoldRequested
    | ReleaseRequested
    | CancelRequested
    | RequeueRequested
    | WorkersStarted
    | WorkersEnded
    | ProgressSampled
    | StacksDumped
    | NodeSeen
    | Ticked
    | ClockJumped
)
