"""The optimizer's work divided over the ranks of a host, by the optimizer the user made.

The object stays; its class becomes a subclass of what it was, so `isinstance`, schedulers, scalers
and hooks go on as before. `step` runs the closure, then `Parallel.step` round the optimizer's own.

    slices    an optimizer of torch that treats each element by itself: in the step it is shown, in
              place of its parameters, flat pieces of them that this rank updates
    owners    any other: it is shown its own parameters, of which only those that this rank owns
              have a gradient; an optimizer leaves the others alone
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import torch

from wiiiiided.train.checks import MARK

ELEMENTWISE: Final = frozenset(
    {
        *(torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam),
        *(torch.optim.RAdam, torch.optim.Adamax, torch.optim.Adagrad, torch.optim.Adadelta),
        *(torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD),
    }
)


class Stepper(Protocol):
    """What a divided optimizer asks of its `Parallel`."""

    def step(self, inner: Callable[[], Any]) -> None: ...
    def check_optimizer(self) -> None: ...
    def loaded_optimizer(self) -> None: ...


class DividedOptimizer(torch.optim.Optimizer):
    """Mixed in before the optimizer's own class."""

    def step(self, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """One step of all ranks: closure, exchange, update of this rank's part."""
        self._opt_called = True  # a scheduler looks whether the optimizer stepped before it
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        own: Any = type(self).__mro__[2].step  # type: ignore[attr-defined]  # of its own class
        # Hooks run round the whole step, not inside it.
        raw = own.__wrapped__ if getattr(own, "hooked", False) else own
        self.__dict__[MARK].step(
            functools.partial(raw, self, *((None, *args) if args else ()), **kwargs)
        )
        return loss

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # nothing to wrap: it says so itself

    def state_dict(self) -> dict[str, Any]:
        """Whole, and on one rank alone; raises after an interrupted step."""
        self.__dict__[MARK].check_optimizer()
        return super().state_dict()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy (deepcopy, pickle) is an ordinary optimizer of the class it was."""
        own = type(self).__mro__[2]
        return copyreg.__newobj__, (own,), self.__getstate__()  # type: ignore[attr-defined]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """On all ranks, or on one: the others take it over at the next step."""
        super().load_state_dict(state_dict)
        self.__dict__[MARK].loaded_optimizer()


def divide(optimizer: torch.optim.Optimizer, run: Stepper) -> None:
    """Make an optimizer one that is divided."""
    own = type(optimizer)
    optimizer.__dict__.pop("step", None)  # a scheduler's mark on the old one
    setattr(optimizer, MARK, run)
    optimizer.__class__ = type(
        own.__name__, (DividedOptimizer, own), {"__module__": own.__module__}
    )
    optimizer._patch_step_function()


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
