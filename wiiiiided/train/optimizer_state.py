"""An optimizer's state in shared memory: divided while it works, whole whenever it is looked at.

    optimizer.state[p]["exp_avg"]        a view of the whole tensor, on every rank of the host
    working state[piece]["exp_avg"]      the elements of it that this rank updates

A rank's optimizer makes state for what it updates, in memory of its own, at the first step. After
that step the ranks tell each other what they have (parameter, name, dtype, shape), make one
segment for it, and put it there; from then on the pieces are views of it. So `state_dict()` is
whole on one rank alone, without asking the others, and loads in a single process.

    kinds   like     a tensor of the parameter's shape: divided as the parameter is
            tensor   of another shape (a step count, a row of second moments): the first holder's
            number   a Python number, and its type: written after each step by the first holder

Loading is the same the other way round: the rank that loaded tells what it has, all make the
memory for it, and take their pieces from there.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import dtype_name
from wiiiiided.errors import UsageError
from wiiiiided.train.layout import ParameterPart, offsets
from wiiiiided.train.memory import MappedMemory, host_barrier
from wiiiiided.train.small_collectives import all_gather_text, broadcast_bytes

_FILLED: Final = CallSignature.of("optimizer state of wide.parallel")
_NUMBERS: Final[tuple[type, ...]] = (float, int, bool)  # whole up to 2**53

State = MutableMapping[Any, dict[str, Any]]


@dataclass(frozen=True)
class Piece:
    """A part of a parameter, as the tensor that a rank's optimizer is given and updates."""

    part: ParameterPart
    tensor: torch.Tensor  # the key of its state
    first: bool  # the first of its host that holds a part of this parameter


@dataclass(frozen=True)
class StateEntry:
    """One named value of one parameter's state, as ranks tell each other of it."""

    parameter: int
    key: str
    kind: str  # like, tensor, number
    dtype: str
    shape: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype it lies in memory as."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def count(self) -> int:
        """How many elements."""
        return math.prod(self.shape)


class SharedState:
    """The state of one optimizer on this host."""

    def __init__(
        self,
        group: Group,
        process_group: dist.ProcessGroup,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        pieces: Sequence[Piece],
        divided: bool,
    ) -> None:
        """`divided`: pieces are slices with a working state of their own; else parameters."""
        self._group, self._process_group, self._optimizer = group, process_group, optimizer
        self._parameters, self._pieces, self._divided = parameters, pieces, divided
        self._pieces_state: State = defaultdict(dict)
        self._memories: list[MappedMemory] = []  # kept: a forked child makes them its own
        self._kinds: dict[tuple[int, str], StateEntry] = {}
        self._views: dict[tuple[int, str], torch.Tensor] = {}  # flat
        self._local: dict[
            tuple[int, str], Any
        ] = {}  # what the working state had after the last look

    @property
    def working(self) -> State:
        """The state that the optimizer works with in a step."""
        return self._pieces_state if self._divided else self._optimizer.state

    @property
    def is_shared(self) -> bool:
        """Whether there is state in shared memory."""
        return bool(self._kinds)

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether there is state of a parameter in shared memory."""
        known = {kind.parameter for kind in self._kinds.values()}
        return any(parameter is self._parameters[i] for i in known)

    # -- after a step ----

    def look(self) -> bool:
        """Look, after this rank's part of a step, whether there is state that is not shared yet."""
        fresh = False
        for piece in self._pieces:
            state = self.working.get(piece.tensor)
            for key, value in (state or {}).items():
                at = (piece.part.parameter, key)
                if value is None:
                    continue
                if at not in self._views:
                    fresh = True
                elif value is not self._local.get(at) and state is not None:
                    self._keep(piece, at, state, value)
        return fresh

    def _keep(self, piece: Piece, at: tuple[int, str], state: dict[str, Any], value: Any) -> None:
        """Keep a new value that the optimizer put in place of the shared one."""
        kind, view = self._kinds[at], self._views[at]
        if kind.kind == "number":
            if piece.first:
                _write_number(view, value)
            self._local[at] = value
        elif kind.kind == "like":
            mine = self._shared_part(piece, view)
            state[at[1]] = self._local[at] = mine.copy_(value)
        elif piece.first:
            state[at[1]] = self._local[at] = view.view(kind.shape).copy_(value)
        else:
            self._local[at] = value

    # -- sharing ----

    def share(self) -> None:
        """Put state that this rank's optimizer has made into shared memory. A collective call."""
        fresh = {
            (piece.part.parameter, key): (value, piece.tensor)
            for piece in self._pieces
            for key, value in self.working.get(piece.tensor, {}).items()
            if value is not None and (piece.part.parameter, key) not in self._views
        }
        self._make(self._union(fresh))
        for piece in self._pieces:
            state = self.working.get(piece.tensor, {})
            for key, value in list(state.items()):
                at = (piece.part.parameter, key)
                if value is not None and self._local.get(at) is not value:
                    self._keep(piece, at, state, value)
        host_barrier(self._group, _FILLED)
        self._show()

    def take(self, source: int) -> None:
        """Take the whole state of rank `source`, which has loaded it. A collective call."""
        loaded = {
            (i, key): (value, parameter)
            for i, parameter in enumerate(self._parameters)
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if value is not None and self._process_group.rank() == source
        }
        for kept in (self._kinds, self._views, self._local, self._memories):
            kept.clear()
        memory = self._make(self._union(loaded))
        for at, (value, parameter) in loaded.items():
            self._fill(self._kinds[at], self._views[at], value, parameter)
        if memory is not None and self._process_group.size() > self._group.team.size:
            broadcast_bytes(self._process_group, memory.bytes, source)
        host_barrier(self._group, _FILLED)
        self._pieces_state.clear()
        self._optimizer.state.clear()
        self._show()
        self._hand_out()

    def _union(self, mine: dict[tuple[int, str], tuple[Any, torch.Tensor]]) -> list[StateEntry]:
        """The entries of any rank, in one order; raises on all ranks if one cannot share."""
        problem, rows = "", []
        try:
            kinds = [self._describe(i, key, *found) for (i, key), found in mine.items()]
            rows = [[k.parameter, k.key, k.kind, k.dtype, k.shape] for k in kinds]
        except UsageError as error:
            problem = str(error)
        told = [
            json.loads(text)
            for text in all_gather_text(self._process_group, json.dumps([problem, rows]))
        ]
        if problem := next((theirs for theirs, _ in told if theirs), ""):
            raise UsageError(problem)
        found: dict[tuple[int, str], StateEntry] = {}
        for _, theirs in told:
            for parameter, key, kind, dtype, shape in theirs:
                found.setdefault(
                    (parameter, key), StateEntry(parameter, key, kind, dtype, tuple(shape))
                )
        return [found[at] for at in sorted(found)]

    def _describe(self, parameter: int, key: str, value: Any, holder: torch.Tensor) -> StateEntry:
        if type(value) in _NUMBERS:
            return StateEntry(parameter, key, "number", "float64", (2,))
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            raise UsageError(
                f"{type(self._optimizer).__name__} keeps {key!r} as a {type(value).__name__}: only "
                "dense tensors and numbers can be shared between ranks. Use another optimizer, or "
                "DistributedDataParallel over this backend"
            )
        name = dtype_name(value.dtype)
        if value.shape == holder.shape and value.dim():
            whole = self._parameters[parameter]
            return StateEntry(parameter, key, "like", name, tuple(whole.shape))
        return StateEntry(parameter, key, "tensor", name, tuple(value.shape))

    def _make(self, kinds: list[StateEntry]) -> MappedMemory | None:
        if not kinds:
            return None
        at, total = offsets([kind.count * kind.torch_dtype.itemsize for kind in kinds])
        memory = MappedMemory(self._group, "optimizer state of wide.parallel", max(total, 1))
        self._memories.append(memory)
        for kind, offset in zip(kinds, at, strict=True):
            where = (kind.parameter, kind.key)
            self._kinds[where] = kind
            self._views[where] = memory.tensor(offset, kind.count, kind.torch_dtype)
        return memory

    def _fill(self, kind: StateEntry, view: torch.Tensor, value: Any, holder: torch.Tensor) -> None:
        if kind.kind == "number":
            _write_number(view, value)
        elif kind.kind == "like":
            _shaped(view, holder).copy_(value)
        else:
            view.view(kind.shape).copy_(value)

    def _hand_out(self) -> None:
        """Make the working state of this rank's pieces from the shared one."""
        pieces = {piece.part.parameter: piece for piece in self._pieces}  # one of a parameter
        for at, kind in self._kinds.items():
            piece = pieces.get(at[0])
            if piece is not None:
                value = self._working_value(piece, at, kind)
                self._local[at] = self.working[piece.tensor][at[1]] = value

    def _working_value(self, piece: Piece, at: tuple[int, str], kind: StateEntry) -> Any:
        view = self._views[at]
        if kind.kind == "number":
            return _read_number(view)
        if kind.kind == "like":
            return self._shared_part(piece, view)
        return view.view(kind.shape) if piece.first else view.view(kind.shape).clone()

    def _shared_part(self, piece: Piece, view: torch.Tensor) -> torch.Tensor:
        """This rank's part of state of its parameter's shape. In shared memory it lies in the order
        of the parameter's memory, which need not be that of its rows (channels_last)."""
        if not self._divided:
            return _shaped(view, piece.tensor)
        return view[piece.part.begin : piece.part.end].view_as(piece.tensor)

    # -- looking at it ----

    def _show(self) -> None:
        """Put every parameter's whole state into optimizer.state, where programs expect it."""
        worked_with = set() if self._divided else {piece.part.parameter for piece in self._pieces}
        for at, value in self._whole():
            if at[0] not in worked_with:
                self._optimizer.state[self._parameters[at[0]]][at[1]] = value

    def refresh(self) -> None:
        """Numbers are no views: bring them up to date before a program reads them."""
        for at, value in self._whole(numbers_only=True):
            self._optimizer.state[self._parameters[at[0]]][at[1]] = value

    def _whole(self, numbers_only: bool = False) -> Iterator[tuple[tuple[int, str], Any]]:
        for at, kind in self._kinds.items():
            view = self._views[at]
            if kind.kind == "number":
                yield at, _read_number(view)
            elif not numbers_only and kind.kind == "like":
                yield at, _shaped(view, self._parameters[at[0]])
            elif not numbers_only:
                yield at, view.view(kind.shape)


def _write_number(view: torch.Tensor, value: float) -> None:
    view[0], view[1] = float(value), _NUMBERS.index(type(value))


def _read_number(view: torch.Tensor) -> Any:
    value, kind = view.tolist()
    return _NUMBERS[int(kind)](value)


def _shaped(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A flat stretch of memory with the shape and order of a parameter."""
    return flat.as_strided(like.shape, like.stride())
