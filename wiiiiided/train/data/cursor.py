"""How far training is in the order of samples: what was handed out, and what counts. Pure.

    committed          head                    a loop that prefetches has fetched up to here
        │                │                                  │
    ────┴── handed out ──┴──────────── fetched ─────────────┴────────────►  places of the epoch

A batch is *handed out* when the training loop gets it and *committed* when the step that used it is
done, on all ranks. The state that is saved is the committed place: what was fetched, or handed out
and not trained, counts as not seen, and comes again after a restart. A loop that is left before its
end and begun anew goes on at the committed place too; one that has run out goes on with the next
epoch, and what it handed out last is still to be committed (accumulation across the epoch's end).

Where hosts make rounds of their own (`rounds`), a step is a host's own affair: what it has trained
counts for all at the exchange. Until then the committed place is the round's beginning, which is
where a restart goes on, from the weights of the exchange before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wiiiiided.errors import UsageError
from wiiiiided.train.data.order import BatchSpan
from wiiiiided.train.data.places import PlacesLeft
from wiiiiided.train.data.rounds import HostSizes, cut_round, settle_rounds


class EpochPlace(NamedTuple):
    """A place in the order of an epoch, as the number of what is left of it."""

    epoch: int
    place: int
    places: PlacesLeft = PlacesLeft()

    def saved(self) -> EpochPlace:
        """Without what was trained."""
        return self._replace(places=self.places.rest(self.place))


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
        self.head = self.head._replace(place=span.end)
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


class RoundCursor(Cursor):
    """Where training is, where hosts make rounds of their own."""

    def __init__(self, at: EpochPlace, generation: int, host: int, sizes: HostSizes) -> None:
        super().__init__(at, generation)
        self.host, self.sizes = host, sizes
        self.handed = self.trained = 0  # batches of this host since the round began
        self._is_epochs_last = False  # the loop that goes on has nothing left

    def begin(self) -> EpochPlace:
        """A loop begins: where its round does; it skips what this host has trained of it."""
        if self._ran_out and self.handed > self.trained:
            raise UsageError(
                f"{self.handed - self.trained} batches at the end of the last epoch were not "
                "stepped: where hosts exchange seldom a round ends with its epoch, so call "
                "optimizer.step() after the last batch"
            )
        self._forget()
        self._ran_out = self._is_epochs_last = False
        return self.head

    def hand_out(self, span: BatchSpan, samples: int) -> None:
        """The loop gets this host's next batch."""
        self.handed += 1
        self.samples += samples

    def commit(self) -> None:
        """This host has trained all that was handed out."""
        self.trained, self.samples = self.handed, 0

    def move(self, epoch: int) -> None:
        """To the beginning of another epoch."""
        self.handed = self.trained = 0
        super().move(epoch)

    def _forget(self) -> None:
        self.head, self.handed, self.samples = self.committed, self.trained, 0

    def is_round_over(self, end: int) -> bool:
        """Whether this host has got all of its round, in an epoch that ends at a number."""
        found = cut_round(self.committed.place, end, self.sizes)
        return self.handed >= found.counts[self.host]

    def end_round(self, end: int, made: Sequence[int]) -> bool:
        """Record how many batches each host has trained; returns whether that was the plan."""
        epoch, place, places = self.committed
        foreseen = cut_round(place, end, self.sizes)
        settled = settle_rounds(place, end, self.sizes, made)
        self._is_epochs_last = settled.is_epochs_last
        if settled.is_epochs_last:
            self.committed = EpochPlace(epoch + 1, 0)  # the loop that goes on still has its own
        else:
            after = places.after(settled.end, settled.left)
            self.committed = self.head = EpochPlace(epoch, after.begin, after)
        self.handed = self.trained = 0
        return tuple(made) == foreseen.counts

    def now(self) -> EpochPlace | None:
        """Where the loop that goes on is; None: at its end."""
        return None if self._is_epochs_last else self.committed
