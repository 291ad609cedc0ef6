"""A node now: its host stats, and the metrics of the attempts that have ranks on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from wiiiiided.domain.metrics import NodeNow, Rates
from wiiiiided.domain.node import Node
from wiiiiided.metrics.attempt_metrics import AttemptMetrics
from wiiiiided.metrics.rates import one_word, together

HISTORY: Final = 60  # values of a node's main rate
Unit = Literal["samples/s", "step/s", "op/s"]


class Health(NamedTuple):
    """A machine's measurements of itself; None: not known yet."""

    cpu: float | None = None
    memory_used: float | None = None
    swapping: bool = False


class Trend:
    """A node's main rate over its last samples, in the best unit it has."""

    def __init__(self) -> None:
        self.unit: Unit = "op/s"
        self.values: deque[float] = deque(maxlen=HISTORY)

    def take(self, rates: Rates) -> None:
        unit, value = main_rate(rates)
        if unit == "op/s" and not rates.measured:
            return  # nothing is known: no line of zeros
        if unit != self.unit:  # steps are no samples: one line cannot show both
            self.values.clear()
            self.unit = unit
        self.values.append(value)

    def clear(self) -> None:
        self.values.clear()
        self.unit = "op/s"


def main_rate(rates: Rates) -> tuple[Unit, float]:
    if rates.samples is not None:
        return "samples/s", rates.samples
    if rates.steps is not None:
        return "step/s", rates.steps
    return "op/s", rates.operations


def node_rates(name: str, attempts: Sequence[AttemptMetrics]) -> Rates:
    return together([rate for attempt in attempts for rate in attempt.rates(name)])


class NodeStatus(NamedTuple):
    """Other facts about a node: its place in the cluster."""

    age_s: float = 0.0  # since it was heard last
    coordinator: bool = True  # a machine alone is its own
    lost: bool = False
    drained: str | None = None  # why; None: it is not


def node_now(
    node: Node, health: Health, trend: Trend, attempts: Sequence[AttemptMetrics], status: NodeStatus
) -> NodeNow:
    """A node now. `attempts` are those with ranks on it. Of a lost node no rate is known."""
    if status.lost:
        health, trend = Health(), Trend()
    here = [
        sample
        for attempt in attempts
        for place, sample in attempt.fresh.values()
        if place == node.name and not status.lost
    ]
    codec = one_word(sample.codec for sample in here)
    notes = (status.drained or "", "swapping" if health.swapping else "")
    return NodeNow(
        name=node.name,
        state=_state(node.name, attempts, status),
        note="; ".join(note for note in notes if note),
        coordinator=status.coordinator,
        age_s=status.age_s,
        cores=node.cores,
        memory=node.memory,
        cpu=health.cpu,
        memory_used=health.memory_used,
        rates=Rates(measured=False) if status.lost else node_rates(node.name, attempts),
        codec=codec,
        codec_why=next((s.codec_why for s in here if s.codec == codec), ""),
        jobs=tuple(sorted(attempt.id for attempt in attempts)),
        history=tuple(trend.values),
        unit=trend.unit,
    )


def _state(
    name: str, attempts: Sequence[AttemptMetrics], status: NodeStatus
) -> Literal["ok", "slow", "idle", "drained", "lost"]:
    if status.lost:
        return "lost"
    if status.drained is not None:
        return "drained"
    if not attempts:
        return "idle"
    for attempt in attempts:
        late = attempt.verdict.straggler
        nodes = {place for place, _ in attempt.ranks.values()}
        # A machine that runs all ranks of a job is not slower than the others: there are none.
        if late is not None and late.node == name and len(nodes) > 1:
            return "slow"
    return "ok"
