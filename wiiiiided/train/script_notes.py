"""The requests of a training script to this package, for a trial of `wiiiiide plan`.

Public calls write it down as they are made, and the trial's probe (torch/step_probe) reads it: what
a step of several machines would be follows from it, and cannot be seen on one. The probe finds here
too which batches it may have halved, to see what a step of fewer samples takes. A process has one
script, so there is one set of notes.
"""

from __future__ import annotations

from typing import Final, Protocol
from weakref import WeakSet


class GlobalBatches(Protocol):
    """The part of wide.Batches that a trial calls."""

    def halve(self) -> None:
        """Hand out half of each part from now on."""


class ScriptNotes:
    """Set by public calls, never cleared."""

    def __init__(self) -> None:
        self.fixed = ""  # how hosts exchange, where the script says it
        self.gradients: str | None = None  # of that; None: what the job file says
        self.every: int | str | None = None
        self.compresses = False  # compress_gradients
        self.has_data = False  # wide.parallel(data=…): the run divides the loop's data
        self.asks_shares = False  # the script divides a global batch by run.shares
        self.has_batches = False  # its loop goes over wide.Batches, whose batch is of all ranks
        self.batches: WeakSet[GlobalBatches] = WeakSet()  # … over these of them

    def loops_over(self, batches: GlobalBatches) -> None:
        """A loop over these has begun."""
        self.has_batches = True
        self.batches.add(batches)


notes: Final = ScriptNotes()
