"""Faults as data: which rank is killed or stopped, and at which of its steps.

    plan = FaultPlan().kill(rank=1, step=3)
    watch_ranks(body, 2, during=plan)           # the body calls `reach(step)` before each step

The faults come from outside, as in life: a rank tells that it has reached a step, the watching test
sends the signal. `plan.fired` says when, on the clock that all processes of a machine share.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.kit.conditions import wait_until
from tests.kit.ranks import Outcome, Rank, note

_REACHED = "reached"
_FOLDER = "folder"
_COMES_S = 50.0  # less than a run of ranks has: its failure names the ranks that did not come

Condition = Callable[[list[Outcome]], bool]


@dataclass(frozen=True)
class Fault:
    """A signal to one rank, some time after it has reached a step."""

    rank: int
    step: int
    signal: int
    after_s: float = 0.0
    when: Condition | None = None  # and not before this is so


@dataclass
class FaultPlan:
    """The faults and their ranks. Give it to `watch_ranks` as `during`."""

    faults: tuple[Fault, ...] = ()
    fired: dict[Fault, float] = field(default_factory=dict)  # time.monotonic() of each
    _due: dict[Fault, float] = field(default_factory=dict)

    def kill(self, rank: int, step: int, after_s: float = 0.0) -> FaultPlan:
        """SIGKILL: it ends at once, whatever it is doing."""
        return self._with(Fault(rank, step, signal.SIGKILL, after_s))

    def stop(self, rank: int, step: int, for_s: float, until: Condition) -> FaultPlan:
        """SIGSTOP, and SIGCONT after `for_s` seconds, when the others are as far as they shall be.

        They may be slower than `for_s`: on a busy machine they do not run all the time either.
        """
        plan = self._with(Fault(rank, step, signal.SIGSTOP))
        return plan._with(Fault(rank, step, signal.SIGCONT, for_s, until))

    def interrupt(self, rank: int, step: int, after_s: float = 0.0) -> FaultPlan:
        """SIGINT, which Python turns into KeyboardInterrupt."""
        return self._with(Fault(rank, step, signal.SIGINT, after_s))

    def when(self, rank: int) -> float:
        """When the first fault of a rank happened (time.monotonic())."""
        return min(at for fault, at in self.fired.items() if fault.rank == rank)

    def __call__(self, outcomes: list[Outcome], elapsed_s: float) -> None:
        now = time.monotonic()
        for fault in self.faults:
            if fault in self.fired:
                continue
            outcome = outcomes[fault.rank]
            if (_REACHED, fault.step) not in [value for _, value in outcome.notes]:
                continue
            due = self._due.setdefault(fault, now + fault.after_s)
            ready = fault.when is None or fault.when(outcomes)
            if now >= due and ready and outcome.exit_code is None:
                self.fired[fault] = time.monotonic()
                os.kill(outcome.pid, fault.signal)
                for _, what in outcome.notes:
                    if isinstance(what, tuple) and what[0] == _FOLDER:
                        Path(what[1], f"struck {fault.rank}").touch()

    def _with(self, fault: Fault) -> FaultPlan:
        return replace(self, faults=(*self.faults, fault), fired={}, _due={})


def reach(step: int) -> None:
    """Inside a rank: I begin this step. Faults of the plan may strike from here on."""
    note((_REACHED, step))


def expect_fault(me: Rank) -> None:
    """Inside the rank that a plan strikes: the others can wait for that with `await_fault`."""
    note((_FOLDER, me.folder))


def await_fault(me: Rank, rank: int) -> None:
    """Inside a rank that would be done soon: not before the fault of that rank has struck it."""
    wait_until(Path(me.folder, f"struck {rank}").exists, _COMES_S, f"the fault of rank {rank}")


def together(me: Rank, what: str = "together") -> None:
    """Inside a rank: go on when all ranks are here, however late one of them comes.

    A barrier does not do: a rank late in leaving it may meet the fault of what comes next in it.
    """
    Path(me.folder, f"{what} {me.rank}").touch()
    everyone = [Path(me.folder, f"{what} {rank}") for rank in range(me.size)]
    wait_until(lambda: all(map(Path.exists, everyone)), _COMES_S, f"all are {what}")


def make_group(me: Rank, timeout_s: float = 60.0, store: str = "store") -> None:
    """Inside a rank that was started without a group: make the world group."""
    import torch.distributed as dist

    dist.init_process_group(
        "wiiiiide",
        init_method=f"file://{me.folder}/{store}",
        rank=me.rank,
        world_size=me.size,
        timeout=timedelta(seconds=timeout_s),
    )


def named(rank: Outcome, hosts: str) -> str:
    """How messages name a rank: with its host where there are several."""
    where = f" on {socket.gethostname()}" if len(set(hosts)) > 1 else ""
    return f"rank {rank.rank} (pid {rank.pid}{where})"


@dataclass(frozen=True)
class Failure:
    """An exception as a survivor met it, and when."""

    kind: str
    text: str
    at: float  # time.monotonic()
    took_s: float  # from the call to the exception


def failure_of(action: Any, *args: Any) -> Failure | None:
    """Call it; what it raised, or None."""
    began = time.monotonic()
    try:
        action(*args)
    except Exception as error:
        now = time.monotonic()
        return Failure(type(error).__name__, str(error), now, now - began)
    return None
