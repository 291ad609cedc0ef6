"""The tensor in `p.grad` between backward and step: a gradient that is not averaged yet.

A backward leaves each rank its own gradient, and the average is made in `optimizer.step()`. So
between the two no tensor exists that `p.grad` could truly be; showing this rank's own part would
be silently wrong (a norm of it is not the norm of the average). An `UnaveragedGradient` stands
there instead:

    another backward adds to it          gradient accumulation needs nothing
    zero_(), mul_(2), div_(world)        act on this rank's part, and count
    GradScaler.unscale_                  (mixed precision) acts on this rank's part; all ranks
                                         agree on inf
    p.grad = None, p.grad = tensor       discards, replaces
    anything that reads                  raises one sentence that names `run.clip_grad_norm_`

Two kinds, by where the gradient lies:

    StagedGradient     in one place: it is that memory. Autograd, which adds in C++, does not see
                       that it is special, and accumulates at full speed
    ScatteredGradient  in parts, some of which are in private memory: it has no memory of its own,
                       and autograd's additions come here through the dispatcher
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from wiiiiided.errors import UsageError

_T = torch.Tensor

# Names that tell about a tensor and nothing of what is in it.
_PROPERTIES = (
    *("shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad_fn", "is_leaf", "grad"),
    *("is_sparse", "is_sparse_csr", "is_quantized", "is_mkldnn", "is_nested", "is_meta", "is_cpu"),
    *("is_cuda", "is_xpu", "is_mps", "itemsize", "nbytes", "_version", "output_nr", "retains_grad"),
)
_METHODS = (
    *("size", "dim", "stride", "numel", "nelement", "element_size", "storage_offset", "ndimension"),
    *("is_floating_point", "is_complex", "is_contiguous", "is_inference", "__len__", "__hash__"),
)
_ABOUT = frozenset(
    [
        *(getattr(_T, name).__get__ for name in _PROPERTIES if hasattr(_T, name)),
        *(getattr(_T, name) for name in _METHODS),
    ]
)
_SAME = frozenset([_T.detach, _T.detach_, _T.requires_grad_])  # it needs no gradient itself

# In place, linear, with a number: done to every rank's part they are done to the average.
_LINEAR: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys([_T.mul_, _T.multiply_, _T.__imul__, torch._foreach_mul_], _T.mul_),
    **dict.fromkeys([_T.div_, _T.divide_, _T.true_divide_, torch._foreach_div_], _T.div_),
    **dict.fromkeys([_T.__idiv__, _T.__itruediv__], _T.div_),
    **dict.fromkeys([_T.neg_, _T.negative_, torch._foreach_neg_], _T.neg_),
}
_ZERO = frozenset([_T.zero_, torch._foreach_zero_])
_ADD = frozenset([_T.add_, _T.__iadd__])
_UNSCALE = torch._amp_foreach_non_finite_check_and_unscale_


class GradientOwner(Protocol):
    """The object that keeps the memory of gradients (`gradient_store.GradientStore`)."""

    def label(self, i: int) -> str: ...
    def add(self, i: int, gradient: torch.Tensor, alpha: float = 1) -> None: ...
    def parts(self, i: int) -> list[torch.Tensor]: ...
    def on_skipped_step(self) -> None: ...


class UnaveragedGradient(torch.Tensor):
    """One parameter's gradient on this rank, until the step averages it."""

    # Weakly: through `p.grad` torch keeps this object where Python's collector does not see it.
    store: weakref.ref[GradientOwner]
    number: int  # the parameter's, in the store
    reduced: bool  # the average has been made (by clip_grad_norm_): nothing may be added any more
    group: dist.ProcessGroup  # of the ranks that must agree on inf

    def _belongs(self, store: GradientOwner, number: int, group: dist.ProcessGroup) -> None:
        self.store, self.number = weakref.ref(store), number
        self.group, self.reduced = group, False

    @property
    def _store(self) -> GradientOwner:
        store = self.store()
        assert store is not None, "a model whose weights are shared keeps its gradients"
        return store

    @property
    def label(self) -> str:
        """The parameter's name."""
        return self._store.label(self.number)

    @property
    def parts(self) -> list[torch.Tensor]:
        """Where it lies, flat, in parts."""
        return self._store.parts(self.number)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.label}: averaged in optimizer.step())"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """A use by Python code."""
        if func in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func in _SAME:
            return args[0]
        if func is _UNSCALE:
            _unscale(*args, **(kwargs or {}))
            return None
        gradients = args[0] if isinstance(args[0], list | tuple) else [args[0]]
        if not all(isinstance(g, UnaveragedGradient) for g in gradients):
            found = _flat([*args, *(kwargs or {}).values()])
            raise _unreadable(next(g for g in found if isinstance(g, UnaveragedGradient)))
        if func in _ZERO:  # whatever it was: a gradient of zeros, and a new one
            for gradient in gradients:
                gradient.zero()
            return args[0]
        if func in _ADD and _is_plain(args[1]):
            gradients[0].check_new()
            gradients[0]._store.add(gradients[0].number, *args[1:], **(kwargs or {}))
            return args[0]
        if func in _LINEAR and all(_is_number(arg) for arg in args[1:]):
            for gradient in gradients:
                gradient.check_new()
                for part in gradient.parts:
                    _LINEAR[func](part, *args[1:])
            return args[0]
        raise _unreadable(gradients[0])

    def zero(self) -> None:
        """Make it a gradient of zeros, to which a backward may add."""
        for part in self.parts:
            part.zero_()
        self.reduced = False

    def check_new(self) -> None:
        """Raise if the average has been made."""
        if self.reduced:
            raise UsageError(
                f"the gradient of {self.label} has been averaged already (clip_grad_norm_, or a "
                "step without zero_grad) and cannot be added to or scaled; call optimizer.step() "
                "or zero_grad() first"
            )


class StagedGradient(UnaveragedGradient):
    """A gradient that lies in one place of shared memory."""

    @staticmethod
    def __new__(
        cls, store: GradientOwner, number: int, slot: torch.Tensor, group: dist.ProcessGroup
    ) -> StagedGradient:
        made: StagedGradient = torch.Tensor._make_subclass(cls, slot)
        made._belongs(store, number, group)
        return made


class ScatteredGradient(UnaveragedGradient):
    """A gradient in parts, of which this tensor has only the shape."""

    @staticmethod
    def __new__(
        cls, store: GradientOwner, number: int, like: torch.Tensor, group: dist.ProcessGroup
    ) -> ScatteredGradient:
        made: ScatteredGradient = torch.Tensor._make_wrapper_subclass(
            cls, like.size(), strides=like.stride(), dtype=like.dtype, device=like.device
        )
        made._belongs(store, number, group)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """A use by autograd, past `__torch_function__`."""
        first = args[0]
        if func is torch.ops.aten.add_.Tensor and isinstance(first, ScatteredGradient):
            first.check_new()
            first._store.add(first.number, *args[1:], **(kwargs or {}))
            return first
        if func is torch.ops.aten.detach.default:
            return first
        found = _flat([*args, *(kwargs or {}).values()])
        raise _unreadable(next(g for g in found if isinstance(g, UnaveragedGradient)))


def _unscale(gradients: list[torch.Tensor], found_inf: torch.Tensor, scale: torch.Tensor) -> None:
    """Unscale for GradScaler: all ranks skip the step if a gradient is not finite, or none does."""
    ours = [g for g in gradients if isinstance(g, UnaveragedGradient)]
    parts = [part for g in ours for part in g.parts]
    plain = [g for g in gradients if not isinstance(g, UnaveragedGradient)]
    known = bool(found_inf)  # gradients of another dtype have come before
    _UNSCALE([*parts, *plain], found_inf, scale)
    dist.all_reduce(found_inf, dist.ReduceOp.MAX, ours[0].group)
    if bool(found_inf) and not known:
        ours[0]._store.on_skipped_step()


def _flat(args: Any) -> list[Any]:
    found: list[Any] = []
    for arg in args:
        found.extend(arg if isinstance(arg, list | tuple) else [arg])
    return found


def _is_plain(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and not isinstance(arg, UnaveragedGradient)


def _is_number(arg: Any) -> bool:
    if isinstance(arg, torch.Tensor):
        return arg.dim() == 0 and _is_plain(arg)
    return isinstance(arg, int | float)


def _unreadable(gradient: UnaveragedGradient) -> UsageError:
    return UsageError(
        f"p.grad of {gradient.label} cannot be read between backward and step: the ranks' "
        "gradients are averaged in optimizer.step(). To clip, call run.clip_grad_norm_(max_norm), "
        "which returns the norm of the average; to log the norm only, give it float('inf')"
    )
