"""What is to be done: imperative. The I/O shell does it after the state is safely stored.

An action may be carried out twice (the daemon died after doing it and before knowing): each names
job, attempt and node, and doing it again changes nothing.
"""

from __future__ import annotations

import msgspec

from wiiiiided.domain.layout import Layout


class Action(msgspec.Struct, frozen=True):
    id: int


class StartWorkers(Action, frozen=True):
    attempt: int
    node: str
    layout: Layout


class StopWorkers(Action, frozen=True):
    attempt: int
    node: str
    grace_s: float  # 0: SIGKILL at once
    reason: str


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


class Tell(Action, frozen=True):
    """A line of the job's story: into the store, and into the log."""

    at: float
    text: str


AnyAction = StartWorkers | StopWorkers | SignalWorkers | DumpStacks | RunNotify | Tell
