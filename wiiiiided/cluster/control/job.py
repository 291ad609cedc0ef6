"""A job as the control plane holds it. Each phase carries only what is true in it.

    Job ── spec, owner, archive              never change
        ── phase     Held | Queued | Starting | Running | Hung | Stopping | Backoff | Ended
        ── attempt   the latest: its layout, which allocations are ready, up, ended
        ── sweep     and its setting there, never change
        ── restarts  that the policy has spent, spent_s of running time

Everything is frozen and goes to the store as JSON, as it is.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from wiiiiided.domain.rank_layout import Layout
from wiiiiided.domain.spec import JobSpec
from wiiiiided.domain.states import State
from wiiiiided.domain.sweep import label

Outcome = Literal["done", "failed", "cancelled"]
AttemptKey = tuple[int, int]  # job, number of the attempt


class Owner(msgspec.Struct, frozen=True):
    """The user who submitted a job, and on which node."""

    node: str
    uid: int
    user: str


class Result(msgspec.Struct, frozen=True):
    """How a node's allocation ended. Nothing of it runs any more."""

    code: int
    reason: str
    lost: bool = False  # its machine or its shim died: no process saw the ranks end
    failed_at: float | None = None  # when the first of its ranks failed by itself
    error: str = ""  # the exception that rank ended with, one line
    early: bool = False  # it ended within seconds, before its first operation or step


class Versions(msgspec.Struct, frozen=True):
    """An allocation's interpreter and its packages; empty where it has none."""

    python: str
    torch: str
    wiiiiided: str


class Saved(msgspec.Struct, frozen=True):
    """Where checkpoints lie: in a job's working directory on these nodes, in the order of ranks."""

    job: int
    nodes: tuple[str, ...]  # of the last attempt that was ordered
    earlier: tuple[str, ...] = ()  # of those before it: one that was away may have newer ones


class Attempt(msgspec.Struct, frozen=True):
    """One try at running a job.

    On several nodes:   placed ─► every node prepares ─► all are ready and agree ─► ordered ─► up
                                  nothing runs on any                               it may run
    On one node it is ordered as soon as it is placed.
    """

    number: int  # 1, 2, …
    layout: Layout
    placed_at: float
    up: tuple[str, ...] = ()  # nodes whose workers have started
    results: dict[str, Result] = {}  # nodes whose allocation has ended
    prepared: dict[str, Versions] = {}  # nodes that are ready to start
    ordered: bool = True  # its allocations were told to start; before that none of them runs
    # Nodes in `saved`: they are asked what they have before this one is ordered, and what one of
    # them has is given to all nodes, unless these have it. Empty: there is nothing to ask.
    checkpoints_from: tuple[str, ...] = ()
    apart: str = ""  # which ranks train at other steps than the first, a sentence
    saved: Saved | None = None  # by the last attempt that was ordered, or the job it goes on from

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(allocation.node for allocation in self.layout.allocations)

    @property
    def live(self) -> tuple[str, ...]:
        """Nodes on which something may still run."""
        return tuple(node for node in self.nodes if node not in self.results)

    @property
    def unheard(self) -> tuple[str, ...]:
        """Nodes that have not said what is waited for: that they are ready, then that they run."""
        said = self.up if self.ordered else self.prepared
        return tuple(node for node in self.live if node not in said)


class _Phase(msgspec.Struct, frozen=True, tag_field="state", tag=str.lower):
    since: float

    @property
    def state(self) -> State:
        return self.__struct_config__.tag  # type: ignore[return-value]


class Held(_Phase, frozen=True, tag="held"):
    by: str


class Queued(_Phase, frozen=True, tag="queued"):
    pass


class Starting(_Phase, frozen=True, tag="starting"):
    asked_at: float = 0.0  # when nodes without a word were last told once more; 0: never


class Running(_Phase, frozen=True, tag="running"):
    warned: bool = False  # that max_time is near


class Hung(_Phase, frozen=True, tag="hung"):
    reason: str
    dumped: tuple[str, ...] = ()  # nodes that have written their stacks


StopCause = Literal[
    "cancel",
    "requeue",
    "max-time",
    "hang",
    "share-failed",
    "versions",  # of its nodes differ
    "node-left",  # before the start was ordered
]


class Stopping(_Phase, frozen=True, tag="stopping"):
    cause: StopCause
    reason: str
    silent: tuple[str, ...] = ()  # nodes not heard of when an allocation failed, or soon after
    now: bool = False  # without grace; a node that is told later must know that too


class Backoff(_Phase, frozen=True, tag="backoff"):
    until: float
    reason: str


class Ended(_Phase, frozen=True, tag="ended"):
    outcome: Outcome
    code: int | None  # None: it never ran
    reason: str

    @property
    def state(self) -> State:
        return self.outcome


Phase = Held | Queued | Starting | Running | Hung | Stopping | Backoff | Ended


class Job(msgspec.Struct, frozen=True):
    id: int
    spec: JobSpec
    owner: Owner
    archive: str
    submitted_at: float
    phase: Phase
    waits_for: tuple[int, ...] = ()  # jobs of policy.after that are not done yet
    attempt: Attempt | None = None
    restarts: int = 0
    spent_s: float = 0.0  # running time of earlier attempts
    stillborn: str = ""  # how the latest attempt ended, if that was before it had done anything
    sweep: int = 0  # that it belongs to: the number of its first job
    setting: dict[str, str] = {}  # in that: key of the job file → value
    requeued_at: float = 0.0  # when a person last requeued it
    resumes: Saved | None = None  # another job's checkpoints, with which its first attempt begins

    @property
    def name(self) -> str:
        """The job's name as people see it: with what tells it from the others of its sweep."""
        return f"{self.spec.name} {label(self.setting)}" if self.setting else self.spec.name

    @property
    def state(self) -> State:
        return self.phase.state

    @property
    def saved(self) -> Saved | None:
        """Checkpoints its next attempt goes on from. An attempt that was never ordered has written
        nothing: the next has what that one was to have."""
        last = self.attempt
        if last is None:
            return self.resumes
        if last.ordered:
            older = last.saved if last.saved is not None and last.saved.job == self.id else None
            before = (*older.nodes, *older.earlier) if older is not None else ()
            return Saved(self.id, last.nodes, tuple(n for n in before if n not in last.nodes))
        noted = last.checkpoints_from  # all that an earlier release has noted
        return last.saved or (Saved(self.id, noted) if noted else None)

    @property
    def queue_key(self) -> tuple[int, int]:
        """Smaller goes first: priority, then first come first served. A job that starts again
        keeps its place."""
        return (-self.spec.policy.priority, self.id)
