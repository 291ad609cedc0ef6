"""Samples out of memory that is mapped: columns of rows, and data sets made of columns.

A column is rows of one size, in one run of memory or in several (Arrow's record batches):

    memory   │ … │ row 0 │ row 1 │ row 2 │ … │ row 3 │ row 4 │ …
                 └ a run: rows 0 to 2        └ the next run, from row 3 on

A column in one run, aligned, is a tensor where it lies. Other rows (of several runs, or in a file
that aligns nothing, as a .npz does) are gathered as bytes, from windows that begin at every byte of
the memory, by one index_select too (256 rows of 3 KB: 20.1 against 18.8 µs).

Whatever is given out is a copy. A sample or batch that a program changes in place changes nothing
else, and memory that may not be written to is never reached by a write.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch.utils.data import Dataset

from wiiiiided.errors import UsageError

Tree = Any  # columns and constants in dicts, tuples and lists


class RowRun(NamedTuple):
    """Rows that lie one behind the other."""

    at: int  # the first one's offset in the memory
    rows: int


class Column:
    """Rows of one dtype and shape, in memory given as a flat tensor of bytes."""

    def __init__(
        self, memory: torch.Tensor, runs: Sequence[RowRun], dtype: torch.dtype, shape: Sequence[int]
    ) -> None:
        self._dtype, self._shape = dtype, tuple(shape)
        self._row_bytes = math.prod(shape) * dtype.itemsize
        self._rows = sum(run.rows for run in runs)
        self._whole: torch.Tensor | None = None
        used = [run for run in runs if run.rows]
        if not self._row_bytes or not used:
            self._whole = torch.empty((self._rows, *shape), dtype=dtype)
        elif len(used) == 1 and used[0].at % dtype.itemsize == 0:
            end = used[0].at + self._rows * self._row_bytes
            self._whole = memory[used[0].at : end].view(dtype).view(self._rows, *shape)
        else:
            self._lay_windows(memory, used)

    def _lay_windows(self, memory: torch.Tensor, runs: Sequence[RowRun]) -> None:
        count = memory.numel() - self._row_bytes + 1
        self._windows = memory.as_strided((count, self._row_bytes), (1, 1))
        firsts = [0, *itertools.accumulate(run.rows for run in runs[:-1])]
        self._firsts = torch.tensor(firsts)
        # Of each run, where row 0 would lie if the run went back to it.
        pairs = zip(runs, firsts, strict=True)
        self._bases = torch.tensor([run.at - first * self._row_bytes for run, first in pairs])

    def __len__(self) -> int:
        return self._rows

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        """These rows, which exist, in this order."""
        if self._whole is not None:
            return self._whole.index_select(0, rows)
        runs = torch.searchsorted(self._firsts, rows, right=True) - 1
        raw = self._windows.index_select(0, rows * self._row_bytes + self._bases[runs])
        return raw.view(-1).view(self._dtype).view(len(rows), *self._shape)

    def span(self, begin: int, end: int) -> torch.Tensor:
        """The rows from `begin` up to `end`."""
        if self._whole is not None:
            return self._whole[begin:end].clone()
        return self.take(torch.arange(begin, end))

    def row(self, number: int) -> torch.Tensor:
        """One row."""
        if self._whole is not None:
            return self._whole[number].clone()
        return self.span(number, number + 1)[0]

    def rows(self, numbers: torch.Tensor) -> Sequence[torch.Tensor]:
        """These rows, one by one."""
        return self.take(numbers).unbind()


class StringRun(NamedTuple):
    """Strings in one buffer: the i-th is data[offsets[i] : offsets[i + 1]], in UTF-8."""

    offsets: Any  # numpy, one more than there are strings
    data: Any  # numpy, bytes


class StringColumn(Sequence[str]):
    """Strings that lie in buffers; each is decoded when it is asked for."""

    def __init__(self, runs: Sequence[StringRun]) -> None:
        self._runs = runs
        self._firsts = np.cumsum([0, *(len(run.offsets) - 1 for run in runs)])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...
    def __getitem__(self, which: int | slice) -> str | list[str]:
        if isinstance(which, slice):
            return [self.row(number) for number in range(*which.indices(len(self)))]
        return self.row(checked_row(which, len(self)))

    def row(self, number: int) -> str:
        """One string."""
        at = int(np.searchsorted(self._firsts, number, side="right")) - 1
        run, inside = self._runs[at], number - int(self._firsts[at])
        begin, end = int(run.offsets[inside]), int(run.offsets[inside + 1])
        return str(run.data[begin:end].tobytes(), "utf-8", "surrogatepass")

    def span(self, begin: int, end: int) -> list[str]:
        """The strings from `begin` up to `end`."""
        return [self.row(number) for number in range(begin, end)]

    def take(self, rows: torch.Tensor) -> list[str]:
        """These strings, in this order."""
        return [self.row(number) for number in rows.tolist()]

    rows = take


class Constant(NamedTuple):
    """A value that is no column: a number, a string, None, a tensor without dimensions."""

    value: Any


AnyColumn = Column | StringColumn


def map_tree(tree: Tree, change: Callable[[Any], Any]) -> Any:
    """The same dicts, tuples and lists, with each leaf changed."""
    if type(tree) is dict:
        return {key: map_tree(part, change) for key, part in tree.items()}
    if type(tree) in (tuple, list):
        return type(tree)(map_tree(part, change) for part in tree)
    return change(tree)


def named_leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf, with the way to it: ['train'][0]."""
    if type(tree) is dict:
        for key, part in tree.items():
            yield from named_leaves(part, f"{name}[{key!r}]")
    elif type(tree) in (tuple, list):
        for number, part in enumerate(tree):
            yield from named_leaves(part, f"{name}[{number}]")
    else:
        yield name, tree


def checked_row(number: Any, length: int) -> int:
    """A row's number, counted from the end if it is negative."""
    found = operator.index(number)
    if not -length <= found < length:
        raise IndexError(f"there is no sample {found} in a data set of {length}")
    return found % length


class ColumnDataset(Dataset[Any]):
    """A map-style data set over columns of equal length: a sample is one row of each.

    data[3]              a sample
    data[10:20]          a batch: the same structure, of tensors with one row a sample
    data[[3, 1, 2]]      a batch in that order; also an array or tensor of numbers, or a mask
    """

    def __init__(self, tree: Tree, where: str) -> None:
        """`where` says in errors what this is: the file's name, say."""
        self._tree, self._where = tree, where
        self._length = -1

    def __len__(self) -> int:
        if self._length < 0:
            self._length = self._common_length()
        return self._length

    def __getitem__(self, which: Any) -> Any:
        length = len(self)
        if isinstance(which, slice):
            begin, end, step = which.indices(length)
            if step != 1:
                return self.take(torch.from_numpy(np.arange(begin, end, step)))
            return map_tree(self._tree, lambda column: column.span(begin, max(begin, end)))
        if isinstance(which, tuple):
            raise UsageError(
                "a tuple chooses no sample, as in data[1, 0]: data[[1, 0]] is a batch of two, and "
                "data[1] a sample, of which you then take a part"
            )
        if isinstance(which, list | range | np.ndarray) or (
            isinstance(which, torch.Tensor) and which.dim()
        ):
            return self.take(self._rows(which))
        number = checked_row(which, length)
        return map_tree(self._tree, lambda column: column.row(number))

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Samples for a DataLoader, which collates them itself; each column is gathered once."""
        rows = self._rows(numbers)
        gathered = map_tree(self._tree, lambda column: _Gathered(column.rows(rows)))
        return [map_tree(gathered, operator.itemgetter(k)) for k in range(len(rows))]

    def take(self, rows: torch.Tensor) -> Any:
        """A batch of rows whose numbers are known to be right."""
        return map_tree(self._tree, lambda column: column.take(rows))

    def _rows(self, which: Any) -> torch.Tensor:
        rows = np.asarray(which)
        if rows.dtype.kind == "b" and rows.shape == (len(self),):
            rows = rows.nonzero()[0]
        if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
            raise UsageError(
                f"a batch is chosen by a list of whole numbers, or by a mask of {len(self)} bools; "
                f"this is {rows.dtype.name}{list(rows.shape)}"
            )
        if not rows.size:
            return torch.empty(0, dtype=torch.int64)
        least = int(rows.min())
        for outermost in (least, int(rows.max())):
            checked_row(outermost, len(self))
        numbers = torch.from_numpy(rows.astype(np.int64))
        return numbers % len(self) if least < 0 else numbers

    def _common_length(self) -> int:
        lengths: dict[str, int] = {}
        for name, leaf in named_leaves(self._tree):
            if isinstance(leaf, Constant):
                raise UsageError(f"{self._where}{name} is one value, so it has no samples")
            lengths[name] = len(leaf)
        if not lengths:
            raise UsageError(f"{self._where} has no column, so it has no samples")
        least, most = min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)
        if lengths[least] != lengths[most]:
            raise UsageError(
                f"{self._where}{least} has {lengths[least]} rows and {self._where}{most} "
                f"{lengths[most]}: the columns of a data set have one row for each sample"
            )
        return lengths[least]


class _Gathered(tuple[Any, ...]):
    """Rows that are a leaf: no tuple of a tree."""
