"""What a plan that was kept says of a job that is queued."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from wiiiiided.domain.plan import (
    KeptPlan,
    MachineProbe,
    PairProbe,
    PlanRow,
    ScriptFacts,
    TrialMeasures,
)
from wiiiiided.metrics.kept_plan import fewer_was_faster, fewer_would_do, keep, start_length
from wiiiiided.metrics.plan import plan_rows, predict

FAST = 8 / 94e6  # seconds a byte
SHAPE = "0" * 16
CODED = {"exact": FAST, "bf16": FAST / 2, "int8": FAST / 4, "int4": FAST / 8}
PAIR = PairProbe("a", "b", 0.001, CODED, 94e6)


def trial(names: str = "ab", gradient_bytes: int = 26_000_000, **script: Any) -> TrialMeasures:
    """Machines that make 190 samples/s each alone."""
    machines = tuple(MachineProbe(name, 1, 0.084, 16.0) for name in names)
    pairs = tuple(replace(PAIR, a=a, b=b) for a, b in itertools.combinations(names, 2))
    return TrialMeasures(machines, pairs, ScriptFacts(gradient_bytes, shape=SHAPE, **script))


def kept(probe: TrialMeasures) -> KeptPlan:
    return keep(probe, plan_rows(probe), 1.0)


def said(plan: KeptPlan, every: int | str, gradients: str, machines: int = 2) -> str:
    return fewer_would_do([plan], machines, every, gradients)


def test_a_kept_plan_says_when_fewer_machines_would_be_faster() -> None:
    plan = kept(trial())
    assert said(plan, 1, "exact") == (
        "wiiiiide plan found one machine faster than 2 machines, every step, exact: 190 samples/s "
        "to 13.9"
    )
    assert said(plan, 64, "int8") == said(plan, "auto", "int8") == ""
    assert said(plan, 1, "exact", machines=3) == ""  # of three machines nothing is known
    assert said(plan, 1, "exact", machines=1) == ""


SAID_BY_SCRIPT = {"fixed": "Between(gradients='int8', every=64)", "gradients": "int8", "every": 64}


def test_the_script_counts_more_than_a_job_file_that_is_silent() -> None:
    assert said(kept(trial(**SAID_BY_SCRIPT)), 1, "exact") == ""
    often = kept(trial(fixed="Between()", gradients="exact", every=1))
    assert "than 2 machines, every step, exact" in said(often, 64, "int8")


@pytest.mark.parametrize(("every", "gradients"), [(2, "int8"), (16, "exact"), (1, "bf16")])
def test_settings_without_a_row_are_predicted_too(every: int, gradients: str) -> None:
    probe = trial()
    assert not any((row.every, row.gradients) == (every, gradients) for row in plan_rows(probe))
    rate = predict(probe, "ab", every, gradients).samples_per_s
    how = "every step" if every == 1 else f"every {every} steps"
    assert said(kept(probe), every, gradients) == (
        f"wiiiiide plan found one machine faster than 2 machines, {how}, {gradients}: 190 "
        f"samples/s to {rate:.3g}"
    )


def test_of_what_cannot_be_predicted_nothing_is_said() -> None:
    assert said(kept(trial()), 1, "topk:0.01") == ""
    unknown = trial(fixed="Between(every=64, fragments=4)")
    assert said(kept(unknown), 1, "exact") == ""


def test_fewer_machines_would_train_in_the_same_way() -> None:
    near = replace(PAIR, byte_s={name: each / 100 for name, each in CODED.items()})
    pairs = (near, replace(PAIR, b="c"), replace(PAIR, a="b", b="c"))
    probe = replace(trial("abc"), pairs=pairs)
    assert said(kept(probe), 1, "int8", machines=3).startswith(
        "wiiiiide plan found 2 machines, every step, int8 faster than 3 machines, every step, int8"
    )


@pytest.mark.parametrize("coded", [True, False])
def test_ddp_exchanges_in_every_step_whatever_the_job_file_says(coded: bool) -> None:
    plan = kept(trial(way="ddp", coded=coded))
    codec = "int4" if coded else "exact"
    assert f"2 machines, every step, {codec}:" in said(plan, 64, "int4")
    assert start_length(plan, 2, "int4") is None


def test_a_plan_of_another_model_of_that_name_is_told_of() -> None:
    slow, fast = kept(trial()), kept(trial(gradient_bytes=1000))
    assert fewer_would_do([fast, slow], 2, 1, "exact") == ""
    found = fewer_would_do([slow, fast], 2, 1, "exact")
    assert found == said(slow, 1, "exact") + " (with the model that was planned last)"
    assert fewer_would_do([slow, slow], 2, 1, "exact") == said(slow, 1, "exact")
    assert fewer_would_do([], 2, 1, "exact") == ""


def test_earlier_runs_say_so_too() -> None:
    found = fewer_was_faster({1: 190.0, 3: 61.0}, 3)
    assert found.startswith(
        "an earlier run on one machine made 190 samples/s, one on 3 machines 61"
    )
    assert fewer_was_faster({1: 190.0, 3: 195.0}, 3) == ""
    assert fewer_was_faster({3: 61.0}, 3) == fewer_was_faster({}, 3) == ""


def test_auto_begins_with_what_a_plan_found_for_as_many_machines_and_the_codec() -> None:
    rows = plan_rows(trial())
    every = {row.gradients: row.every for row in rows if row.every > 1}
    plan = kept(trial())
    assert {codec: start_length(plan, 2, codec) for codec in every} == every
    assert start_length(plan, 2, "bf16") == every["exact"] // 2
    assert start_length(plan, 2, "topk:0.01") == every["exact"]  # another codec's: better than 1
    assert start_length(plan, 3, "int8") is None
    scripts = trial(fixed="Between(gradients='int8', every='auto')", gradients="int8", every="auto")
    assert start_length(kept(scripts), 2, "exact") == every["int8"]
    assert start_length(kept(trial(gradient_bytes=1000)), 2, "exact") is None


EARLIER = (
    PlanRow(("a",), 1, "exact", 190.0),
    PlanRow(("a", "b", "c"), 1, "exact", 61.0),
    PlanRow(("a", "b", "c"), 16, "int8", 431.0),
    PlanRow(("a", "b", "c"), 64, "exact", 420.0),
)


def test_a_plan_that_an_earlier_version_kept_has_rows_alone() -> None:
    text = {"at": 1.0, "shape": SHAPE, "rows": msgspec.to_builtins(EARLIER)}
    plan = msgspec.json.decode(msgspec.json.encode(text), type=KeptPlan)
    assert start_length(plan, 3, "int8") == 16
    assert start_length(plan, 3, "exact") == 64
    assert start_length(plan, 3, "bf16") == 16
    assert start_length(plan, 2, "int8") is None
    assert said(plan, 1, "exact", machines=3) == ""  # what the script says itself is not known
