"""The sides that are compared, and the arithmetic that the parts of two_hosts.py share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lib.cells import ALL_REDUCE, LABELS, OURS
from lib.net_task import Task
from lib.two_hosts_rig import Entry, Rig, Side
from lib.two_hosts_table import Grid


@dataclass(frozen=True)
class Sides:
    """gloo (`theirs`), and the backend that is measured."""

    theirs: Side
    ours: Side

    @classmethod
    def of(cls, theirs: str, ours: str) -> Sides:
        return cls(Side(theirs, theirs), Side(LABELS[OURS], ours))

    def with_setting(self, label: str, name: str, value: str) -> Side:
        """The measured backend under another setting, as ranks of its own."""
        return Side(label, self.ours.backend, ((name, value),))

    def entries(self, task: Task) -> dict[str, Entry]:
        return {side.label: Entry(side, task) for side in (self.theirs, self.ours)}

    @property
    def labels(self) -> tuple[str, str]:
        return self.theirs.label, self.ours.label


Run = Callable[[Rig, Sides], list[Grid]]


def least_bytes(op: str, nbytes: int, hosts: int) -> float:
    """The bytes that every host must at least send, and receive, when all hosts share equally."""
    once = (hosts - 1) / hosts * nbytes
    return 2 * once if op == ALL_REDUCE else once


def layout(rig: Rig) -> str:
    return f"{'+'.join(str(host.ranks) for host in rig.hosts.all)} ranks"
