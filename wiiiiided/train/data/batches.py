"""`wide.Batches`: global batches in one order, whatever the number of ranks, and each rank's part.

    for x, y in data               this rank's part of each global batch, collated
    for x, y in data.loader(…)     the same through a DataLoader: workers, prefetch, a collate_fn

Both begin where training is (`cursor`) and go to the epoch's end; the next loop is the next epoch.

A rank without a sample. A short last batch may have fewer samples than there are ranks. All must
step together, and a model cannot be relied on to take a batch of none (`x.view(len(x), -1)` raises,
a mean is NaN, BatchNorm raises). So a rank whose part is empty gets the batch's first sample, which
another rank has too, and `samples_of_step()` says 0: weighted by that, its gradient counts nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from wiiiiided.errors import UsageError
from wiiiiided.train.data.columns import ColumnDataset
from wiiiiided.train.data.cursor import Cursor, EpochPlace
from wiiiiided.train.data.order import BatchSpan, EpochOrder, batch_spans, split
from wiiiiided.train.data.permutation import Numbers

_FORMAT: Final = 1  # of the state
_OURS: Final = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")


class RankPart(NamedTuple):
    """A rank's part of one global batch."""

    span: BatchSpan
    samples: int
    numbers: Numbers  # of the samples; of one that does not count if there are none


class Batches:
    """A map-style data set in global batches, of which each rank takes its part."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 256,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """`batch_size` is that of all ranks together. The same arguments on every rank."""
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self._length = _length(dataset)
        self._shuffle, self._drop_last, self._group = bool(shuffle), bool(drop_last), group
        self._refuse()
        self._fetch = _fetcher(dataset)
        self._cursor = Cursor(EpochPlace(0, 0), 0)
        self._loop = 0  # the number of the loop that goes on
        self._by_steps = False
        self._between_steps: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        """The batches of a whole epoch."""
        full, rest = divmod(self._length, self.batch_size)
        return full + bool(rest and not self._drop_last)

    def __repr__(self) -> str:
        return (
            f"Batches of {self.batch_size} of {self._length} samples, seed {self.seed}"
            f"{'' if self._shuffle else ', not shuffled'}"
            f"{', without a short last one' if self._drop_last else ''}"
        )

    # -- loops ----

    def __iter__(self) -> Iterator[Any]:
        """What is left of this epoch."""
        fetched: deque[RankPart] = deque()
        parts = self.begin_loop(fetched)
        return self.hand_out((self._fetch(part.numbers) for part in parts), fetched)

    def loader(self, **options: Any) -> BatchLoader:
        """The same through a DataLoader with these options: num_workers, collate_fn and so on."""
        return BatchLoader(self, options)

    # -- epochs and steps ----

    @property
    def epoch(self) -> int:
        """The epoch of the loop that goes on, or of the next one."""
        return self._cursor.head.epoch

    @property
    def epochs_done(self) -> float:
        """How many epochs have been trained: 2.25 is a quarter of the third."""
        epoch, place = self._cursor.committed
        return epoch + place / self._length

    def set_epoch(self, epoch: int) -> None:
        """To the beginning of another epoch; the one that training is in goes on where it is."""
        if not isinstance(epoch, int) or epoch < 0:
            raise UsageError(f"set_epoch({epoch!r}): an epoch is a whole number from 0 on")
        if epoch != self.epoch:
            self._cursor.move(epoch)
            self._loop += 1

    def attach(self, between_steps: Callable[[], None] = lambda: None) -> None:
        """From now on `committed` alone says what has been trained.

        `between_steps` is called before a batch is fetched, when all that the loop does after a
        step has been done: after the last one of an epoch that is when the next epoch begins.
        """
        self._by_steps, self._between_steps = True, between_steps

    def committed(self) -> None:
        """All ranks have made a step with all that was handed out since the last one.

        Without this call a batch counts when the next one is asked for; from the first call on,
        only what was handed out before a call does.
        """
        self._by_steps = True
        self._cursor.commit()

    def samples_of_step(self) -> int:
        """How many samples this rank has got since the last commit."""
        return self._cursor.samples

    # -- state ----

    def state_dict(self) -> dict[str, Any]:
        """Where training is: the same on all ranks, and for any number of them."""
        epoch, position = self._cursor.committed
        return {
            "format": _FORMAT,
            "epoch": epoch,
            "position": position,
            "length": self._length,
            "seed": self.seed,
            "shuffle": self._shuffle,
            "generation": self._cursor.generation,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken. Another batch size or number of ranks is no obstacle."""
        if not isinstance(state, Mapping) or not self.state_dict().keys() <= state.keys():
            raise UsageError("this is no state of wide.Batches")
        mine = self.state_dict()
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
        self._cursor = Cursor(EpochPlace(epoch, position), generation + 1)
        self._loop += 1

    # -- the parts of this rank ----

    def begin_loop(self, fetched: deque[RankPart]) -> Iterator[RankPart]:
        """This rank's parts, from where training is to the epoch's end; each goes to `fetched`."""
        rank, ranks = self._place()
        epoch, position = self._cursor.begin()
        if not any(True for _ in self._spans(position)):  # a smaller rest, which is left out
            self._cursor.move(epoch := epoch + 1)
            position = 0
        self._loop += 1
        order = EpochOrder(self._length, self.seed, epoch, self._shuffle)

        def parts() -> Iterator[RankPart]:
            for span in self._spans(position):
                part = _part(order, span, rank, ranks)
                fetched.append(part)
                yield part

        return parts()

    def hand_out(self, batches: Iterable[Any], fetched: deque[RankPart]) -> Iterator[Any]:
        """Batches as the loop gets them, in the order of the parts that they are of."""
        loop = self._loop  # now, not when the first one is asked for

        def handed_out() -> Iterator[Any]:
            self._between_steps()
            for batch in batches:
                self._check_loop(loop)
                part = fetched.popleft()
                self._cursor.hand_out(part.span, part.samples)
                yield batch
                self._check_loop(loop)
                if not self._by_steps:
                    self._cursor.commit()
                if not part.span.last:
                    self._between_steps()
            self._cursor.run_out()

        return handed_out()

    def _spans(self, position: int) -> Iterator[BatchSpan]:
        return batch_spans(position, self._length, self.batch_size, self._drop_last)

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
        if self.batch_size < ranks:
            raise UsageError(
                f"batch_size={self.batch_size} is that of all {ranks} ranks together, and less "
                "than one sample for each"
            )
        return rank, ranks

    def _refuse(self) -> None:
        size, seed = self.batch_size, self.seed
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"batch_size={size!r} is not a whole number from 1 on")
        if not isinstance(seed, int) or not 0 <= seed < 1 << 64:
            raise UsageError(f"seed={seed!r} is not a whole number from 0 to 2**64")
        if not len(self):
            short = ", and drop_last leaves it out" if self._length else ""
            raise UsageError(f"the data set has {self._length} samples{short}: there is no batch")


class BatchLoader:
    """A DataLoader over this rank's parts. What its workers have fetched ahead is not counted."""

    def __init__(self, data: Batches, options: Mapping[str, Any]) -> None:
        for name in _OURS:
            if name in options:
                raise UsageError(f"{name} is what wide.Batches decides: loader() does not take it")
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
        self._loader: DataLoader[Any] = DataLoader(data.dataset, **chosen, **options)

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        fetched: deque[RankPart] = deque()
        self._sampler.parts = self._data.begin_loop(fetched)
        return self._data.hand_out(iter(self._loader), fetched)


class _PartSampler:
    """The numbers of each part's samples, for a DataLoader."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self.parts: Iterator[RankPart] = iter(())  # of the next loop

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        return (part.numbers.tolist() for part in self.parts)


def _part(order: EpochOrder, span: BatchSpan, rank: int, ranks: int) -> RankPart:
    cuts = split(span.end - span.begin, ranks)
    begin, end = span.begin + cuts[rank], span.begin + cuts[rank + 1]
    if begin < end:
        return RankPart(span, end - begin, order.samples(begin, end))
    return RankPart(span, 0, order.samples(span.begin, span.begin + 1))


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
    """A third of the time of `tensor[rows]`."""
    return [tensor.index_select(0, rows.to(tensor.device)) for tensor in tensors]
