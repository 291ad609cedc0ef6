"""The rest that rounding leaves of a host's gradients, until the next exchange takes it along.

    the host's memory   │ part 0 │ part 1 │ …        float32; parts of parameters, as they are given

A residual belongs to a host and a parameter. Its memory is shared by the ranks of the host, so that
each of them can give out all of it (`state_dict()` is called on one rank of a host, as that of the
optimizer may be), and another rank may take over a part.

Rules for a saved state. Residuals of one host are part of what *that* host still has to send: added
on another they would count twice, and its own not at all. So they are taken back by the host with
the same number in a group of as many hosts, name by name; a parameter that is not there, or has
another shape, begins at zero, and with other hosts all of them do. One rounding is lost by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from wiiiiided import log
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.lossy.interface import Floats
from wiiiiided.errors import UsageError
from wiiiiided.train.layout import ParameterPart, Row
from wiiiiided.train.memory import MappedMemory


class HostNumber(NamedTuple):
    """Which host of how many."""

    host: int
    hosts: int

    @classmethod
    def of(cls, group: Group) -> HostNumber:
        """This process's host in a group."""
        return cls(0, 1) if group.wide is None else cls(group.wide.host, len(group.wide.hosts))

    def state(self, residuals: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Residuals of this host, as they are saved."""
        return {"host": self.host, "hosts": self.hosts, "residuals": dict(residuals)}


class Residuals:
    """The residuals of a model on this host."""

    def __init__(
        self,
        group: Group,
        parts: Sequence[ParameterPart],
        parameters: Sequence[torch.Tensor],
        names: Sequence[str],
    ) -> None:
        """`parts`: of these parameters, the same on all ranks of the host. A collective call."""
        self._who, self._number = group.who, HostNumber.of(group)
        self._parts, self._names = list(parts), list(names)
        # Shapes, and the order in which elements lie in memory; no parameter is kept alive.
        self._like = [torch.empty_like(p, device="meta", dtype=torch.float32) for p in parameters]
        counts = [part.count for part in self._parts]
        self.begins = np.cumsum([0, *counts]).tolist()  # of each part, and the end
        self._memory = MappedMemory(group, "residuals of lossy gradients", 4 * self.begins[-1])
        self._floats: Floats = self._memory.bytes.view(np.float32)

    def stretch(self, begin: int, count: int) -> Floats:
        """A stretch of so many residuals, counted over all parts."""
        return self._floats[begin : begin + count]

    # -- saving and loading ----

    def state_dict(self) -> dict[str, Any]:
        """All of this host's, by the parameters' names and in their shapes."""
        flat = [torch.zeros(like.numel()) for like in self._like]
        for part, values in self._tensors():
            flat[part.parameter][part.begin : part.end] = values
        shaped = [
            values.as_strided(like.shape, like.stride())
            for values, like in zip(flat, self._like, strict=True)
        ]
        return self._number.state(dict(zip(self._names, shaped, strict=True)))

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take back what this host saved; what is not there begins at zero."""
        number, known = read_state(saved)
        if number != self._number:
            log.tell(
                self._who,
                f"the saved residuals are of host {number.host} of {number.hosts}, this one is "
                f"{self._number.host} of {self._number.hosts}: they begin at zero",
            )
            known = {}
        for part, values in self._tensors():
            like, given = self._like[part.parameter], known.get(self._names[part.parameter])
            if given is None or given.shape != like.shape:
                values.zero_()
                continue
            ordered = torch.empty_strided(like.shape, like.stride()).copy_(given)
            flat = ordered.as_strided((like.numel(),), (1,))[part.begin : part.end]
            values.copy_(torch.nan_to_num(flat, 0.0, 0.0, 0.0))

    def _tensors(self) -> list[tuple[ParameterPart, torch.Tensor]]:
        return [
            (part, torch.from_numpy(self.stretch(begin, part.count)))
            for part, begin in zip(self._parts, self.begins, strict=False)
        ]


def read_state(saved: Mapping[str, Any]) -> tuple[HostNumber, Mapping[str, torch.Tensor]]:
    """Which host saved it, and what; raises if it is no such state."""
    try:
        return HostNumber(saved["host"], saved["hosts"]), dict(saved["residuals"])
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            "this is no state_dict() of wide.parallel or wide.compress_gradients: it "
            "has no residuals"
        ) from None


def elements_before(row: Row, at: int, sizes: Sequence[int]) -> int:
    """How many elements of a row lie before this byte; `sizes`: of the parameters' elements."""
    return sum(
        min(max(at - placed.at, 0) // sizes[placed.part.parameter], placed.part.count)
        for placed in row.placed
    )
