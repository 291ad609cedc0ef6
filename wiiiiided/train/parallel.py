"""`wide.parallel`: the ranks of a host train one copy of the weights, and hosts exchange gradients.

    backward        each rank's gradients, as they come, to its place in shared memory
    step   meet     all ranks have theirs there; what must agree is compared
           reduce   each rank averages its part of everybody's gradients
           update   … and updates that part of the weights, with the user's own optimizer
           meet     all parts are written: the next forward reads them where they lie

No bucket, no staging, no gathering: a weight that is written once is there for all. The optimizer's
work and state are divided by the number of ranks.

Rules of this file: nothing that a user can see may be silently wrong. Where a program does what
cannot work here (reads a gradient that is not averaged, changes a weight on every rank, lets ranks'
learning rates drift apart) it gets a sentence that names what to call instead.
"""

from __future__ import annotations

import contextlib
import json
import math
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import torch
import torch.distributed as dist

from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.errors import Mismatch, UsageError
from wiiiiided.train.agreement import gather, spread, tell_all
from wiiiiided.train.checks import MARK, agree, refuse
from wiiiiided.train.gradient import PendingGradient
from wiiiiided.train.layout import ParameterPart, owners, slices
from wiiiiided.train.memory import WORDS, Bytes, HostMemory, Record, Words, meet
from wiiiiided.train.optimizer import ELEMENTWISE, divide, shown
from wiiiiided.train.reduce import Gradients, Weights
from wiiiiided.train.state import Piece, SharedState

_STEP: Final = CallSignature.of("optimizer.step() of wide.parallel")
_CLIP: Final = CallSignature.of("run.clip_grad_norm_() of wide.parallel")
_WRITTEN: Final = CallSignature.of("the end of optimizer.step() of wide.parallel")
_MODIFY: Final = CallSignature.of("run.modify() of wide.parallel")
_MODIFIED: Final = CallSignature.of("the end of run.modify() of wide.parallel")
_START: Final = CallSignature.of("wide.parallel()")
_LOADED: Final = CallSignature.of("weights that another host has loaded")

# Words of a record: what ranks tell each other at a meeting.
_SAMPLES, _SETTINGS, _FLAGS = 0, 1, 2
_LOADED_OPTIMIZER, _LOADED_MODEL, _FRESH_STATE, _NEW, _AVERAGED = 1, 2, 4, 8, 16

_PROBES: Final = 8  # elements of a weight that are compared to notice a write from outside
_BUFFER_BYTES: Final = 25 << 20  # buffers are broadcast in pieces of this size, as DDP does it


class Face(Protocol):
    """The process group as this layer needs it: torch's, with the engine's group behind it."""

    @property
    def engine_group(self) -> Group: ...


class Parallel:
    """A model and its optimizer, trained by all ranks of a group. Made by `wide.parallel`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        face: dist.ProcessGroup,
        group: Group,
        updates: str = "sync",
    ) -> None:
        refuse(model, optimizer, updates)
        self._model, self._optimizer, self._face, self._group = model, optimizer, face, group
        named = _in_order(model, optimizer)
        self._names, self._parameters = list(named), list(named.values())
        elementwise = type(optimizer) in ELEMENTWISE
        agree(face, named, optimizer)
        self._memory = HostMemory(group, [p.numel() * p.element_size() for p in self._parameters])
        self._weights = self._move_weights()
        self._divide(elementwise)
        self._step = 0
        self._samples: float | None = None
        self._factor: torch.Tensor | None = None  # by which clip_grad_norm_ scales the average
        self._flags = 0
        self._probe_at = self._choose_probes()
        self._hook(model)
        divide(optimizer, self)
        if any(t[0] == "1" for t in tell_all(face, "1" if optimizer.state else "0")):
            self._state.take(0)
        self._remember()
        meet(group, _START)

    # -- what users call ----

    def samples(self, count: float) -> None:
        """This rank's batch had so many samples: the next step weights its gradient by them.

        All ranks say it, or none; without it all count alike.
        """
        if not (isinstance(count, int | float) and math.isfinite(count) and count >= 0):
            raise UsageError(f"samples({count!r}): a number of samples is 0 or more")
        self._samples = float(count)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """For scripts that have it: gradients are exchanged in `step` alone, so nothing is done."""
        return contextlib.nullcontext()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip the averaged gradient and return its norm, as torch.nn.utils.clip_grad_norm_ does.

        All ranks call it, after the last backward and before the step.
        """
        present = self._exchange(_CLIP)
        before = torch.ones(()) if self._factor is None else self._factor
        total = self._norm(present, float(norm_type)) * before
        if error_if_nonfinite and not bool(torch.isfinite(total)):
            raise UsageError(f"the norm of the averaged gradient is {float(total)}")
        # Applied in the step, when all meet again: until then a rank may throw its gradient away
        # and begin another backward, which writes where the average lies.
        self._factor = before * torch.clamp(float(max_norm) / (total + 1e-6), max=1.0)
        return total

    @contextlib.contextmanager
    def modify(self) -> Iterator[None]:
        """Change weights outside the optimizer: every rank runs the block, one a host writes.

        The others work on copies, which are thrown away. On several hosts rank 0's host wins.
        """
        meet(self._group, _MODIFY)
        writer = self._memory.place == 0
        with torch.no_grad():
            for parameter in self._parameters if not writer else []:
                parameter.data = parameter.data.clone()
        self._memory.begin(self._step + 1)
        meet(self._group, _MODIFY)  # all copies are made before the first write
        try:
            yield
        finally:
            if not writer:
                self._point_at_shared()
        if writer:
            self._check_storage()
        meet(self._group, _MODIFIED)
        self._memory.begin(self._step)
        self._spread_weights(0)
        self._remember()

    # -- one step ----

    def step(self, inner: Callable[[], Any]) -> None:
        """What the divided optimizer calls in place of its own step."""
        step = self._step + 1
        self._memory.begin(step)
        try:
            present = self._exchange(_STEP)
            self._memory.check_left(step)
        except UsageError:  # before the meeting, or of all ranks alike: no rank goes on to write
            self._memory.begin(self._step)
            raise
        except BaseException:
            self._memory.leave(step)
            raise
        self._clip(present)
        self._update(inner, present)
        fresh = self._state.look()
        self._memory.complete(step)
        self._step, self._samples = step, None
        torch.autograd.graph.increment_version(self._parameters)
        words = np.zeros(WORDS, np.int64)
        words[_FLAGS] = _FRESH_STATE if fresh else 0
        records = self._memory.publish(_WRITTEN, words, self._present)
        if any(int(record.words[_FLAGS]) & _FRESH_STATE for record in records):
            self._state.share()
        self._remember()

    def _clip(self, present: Bytes) -> None:
        """What clip_grad_norm_ found, to this rank's part of the average."""
        if self._factor is not None:
            for piece in self._pieces:
                if present[piece.part.parameter]:
                    self._part_of_average(piece).mul_(self._factor)
            self._factor = None

    def _exchange(self, call: CallSignature) -> Bytes:
        """Meet, compare what must agree, average. Returns which parameters have a gradient."""
        self._check_writes()
        self._flags |= self._collect()
        words = np.zeros(WORDS, np.int64)
        words[_SAMPLES] = -1 if self._samples is None else np.float64(self._samples).view(np.int64)
        words[_SETTINGS], words[_FLAGS] = self._digest(), self._flags
        records = self._publish(call, words)
        self._take_over(records)
        weights = self._weighting(records)
        anywhere: Bytes = np.maximum.reduce([record.present for record in records])
        ages = {int(record.words[_FLAGS]) & (_NEW | _AVERAGED) for record in records} - {0}
        if len(ages) > 1 or _NEW | _AVERAGED in ages:
            raise UsageError(
                "some gradients have been averaged already and some are new: between "
                "clip_grad_norm_ and step there can be no other backward, unless all are zeroed"
            )
        if ages == {_NEW}:
            if not self._alone:  # on one host no rank reads what is not there
                for i in np.flatnonzero(anywhere > self._present):
                    self._gradients.zero(i)
            rows = [record.present for record in records] if self._alone else [anywhere]
            self._gradients.reduce(rows, weights)
            for pending in self._pending:
                pending.reduced = True
            self._factor = None
        return anywhere

    def _collect(self) -> int:
        """Which parameters have a gradient here, and of which age, as flags.

        A gradient that a program put there is copied.
        """
        ages = 0
        for i, parameter in enumerate(self._parameters):
            gradient, pending = parameter.grad, self._pending[i]
            self._present[i] = gradient is not None
            if gradient is not None:
                if gradient is not pending:
                    self._store(i, gradient)
                ages |= _AVERAGED if pending.reduced else _NEW
        return ages

    def _store(self, i: int, gradient: torch.Tensor) -> None:
        if gradient.layout is not torch.strided:
            raise UsageError(
                f"the gradient of {self._names[i]} is sparse: use dense gradients "
                "(Embedding(sparse=False)), or DistributedDataParallel over this backend"
            )
        pending = self._pending[i]
        pending.slot.copy_(gradient)
        pending.reduced = False
        self._parameters[i].grad = pending

    def _publish(self, call: CallSignature, words: Words) -> list[Record]:
        """Every rank's record, those of this host alone if it is the only one."""
        if self._alone:
            return self._memory.publish(call, words, self._present)
        meet(self._group, call)
        mine = torch.from_numpy(np.concatenate([words.view(np.uint8), self._present]))
        found = gather(self._face, mine).numpy()
        head = WORDS * 8
        return [Record(row[:head].copy().view(np.int64), row[head:]) for row in found]

    def _take_over(self, records: Sequence[Record]) -> None:
        """What ranks have loaded since the last meeting; then all must have the same settings."""
        flags = [int(record.words[_FLAGS]) for record in records]
        self._flags = 0
        loaders = [rank for rank, flag in enumerate(flags) if flag & _LOADED_MODEL]
        if loaders and self._has_buffers and 0 not in loaders:
            raise UsageError(
                f"rank {loaders[0]} has loaded a model with buffers, and rank 0, whose buffers "
                "count, has not: load it on rank 0, or on all ranks"
            )
        if loaders and not self._alone:
            self._spread_weights(loaders[0])
            meet(self._group, _LOADED)
            self._remember()
        loaders = [rank for rank, flag in enumerate(flags) if flag & _LOADED_OPTIMIZER]
        if loaders:
            self._state.take(loaders[0])
            self._take_settings(loaders[0])
            digests = gather(self._face, torch.tensor([self._digest()])).flatten().tolist()
        else:
            digests = [int(record.words[_SETTINGS]) for record in records]
        if len(set(digests)) > 1:
            raise self._different_settings()

    def _weighting(self, records: Sequence[Record]) -> Weights:
        said = [int(record.words[_SAMPLES]) for record in records]
        if all(word == -1 for word in said):
            return None
        if any(word == -1 for word in said):
            raise Mismatch(
                f"rank {said.index(-1)} did not call run.samples() before this step and another "
                "rank did: all ranks say how many samples they had, or none"
            )
        counts = [float(np.int64(word).view(np.float64)) for word in said]
        total = sum(counts)
        if len(set(counts)) == 1:
            return None
        return [count / total for count in counts]

    def _update(self, inner: Callable[[], Any], present: Bytes) -> None:
        """The optimizer's own step, on what this rank updates."""
        if self._divided:
            chosen = [
                [piece.tensor for piece in pieces if present[piece.part.parameter]]
                for pieces in self._by_group
            ]
            with shown(self._optimizer, self._state.working, chosen):
                inner()
            return
        mine = {piece.part.parameter for piece in self._pieces}
        try:
            for i, parameter in enumerate(self._parameters):
                here = i in mine and present[i]
                parameter.grad = self._shaped_average[i] if here else None
            inner()
        finally:
            for i, parameter in enumerate(self._parameters):
                parameter.grad = self._pending[i] if self._present[i] else None

    def _norm(self, present: Bytes, kind: float) -> torch.Tensor:
        """The norm of the averaged gradient: every rank measures its part."""
        parts = [
            torch.linalg.vector_norm(self._part_of_average(piece), kind, dtype=torch.float64)
            for piece in self._pieces
            if present[piece.part.parameter]
        ]
        norms = torch.stack(parts) if parts else torch.zeros(1, dtype=torch.float64)
        most = math.isinf(kind)
        total = norms.max() if most else norms.pow(kind).sum()
        # Every host has the whole gradient: the ranks of rank 0's host make it up.
        chosen = gather(self._face, total.reshape(1)).flatten()[self._first_host]
        norm: torch.Tensor = chosen.max() if most else chosen.sum().pow(1.0 / kind)
        return norm if all(p.dtype is torch.float64 for p in self._parameters) else norm.float()

    def _part_of_average(self, piece: Piece) -> torch.Tensor:
        average: torch.Tensor = self._gradients.average[piece.part.parameter]
        return average[piece.part.begin : piece.part.end]

    # -- settings ----

    def _digest(self) -> int:
        """The groups' settings (learning rates and the like) as a number."""
        return zlib.crc32(repr(self._settings()).encode())

    def _settings(self) -> list[dict[str, Any]]:
        """Of each group what can be told in words; a learning rate may be a tensor."""
        return [
            {
                key: float(value) if isinstance(value, torch.Tensor) else value
                for key, value in group.items()
                if _is_setting(key, value)
            }
            for group in self._optimizer.param_groups
        ]

    def _different_settings(self) -> Mismatch:
        mine = [f"{k}={v!r}" for settings in self._settings() for k, v in settings.items()]
        texts = tell_all(self._face, "\n".join(mine))
        first = texts[0].split("\n")
        for rank, text in enumerate(texts):
            for line, other in zip(first, text.split("\n"), strict=False):
                if line != other:
                    return Mismatch(
                        f"the optimizer has {line} on rank 0 and {other} on rank {rank}: weights "
                        "are shared, so all ranks must step alike (a scheduler that looks at this "
                        "rank's own loss? give all ranks the average)"
                    )
        return Mismatch("the ranks' optimizers have different settings")

    def _take_settings(self, source: int) -> None:
        """After one rank alone has loaded the optimizer: its settings for all."""
        groups = self._optimizer.param_groups
        theirs = json.loads(tell_all(self._face, json.dumps(self._settings()))[source])
        for group, settings in zip(groups, theirs, strict=True):
            for key, value in settings.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = tuple(value) if isinstance(value, list) else value

    # -- weights ----

    def _move_weights(self) -> list[torch.Tensor]:
        """Parameters into shared memory, rank 0's values; returns them, flat."""
        flat = [self._memory.weight(i, p.numel(), p.dtype) for i, p in enumerate(self._parameters)]
        views = []
        for parameter, memory in zip(self._parameters, flat, strict=True):
            strides = parameter.stride() if _dense(parameter) else _contiguous(parameter)
            views.append(memory.as_strided(parameter.shape, strides))
        self._views = views
        with torch.no_grad():
            if self._face.rank() == 0:
                for parameter, view in zip(self._parameters, views, strict=True):
                    view.copy_(parameter)
        self._alone = self._face.size() == self._memory.places
        self._spread_weights(0)
        meet(self._group, _START)
        self._point_at_shared()
        return flat

    def _point_at_shared(self) -> None:
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.data = view

    def _spread_weights(self, source: int) -> None:
        """One rank's host's weights to all hosts. Ranks of a host write the same to one place."""
        if not self._alone and self._memory.area_bytes:
            spread(self._face, self._memory.weights(), source)

    def _divide(self, elementwise: bool) -> None:
        """Which rank updates what, and where the gradients lie."""
        ranks = self._group.team.ranks
        counts = [p.numel() for p in self._parameters]
        parts = (slices if elementwise else owners)(counts, len(ranks))
        mine = parts[self._memory.place]
        before = {part.parameter for earlier in parts[: self._memory.place] for part in earlier}
        self._gradients = Gradients(self._memory, self._parameters, mine, self._face, ranks)
        self._divided = elementwise
        self._pieces = [
            Piece(part, self._piece_tensor(part), part.parameter not in before) for part in mine
        ]
        self._state = SharedState(
            *(self._group, self._face, self._optimizer),
            *(self._parameters, self._pieces, elementwise),
        )
        self._group_sizes = [len(group["params"]) for group in self._optimizer.param_groups]
        numbers = {id(p): i for i, p in enumerate(self._parameters)}
        by_number = {piece.part.parameter: piece for piece in self._pieces}
        self._by_group = [
            [by_number[n] for p in group["params"] if (n := numbers[id(p)]) in by_number]
            for group in self._optimizer.param_groups
        ]
        self._shaped_average = [
            average.as_strided(p.shape, p.stride())
            for p, average in zip(self._parameters, self._gradients.average, strict=True)
        ]
        self._pending = [
            PendingGradient(slot.as_strided(p.shape, p.stride()), name, self._face)
            for p, slot, name in zip(
                self._parameters, self._gradients.mine, self._names, strict=True
            )
        ]
        self._present = np.zeros(len(self._parameters), np.uint8)
        leaders = tell_all(self._face, str(ranks[0]))
        self._first_host = [rank for rank, leader in enumerate(leaders) if leader == leaders[0]]

    def _piece_tensor(self, part: ParameterPart) -> torch.Tensor:
        if not self._divided:
            return self._parameters[part.parameter]
        piece = self._weights[part.parameter][part.begin : part.end]
        gradient = self._gradients.average[part.parameter][part.begin : part.end]
        if not self._parameters[part.parameter].dim():  # its state must be what it is: one number
            piece, gradient = piece.view(()), gradient.view(())
        piece.grad = gradient
        return piece

    # -- writes from outside ----

    def _choose_probes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Bytes of the weights that are compared between steps: some of each parameter."""
        chosen = []
        for parameter, at in zip(self._parameters, self._memory.offsets, strict=True):
            count, size = parameter.numel(), parameter.element_size()
            picks = {count * k // _PROBES for k in range(_PROBES)} if count else set()
            chosen += [at + pick * size + byte for pick in picks for byte in range(size)]
        return np.array(chosen, np.int64)

    def _remember(self) -> None:
        """The weights as they are now are what the optimizer, or the user by us, made them."""
        self._loads = self._memory.loads()  # first: a rank may begin to load at any moment
        self._versions = [parameter._version for parameter in self._parameters]
        self._probes = self._memory.weights()[self._probe_at]

    def _check_storage(self) -> None:
        for name, parameter, view in zip(self._names, self._parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr() or parameter.shape != view.shape:
                raise UsageError(
                    f"the memory of {name} was replaced (.to(), share_memory(), assign=True, or "
                    "p.data = …): this rank would drift apart from the others. Do that before "
                    "parallel(), and copy values with: with run.modify(): p.copy_(values)"
                )

    def _check_writes(self) -> None:
        """Raise if a weight was changed outside the optimizer since the last step."""
        if [len(group["params"]) for group in self._optimizer.param_groups] != self._group_sizes:
            raise UsageError(
                "the optimizer's parameters are not those it had when parallel() was called "
                "(add_param_group?): give it all of them before, frozen ones too"
            )
        self._check_storage()
        versions = zip(self._names, self._parameters, self._versions, strict=True)
        changed = next((name for name, p, version in versions if p._version != version), None)
        if changed is None and self._loads == self._memory.loads():
            different = np.flatnonzero(self._memory.weights()[self._probe_at] != self._probes)
            if different.size:
                at = self._probe_at[different[0]]
                changed = self._names[np.searchsorted(self._memory.offsets, at, "right") - 1]
        if changed is not None:
            raise UsageError(
                f"{changed} was changed outside the optimizer: all ranks of a host share it, so a "
                "change made on every rank is made several times. Write: with run.modify(): …"
            )

    # -- hooks ----

    def _hook(self, model: torch.nn.Module) -> None:
        setattr(model, MARK, _Handle(self))
        handle: _Handle = getattr(model, MARK)
        self._has_buffers = any(True for _ in model.buffers()) and self._face.size() > 1
        model.register_forward_pre_hook(handle.before_forward)
        for module in model.modules():
            module.register_state_dict_pre_hook(handle.before_state_dict)  # type: ignore[no-untyped-call]
            module.register_load_state_dict_post_hook(handle.after_load)  # type: ignore[no-untyped-call]
        self._unhooked = dict(enumerate(self._parameters))
        self._hook_gradients()

    def _hook_gradients(self) -> None:
        """Take gradients as they come; a frozen parameter is looked at again at each forward."""
        for i, parameter in list(self._unhooked.items()):
            if parameter.requires_grad and parameter.is_leaf:
                del self._unhooked[i]
                parameter.register_post_accumulate_grad_hook(_Taker(self, i))  # type: ignore[no-untyped-call]

    def take_gradient(self, i: int) -> None:
        """A backward has come to this parameter."""
        gradient = self._parameters[i].grad
        if gradient is not None and gradient is not self._pending[i]:
            self._store(i, gradient)

    def before_forward(self) -> None:
        """Frozen parameters that are so no more; and rank 0's buffers, as DDP has it."""
        if self._unhooked:
            self._hook_gradients()
        if self._has_buffers and self._model.training and torch.is_grad_enabled():
            with torch.no_grad():
                buffers = [buffer for buffer in self._model.buffers() if buffer.numel()]
                dist._broadcast_coalesced(self._face, buffers, _BUFFER_BYTES, 0)  # type: ignore[attr-defined]

    def check_whole(self) -> None:
        """Raise if a step was interrupted."""
        self._memory.whole()

    def check_optimizer(self) -> None:
        """The same, before the optimizer's state is looked at: it is brought up to date."""
        self._memory.whole()
        if not self._flags & _LOADED_OPTIMIZER:  # what this rank has loaded is newer
            self._state.refresh()

    def loaded_optimizer(self) -> None:
        """This rank has loaded the optimizer: at the next meeting the others take it over."""
        self._flags |= _LOADED_OPTIMIZER

    def loaded_model(self) -> None:
        """This rank has loaded the model, where all ranks of its host see it."""
        self._flags |= _LOADED_MODEL
        self._memory.count_load()
        self._versions = [parameter._version for parameter in self._parameters]


class _Handle:
    """What hangs on the model. A copy of the model (deepcopy, pickle) is an ordinary model.

    It keeps the run: as long as the weights are shared, they are looked after.
    """

    def __init__(self, run: Parallel | None = None) -> None:
        self._run = run

    @property
    def in_use(self) -> bool:
        """Whether this model's weights are shared."""
        return self._run is not None

    def before_forward(self, module: torch.nn.Module, args: Any) -> None:
        if self._run is not None:
            self._run.before_forward()

    def before_state_dict(self, module: torch.nn.Module, prefix: str, keep_vars: bool) -> None:
        if self._run is not None:
            self._run.check_whole()

    def after_load(self, module: torch.nn.Module, incompatible: Any) -> None:
        if self._run is not None:
            self._run.loaded_model()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Handle:
        return _Handle()

    def __reduce__(self) -> Any:
        return (_Handle, ())


class _Taker:
    """The hook on one parameter."""

    def __init__(self, run: Parallel, number: int) -> None:
        self._run, self._number = weakref.ref(run), number

    def __call__(self, parameter: torch.Tensor) -> None:
        run = self._run()
        if run is not None:
            run.take_gradient(self._number)


def _in_order(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, torch.nn.Parameter]:
    """The parameters to share, by name: those that are trained, then the frozen ones."""
    named = dict(model.named_parameters())
    return {
        **{name: p for name, p in named.items() if p.requires_grad},
        **{name: p for name, p in named.items() if not p.requires_grad},
    }


def _is_setting(key: str, value: Any) -> bool:
    """A group's value that can be told in words: a number, a flag, a pair of numbers."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0
    plain = value if isinstance(value, tuple) else (value,)
    return key != "params" and all(isinstance(v, int | float | str | None) for v in plain)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a stretch of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _contiguous(tensor: torch.Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, device="meta").stride()
