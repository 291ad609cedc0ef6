"""The phases of an attempt in its shim, and how each follows from the one before. No I/O.

    RanksPreparing ── every rank has begun ──► RanksRunning ── all ended ──► RanksDraining
          │                                         │                        │ │ the Store has
          │ stop, SIGTERM, a rank that cannot start │ … or that failed       │ │ remote clients
          ▼                                         ▼                        ▼ ▼
    RanksStopping ── no process left ──► AttemptOver ◄── the last has left ─ StoreHosting, or over

A phase carries only what is true in it; `word` is its name in a status line. A function that does
not apply to a phase returns it as it is: orders and ends may come late, and twice.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from wiiiiided.cluster.shim.ranks import Rank

TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Failure:
    """Why the attempt fails: the first cause, whatever follows from it."""

    code: int
    reason: str
    at: float
    rank: Rank | None = None


@dataclass(frozen=True)
class StopRequest:
    """Why the attempt was told to stop before its ranks had ended."""

    reason: str
    alone: bool = False  # for want of the coordinator's word: the attempt may run elsewhere by now


@dataclass(frozen=True)
class RanksPreparing:
    """The working directory is unpacked, ranks are started; not every rank runs its program yet."""

    word = "preparing"
    noted: str = ""  # the sentence about a full disk that the log has


@dataclass(frozen=True)
class RanksRunning:
    word = "running"


@dataclass(frozen=True)
class RanksDraining:
    """All ranks have ended by themselves. Their other processes have a moment, then are killed."""

    word = "running"
    killed: bool = False


@dataclass(frozen=True)
class StoreHosting:
    """No process is left here, and ranks of other nodes use the Store."""

    word = "running"


@dataclass(frozen=True)
class RanksStopping:
    """Every process is to end. How far that is:

    moment    ranks may still end by themselves, with a better error than "terminated"
    drained   … all have; their other processes have a moment
    termed    every process was sent SIGTERM, or killed
    """

    word = "stopping"
    cause: Failure | StopRequest | None  # None: all ranks had ended before
    progress: Literal["moment", "drained", "termed"] = "moment"


@dataclass(frozen=True)
class AttemptOver:
    """No process is left; exit.json is written, or tried again and again."""

    word = "ended"


if TYPE_CHECKING:
    Phase = (
        RanksPreparing | RanksRunning | RanksDraining | StoreHosting | RanksStopping | AttemptOver
    )


def rank_failed(phase: Phase, failure: Failure) -> Phase:
    """A rank ended with a code, or cannot begin. The first failure ends the attempt; those that
    follow from it change nothing."""
    if isinstance(phase, RanksPreparing | RanksRunning):
        return RanksStopping(failure)
    return phase


def stop_asked(phase: Phase, cause: StopRequest) -> Phase:
    match phase:
        case RanksPreparing() | RanksRunning():
            return RanksStopping(cause)
        case RanksDraining(killed):
            return RanksStopping(None, "termed" if killed else "drained")
        case StoreHosting():
            return RanksStopping(None, "drained")
    return phase


def excused(phase: Phase, cause: StopRequest) -> Phase:
    """The machine shuts down: a rank that died of SIGTERM a moment ago has not failed."""
    match phase:
        case RanksStopping(cause=Failure(code=code)) if code == TERMINATED:
            return replace(phase, cause=cause)
    return phase


def all_ranks_ended(phase: Phase) -> Phase:
    match phase:
        case RanksPreparing() | RanksRunning():
            return RanksDraining()
        case RanksStopping(progress="moment"):
            return replace(phase, progress="drained")
    return phase


def terminated(phase: Phase) -> Phase:
    """Every process was sent SIGTERM, or killed."""
    match phase:
        case RanksDraining():
            return RanksDraining(killed=True)
        case RanksStopping():
            return replace(phase, progress="termed")
    return phase
