"""A rank's task between hosts: one operation on one kind of data.

No torch here: the program on the terminal names tasks without loading it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lib.units import KB, size_text

BROADCAST, BARRIER = "broadcast", "barrier"
# Many small all_reduces: each waited for at once, or all of them at the end.
ONE_BY_ONE, ASYNC = "one by one", "async"
NOISE, SPARSE = "noise", "sparse"
SPARSE_SHARE = 0.05  # of the elements are not zero
MANY_CALLS, MANY_BYTES = 200, 1 * KB
# Above this a call starts from fresh data and evened-out ranks; below, 32 calls in a row do.
_LARGE = 64 * KB
_IN_A_ROW = 32


@dataclass(frozen=True)
class Task:
    """`nbytes` is the size of the larger side, or of all tensors together."""

    op: str
    nbytes: int = 0
    data: str = NOISE

    @property
    def in_a_row(self) -> int:
        """Calls without anything between them."""
        return 1 if self.nbytes > _LARGE else _IN_A_ROW

    @property
    def title(self) -> str:
        if self.op == BARRIER:
            return self.op
        return f"{self.op}, {size_text(self.nbytes)} of {self.data}"

    def message(self) -> dict[str, Any]:
        return asdict(self)
