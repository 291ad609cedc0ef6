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
where a restart goes on, from the weights of the exchange before. A round ends with its epoch: what
a loop has got there and not stepped (accumulation) counts with the next step, and comes again after
a restart from that exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wiiiiided.train.data.order import BatchSpan
from wiiiiided.train.data.places import PlacesLeft
from wiiiiided.train.data.rounds import HostRound, HostSizes, cut_round, round_end


class EpochPlace(NamedTuple):
    """A place in the order of an epoch, as the number of what is left of it."""

    epoch: int
    place: int
    places: PlacesLeft = PlacesLeft()

    def saved(self) -> EpochPlace:
        """The place without what was trained."""
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

    @property
    def next_loop(self) -> EpochPlace:
        """Where the next loop begins."""
        return self.head if self._ran_out else self.committed

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

    @property
    def is_epoch_over(self) -> bool:
        """Whether the loop has got the last batch of its epoch."""
        return self._after is not None and self._after.epoch > self.head.epoch

    def commit(self) -> None:
        """All that was handed out has been trained."""
        self.committed = self._after or self.committed
        self._after, self.samples = None, 0

    def saved(self) -> EpochPlace:
        """Where a restart goes on."""
        return self.committed.saved()

    def move(self, epoch: int) -> None:
        """Go to the beginning of another epoch."""
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
        self._carried = 0  # batches of the last epoch that are still to be stepped
        self._unstepped: EpochPlace | None = None  # those of all hosts
        self._is_epochs_last = False  # the loop that goes on has nothing left

    def begin(self) -> EpochPlace:
        """A loop begins: where its round does; it skips what this host has trained of it."""
        samples = self.samples if self._ran_out else 0  # they count with the next step
        self._forget()
        self._ran_out = self._is_epochs_last = False
        self.samples = samples
        return self.head

    def hand_out(self, span: BatchSpan, samples: int) -> None:
        """The loop gets this host's next batch."""
        self.handed += 1
        self.samples += samples

    def commit(self) -> None:
        """This host has trained all that was handed out."""
        self.trained, self.samples, self._carried = self.handed, 0, 0

    @property
    def unstepped(self) -> int:
        """Batches that the loop has got and this host has not trained."""
        return self._carried + self.handed - self.trained

    def saved(self) -> EpochPlace:
        """Where a restart goes on: with what was not stepped before the last exchange."""
        return (self._unstepped or self.committed).saved()

    def move(self, epoch: int) -> None:
        """Go to the beginning of another epoch."""
        self.handed = self.trained = self._carried = 0
        self._unstepped = None
        super().move(epoch)

    def _forget(self) -> None:
        self.head, self.handed, self.samples = self.committed, self.trained, 0

    def next_round(self, end: int) -> HostRound:
        """The round that goes on, in an epoch that ends at a number."""
        return cut_round(self.committed.place, end, self.sizes)

    def is_round_over(self, end: int) -> bool:
        """Whether this host has got all of its round, in an epoch that ends at a number."""
        return self.handed >= self.next_round(end).counts[self.host]

    def end_round(self, end: int, made: Sequence[int], unstepped: Sequence[int]) -> bool:
        """Note that hosts exchanged when each had got so many batches, of which the last may not
        have been stepped; returns whether that was the plan."""
        if not any(unstepped):
            self._unstepped = None
        if not any(made):  # an agreement between two rounds
            return True
        foreseen = self.next_round(end)
        if any(unstepped):
            stepped = [max(0, m - u) for m, u in zip(made, unstepped, strict=True)]
            self._unstepped = self._place_after(end, stepped)[1]
        self._is_epochs_last, after = self._place_after(end, made)
        if self._is_epochs_last:  # the loop that goes on still has its own
            self.committed = EpochPlace(after.epoch + 1, 0)
        else:
            self.committed = self.head = after
        self.handed, self.trained, self._carried = 0, 0, unstepped[self.host]
        return tuple(made) == foreseen.counts

    def _place_after(self, end: int, made: Sequence[int]) -> tuple[bool, EpochPlace]:
        """Whether an epoch is trained once hosts have made so many batches, and what is left."""
        epoch, place, places = self.committed
        ended = round_end(place, end, self.sizes, made)
        after = places.after(ended.end, ended.left)
        return ended.is_epochs_last, EpochPlace(epoch, after.begin, after)

    def now(self) -> EpochPlace | None:
        """Where the loop that goes on is; None: at its end."""
        return None if self._is_epochs_last else self.committed
