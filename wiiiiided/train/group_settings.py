"""The settings of an optimizer's groups: learning rates and the like, which all ranks must share.

Weights are shared, so all ranks must step alike. A digest of the settings is compared in every
step; where it differs the ranks tell each other their settings in words, and the error names the
setting and both values.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import torch
import torch.distributed as dist

from wiiiiided.errors import Mismatch
from wiiiiided.train.small_collectives import all_gather_text


class GroupSettings:
    """The settings of one optimizer's groups that can be told in words."""

    def __init__(self, optimizer: torch.optim.Optimizer, process_group: dist.ProcessGroup) -> None:
        self._optimizer, self._process_group = optimizer, process_group
        self._known: list[tuple[Any, ...]] = []
        self._fixed = False  # all known values are of kinds that cannot change in place
        self._digest = 0

    def digest(self) -> int:
        """All settings as a number. They seldom change: looking is cheaper than telling."""
        # The lists of parameters are compared too: as the same objects, so at no cost.
        now = [tuple(group.values()) for group in self._optimizer.param_groups]
        if not self._fixed or now != self._known:
            self._known = now
            told = [_is_fixed(v) for g in self._optimizer.param_groups for v in g.items()]
            self._fixed = all(told)
            self._digest = zlib.crc32(repr(self._told()).encode())
        return self._digest

    def _told(self) -> list[dict[str, Any]]:
        """The settings of each group that can be told in words; a learning rate may be a tensor."""
        return [
            {
                key: float(value) if isinstance(value, torch.Tensor) else value
                for key, value in group.items()
                if _is_setting(key, value)
            }
            for group in self._optimizer.param_groups
        ]

    def difference(self, advice: str = "") -> Mismatch:
        """Which setting differs between ranks, and what to do. A collective call."""
        advice = advice or (
            "weights are shared, so all ranks must step alike (a scheduler that looks at this "
            "rank's own loss? give all ranks the average)"
        )
        mine = [f"{k}={v!r}" for settings in self._told() for k, v in settings.items()]
        texts = all_gather_text(self._process_group, "\n".join(mine))
        first = texts[0].split("\n")
        for rank, text in enumerate(texts):
            for line, other in zip(first, text.split("\n"), strict=False):
                if line != other:
                    return Mismatch(
                        f"the optimizer has {line} on rank 0 and {other} on rank {rank}: {advice}"
                    )
        return Mismatch("the ranks' optimizers have different settings")

    def take(self, source: int) -> None:
        """Take the settings of one rank, which has loaded the optimizer. A collective call."""
        theirs = json.loads(all_gather_text(self._process_group, json.dumps(self._told()))[source])
        for group, settings in zip(self._optimizer.param_groups, theirs, strict=True):
            for key, value in settings.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = tuple(value) if isinstance(value, list) else value


def _is_fixed(item: tuple[str, Any]) -> bool:
    """Whether a value can only be changed by putting another in its place."""
    key, value = item
    plain = value if isinstance(value, tuple) else (value,)
    return key == "params" or all(isinstance(v, int | float | str | None) for v in plain)


def _is_setting(key: str, value: Any) -> bool:
    """A group's value that can be told in words: a number, a flag, a pair of numbers."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0
    plain = value if isinstance(value, tuple) else (value,)
    return key != "params" and all(isinstance(v, int | float | str | None) for v in plain)
