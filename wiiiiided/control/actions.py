"""What is to be done: imperative. The I/O shell does it after the state is safely stored.

An action may be carried out twice (the daemon died after doing it and before knowing): each names
job, attempt and node, and doing it again changes nothing.
"""

from __future__ import annotations

import msgspec

from wiiiiided.domain.layout import Layout


class Action(msgspec.Struct, frozen=True, tag_field="action", tag=True):
    id: int


class PrepareWorkers(Action, frozen=True):
    """Get what a share needs (the archive), look at its interpreter, and report; start nothing."""

    attempt: int
    node: str
    layout: Layout


class StartWorkers(Action, frozen=True):
    attempt: int
    node: str
    layout: Layout


class StopWorkers(Action, frozen=True):
    attempt: int
    node: str
    grace_s: float  # 0: SIGKILL at once
    reason: str
    moment: bool = False  # first a moment to end by themselves, with the error that names the cause


class SignalWorkers(Action, frozen=True):
    attempt: int
    node: str
    signal: str


class DumpStacks(Action, frozen=True):
    attempt: int
    node: str


class RunNotify(Action, frozen=True):
    state: str
    code: int | None
    reason: str
    node: str = ""  # the owner's, if it is heard; empty: the coordinator's own


class Tell(Action, frozen=True):
    """A line of the job's story: into the store, and into the log."""

    at: float
    text: str


AnyAction = (
    PrepareWorkers | StartWorkers | StopWorkers | SignalWorkers | DumpStacks | RunNotify | Tell
)
