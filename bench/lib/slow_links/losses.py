"""Learning of hosts with an exchange in fewer bits, or seldom: losses after equal samples and time.

Equal time needs no slow network. The step is measured here, and what an exchange takes at 100 Mbit
is its bytes: in the time T in which `every=16, int8` makes all its steps, another way makes

    T / (step + bytes of an exchange / (12.5 MB/s) / H)

steps, and is trained for so many. Between steps and exchanges nothing overlaps, as in the program.

Rare exchanges cost least in long runs, so the ways that are judged are trained once more,
eight times as long.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.fleet import Fleet
from lib.report import Sheet
from wiiiiided.backend.lossy.registry import by_name

LINK_BYTES_S = 100e6 / 8
_PATIENCE_S = 3600.0


@dataclass(frozen=True)
class GradientWay:
    """`most`: the loss may be so much above that of EXACT, as a share of it."""

    name: str
    gradients: str = "exact"
    every: int = 1
    most: float | None = None
    or_spread: bool = False  # or lie within that of EXACT's seeds

    def step_s(self, computing_s: float, parameters: int) -> float:
        """A step at 100 Mbit, its part of an exchange included."""
        codec = by_name(self.gradients)
        sent = 4 * parameters if codec is None else codec.coded_bytes(parameters)
        return computing_s + sent / LINK_BYTES_S / self.every

    def steps_in(self, seconds: float, computing_s: float, parameters: int) -> int:
        """Whole rounds that fit into the time, in steps."""
        rounds = seconds / (self.step_s(computing_s, parameters) * self.every)
        return self.every * max(1, int(rounds + 1e-6))


EXACT = GradientWay("every step, exact")
INT8 = GradientWay("every step, int8", "int8", most=0.005, or_spread=True)
SELDOM = GradientWay("every=16, int8", "int8", 16, most=0.02)
LONG = GradientWay("every=64, exact", every=64)
WAYS = (
    EXACT,
    INT8,
    GradientWay("every step, int4", "int4"),
    GradientWay("every=4, int8", "int8", 4),
    GradientWay("every=16, exact", every=16, most=0.02),
    SELDOM,
    LONG,
)
LONGER = 8  # times as many steps
LONGER_WAYS = (EXACT, INT8, SELDOM)


@dataclass(frozen=True)
class TrainingLoss:
    """One way with one seed."""

    loss: float
    step_s: float
    parameters: int
    curve: Sequence[float]


_Runs = Mapping[GradientWay, Sequence[TrainingLoss]]


@dataclass
class Losses:
    """By way, and then by seed."""

    steps: int
    equal_samples: _Runs
    longer: _Runs  # equal samples, LONGER times as many
    equal_time: _Runs
    time_steps: Mapping[GradientWay, int]
    seconds: float  # the equal time

    def sheets(self, sequences: int, judged: bool) -> list[Sheet]:
        """`sequences`: of the shorter runs."""
        short = Sheet(
            f"Loss of the demo's language model; equal time: {self.seconds:.1f} s at 100 Mbit",
            [
                *("", _after(sequences), "to exact", "steps in\nequal time"),
                *("loss after\nequal time", "asked"),
            ],
        )
        for way, runs in self.equal_samples.items():
            timed = [str(self.time_steps[way]), _text(self.equal_time[way])]
            verdict = _verdict(way, self.equal_samples, judged)
            short.rows.append(
                [way.name, _text(runs), _above_text(way, self.equal_samples), *timed, verdict]
            )
        long = Sheet(
            f"Loss of runs {LONGER} times as long",
            ["", _after(LONGER * sequences), "to exact", "asked"],
        )
        for way, runs in self.longer.items():
            verdict = _verdict(way, self.longer, judged)
            long.rows.append([way.name, _text(runs), _above_text(way, self.longer), verdict])
        return [short, long]

    def data(self) -> dict[str, Any]:
        def kept(found: _Runs) -> dict[str, Any]:
            return {way.name: [vars(one) for one in runs] for way, runs in found.items()}

        return {
            "steps": self.steps,
            "equal_samples": kept(self.equal_samples),
            "longer": kept(self.longer),
            "equal_time": kept(self.equal_time),
            "equal_time_steps": {way.name: steps for way, steps in self.time_steps.items()},
        }


def above(way: GradientWay, found: _Runs) -> float:
    """How much the mean loss of a way lies above EXACT's, as a share of it."""
    return _mean(found[way]) / _mean(found[EXACT]) - 1


def _verdict(way: GradientWay, found: _Runs, judged: bool) -> str:
    if way.most is None:
        return ""
    aim = f"≤ {100 * way.most:g} % above" + " or within the seeds' spread" * way.or_spread
    exact = [one.loss for one in found[EXACT]]
    within = way.or_spread and _mean(found[way]) <= max(exact)
    met = above(way, found) <= way.most or within
    return f"{aim}: {'met' if met else 'missed'}" if judged else aim


def measure(fleet: Fleet, steps: int, seeds: int, say: Callable[[str], None]) -> Losses:
    """Trains each way with each seed, as long as the others and as many seconds."""

    def trained(way: GradientWay, seed: int, steps: int) -> TrainingLoss:
        say(f"seed {seed} of {seeds}: {way.name}, {steps} steps")
        return _train(fleet, way, steps, seed)

    numbers = range(1, seeds + 1)
    whole = {way: [trained(way, seed, steps) for seed in numbers] for way in WAYS}
    # Of LONG's steps one in 64 has an exchange: the median step has none.
    computing_s = statistics.median(one.step_s for one in whole[LONG])
    parameters = whole[EXACT][0].parameters
    seconds = steps * SELDOM.step_s(computing_s, parameters)
    fitting = {way: min(steps, way.steps_in(seconds, computing_s, parameters)) for way in WAYS}
    timed = {
        way: whole[way] if fit == steps else [trained(way, seed, fit) for seed in numbers]
        for way, fit in fitting.items()
    }
    longer = {way: [trained(way, seed, LONGER * steps) for seed in numbers] for way in LONGER_WAYS}
    return Losses(steps, whole, longer, timed, fitting, seconds)


def _train(fleet: Fleet, way: GradientWay, steps: int, seed: int) -> TrainingLoss:
    between = {"gradients": way.gradients, "every": way.every}
    message = {"do": "train", "steps": steps, "seed": seed, "between": between}
    answer = fleet.ask(message, seconds=_PATIENCE_S)[0]
    return TrainingLoss(answer["loss"], answer["step_s"], answer["parameters"], answer["curve"])


def _mean(runs: Sequence[TrainingLoss]) -> float:
    return statistics.fmean(one.loss for one in runs)


def _after(sequences: int) -> str:
    return f"loss after {sequences:,}\nsequences"


def _above_text(way: GradientWay, found: _Runs) -> str:
    return f"{100 * above(way, found):+.2f} %".replace("-", "−")


def _text(runs: Sequence[TrainingLoss]) -> str:
    losses = [one.loss for one in runs]
    return f"{_mean(runs):.3f}\n({min(losses):.3f}–{max(losses):.3f})"
