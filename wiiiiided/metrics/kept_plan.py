"""The record of a plan, and what it predicts for a queued job of that name. Pure.

    measures, rows ──► KeptPlan      of each row's machines: a step of theirs, and an exchange in
                                     each codec that was timed
    KeptPlan, job file ──► setting   every and gradients as the job will have them: what the script
                                     says itself counts more, and DDP exchanges in every step
    setting ──► samples/s            by the formula of metrics/plan, also where no row has it

Where a codec was not timed ("topk:0.01"), or the script exchanges in a way that the formula does
not have (fragments), nothing is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wiiiiided.domain.plan import EXACT, KeptPlan, MachineSet, PlanRow, TrialMeasures
from wiiiiided.metrics.plan import (
    AS_GOOD,
    computing,
    machine_set,
    steps_between,
    together_s,
)
from wiiiiided.text import three_digits


def keep(probe: TrialMeasures, rows: Sequence[PlanRow], at: float) -> KeptPlan:
    """The part of a trial that predicts any setting of the job, for the machines of its rows."""
    script = probe.script
    gradients, every = script.gradients, script.every
    if script.way != "parallel":
        every, gradients = 1, gradients if script.coded else EXACT
    sets: tuple[MachineSet, ...] = ()
    if not script.fixed or (script.gradients, script.every) != (None, None):
        several = dict.fromkeys(row.nodes for row in rows if len(row.nodes) > 1)
        sets = tuple(machine_set(probe, nodes) for nodes in several)
    return KeptPlan(at, script.shape, tuple(rows), script.way, gradients, every, sets)


class _Setting(NamedTuple):
    """How a job will train on so many machines, and how fast."""

    machines: int
    every: int
    gradients: str
    samples_per_s: float

    def __str__(self) -> str:
        if self.machines == 1:
            return "one machine"
        how = "every step" if self.every == 1 else f"every {self.every} steps"
        return f"{_machines(self.machines)}, {how}, {self.gradients}"


def fewer_would_do(
    plans: Sequence[KeptPlan], machines: int, every: int | str, gradients: str
) -> str:
    """A sentence where the latest plan says that a job with this `every` and `gradients` in its job
    file would be faster on fewer machines than so many; or empty.

    `plans` are of one name and of several models, and which of these the job has is not known.
    """
    said = [_fewer(plan, machines, every, gradients) for plan in plans]
    if not said or not said[0]:
        return ""
    return said[0] if all(said) else f"{said[0]} (with the model that was planned last)"


def _fewer(plan: KeptPlan, machines: int, every: int | str, gradients: str) -> str:
    every = every if plan.every is None else plan.every
    gradients = gradients if plan.gradients is None else plan.gradients
    several = [_predicted(plan, found, every, gradients) for found in plan.sets]
    wanted = [one for one in several if one is not None and one.machines == machines]
    fewer = [one for one in several if one is not None and one.machines < machines]
    fewer += [_Setting(1, 1, EXACT, row.samples_per_s) for row in plan.rows if len(row.nodes) == 1]
    if not wanted or not fewer:
        return ""
    mine = max(wanted, key=lambda one: one.samples_per_s)
    best = max(fewer, key=lambda one: one.samples_per_s)
    if best.samples_per_s <= mine.samples_per_s / AS_GOOD:
        return ""
    return (
        f"wiiiiide plan found {best} faster than {mine}: {three_digits(best.samples_per_s)} "
        f"samples/s to {three_digits(mine.samples_per_s)}"
    )


def _predicted(
    plan: KeptPlan, found: MachineSet, every: int | str, gradients: str
) -> _Setting | None:
    """The setting of these machines and its speed; None: their exchange's time is not known."""
    exchange_s = found.exchange_s.get(gradients)
    if exchange_s is None:
        return None
    if every == 1:
        rate = found.samples / together_s(plan.way, found.step_s, exchange_s)
        return _Setting(found.machines, 1, gradients, rate)
    # "auto" finds about what the formula does.
    steps = every if isinstance(every, int) else steps_between(found.seldom_s, exchange_s)
    rate = found.samples / found.seldom_s * computing(found.seldom_s, exchange_s, steps)
    return _Setting(found.machines, steps, gradients, rate)


def fewer_was_faster(speeds: dict[int, float], machines: int) -> str:
    """`fewer_would_do` from earlier runs: their samples/s by number of machines."""
    mine = speeds.get(machines)
    fewer = {count: speed for count, speed in speeds.items() if count < machines}
    if mine is None or not fewer:
        return ""
    count = max(fewer, key=lambda count: fewer[count])
    if fewer[count] <= mine / AS_GOOD:
        return ""
    return (
        f"an earlier run on {_machines(count)} made {three_digits(fewer[count])} samples/s, one "
        f"on {_machines(machines)} {three_digits(mine)}; wiiiiide plan says what would be faster"
    )


def start_length(plan: KeptPlan, machines: int, gradients: str) -> int | None:
    """The steps between two exchanges that a plan found for so many machines; None: no plan did."""
    gradients = gradients if plan.gradients is None else plan.gradients
    found = [_predicted(plan, one, "auto", gradients) for one in plan.sets]
    settings = [one for one in found if one is not None and one.machines == machines]
    if settings and plan.way == "parallel":
        every = max(settings, key=lambda one: one.samples_per_s).every
        return every if every > 1 else None
    rows = [row for row in plan.rows if row.every > 1 and len(row.nodes) == machines]
    rows = [row for row in rows if row.gradients == gradients] or rows
    return rows[0].every if rows else None


def _machines(count: int) -> str:
    return "one machine" if count == 1 else f"{count} machines"
