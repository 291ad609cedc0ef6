"""How far training is in the order of samples: what was handed out, and what counts. Pure.

    committed          head                    a loop that prefetches has fetched up to here
        │                │                                  │
    ────┴── handed out ──┴──────────── fetched ─────────────┴────────────►  places of the epoch

A batch is *handed out* when the training loop gets it and *committed* when the step that used it is
done, on all ranks. The state that is saved is the committed place: what was fetched, or handed out
and not trained, counts as not seen, and comes again after a restart. A loop that is left before its
end and begun anew goes on at the committed place too; one that has run out goes on with the next
epoch, and what it handed out last is still to be committed (accumulation across the epoch's end).
"""

from __future__ import annotations

from typing import NamedTuple

from wiiiiided.train.data.order import BatchSpan


class EpochPlace(NamedTuple):
    """A place in the order of an epoch."""

    epoch: int
    place: int


class Cursor:
    """Where training is."""

    def __init__(self, at: EpochPlace, generation: int) -> None:
        self.committed = self.head = at
        self.generation = generation  # how often a state has been loaded before this
        self.samples = 0  # of this rank, handed out since the last commit
        self._after: EpochPlace | None = None  # where the next commit leads to
        self._ran_out = False

    def begin(self) -> EpochPlace:
        """A loop begins: where."""
        if not self._ran_out:
            self._forget()
        self._ran_out = False
        return self.head

    def hand_out(self, span: BatchSpan, samples: int) -> None:
        """The loop gets a batch, of which this rank has so many samples."""
        epoch = self.head.epoch
        self.head = EpochPlace(epoch, span.end)
        self._after = EpochPlace(epoch + 1, 0) if span.last else self.head
        self.samples += samples

    def run_out(self) -> None:
        """The loop has got all of its epoch."""
        self.head = EpochPlace(self.head.epoch + 1, 0)
        self._ran_out = True

    def commit(self) -> None:
        """All that was handed out has been trained."""
        self.committed = self._after or self.committed
        self._after, self.samples = None, 0

    def move(self, epoch: int) -> None:
        """To the beginning of another epoch."""
        self.committed = EpochPlace(epoch, 0)
        self._ran_out = False
        self._forget()

    def _forget(self) -> None:
        self.head, self._after, self.samples = self.committed, None, 0
