"""The lines of a shim's control socket as values: what the daemon commands, what the shim reports.

One JSON object per line, at most 1 MiB. The shim sends first, and at every change:

    {"event": "status", "format": 1, "phase": "preparing" | "running" | "stopping" | "ended",
     "ranks": [{"rank": 0, "pid": 123, "ticks": 4567, "code": null}, …]}
    {"event": "stacks", "dumps": [{"rank": 0, "pid": 123, "text": "…"}, …]}     answer to stacks

and obeys

    {"do": "stop", "grace_s": 10.0, "reason": "cancelled by ada"}     grace_s 0: SIGKILL at once
        with "moment": true, ranks first have a moment to end by themselves
    {"do": "signal", "signal": "SIGUSR1"}        only to ranks that catch it
    {"do": "stacks"}                             only from processes with the handler
    {"do": "heard", "at": 1234.5}                the coordinator was heard then, by CLOCK_BOOTTIME

A code is the exit code, or 128 + signal number. Either side may be of another version, and a job
can forge a shim's lines: a field that is not of its type is as if it were not there, and a line of
a kind that is not known is None.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from wiiiiided.cluster.shim import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    ShimCommand: TypeAlias = "StopCommand | SignalCommand | StacksCommand | HeardCommand"


@dataclass(frozen=True)
class StopCommand:
    """End everything."""

    grace_s: float | None  # None: the job's own
    reason: str
    ranks_end_first: bool = False  # "moment" in the line

    def line(self) -> bytes:
        fields = {"grace_s": self.grace_s, "reason": self.reason, "moment": self.ranks_end_first}
        return _line({"do": "stop", **fields})


@dataclass(frozen=True)
class SignalCommand:
    """Send a signal to the ranks that catch it."""

    signal: str

    def line(self) -> bytes:
        return _line({"do": "signal", "signal": self.signal})


@dataclass(frozen=True)
class StacksCommand:
    """Say where each rank is."""

    def line(self) -> bytes:
        return _line({"do": "stacks"})


@dataclass(frozen=True)
class HeardCommand:
    """The coordinator was heard; without a time: just now."""

    at: float | None

    def line(self) -> bytes:
        return _line({"do": "heard", "at": self.at})


@dataclass(frozen=True)
class RankState:
    """One rank in a status."""

    rank: int
    pid: int | None = None
    ticks: int | None = None
    code: int | None = None


@dataclass(frozen=True)
class ShimStatus:
    """How far the attempt is."""

    phase: str
    ranks: tuple[RankState, ...]

    def line(self) -> bytes:
        ranks = [asdict(rank) for rank in self.ranks]
        return _line(
            {"event": "status", "format": protocol.FORMAT, "phase": self.phase, "ranks": ranks}
        )


@dataclass(frozen=True)
class RankStacks:
    """The stacks of a process of one rank."""

    rank: int  # -1: the shim did not say
    pid: int | None
    text: str


@dataclass(frozen=True)
class StacksReport:
    """The answer to StacksCommand."""

    dumps: tuple[RankStacks, ...]

    def line(self) -> bytes:
        answer = {"event": "stacks", "dumps": [asdict(dump) for dump in self.dumps]}
        return json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def read_command(line: bytes) -> ShimCommand | None:
    """The daemon's command, if it is a known one; ValueError when the line is no command at all."""
    fields = _fields(line)
    match fields.get("do"):
        case "stop":
            grace_s, ranks_end_first = _float(fields.get("grace_s")), fields.get("moment") is True
            return StopCommand(grace_s, str(fields.get("reason", "")), ranks_end_first)
        case "signal":
            return SignalCommand(str(fields.get("signal")))
        case "stacks":
            return StacksCommand()
        case "heard":
            return HeardCommand(_float(fields.get("at")))
    return None


def read_report(line: bytes) -> ShimStatus | StacksReport | None:
    """The shim's report, if it is a known one; ValueError when the line is no report at all."""
    fields = _fields(line)
    match fields.get("event"):
        case "status":
            ranks = (_rank(each) for each in _objects(fields.get("ranks")))
            known = tuple(rank for rank in ranks if rank is not None)
            return ShimStatus(str(fields.get("phase", "")), known)
        case "stacks":
            return StacksReport(tuple(_stacks(each) for each in _objects(fields.get("dumps"))))
    return None


def _rank(said: dict[str, Any]) -> RankState | None:
    """Read a rank; None: a rank without its number is none."""
    rank, pid, ticks, code = (_int(said.get(name)) for name in ("rank", "pid", "ticks", "code"))
    return None if rank is None else RankState(rank, pid, ticks, code)


def _stacks(said: dict[str, Any]) -> RankStacks:
    rank, pid, text = _int(said.get("rank")), _int(said.get("pid")), said.get("text")
    return RankStacks(-1 if rank is None else rank, pid, text if isinstance(text, str) else "")


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def _fields(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _objects(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _float(value: object) -> float | None:
    """A number, and not NaN; one that no float can be is none either."""
    if not isinstance(value, int | float) or value != value:
        return None
    try:
        return float(value)
    except OverflowError:
        return None
