"""What stands in `p.grad` between backward and step: a gradient that is not averaged yet.

A backward leaves each rank its own gradient, and the average is made in `optimizer.step()`. So
between the two no tensor exists that `p.grad` could truly be; showing this rank's own part would
be silently wrong (a norm of it is not the norm of the average). A `PendingGradient` stands there
instead:

    another backward adds to it          accumulation needs nothing
    zero_(), mul_(2), div_(world)        act on this rank's part, and count
    GradScaler.unscale_                  acts on this rank's part; all ranks agree on inf
    p.grad = None, p.grad = tensor       discards, replaces
    anything that reads                  raises one sentence that names `run.clip_grad_norm_`
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from wiiiiided.errors import UsageError

_aten = torch.ops.aten
_UNSCALE = _aten._amp_foreach_non_finite_check_and_unscale_.default

# In place, linear, with a number: done to every rank's part they are done to the average.
_LINEAR: dict[Any, Callable[..., Any]] = {
    _aten.mul_.Tensor: torch.Tensor.mul_,
    _aten.mul_.Scalar: torch.Tensor.mul_,
    _aten.div_.Tensor: torch.Tensor.div_,
    _aten.div_.Scalar: torch.Tensor.div_,
    _aten.neg_.default: torch.Tensor.neg_,
    _aten._foreach_mul_.Scalar: torch.Tensor.mul_,
    _aten._foreach_div_.Scalar: torch.Tensor.div_,
    _aten._foreach_neg_.default: torch.Tensor.neg_,
}
_ZERO = {_aten.zero_.default, _aten._foreach_zero_.default}


class Store(Protocol):
    """Where pending gradients lie (`gradients.GradientStore`)."""

    def label(self, i: int) -> str: ...
    def add(self, i: int, gradient: torch.Tensor, **scale: Any) -> None: ...
    def parts(self, i: int) -> list[torch.Tensor]: ...


class PendingGradient(torch.Tensor):
    """One parameter's gradient on this rank, until the step averages it."""

    # Weakly: through `p.grad` torch keeps this object where Python's collector does not see it.
    store: weakref.ref[Store]
    number: int  # the parameter's, in the store
    reduced: bool  # the average has been made (by clip_grad_norm_): nothing may be added any more
    group: dist.ProcessGroup  # of the ranks that must agree on inf

    @staticmethod
    def __new__(
        cls, store: Store, number: int, like: torch.Tensor, group: dist.ProcessGroup
    ) -> PendingGradient:
        made: PendingGradient = torch.Tensor._make_wrapper_subclass(
            cls, like.size(), strides=like.stride(), dtype=like.dtype, device=like.device
        )
        made.store, made.number = weakref.ref(store), number
        made.group, made.reduced = group, False
        return made

    @property
    def _store(self) -> Store:
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
        return f"PendingGradient({self.label}, {list(self.shape)}: averaged in optimizer.step())"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        first = args[0][0] if isinstance(args[0], list | tuple) and args[0] else args[0]
        if func is _aten.detach.default:
            return first
        if func is _UNSCALE:
            _unscale(*args)
            return None
        if not isinstance(first, PendingGradient):
            found = _flat([*args, *(kwargs or {}).values()])
            raise _unreadable(next(g for g in found if isinstance(g, PendingGradient)))
        if func is _aten.add_.Tensor and not isinstance(args[1], PendingGradient):
            first._may_change()
            first._store.add(first.number, args[1], **(kwargs or {}))
            return first
        if func in _ZERO:  # whatever it was: a gradient of zeros, and a new one
            for pending in _flat((args[0],)):
                for part in pending.parts:
                    part.zero_()
                pending.reduced = False
            return args[0]
        if func in _LINEAR and all(_is_number(arg) for arg in args[1:]):
            for pending in _flat((args[0],)):
                pending._may_change()
                for part in pending.parts:
                    _LINEAR[func](part, *args[1:])
            return args[0]
        raise _unreadable(first)

    def _may_change(self) -> None:
        if self.reduced:
            raise UsageError(
                f"the gradient of {self.label} has been averaged already (clip_grad_norm_) and "
                "cannot be added to or scaled; call optimizer.step() or zero_grad() first"
            )


def _unscale(gradients: list[torch.Tensor], found_inf: torch.Tensor, scale: torch.Tensor) -> None:
    """GradScaler's: a step is left out where a gradient is not finite, by all ranks or by none."""
    parts = [
        part for g in gradients for part in (g.parts if isinstance(g, PendingGradient) else [g])
    ]
    _UNSCALE(parts, found_inf, scale)
    group = next(g.group for g in gradients if isinstance(g, PendingGradient))
    dist.all_reduce(found_inf, dist.ReduceOp.MAX, group)


def _flat(args: Any) -> list[Any]:
    found: list[Any] = []
    for arg in args:
        found.extend(arg if isinstance(arg, list | tuple) else [arg])
    return found


def _is_number(arg: Any) -> bool:
    if isinstance(arg, torch.Tensor):
        return arg.dim() == 0 and not isinstance(arg, PendingGradient)
    return isinstance(arg, int | float)


def _unreadable(gradient: PendingGradient) -> UsageError:
    return UsageError(
        f"p.grad of {gradient.label} cannot be read between backward and step: the ranks' "
        "gradients are averaged in optimizer.step(). To clip, call run.clip_grad_norm_(max_norm), "
        "which returns the norm of the average; to log the norm only, give it float('inf')"
    )
