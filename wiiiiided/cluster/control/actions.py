"""Things to be done: imperative. The I/O shell does it after the state is safely stored.

An action may be carried out twice (the daemon died after doing it and before knowing): each names
job, attempt and node, and doing it again changes nothing.
"""

from __future__ import annotations

import msgspec

from wiiiiided.domain.rank_layout import Layout


class Action(msgspec.Struct, frozen=True, tag_field="action", tag=True):
    id: int


class PrepareWorkers(Action, frozen=True, tag="PrepareWorkers"):
    """Get what the allocation needs (its archive), ask its interpreter for its versions, and
    report; start nothing."""

    attempt: int
    node: str
    layout: Layout


class StartWorkers(Action, frozen=True, tag="StartWorkers"):
    attempt: int
    node: str
    layout: Layout


class StopWorkers(Action, frozen=True, tag="StopWorkers"):
    attempt: int
    node: str
    grace_s: float  # 0: SIGKILL at once
    reason: str
    # Ranks have a moment to end by themselves first, with the error that names the cause.
    ranks_end_first: bool = msgspec.field(name="moment", default=False)


class SignalWorkers(Action, frozen=True, tag="SignalWorkers"):
    attempt: int
    node: str
    signal: str


class DumpStacks(Action, frozen=True, tag="DumpStacks"):
    attempt: int
    node: str


class RunNotify(Action, frozen=True, tag="RunNotify"):
    state: str
    code: int | None
    reason: str
    node: str = ""  # the owner's, if it is heard; empty: the coordinator's own


class Tell(Action, frozen=True, tag="Tell"):
    """A line of the job's story: into the store, and into the log."""

    at: float
    text: str


AnyAction = (
    PrepareWorkers | StartWorkers | StopWorkers | SignalWorkers | DumpStacks | RunNotify | Tell
)
