"""A user's choices for the exchange between hosts: `wide.parallel(…, between=wide.Between(…))`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from wiiiiided.backend.lossy.interface import GradientCodec
from wiiiiided.backend.lossy.registry import EXACT, by_name
from wiiiiided.backend.lossy.topk import TopK
from wiiiiided.errors import UsageError

AUTO: Final = "auto"

Outer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Between:
    """How hosts exchange what their ranks have learnt. Inside a host all is exact, in every step.

    gradients      "exact", or coded in fewer bits with error feedback: "bf16", "int8", "int4",
                   "topk:0.01" (of each 4,096 elements the largest hundredth). None: what the job
                   file's network.gradients says, else "exact"
    warmup_steps   so many exchanges, from the beginning of this run, are exact nevertheless
    every          1: gradients, in every step. H: what the weights have changed by, every H steps.
                   "auto": an H with which hosts compute at least nine tenths of the time. None:
                   what the job file's network.every says, else 1
    outer          makes the optimizer that applies the averaged change: outer(parameters); by
                   default plain averaging for short H, SGD with Nesterov momentum for long ones
    fragments      1: hosts wait for an exchange. P: the weights in P parts, of which one after
                   the other travels while the hosts make the next steps of a round
    """

    gradients: str | None = None
    warmup_steps: int = 0
    every: int | str | None = None
    outer: Outer | None = None
    fragments: int = 1

    def __post_init__(self) -> None:
        self.codec()
        if not _is_count(self.warmup_steps, 0):
            raise UsageError(f"warmup_steps={self.warmup_steps!r} is not a whole number from 0 on")
        if self.every not in (None, AUTO) and not _is_count(self.every, 1):
            raise UsageError(f'every={self.every!r} is neither a whole number from 1 on nor "auto"')
        if self.outer is not None and not callable(self.outer):
            raise UsageError(
                f"outer={self.outer!r} makes no optimizer: write outer=lambda parameters: "
                "torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)"
            )
        if not _is_count(self.fragments, 1):
            raise UsageError(f"fragments={self.fragments!r} is not a whole number from 1 on")
        if isinstance(self.every, int) and self.fragments > self.every:
            raise UsageError(
                f"fragments={self.fragments} is more than every={self.every}: a fragment travels "
                "while a host makes a step at least, so a round has as many steps or more"
            )

    def filled(self, gradients: str, every: str) -> Between:
        """These choices, with a job file's (from the environment) where the script made none."""
        number = every or "1"
        try:
            default = Between(
                gradients=gradients or EXACT,
                every=int(number) if number.isdecimal() else number,
            )
        except UsageError as problem:
            raise UsageError(f"WIIIIIDE_GRADIENTS, WIIIIIDE_EVERY: {problem}") from None
        return replace(
            self,
            gradients=default.gradients if self.gradients is None else self.gradients,
            every=default.every if self.every is None else self.every,
        )

    def codec(self) -> GradientCodec | None:
        """A codec for one exchange after the other; None: exact."""
        return by_name(EXACT if self.gradients is None else self.gradients)

    @property
    def is_plain(self) -> bool:
        """Whether hosts exchange exact gradients in every step."""
        return str(self) == str(Between())

    @property
    def is_seldom(self) -> bool:
        """Whether hosts exchange weights' changes, and not gradients."""
        return self.every not in (None, 1) or self.outer is not None

    @property
    def hides_noise(self) -> bool:
        """Whether no noise scale can be told from what is exchanged: top-k sends a part of each
        gradient and the rest later, and that is no rounding that would cancel in the mean."""
        return isinstance(self.codec(), TopK)

    def __str__(self) -> str:
        """The settings that differ from the defaults, the same words on all ranks."""
        return f"Between({', '.join(self._spelled(EXACT, 1))})"

    @property
    def said(self) -> str:
        """The settings that the script says, also those that are as without it; or nothing."""
        found = self._spelled(None, None)
        return f"Between({', '.join(found)})" if found else ""

    def _spelled(self, gradients: str | None, every: int | None) -> list[str]:
        """The settings, but for those that are not said or are these."""
        said = []
        if self.gradients not in (None, gradients):
            said.append(f"gradients={self.gradients!r}")
        if self.warmup_steps:
            said.append(f"warmup_steps={self.warmup_steps}")
        if self.every not in (None, every):
            said.append(f"every={self.every!r}")
        if self.outer is not None:
            said.append(f"outer={getattr(self.outer, '__qualname__', type(self.outer).__name__)}")
        if self.fragments > 1:
            said.append(f"fragments={self.fragments}")
        return said


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
