"""Jobs that were cancelled on this machine while its coordinator was away.

    cancel ─► cancelled.json in the job's directory, then the allocation here ends
              a daemon that dies between the two ends it at its next start
    the link stands ─► LinkHello names the jobs ─► the coordinator cancels and stores ─► Reconcile
                       names those it has stored ─► forgotten here

A cancellation is of the job, not of the attempt: a later attempt that the restart policy made ends
too. A coordinator that hears of it twice, or does not know the job, changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from wiiiiided.cluster.allocation.job_dirs import CANCELLED, JobDirs
from wiiiiided.cluster.peering.messages import CancelledHere
from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.errors import HostError


class Cancelled(msgspec.Struct, frozen=True):
    """One cancellation, as its file has it."""

    id: int
    attempt: int  # whose allocation was here
    submitted_at: float
    by: str
    now: bool
    at: float


_cancelled = json_decoder(Cancelled)
_encode = msgspec.json.Encoder().encode


class Cancellations:
    """The cancellations that the coordinator does not know of yet."""

    def __init__(self, job_dirs: JobDirs) -> None:
        self.job_dirs = job_dirs
        self.untold: dict[int, Cancelled] = {}

    def read(self) -> None:
        """Read the files of an earlier daemon."""
        for number in self.job_dirs.numbers():
            with suppress(OSError, HostError, msgspec.DecodeError):
                if data := self.job_dirs.kept(number, CANCELLED):
                    self.untold[number] = _cancelled(data)

    def keep(self, one: Cancelled) -> None:
        """Remember a cancellation. OSError: only this daemon does, no file has it."""
        self.untold[one.id] = one
        self.job_dirs.keep(one.id, _encode(one), CANCELLED)

    def told(self, now: float) -> tuple[CancelledHere, ...]:
        """Give all cancellations, for a coordinator that is reached again."""
        return tuple(
            CancelledHere(one.id, one.submitted_at, one.by, one.now, max(0.0, now - one.at))
            for one in self.untold.values()
        )

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop the cancellations that the coordinator has stored."""
        for number in numbers:
            self.untold.pop(number, None)
            with suppress(OSError):
                os.unlink(self.job_dirs.job(number) / CANCELLED)
