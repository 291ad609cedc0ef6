"""Jobs that were cancelled on this machine while its coordinator was away.

    cancel ─► cancelled.json in the job's directory, then the share here ends
              a daemon that dies between the two ends it when it is back
    the link stands ─► LinkHello names them ─► the job is being cancelled, stored ─► Reconcile
                       says which of them are ─► forgotten here

The job is meant and not the attempt: whatever the restart policy has made of it meanwhile, it is
over. A coordinator to whom it is told twice, or who knows no such job, changes nothing by it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from wiiiiided.daemon.shares.runs import CANCELLED, Runs
from wiiiiided.errors import HostError
from wiiiiided.peering.messages import CancelledHere


class Cancelled(msgspec.Struct, frozen=True):
    """One of them, as it is kept."""

    id: int
    attempt: int  # of which a share was here
    submitted_at: float
    by: str
    now: bool
    at: float


_cancelled = msgspec.json.Decoder(Cancelled).decode
_encode = msgspec.json.Encoder().encode


class Cancellations:
    """Those that the coordinator does not know of yet."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.untold: dict[int, Cancelled] = {}

    def read(self) -> None:
        """What a daemon of before has kept."""
        for number in self.runs.numbers():
            with suppress(OSError, HostError, msgspec.DecodeError):
                if data := self.runs.kept(number, CANCELLED):
                    self.untold[number] = _cancelled(data)

    def keep(self, one: Cancelled) -> None:
        """OSError: it is remembered as long as this daemon lives, and no longer."""
        self.untold[one.id] = one
        self.runs.keep(one.id, _encode(one), CANCELLED)

    def told(self, now: float) -> tuple[CancelledHere, ...]:
        """All of them, for a coordinator that is heard again."""
        return tuple(
            CancelledHere(one.id, one.submitted_at, one.by, one.now, max(0.0, now - one.at))
            for one in self.untold.values()
        )

    def forget(self, numbers: Iterable[int]) -> None:
        """The coordinator has stored these."""
        for number in numbers:
            self.untold.pop(number, None)
            with suppress(OSError):
                os.unlink(self.runs.job(number) / CANCELLED)
