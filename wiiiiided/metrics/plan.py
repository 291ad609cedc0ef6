"""How fast a job would train on which machines and in which way, from a short trial. Pure.

For machines M, n of them, with steps of s seconds and b samples each alone, and G bytes of
gradients:

    a pair (i, j) of two machines averages G bytes in        f + G · c(i, j)
    of n machines each pair carries 2/n of that,             P = max over pairs   2/n · G · c(i, j)
    and each machine's card n - 1 such parts                 Q = max over machines
                                                                 (n - 1) · 2/n · G · least c(i, ·)
    an exchange                                              x = f + max(P, Q)

    a step of v samples takes       t(v) = a + g·v          a fixed cost and one of each sample,
                                                            from s and from a step of b/2 samples;
                                                            where that is missing a = 0, g = s/b

    a step of all has B samples     Σb, if each machine has a batch of its own; the largest b, if
                                    the batch is that of all machines together, of which one
                                    alone got all and n get parts v, Σv = B
    and takes, computing alone, S   own batches, even parts   the slowest machine's t(v)
                                    by speeds                 (B + Σ(a/g)) / Σ(1/g), all t(v) alike;
                                                              at least the largest t of one sample
                                    by speeds, every H steps  B / Σ(v/t(v)) of even parts: machines
                                                              make unequal numbers of steps

    every step, wide.parallel       samples/s = B / (S + x)
    every step, DDP                 the exchange runs beside the backward, two thirds of a step:
                                    samples/s = B / (S/3 + max(2S/3, x))
    every H steps                   samples/s = B/S · H·S / (H·S + x)

Machines take samples by speeds where the run divides the loop's data, and every step also where the
script takes its samples by run.shares. Without a step of b/2 samples a part of a batch is taken to
need that part of the time, and what a step costs however small its part is is not known.

H is the least power of two with which machines compute at least nine tenths of the time, as
every="auto" wants it. docs/plan.md says it in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from wiiiiided.domain.plan import (
    EXACT,
    INT4,
    INT8,
    MachineProbe,
    MachineSet,
    PairProbe,
    PlanRow,
    TrialMeasures,
    Way,
)
from wiiiiided.text import format_size_decimal, format_step_time

COMPUTING: Final = 0.9  # the least part of the time, with exchanges every H steps
MOST_STEPS: Final = 16_384  # the most that every="auto" takes
AS_GOOD: Final = 0.95  # of the best row's samples/s: a row with less to lose is preferred
_BACKWARD: Final = 2 / 3  # the part of a step beside which DDP exchanges
_SLOWER: Final = 1.25  # by so much a link or a machine is the one that limits
_BETTER: Final = 1.02  # a set without some machines is worth a row from here on


class Exchange(NamedTuple):
    """The time in which machines average gradients once."""

    seconds: float
    fixed_s: float  # of these, whatever the number of bytes
    limit: str  # which link carries it longest: "the link to c"


class JointStep(NamedTuple):
    """A step of several machines, without exchange."""

    samples: float
    seconds: float
    own_s: dict[str, float]  # by machine, where they wait for the slowest; empty: none waits
    fixed_s: float = 0.0  # of these, however small the parts of the batch are


class Prediction(NamedTuple):
    """The predicted speed of one way to train."""

    samples_per_s: float
    why: str


def predict(probe: TrialMeasures, nodes: Sequence[str], every: int, gradients: str) -> Prediction:
    """The samples/s of these machines, and what limits them, in a sentence."""
    machines = [one for one in probe.machines if one.name in nodes]
    if len(machines) == 1:
        return Prediction(machines[0].speed, "")
    exchange = exchange_of(probe, nodes, gradients)
    step = _step_of(probe, nodes, every > 1)
    if every > 1:
        share = computing(step.seconds, exchange.seconds, every)
        rate = step.samples / step.seconds * share
        return Prediction(rate, _small_part(step, step.seconds) or _share_words(share, every))
    whole_s = together_s(probe.script.way, step.seconds, exchange.seconds)
    return Prediction(step.samples / whole_s, _limit(probe, step, whole_s, exchange))


def _step_of(probe: TrialMeasures, nodes: Sequence[str], seldom: bool) -> JointStep:
    """A step of these machines together; `seldom`: between exchanges every H steps."""
    machines, script = [one for one in probe.machines if one.name in nodes], probe.script
    parts = {one.name: one.samples for one in machines}
    own_s = {one.name: one.step_s for one in machines}
    samples, fixed_s = sum(parts.values()), 0.0
    if script.global_batch:
        samples, ranks = max(parts.values()), sum(one.workers for one in machines)
        parts = {one.name: samples * one.workers / ranks for one in machines}
        own_s = {one.name: one.seconds(parts[one.name]) for one in machines}
        fixed_s = max(one.fixed_s for one in machines)
    if seldom and script.data:
        # Each makes steps of its even part as fast as it can; a round has H·B samples.
        seconds = samples / sum(part / own_s[name] for name, part in parts.items())
        return JointStep(samples, seconds, {}, fixed_s * seconds / max(own_s.values()))
    if script.shares and not seldom:
        return JointStep(samples, _equal_s(machines, samples), {}, fixed_s)
    return JointStep(samples, max(own_s.values()), own_s, fixed_s)


def _equal_s(machines: Sequence[MachineProbe], samples: float) -> float:
    """The seconds in which machines together compute so many samples, each as many as it can.

    Each rank gets at least one of them, so a machine whose fixed cost is high may decide alone.
    """
    least_s = max(one.seconds(one.workers) if one.has_part else 0.0 for one in machines)
    if any(one.sample_s == 0 for one in machines):
        return least_s  # which is no less than that machine's step of any part
    ahead = sum(one.fixed_s / one.sample_s for one in machines)
    return max(least_s, (samples + ahead) / sum(1 / one.sample_s for one in machines))


def computing(step_s: float, exchange_s: float, every: int) -> float:
    """The part of the time in which machines compute, 0 to 1."""
    return every * step_s / (every * step_s + exchange_s)


def steps_between(step_s: float, exchange_s: float) -> int:
    """The least power of two of steps with which machines compute nine tenths of the time."""
    least = COMPUTING / (1 - COMPUTING) * exchange_s / step_s
    return int(min(2 ** math.ceil(math.log2(max(least, 1.0)) - 1e-9), MOST_STEPS))


def exchange_of(probe: TrialMeasures, nodes: Sequence[str], gradients: str) -> Exchange:
    """How long these machines take to average the gradients once."""
    pairs = [pair for pair in probe.pairs if pair.a in nodes and pair.b in nodes]
    part = 2 / len(nodes) * probe.script.gradient_bytes
    slowest = max(pairs, key=lambda pair: pair.byte_s[gradients])
    cards = {
        name: min(pair.byte_s[gradients] for pair in pairs if pair.is_of(name)) for name in nodes
    }
    carried_s = part * max(slowest.byte_s[gradients], (len(nodes) - 1) * max(cards.values()))
    fixed_s = max(pair.fixed_s for pair in pairs)
    return Exchange(fixed_s + carried_s, fixed_s, _slow_link(cards, slowest, gradients))


def machine_set(probe: TrialMeasures, nodes: Sequence[str]) -> MachineSet:
    """The times of these machines together, in every codec that all their links have."""
    pairs = [pair for pair in probe.pairs if pair.a in nodes and pair.b in nodes]
    codecs = [name for name in pairs[0].byte_s if all(name in pair.byte_s for pair in pairs)]
    often, seldom = (_step_of(probe, nodes, each) for each in (False, True))
    exchange_s = {name: exchange_of(probe, nodes, name).seconds for name in codecs}
    return MachineSet(len(nodes), often.samples, often.seconds, seldom.seconds, exchange_s)


def _slow_link(cards: dict[str, float], slowest: PairProbe, gradients: str) -> str:
    """`the link to c` where one machine's is slower than all others'; else the pair, or all."""
    worst, *others = sorted(cards, key=lambda name: -cards[name])
    if others and cards[worst] > _SLOWER * cards[others[0]]:
        return f"the link to {worst}"
    if len(cards) == 2 or slowest.byte_s[gradients] > _SLOWER * cards[worst]:
        return f"the link between {slowest.a} and {slowest.b}"
    return "the network"


def together_s(way: Way, step_s: float, exchange_s: float) -> float:
    """The seconds of a step with its exchange."""
    if way == "parallel":
        return step_s + exchange_s
    return (1 - _BACKWARD) * step_s + max(_BACKWARD * step_s, exchange_s)


def _limit(probe: TrialMeasures, step: JointStep, whole_s: float, exchange: Exchange) -> str:
    """A sentence on what keeps these machines from the sum of their speeds."""
    if whole_s - step.seconds > 0.5 * whole_s:
        if exchange.fixed_s > 0.5 * exchange.seconds:
            return (
                f"the batch is too small: a step computes {format_step_time(step.seconds)}, and "
                f"meeting takes {format_step_time(exchange.fixed_s)}"
            )
        size = format_size_decimal(probe.script.gradient_bytes)
        return f"{exchange.limit} carries {size} a step in {format_step_time(exchange.seconds)}"
    if step.own_s:
        slow, second, *_ = sorted(step.own_s, key=lambda name: -step.own_s[name])
        if step.own_s[slow] > _SLOWER * step.own_s[second]:
            return (
                f"machine {slow} takes {format_step_time(step.own_s[slow])} a step, the next "
                f"{format_step_time(step.own_s[second])}: the others wait for it"
            )
    return (
        _small_part(step, whole_s) or f"computes {100 * step.seconds / whole_s:.0f} % of the time"
    )


def _share_words(share: float, every: int) -> str:
    most = share < COMPUTING and every == MOST_STEPS
    least = f": {MOST_STEPS:,} steps between two exchanges are the most" if most else ""
    return f"computes {100 * share:.0f} % of the time{least}"


def _small_part(step: JointStep, whole_s: float) -> str:
    """A sentence if smaller batches would hardly be faster; else empty."""
    if step.fixed_s <= 0.5 * whole_s:
        return ""
    return (
        f"the batch is too small: {format_step_time(step.fixed_s)} of a step stay however small a "
        "machine's part is"
    )


# ---- rows, and which of them


def plan_rows(probe: TrialMeasures) -> list[PlanRow]:
    """A row for every way worth trying, one recommended; the fastest machine alone is first."""
    fastest = max(probe.machines, key=lambda one: one.speed)
    found: list[PlanRow | None] = [PlanRow((fastest.name,), 1, EXACT, fastest.speed)]
    everyone = tuple(one.name for one in probe.machines)
    for way in _ways(probe) if len(everyone) > 1 else ():
        best = _best_set(probe, everyone, way)
        found += [_row(probe, nodes, way) for nodes in dict.fromkeys((everyone, best))]
    return _recommend([row for row in found if row is not None])


class _TrainingWay(NamedTuple):
    seldom: bool
    gradients: str


def _ways(probe: TrialMeasures) -> Iterator[_TrainingWay]:
    script = probe.script
    for gradients in (EXACT, INT8, INT4) if script.coded else (EXACT,):
        yield _TrainingWay(False, gradients)
    if script.way == "parallel":
        yield from (_TrainingWay(True, gradients) for gradients in (EXACT, INT8))


def _row(probe: TrialMeasures, nodes: tuple[str, ...], way: _TrainingWay) -> PlanRow | None:
    """A row of the table; None if it equals every step or a single machine, which have rows."""
    every = _every(probe, nodes, way)
    if len(nodes) == 1 or (way.seldom and every == 1):
        return None
    found = predict(probe, nodes, every, way.gradients)
    return PlanRow(nodes, every, way.gradients, found.samples_per_s, why=found.why)


def _every(probe: TrialMeasures, nodes: Sequence[str], way: _TrainingWay) -> int:
    if not way.seldom or len(nodes) == 1:
        return 1
    exchange_s = exchange_of(probe, nodes, way.gradients).seconds
    return steps_between(_step_of(probe, nodes, True).seconds, exchange_s)


def _best_set(
    probe: TrialMeasures, everyone: tuple[str, ...], way: _TrainingWay
) -> tuple[str, ...]:
    """The fastest set of machines, tried by leaving out each time the one that is missed least."""

    def speed(nodes: tuple[str, ...]) -> float:
        return predict(probe, nodes, _every(probe, nodes, way), way.gradients).samples_per_s

    best = nodes = everyone
    while len(nodes) > 2:
        smaller = [tuple(name for name in nodes if name != left) for left in nodes]
        nodes = max(smaller, key=speed)
        if speed(nodes) > _BETTER * speed(best):
            best = nodes
    return best


def _recommend(rows: list[PlanRow]) -> list[PlanRow]:
    """Recommend, of the rows as good as the best, the one that changes the training least."""
    best = max(row.samples_per_s for row in rows)
    good = [row for row in rows if row.samples_per_s >= AS_GOOD * best]
    order = (EXACT, INT8, INT4)
    chosen = min(
        good,
        key=lambda row: (
            *(len(row.nodes) > 1, row.every, order.index(row.gradients)),
            *(len(row.nodes), -row.samples_per_s),
        ),
    )
    why = chosen.why or _why_alone(rows, chosen)
    marked = replace(chosen, recommended=True, why=why)
    return [marked if row is chosen else row for row in rows]


def _why_alone(rows: Sequence[PlanRow], alone: PlanRow) -> str:
    others = [row for row in rows if len(row.nodes) > 1]
    if not others:
        return "use one machine: there is no other"
    best = max(others, key=lambda row: row.samples_per_s)
    gain = best.samples_per_s / alone.samples_per_s
    return f"use one machine: the best of several gives {gain:.2f} times its samples/s ({best.why})"
