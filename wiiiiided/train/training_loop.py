"""A run's knowledge of the training loop besides model and optimizer: its data and its scheduler.

Both are the same on all ranks, and so is their state. A random generator's state is a rank's own.

A scheduler's state is plain numbers and lists but for a few (a Counter, of MultiStepLR): it is
saved as plain containers, and given back in the type that the scheduler has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wiiiiided.errors import UsageError
from wiiiiided.train.between import Between
from wiiiiided.train.checkpoints.policy import SavePolicy
from wiiiiided.train.data.batches import Batches
from wiiiiided.train.learning_rates import check_rates


@dataclass(frozen=True)
class TrainingLoop:
    """The loop's data and scheduler, and where to save, as far as the run was given them."""

    data: Batches | None = None
    scheduler: Any = None
    save: SavePolicy | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.data, Batches | None):
            raise UsageError(
                f"data={type(self.data).__name__} is no wide.Batches: write data = wide.Batches("
                "dataset, batch_size=…), and loop over it or over data.loader(…)"
            )
        for name in ("state_dict", "load_state_dict"):
            if self.scheduler is not None and not hasattr(self.scheduler, name):
                kind = type(self.scheduler).__name__
                raise UsageError(f"scheduler={kind} has no {name}(): it cannot be saved")
        adaptive = None if self.data is None else self.data.adaptive
        if adaptive is not None and adaptive.changes_rates:
            check_rates(self.scheduler)

    def __str__(self) -> str:
        """The part on which ranks must agree, in words."""
        said = "" if self.data is None else f", data={self.data!r}"
        said += f", scheduler={type(self.scheduler).__name__}" if self.scheduler else ""
        return said + (f", {self.save}" if self.save is not None else "")

    @property
    def is_empty(self) -> bool:
        """Whether the run knows nothing of the loop."""
        return self.data is None and self.scheduler is None and self.save is None

    def refuse_async(self) -> None:
        """Raise if something is given that needs steps of all ranks together."""
        if self.save is not None:
            raise UsageError(
                'save= saves steps that all ranks make together: with updates="async" save '
                "model.state_dict() and optimizer.state_dict()"
            )
        if self.data is not None:
            raise UsageError(
                'data= counts steps that all ranks make together: with updates="async" loop over '
                "it, and call data.committed() after each step"
            )

    def refuse_between(self, between: Between) -> None:
        """Raise if something is given that needs another exchange between hosts."""
        if self.data is None or self.data.adaptive is None:
            return
        if between.is_seldom:
            raise UsageError(
                'batch_size="auto" follows gradients that all ranks exchange in every step: with '
                "`every` give wide.Batches a number"
            )
        if between.hides_noise:
            raise UsageError(
                'batch_size="auto" follows the gradient noise scale, which cannot be told from '
                f'gradients="{between.gradients}": use another codec, or give wide.Batches a number'
            )

    # -- saving and loading ----

    def state(self) -> dict[str, Any]:
        """The state of data and scheduler: the same on all ranks."""
        saved: dict[str, Any] = {}
        if self.data is not None:
            saved["data"] = self.data.state_dict()
        if self.scheduler is not None:
            saved["scheduler"] = _plain(self.scheduler.state_dict())
        return saved

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise if `load` would: before anything else of a checkpoint is taken."""
        if self.data is not None and "data" in saved:
            self.data.read_state(saved["data"])

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take back what `state` gave; what was not saved stays as it is."""
        if self.data is not None and "data" in saved:
            self.data.load_state_dict(saved["data"])
        if self.scheduler is not None and "scheduler" in saved:
            now = self.scheduler.state_dict()
            self.scheduler.load_state_dict(_as_before(now, saved["scheduler"]))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | deque | set):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return value


def _as_before(now: Any, saved: Any) -> Any:
    """A saved state in the types of containers that are there now, in nested schedulers too."""
    if isinstance(now, dict | deque | set) and type(now) is not dict:
        return type(now)(saved)
    if isinstance(now, dict):
        return {key: _as_before(now.get(key), item) for key, item in saved.items()}
    if isinstance(now, list) and len(now) == len(saved):
        return [_as_before(*pair) for pair in zip(now, saved, strict=True)]
    return saved
