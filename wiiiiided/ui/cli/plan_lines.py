"""The lines of `plan`, and its changes to a job file. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from wiiiiided.domain.plan import KeptPlan, MachineProbe, PlanRow, TrialMeasures
from wiiiiided.domain.spec import JobSpec
from wiiiiided.metrics.kept_plan import start_length
from wiiiiided.text import (
    format_link_rate,
    format_size,
    format_size_decimal,
    format_step_time,
    three_digits,
)
from wiiiiided.ui.cli.table import TableColumn

NAMED = 4  # machines in a row; more are counted
COLUMNS = (
    TableColumn("WAY"),
    TableColumn("SAMPLES/S", right=True),
    TableColumn("GAIN", right=True),
    TableColumn("WHY", least=20),
)


def as_json(probe: TrialMeasures, rows: Sequence[PlanRow], notes: Sequence[str]) -> dict[str, Any]:
    """The plan for programs."""
    return {
        "rows": [msgspec.to_builtins(row) for row in rows],
        "machines": [msgspec.to_builtins(one) for one in probe.machines],
        "links": [msgspec.to_builtins(one) for one in probe.pairs],
        "gradient_bytes": probe.script.gradient_bytes,
        "notes": list(notes),
    }


def table(rows: Sequence[PlanRow]) -> list[list[str]]:
    """A row for each way to train."""
    alone = rows[0].samples_per_s
    return [
        [
            way(row),
            three_digits(row.samples_per_s),
            _gain(row.samples_per_s / alone, row),
            _why(row),
        ]
        for row in rows
    ]


def way(row: PlanRow) -> str:
    """`a b c, every 16 steps, int8`; `one machine (a)`."""
    if len(row.nodes) == 1:
        return f"one machine ({row.nodes[0]})"
    many = len(row.nodes) > NAMED
    names = f"{len(row.nodes)} machines" if many else " ".join(row.nodes)
    how = "every step" if row.every == 1 else f"every {row.every} steps"
    return f"{names}, {how}, {row.gradients}"


def _gain(gain: float, row: PlanRow) -> str:
    return "" if len(row.nodes) == 1 else f"{gain:.1f}×" if gain >= 0.05 else f"{gain:.1g}×"


def _why(row: PlanRow) -> str:
    return f"← recommended: {row.why}" if row.recommended else row.why


def measured(probe: TrialMeasures) -> str:
    """`step 84 ms on a, 231 ms on c; 941 Mbit/s a-b, 94 a-c; …`"""
    steps = ", ".join(f"{_steps(one)} on {one.name}" for one in probe.machines[:NAMED])
    more = _more(len(probe.machines) - NAMED)
    memory = format_size(max(one.memory for one in probe.machines))
    parts = [f"step {steps}{more}"]
    if probe.pairs:
        slowest = sorted(probe.pairs, key=lambda pair: pair.bits_per_s)
        links = ", ".join(f"{format_link_rate(p.bits_per_s)} {p.a}-{p.b}" for p in slowest[:NAMED])
        parts.append(links + _more(len(slowest) - NAMED))
    size = format_size_decimal(probe.script.gradient_bytes)
    return "; ".join([*parts, f"{size} of gradients", f"{memory} of memory a rank"])


def _steps(one: MachineProbe) -> str:
    half = f" (of half a batch {format_step_time(one.part_s)})" if one.has_part else ""
    return format_step_time(one.step_s) + half


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def notes(probe: TrialMeasures) -> Iterator[str]:
    """Notes that a reader of the rows needs."""
    script, several = probe.script, len(probe.machines) > 1
    if several and script.fixed:
        yield (
            f"the script itself says {script.fixed} for the exchange between machines, which "
            "counts more than the job file: change it there"
        )
    if several and script.way == "ddp" and not script.coded:
        yield (
            "the script trains with DistributedDataParallel, which exchanges exact gradients in "
            "every step: wide.compress_gradients(model) would take network.gradients, and "
            "wide.parallel network.every too"
        )
    if several and script.way == "other":
        yield (
            "neither wide.parallel nor DistributedDataParallel was seen on one machine: rows of "
            "several count as with DistributedDataParallel"
        )
    if several and script.global_batch:
        unknown = [one.name for one in probe.machines if not one.has_part]
        if unknown:
            yield (
                "the batch is that of all machines together, and each computes a part of it: the "
                f"fixed cost of a step on {' '.join(unknown)} was not measured, "
                "and makes several machines slower than said"
            )
    elif several:
        yield "each machine adds its own batch: with more machines a step has more samples"


def auto_stays(spec: JobSpec, plan: KeptPlan, row: PlanRow) -> str:
    """A sentence if every="auto" stays in the job file for a row of seldom exchanges; else empty.

    A number in its place would end the tuning; what was found is what it begins with.
    """
    every = spec.network.every if plan.every is None else plan.every
    if every != "auto" or row.every == 1:
        return ""
    steps = start_length(plan, len(row.nodes), row.gradients) if plan.shape else None
    begins = f"begins with {steps} steps between two exchanges and " if steps else ""
    return f'every = "auto" stays: the next run {begins}follows what it measures'


def wanted_keys(
    spec: JobSpec, probe: TrialMeasures, row: PlanRow, usual: Sequence[str]
) -> dict[Any, Any]:
    """The keys of the job file to change for a row; `usual` are the machines that the job would get
    without a change."""
    keys: dict[tuple[str, str], object] = {}
    if tuple(sorted(row.nodes)) != tuple(sorted(usual)):
        keys["resources", "nodes"] = len(row.nodes)
        keys["resources", "use"] = list(row.nodes)
    several = len(row.nodes) > 1 and not probe.script.fixed
    if several and probe.script.coded and row.gradients != spec.network.gradients:
        keys["network", "gradients"] = row.gradients
    stays = spec.network.every == "auto" and row.every > 1
    if several and probe.script.way == "parallel" and row.every != spec.network.every and not stays:
        keys["network", "every"] = row.every
    return keys
