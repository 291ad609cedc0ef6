"""`wide.Batches`: global batches in one order, whatever the number of ranks, and each rank's part.

    for x, y in data               this rank's part of each global batch, collated
    for x, y in data.loader(…)     the same through a DataLoader: workers, prefetch, a collate_fn
    data.batch_sampler             its numbers, for a DataLoader that a framework makes

All begin where training is (`cursor`) and go to the epoch's end; the next loop is the next epoch.

A rank without a sample. A short last batch may have fewer samples than there are ranks. All must
step together, and a model cannot be relied on to take a batch of none (`x.view(len(x), -1)` raises,
a mean is NaN, BatchNorm raises). So a rank whose part is empty gets the batch's first sample, which
another rank has too, and `samples_of_step()` says 0: weighted by that, its gradient counts nothing.

How batches are divided may change in the middle of a loop: ranks' shares, the size of a batch, the
rounds of hosts (`divide`, `begin_rounds`, `end_round`), a trial that wants to see a smaller part
(`halve`). Batches fetched ahead are then thrown away, and the loop goes on from what it has got.

A DataLoader of others cannot throw away what it has fetched, and its loop is not ours: the script
says of each batch that it has got it (`got_batch`), and how batches are divided stays as it is
until the next loop.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset, default_collate

from wiiiiided.errors import UsageError
from wiiiiided.train.data.adaptive_batch import AUTO, AdaptiveBatch
from wiiiiided.train.data.columns import ColumnDataset
from wiiiiided.train.data.cursor import Cursor, EpochPlace, RoundCursor
from wiiiiided.train.data.loader_worker import begin_worker, starting_workers
from wiiiiided.train.data.order import BatchSpan, EpochOrder, batch_spans, split
from wiiiiided.train.data.permutation import Numbers
from wiiiiided.train.data.places import IndexRange, PlacesLeft
from wiiiiided.train.data.rounds import HostRound, HostSizes, rounds_from
from wiiiiided.train.script_notes import notes

# Of the state; the second has places that hosts have left behind.
_FORMAT, _WITH_LEFT = 1, 2
_NO_BATCH: Final = object()
_OURS: Final = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


_UNTOLD: Final = (
    "this loop takes its batches from data.batch_sampler and has told of none: call "
    "data.got_batch() for each batch that it gets, before training with it. A DataLoader does not "
    "say what it has given out, and what it has fetched ahead is not to be counted"
)
# Modules that take numbers out of what they are given as a sampler.
_SAMPLING: Final = (
    *("torch.utils.data.dataloader", "torch.utils.data.sampler"),
    "torchdata.stateful_dataloader.stateful_dataloader",
)


class RankPart(NamedTuple):
    """A rank's part of one global batch."""

    span: BatchSpan
    samples: int
    numbers: Numbers  # of the samples; of one that does not count if there are none


class HostPlace(NamedTuple):
    """Which of a host's ranks this is."""

    place: int
    ranks: int


@dataclass
class DrawnLoop:
    """A loop of a DataLoader over `batch_sampler`."""

    number: int
    parts: deque[RankPart] = field(default_factory=deque)  # that the script has not got
    is_told: bool = False  # it has said so of one
    is_drawn: bool = False  # to its end


class AttachedRun(Protocol):
    """The training run that loops over the data, where it wants to hear how loops go on."""

    def wants_batch(self) -> None:
        """A batch will be fetched, and all that the loop does after a step has been done: after the
        last one of an epoch that is when the next epoch begins."""

    def ran_out(self) -> None:
        """A loop has got all of its epoch."""

    def end_loop(self) -> None:
        """That loop is over."""


class Batches:
    """A map-style data set in global batches, of which each rank takes its part."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | str = 256,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        group: dist.ProcessGroup | None = None,
        between: tuple[int, int] | None = None,
        lr_rule: str = "sqrt",
        epochs: int | None = None,
    ) -> None:
        """`batch_size` is that of all ranks together. The same arguments on every rank. `epochs`:
        how many the script means to train, for `top` and `ps`.

        "auto": as data= of wide.parallel it follows the gradient noise scale `between` two bounds,
        and learning rates go along by `lr_rule`: "sqrt", "linear" or "none".
        """
        self.adaptive = AdaptiveBatch(between, lr_rule) if batch_size == AUTO else None
        size: Any = batch_size if self.adaptive is None else self.adaptive.least
        self.batch_size: int = size
        self.dataset, self.seed, self.epochs = dataset, seed, epochs
        self._length = _length(dataset)
        self._shuffle, self._drop_last, self._group = bool(shuffle), bool(drop_last), group
        self._refuse()
        self._fetch = _fetcher(dataset)
        self._cursor: Cursor = Cursor(EpochPlace(0, 0), 0)
        self._shares: tuple[float, ...] | None = None
        self._is_halved = False
        self._division = 0  # how often batches have been divided otherwise
        self._loop = 0  # the number of the loop that goes on
        self._drawn: DrawnLoop | None = None  # … if it is over `batch_sampler`
        self.is_in_loop = False  # a loop has begun, and has not got all of its epoch
        self._by_steps = False
        self._run: AttachedRun | None = None

    def __len__(self) -> int:
        """The batches of a whole epoch."""
        full, rest = divmod(self._length, self.batch_size)
        return full + bool(rest and not self._drop_last)

    def __repr__(self) -> str:
        size = self.adaptive or self.batch_size
        return (
            f"Batches of {size} of {self._length} samples, seed {self.seed}"
            f"{'' if self._shuffle else ', not shuffled'}"
            f"{', without a short last one' if self._drop_last else ''}"
        )

    # -- loops ----

    def __iter__(self) -> Iterator[Any]:
        """The rest of this epoch."""
        if sys._getframe(1).f_globals.get("__name__") in _SAMPLING:
            # When a number is asked for: an iterator of a DataLoader that did not begin cannot end.
            return map(_no_number, (0,))
        fetched: deque[RankPart] = deque()
        return self.hand_out(
            lambda: (self._fetch(part.numbers) for part in self.parts(fetched)), fetched
        )

    def loader(self, **options: Any) -> BatchLoader:
        """The same through a DataLoader with these options: num_workers, collate_fn and so on."""
        return BatchLoader(self, options)

    @property
    def batch_sampler(self) -> RankSampler:
        """The numbers of this rank's samples, batch by batch, for a DataLoader of the script's own.

        A DataLoader asks for batches before the loop gets them: call `got_batch` for each batch.
        """
        if self.adaptive is not None:
            raise UsageError(
                'batch_size="auto" changes batches in the middle of a loop, of which a DataLoader '
                "over data.batch_sampler has fetched some: loop over data.loader(…)"
            )
        return RankSampler(self)

    def got_batch(self) -> None:
        """The loop has got the next batch of `batch_sampler`: call it before training with it."""
        drawn = self._drawn
        if drawn is None or not drawn.parts:
            raise UsageError(
                "data.got_batch(): no batch of data.batch_sampler is there that was not told of; "
                "call it once for each batch that a DataLoader over it gives, and in no other loop"
            )
        self._check_loop(drawn.number)
        if not self._by_steps:
            self._cursor.commit()
        if self._run is not None:
            self._run.wants_batch()
        drawn.is_told = True
        part = drawn.parts.popleft()
        self._cursor.hand_out(part.span, part.samples)

    # -- epochs and steps ----

    @property
    def epoch(self) -> int:
        """The epoch of the loop that goes on, or of the next one."""
        if self.is_in_loop:
            return self._cursor.head.epoch
        at = self._cursor.next_loop
        return at.epoch if self._has_left(at) else at.epoch + 1

    @property
    def epochs_done(self) -> float:
        """How many epochs have been trained: 2.25 is a quarter of the third."""
        epoch, place, _ = self._cursor.committed
        return epoch + place / self._length

    def total_steps(self, step: int) -> int | None:
        """The steps of all epochs, once so many are done: as many for each batch as until now."""
        epoch, place, _ = self._cursor.committed
        done = epoch * len(self) - (-place // self.batch_size)
        if self.epochs is None or not done:
            return None
        return step + round(max(0, self.epochs * len(self) - done) * step / done)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of another epoch; the one that training is in goes on where it is."""
        if not isinstance(epoch, int) or epoch < 0:
            raise UsageError(f"set_epoch({epoch!r}): an epoch is a whole number from 0 on")
        self._end_drawn()
        if epoch != self.epoch:
            self._cursor.move(epoch)
            self._loop += 1

    def attach(self, run: AttachedRun | None = None) -> None:
        """Let `committed` alone say from now on what has been trained; `run` hears of loops."""
        self._by_steps, self._run = True, run

    def committed(self) -> None:
        """All ranks have made a step with all that was handed out since the last one.

        Without this call a batch counts when the next one is asked for; from the first call on,
        only what was handed out before a call does.
        """
        self._check_told()
        self._by_steps = True
        is_last = self._drawn is not None and self._cursor.is_epoch_over
        self._cursor.commit()
        if is_last:  # a DataLoader's loop does not say when it is over
            self._cursor.run_out()

    def samples_of_step(self) -> int:
        """How many samples this rank has got since the last commit."""
        self._check_told()
        return self._cursor.samples

    def give_up(self) -> None:
        """Count the samples of batches that were got and not trained for no step."""
        self._cursor.samples = 0

    # -- how batches are divided ----

    def divide(self, shares: Sequence[float] | None, batch_size: int | None = None) -> None:
        """Divide batches by these shares from the next one on; it may have another size."""
        wanted = None if shares is None or len(set(shares)) == 1 else tuple(shares)
        size = batch_size or self.batch_size
        if (wanted, size) != (self._shares, self.batch_size):
            self._shares, self.batch_size = wanted, size
            self._division += 1

    def halve(self) -> None:
        """Give each rank, from the next batch on, only the first half of its part, as if there were
        twice as many ranks; the other half is not trained. For a trial of `wiiiiide plan`."""
        self._is_halved = True
        self._division += 1

    def begin_rounds(self, host: int, sizes: HostSizes, place: HostPlace) -> None:
        """Hosts make rounds of their own, of which this rank has a place in this host."""
        at, generation = self._cursor.committed, self._cursor.generation
        self._cursor = RoundCursor(at, generation, host, sizes)
        self._place_in_host = place
        self._division += 1

    @property
    def batches_of_round(self) -> int:
        """How many of its batches this host has got since the round began."""
        return self._rounds.handed

    @property
    def is_round_over(self) -> bool:
        """Whether this host has got all of its round, so that its next step is the exchange; where
        hosts make no rounds, whether the loop has got all of its epoch."""
        if isinstance(self._cursor, RoundCursor):
            return self._cursor.is_round_over(self._end)
        return self._cursor.is_epoch_over

    @property
    def unstepped(self) -> int:
        """How many batches this host has got and not trained."""
        return self._rounds.unstepped

    @property
    def next_round(self) -> HostRound:
        """The round that goes on."""
        return self._rounds.next_round(self._end)

    def resize_rounds(self, sizes: HostSizes) -> None:
        """Begin the round anew, with these sizes."""
        self._rounds.sizes = sizes
        self._division += 1

    def end_round(self, made: Sequence[int], unstepped: Sequence[int], sizes: HostSizes) -> None:
        """Hosts have exchanged after so many batches each, of which the last may not have been
        stepped, and go on with these sizes."""
        cursor = self._rounds
        foreseen = cursor.end_round(self._end, made, unstepped)
        if not foreseen or sizes != cursor.sizes:
            self._division += 1
        cursor.sizes = sizes

    @property
    def _rounds(self) -> RoundCursor:
        assert isinstance(self._cursor, RoundCursor)
        return self._cursor

    # -- state ----

    def state_dict(self) -> dict[str, Any]:
        """Where training is: the same on all ranks, and for any number of them."""
        epoch, position, places = self._cursor.saved()
        left = {"left": [list(stretch) for stretch in places.left]} if places.left else {}
        return {
            "format": _WITH_LEFT if left else _FORMAT,
            "epoch": epoch,
            "position": position,
            "length": self._length,
            "seed": self.seed,
            "shuffle": self._shuffle,
            "generation": self._cursor.generation,
            **left,
            **self._adaptive_state(),
        }

    def _adaptive_state(self) -> dict[str, int]:
        if self.adaptive is None:
            return {}
        return {"batch_size": self.batch_size, "steps_of_size": self.adaptive.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken. Another batch size or number of ranks is no obstacle."""
        at, generation = self.read_state(state)
        if isinstance(self._cursor, RoundCursor):
            self._cursor = RoundCursor(at, generation + 1, self._cursor.host, self._cursor.sizes)
        else:
            self._cursor = Cursor(at, generation + 1)
        if self.adaptive is not None and isinstance(size := state.get("batch_size"), int):
            self.batch_size = min(max(size, self.adaptive.least), self.adaptive.most)
            steps = state.get("steps_of_size")  # an older state has none
            self.adaptive.steps = steps if isinstance(steps, int) else 0
        self._loop += 1

    def read_state(self, state: Mapping[str, Any]) -> tuple[EpochPlace, int]:
        """The place and the generation of a state; UsageError if it is of other data."""
        mine = self.state_dict() | {"format": _FORMAT}
        for name in ("left", "batch_size", "steps_of_size"):
            mine.pop(name, None)
        if not isinstance(state, Mapping) or not mine.keys() <= state.keys():
            raise UsageError("this is no state of wide.Batches")
        if state["format"] == _WITH_LEFT:
            mine["format"] = _WITH_LEFT
        for name, what in {
            "format": "the state's format is",
            "length": "the number of samples of the data set is",
            "seed": "the seed is",
            "shuffle": "shuffle is",
        }.items():
            if state[name] != mine[name]:
                raise UsageError(
                    f"{what} {state[name]} in the saved state and {mine[name]} here: its place in "
                    "the order means nothing in another order"
                )
        epoch, position, generation = (state[n] for n in ("epoch", "position", "generation"))
        if not all(isinstance(n, int) for n in (epoch, position, generation)):
            raise UsageError("this is no state of wide.Batches")
        if not (0 <= position <= self._length and epoch >= 0):
            raise UsageError(f"there is no sample {position} in epoch {epoch} of {self!r}")
        return EpochPlace(epoch, position, self._left(position, state.get("left", ()))), generation

    def _left(self, position: int, stretches: Iterable[Any]) -> PlacesLeft:
        """The places that hosts have left behind, as they were saved."""
        try:
            left = tuple(IndexRange(int(begin), int(end)) for begin, end in stretches)
        except (TypeError, ValueError):
            raise UsageError("this is no state of wide.Batches") from None
        tail = position + sum(stretch.size for stretch in left)
        ends = [0, *(place for stretch in left for place in stretch), tail]
        if ends != sorted(ends) or tail > self._length:
            raise UsageError(f"a state cannot have left {list(map(list, left))} of {self!r}")
        return PlacesLeft(tail, left)

    # -- the parts of this rank ----

    def parts(self, fetched: deque[RankPart]) -> Iterator[RankPart]:
        """This rank's parts, from where the loop is to the epoch's end; each goes to `fetched`."""
        cursor = self._cursor
        if isinstance(cursor, RoundCursor):
            at = cursor.now()
            found = iter(()) if at is None else self._parts_of_rounds(at, cursor)
        else:
            found = self._parts_of_batches(cursor.head)
        for part in found:
            fetched.append(part)
            yield part

    def _parts_of_batches(self, at: EpochPlace) -> Iterator[RankPart]:
        rank, ranks = self._place()
        order = self._order(at)
        part, shares = _half if self._is_halved else _part, self._shares
        for span in self._spans(at.place):
            cuts = split(span.end - span.begin, ranks, shares)
            begin, end = span.begin + cuts[rank], span.begin + cuts[rank + 1]
            yield part(order, span, begin, end)

    def _parts_of_rounds(self, at: EpochPlace, cursor: RoundCursor) -> Iterator[RankPart]:
        """Yield this rank's parts, if hosts go on as they are; `end_round` sees to it if not."""
        (place, ranks), host, sizes = self._place_in_host, cursor.host, cursor.sizes
        order, skipped = self._order(at), cursor.handed
        for found in rounds_from(at.place, self._end, sizes):
            for number in range(skipped, found.counts[host]):
                begin, end = found.batch(host, number, sizes.batches[host])
                cuts = split(end - begin, ranks)
                last = found.last and number == found.counts[host] - 1
                span = BatchSpan(min(begin, found.end - 1), end, last)
                yield _part(order, span, begin + cuts[place], begin + cuts[place + 1])
            skipped = max(0, skipped - found.counts[host])

    def _order(self, at: EpochPlace) -> EpochOrder:
        return EpochOrder(self._length, self.seed, at.epoch, self._shuffle, at.places)

    def hand_out(
        self, fetch: Callable[[], Iterator[Any]], fetched: deque[RankPart]
    ) -> Iterator[Any]:
        """Batches as the loop gets them, in the order of the parts that they are of."""
        notes.loops_over(self)
        loop = self._enter_loop()  # now, not when the first one is asked for
        batches, division = fetch(), self._division

        def handed_out() -> Iterator[Any]:
            nonlocal batches, division
            if self._run is not None:
                self._run.wants_batch()
            while True:
                if division != self._division:
                    division = self._division
                    fetched.clear()
                    batches = fetch()
                batch = next(batches, _NO_BATCH)
                if batch is _NO_BATCH:
                    break
                self._check_loop(loop)
                part = fetched.popleft()
                self._cursor.hand_out(part.span, part.samples)
                yield batch
                self._check_loop(loop)
                if not self._by_steps:
                    self._cursor.commit()
                if self._run is not None and not part.span.last:
                    self._run.wants_batch()
            if self._run is not None:
                self._run.ran_out()
            self._cursor.run_out()
            self.is_in_loop = False
            if self._run is not None:
                self._run.end_loop()

        def looped() -> Iterator[Any]:
            try:
                yield from handed_out()
            finally:  # also of a loop that is left before its end
                if self._loop == loop:
                    self.is_in_loop = False

        return looped()

    def _enter_loop(self) -> int:
        """Where the last one has come to; returns the number of the new one."""
        self._end_drawn()
        if not isinstance(self._cursor, RoundCursor):
            self._place()  # raises now, and not at the first batch
        at = self._cursor.begin()
        if not self._has_left(at):
            self._cursor.move(at.epoch + 1)
        self._loop += 1
        self.is_in_loop = True
        return self._loop

    def draw(self) -> Iterator[list[int]]:
        """The lists of numbers that a DataLoader asks of `batch_sampler`."""
        if isinstance(self._cursor, RoundCursor):
            raise UsageError(
                "every=H changes batches in the middle of a loop, of which a DataLoader over "
                "data.batch_sampler has fetched some: loop over data.loader(…)"
            )
        notes.has_batches = True
        drawn = DrawnLoop(self._enter_loop())
        self._drawn = drawn
        for part in self.parts(drawn.parts):
            yield part.numbers.tolist()
            self._check_loop(drawn.number)
        drawn.is_drawn = True

    def _end_drawn(self) -> None:
        """A loop over `batch_sampler` is over, of which only its batches have told."""
        drawn, self._drawn = self._drawn, None
        if drawn is None:
            return
        if drawn.is_drawn and not drawn.is_told:
            raise UsageError(_UNTOLD)
        if self._loop == drawn.number and self._cursor.is_epoch_over:
            if not self._by_steps:
                self._cursor.commit()
            self._cursor.run_out()
        self.is_in_loop = False

    def _check_told(self) -> None:
        if self._drawn is not None and not self._drawn.is_told:
            raise UsageError(_UNTOLD)

    def _spans(self, position: int) -> Iterator[BatchSpan]:
        return batch_spans(position, self._length, self.batch_size, self._drop_last)

    @property
    def _end(self) -> int:
        """Where an epoch ends for rounds, which are not made of global batches."""
        return self._length - (self._length % self.batch_size if self._drop_last else 0)

    def _has_left(self, at: EpochPlace) -> bool:
        """Whether something of an epoch is left to train; a short rest may be left out."""
        if isinstance(self._cursor, RoundCursor):
            return at.place < self._end
        return any(True for _ in self._spans(at.place))

    def _check_loop(self, loop: int) -> None:
        if self._loop != loop:
            raise UsageError(
                "this loop is over: another one over the same wide.Batches has begun, or set_epoch "
                "or load_state_dict was called"
            )

    def _place(self) -> tuple[int, int]:
        """This rank's number, and how many there are."""
        if self._group is None and not dist.is_initialized():
            return 0, 1
        rank, ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
        if rank < 0:
            raise UsageError("this rank is no member of the group that wide.Batches was given")
        adaptive = self.adaptive
        least = self.batch_size if adaptive is None else adaptive.least
        if least < ranks:
            given = f"batch_size={least}" if adaptive is None else f"between[0]={least}"
            raise UsageError(
                f"{given} is that of all {ranks} ranks together, and less than one sample for each"
            )
        return rank, ranks

    def _refuse(self) -> None:
        size, seed = self.batch_size, self.seed
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f'batch_size={size!r} is not a whole number from 1 on, nor "auto"')
        if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            raise UsageError(f"seed={seed!r} is not a whole number from 0 to 2**64")
        epochs = self.epochs
        if epochs is not None and (type(epochs) is not int or epochs < 1):
            raise UsageError(f"epochs={epochs!r} is not a whole number from 1 on")
        if not len(self):
            short = ", and drop_last leaves it out" if self._length else ""
            raise UsageError(f"the data set has {self._length} samples{short}: there is no batch")
        if self.adaptive is not None and self._drop_last and self.adaptive.most > self._length:
            raise UsageError(
                f"between[1]={self.adaptive.most} is more than the {self._length} samples of the "
                "data set: drop_last would leave a whole epoch out. Give a smaller bound"
            )


class BatchLoader:
    """A DataLoader over this rank's parts. Batches that workers have fetched ahead do not count."""

    def __init__(self, data: Batches, options: Mapping[str, Any]) -> None:
        for name in _OURS:
            if name in options:
                raise UsageError(f"wide.Batches decides {name}: loader() does not take it")
        if options.get("in_order") is False:
            raise UsageError("in_order=False would hand out batches of one step in another order")
        self._data = data
        self._sampler = _PartSampler(len(data))
        # A data set that takes a list of numbers gathers a batch at once, in the worker.
        whole = takes_lists(data.dataset) and options.get("collate_fn") is None
        chosen = (
            {"sampler": self._sampler, "batch_size": None}
            if whole
            else {"batch_sampler": self._sampler}
        )
        begun = {}
        if options.get("num_workers"):
            given = options.get("worker_init_fn")
            begun["worker_init_fn"] = functools.partial(begin_worker, given)
        self._loader: DataLoader[Any] = DataLoader(data.dataset, **chosen, **{**options, **begun})

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        fetched: deque[RankPart] = deque()

        def fetch() -> Iterator[Any]:
            self._sampler.parts = self._data.parts(fetched)
            with starting_workers():
                return iter(self._loader)

        return self._data.hand_out(fetch, fetched)


class RankSampler(Sampler[list[int]]):
    """The numbers of this rank's parts, loop after loop, for any DataLoader over the data set."""

    def __init__(self, data: Batches) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[list[int]]:
        # A loop begins with the first number: a DataLoader with workers calls this twice.
        return self._data.draw()


class _PartSampler:
    """The numbers of each part's samples, for a DataLoader."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self.parts: Iterator[RankPart] = iter(())  # of the next loop

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        return (part.numbers.tolist() for part in self.parts)


def _no_number(_: int) -> Any:
    raise UsageError(
        "wide.Batches gives batches of samples, and the sampler= or batch_sampler= of a DataLoader "
        "numbers: write DataLoader(dataset, batch_sampler=data.batch_sampler), or let "
        "data.loader(num_workers=…) make the DataLoader"
    )


def _part(order: EpochOrder, span: BatchSpan, begin: int, end: int) -> RankPart:
    if begin < end:
        return RankPart(span, end - begin, order.samples(begin, end))
    return RankPart(span, 0, order.samples(span.begin, span.begin + 1))


def _half(order: EpochOrder, span: BatchSpan, begin: int, end: int) -> RankPart:
    return _part(order, span, begin, begin + -(-(end - begin) // 2))


def _length(dataset: Any) -> int:
    if isinstance(dataset, IterableDataset):
        raise UsageError(
            f"{type(dataset).__name__} is an IterableDataset, whose samples have no numbers: an "
            "order, a resume and a part for each rank need a data set with len() and [i]"
        )
    try:
        length: int = len(dataset)
    except TypeError:
        length = -1
    if length < 0 or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"wide.Batches needs a map-style data set, with len() and [i]; "
            f"{type(dataset).__name__} is none"
        )
    return length


def takes_lists(dataset: Any) -> bool:
    """Whether `dataset[[3, 1, 2]]` is a batch."""
    return isinstance(dataset, ColumnDataset) or type(dataset) is TensorDataset


def _fetcher(dataset: Any) -> Callable[[Numbers], Any]:
    """How samples of these numbers become a batch, in this process."""
    if isinstance(dataset, ColumnDataset):
        return lambda numbers: dataset.take(torch.from_numpy(numbers))
    if takes_lists(dataset):
        return lambda numbers: _rows(dataset.tensors, torch.from_numpy(numbers))
    if callable(getattr(dataset, "__getitems__", None)):
        return lambda numbers: default_collate(dataset.__getitems__(numbers.tolist()))
    return lambda numbers: default_collate([dataset[number] for number in numbers.tolist()])


def _rows(tensors: Iterable[torch.Tensor], rows: torch.Tensor) -> list[torch.Tensor]:
    """These rows of each tensor, in a third of the time of `tensor[rows]`."""
    return [tensor.index_select(0, rows.to(tensor.device)) for tensor in tensors]
