"""The optimizer's work divided over the ranks of a host, by the optimizer the user made.

In a step each rank has the state of its part alone, as in ZeRO's first stage.

The object stays; its class becomes a subclass of what it was, so `isinstance`, schedulers, scalers
and hooks go on as before. `step` runs the closure, then a `Stepper` round the optimizer's own.

    slices    an optimizer of torch that treats each element by itself: in the step it is shown, in
              place of its parameters, flat pieces of them that this rank updates
    owners    any other: it is shown its own parameters, of which only those that this rank owns
              have a gradient; an optimizer leaves the others alone
"""

from __future__ import annotations

import copyreg
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch._C._autograd import _profiler_enabled
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from wiiiiided.train.checks import MARK


class Stepper(Protocol):
    """The calls of a divided optimizer to its `Parallel`."""

    def step(self, inner: Callable[[], Any]) -> None: ...
    def state_dict(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]: ...
    def check_load(self) -> None: ...
    def loaded_optimizer(self) -> None: ...


class DividedOptimizer(torch.optim.Optimizer):
    """Mixed in before the optimizer's own class."""

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """One step of all ranks: closure, exchange, update of this rank's part."""
        if _is_watched(self):
            return self._watched_step(closure, *args, **kwargs)
        return self._step(closure, *args, **kwargs)

    # torch would wrap `step` in hooks and a mark for its profiler: 5 µs, where a step of a small
    # network takes 100. And a scheduler would wrap it to see whether it was called.
    step.hooked = True  # type: ignore[attr-defined]
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    def _step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            # GradScaler leaves it to a fused optimizer to skip the step, and calls it all the same;
            # `on_skipped_step` has been called.
            return None
        self._opt_called = True  # a scheduler looks whether the optimizer stepped before it
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        mark = self.__dict__[MARK]
        if args or kwargs:
            mark.stepper.step(
                functools.partial(mark.own, self, *((None, *args) if args else ()), **kwargs)
            )
        else:
            mark.stepper.step(mark.inner)
        return loss

    _watched_step = torch.optim.Optimizer.profile_hook_step(_step)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard all gradients."""
        if not set_to_none or _profiler_enabled():
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Whole, and on one rank alone; raises after an interrupted step."""
        saved: dict[str, Any] = self.__dict__[MARK].stepper.state_dict(super().state_dict)
        return saved

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy (deepcopy, pickle) is an ordinary optimizer of the class it was."""
        own = type(self).__mro__[2]
        return copyreg.__newobj__, (own,), self.__getstate__()  # type: ignore[attr-defined]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state on all ranks, or on one: the others take it over at the next step."""
        self.__dict__[MARK].stepper.check_load()
        super().load_state_dict(state_dict)
        self.__dict__[MARK].stepper.loaded_optimizer()


class _OptimizerMark:
    """The mark on a divided optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, stepper: Stepper) -> None:
        self.stepper = stepper
        own: Any = type(optimizer).step
        # Hooks run round the whole step, not inside it.
        self.own = own.__wrapped__ if getattr(own, "hooked", False) else own
        self._optimizer = weakref.ref(optimizer)

    def inner(self) -> Any:
        """The optimizer's own step."""
        return self.own(self._optimizer())


def divide(optimizer: torch.optim.Optimizer, stepper: Stepper) -> None:
    """Make an optimizer one that is divided."""
    own = type(optimizer)
    optimizer.__dict__.pop("step", None)  # a scheduler's mark on the old one
    setattr(optimizer, MARK, _OptimizerMark(optimizer, stepper))
    optimizer.__class__ = type(
        own.__name__, (DividedOptimizer, own), {"__module__": own.__module__}
    )


def _is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether hooks or the profiler want to know of a step."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or _profiler_enabled()
    )


@contextmanager
def shown(
    optimizer: torch.optim.Optimizer, state: Any, params: list[list[torch.Tensor]]
) -> Iterator[None]:
    """Show the optimizer these parameters and this state, and its own again afterwards."""
    kept_state, kept = optimizer.state, [group["params"] for group in optimizer.param_groups]
    try:
        optimizer.state = state
        for group, mine in zip(optimizer.param_groups, params, strict=True):
            group["params"] = mine
        yield
    finally:
        optimizer.state = kept_state
        for group, before in zip(optimizer.param_groups, kept, strict=True):
            group["params"] = before
