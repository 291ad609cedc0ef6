"""Messages between the benchmark and its processes: a node's setup, and what it counted."""

from collections.abc import Sequence
from ctypes import c_long
from dataclasses import dataclass

NEVER = 1 << 62
READY = "ready"


@dataclass(frozen=True)
class NodeSetup:
    """Which of the nodes this is, and where they find each other.

    `last_step` is in memory that all nodes share: those that go together end together.
    """

    number: int
    nodes: int
    port: int
    last_step: c_long


@dataclass(frozen=True)
class Count:
    """One node's work between start and end. Of a stage the server has the loss."""

    batches: int
    seconds: float
    wire_bytes: int
    plain_bytes: int
    network_s: float
    packing_s: float
    loss: float | None


@dataclass(frozen=True)
class LadderRound:
    """One run's work of all nodes of a contender."""

    nodes: Sequence[Count]
    memory_bytes: int
    loss: float
    server_cores: float | None = None  # how many of them a stage's server was using

    @property
    def rate(self) -> float:
        return sum(node.batches / node.seconds for node in self.nodes)
