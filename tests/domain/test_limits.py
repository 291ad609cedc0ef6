"""The bounds of a spec that came from no job file."""

from __future__ import annotations

import pytest

from wiiiiided.domain.limits import MAX_SPEC, problems_of
from wiiiiided.domain.spec import JobSpec, Network, Notify, Output, Policy, Resources, Run

RUN = Run(("python", "train.py"))
LONG = "x" * MAX_SPEC


def test_an_ordinary_spec_has_no_problem() -> None:
    assert problems_of(JobSpec("test", RUN)) == []


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec("test", Run(("python", *["x" * 1000] * 300))),
        JobSpec("test", Run(("python",), env={"A": LONG})),
        JobSpec("test", Run(("python",), env={"A": "\x01" * (MAX_SPEC // 4)})),
        JobSpec("test", Run(("python",), workdir=LONG)),
        JobSpec("test", Run(("python",), python=LONG)),
        JobSpec("test", Run(("python",), pass_env=(LONG,))),
        JobSpec("test", RUN, resources=Resources(use=(LONG,))),
        JobSpec("test", RUN, resources=Resources(avoid=("x" * 100,) * 3000)),
        JobSpec("test", RUN, network=Network(interface=LONG)),
        JobSpec("test", RUN, policy=Policy(warn_signal=LONG)),
        JobSpec("test", RUN, policy=Policy(after=(1 << 62,) * 15_000)),
        JobSpec("test", RUN, output=Output(collect=(LONG,))),
        JobSpec("test", RUN, notify=Notify(command=("{reason}" * 32768,))),
    ],
)
def test_no_text_of_a_spec_is_without_a_bound(spec: JobSpec) -> None:
    size = f"bytes, all its texts together; at most {MAX_SPEC} are possible"
    assert any(size in problem for problem in problems_of(spec))
