"""This machine's role among the others: alone, coordinator or member.

    role         cluster   coordinator   linked                    trouble
    alone        ""        ""            True                      a sentence, or ""
    coordinator  "lab"     its own name  True                      its port cannot be opened, …
    member       "lab"     "a"           the coordinator hears it  the coordinator is away, …

A role is for as long as a daemon is built; only `linked` and `trouble` change under it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Role = Literal["alone", "coordinator", "member"]


@dataclass
class ClusterRole:
    """The place of one machine in its cluster."""

    role: Role
    cluster: str
    coordinator: str  # the name of that node
    is_linked: Callable[[], bool]
    troubles: Callable[[], str]

    @property
    def linked(self) -> bool:
        """Whether the coordinator hears this machine, a member."""
        return self.is_linked()

    @property
    def trouble(self) -> str:
        """A sentence while something about the cluster is wrong."""
        return self.troubles()

    def words(self) -> str:
        """The role in a few words; none for `alone`, which is not worth a word."""
        return "" if self.role == "alone" else f"{self.role} of {self.cluster}"
