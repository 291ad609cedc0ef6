"""The sources of learning rates: all of them are multiplied, and not the present rate alone.

A scheduler computes the next rate from the present one, from rates of its own (`base_lrs`, the
`max_lrs` of CyclicLR, the `eta_min` of CosineAnnealingLR) or from some that it keeps in the
optimizer's groups (the `max_lr` of OneCycleLR). The rates of torch's schedulers are f times as
large if all of these are: a schedule that is scaled goes on as if it had begun with scaled rates.

A scheduler of the script's own may keep its rates anywhere. At the beginning a copy of it makes
some steps, for no optimizer: its rates must double with those that are found here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

from torch.optim.lr_scheduler import LRScheduler

from wiiiiided.errors import UsageError

_OF_GROUPS: Final = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
_OF_SCHEDULERS: Final = (
    *("base_lrs", "max_lrs", "min_lrs", "default_min_lr", "eta_min"),
    "_last_lr",  # what get_last_lr() gives out
)
_AHEAD: Final = 200  # steps


def scale_rates(optimizer: Any, scheduler: Any, factor: float) -> None:
    """Learning rates by a factor, and what a scheduler makes them from."""
    for group in optimizer.param_groups:
        for name in _OF_GROUPS:
            if name in group:
                group[name] = group[name] * factor
    for found in _each(scheduler):
        for name in _OF_SCHEDULERS:
            value = getattr(found, name, None)
            if isinstance(value, list):
                setattr(found, name, [rate * factor for rate in value])
            elif value is not None:
                setattr(found, name, value * factor)


def check_rates(scheduler: Any) -> None:
    """Raise if a scheduler makes rates from something that `scale_rates` does not find."""
    for found in _each(scheduler):
        if not _is_of_torch(found) and not _follows(found):
            raise UsageError(
                f"scheduler={type(found).__name__} does not make its learning rates from base_lrs "
                'or from the rate before: batch_size="auto" cannot multiply them. Use a scheduler '
                'of torch.optim.lr_scheduler, as LambdaLR, or lr_rule="none" of wide.Batches'
            )


def _each(scheduler: Any) -> Iterator[Any]:
    """A scheduler and those inside it (SequentialLR, ChainedScheduler), each once."""
    known: dict[int, Any] = {}
    waiting = [] if scheduler is None else [scheduler]
    while waiting:
        found = waiting.pop()
        if id(found) not in known:
            known[id(found)] = found
            waiting += getattr(found, "_schedulers", ())
    yield from known.values()


def _is_of_torch(scheduler: Any) -> bool:
    """Whether torch's own code computes its rates."""
    computing = (getattr(type(scheduler), name, None) for name in ("get_lr", "step"))
    return all(getattr(c, "__module__", "").startswith("torch.optim.") for c in computing)


def _follows(scheduler: Any) -> bool:
    """Whether its rates double with those that are found."""
    if not isinstance(scheduler, LRScheduler):
        return False  # there is no asking it
    once, twice = _rates_ahead(scheduler, 1.0), _rates_ahead(scheduler, 2.0)
    near = (math.isclose(2 * a, b) for a, b in zip(once, twice, strict=False))
    return len(once) == len(twice) > 0 and all(near)


def _rates_ahead(scheduler: Any, factor: float) -> list[float]:
    """The scheduler's rates in its next steps, from rates multiplied by a factor."""
    optimizer, found = scheduler.optimizer, []
    groups = [dict(group) for group in optimizer.param_groups]
    shown = SimpleNamespace(param_groups=groups, step=optimizer.step, _opt_called=True)
    try:
        asked = copy.deepcopy(scheduler, {id(optimizer): shown})
        scale_rates(shown, asked, factor)
        for _ in range(_AHEAD):
            asked.step()
            found += [float(group["lr"]) for group in groups]
    except Exception:  # of the script's own code: its schedule has ended, or it needs an argument
        pass
    return found
