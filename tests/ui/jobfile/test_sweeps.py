"""`--sweep`: what the values are, which jobs come of them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kit.jobfiles import read
from wiiiiided.domain.spec import JobSpec
from wiiiiided.domain.sweep import label, sweep_id, sweep_number
from wiiiiided.ui.jobfile.problem import Invalid
from wiiiiided.ui.jobfile.sweeps import combine

JOB = 'name = "digits"\n[run]\ncommand = ["python", "t.py"]\nenv = { LR = "1", A = "a" }\n'


def of(*sweeps: str, text: str = JOB) -> list[tuple[dict[str, str], JobSpec]]:
    return combine(sweeps, lambda swept: read(text, "job.toml", [], swept))


def values(*sweeps: str) -> list[list[str]]:
    return [list(setting.values()) for setting, _ in of(*sweeps)]


def problems(*sweeps: str, text: str = JOB) -> list[str]:
    with pytest.raises(Invalid) as caught:
        of(*sweeps, text=text)
    return [str(problem) for problem in caught.value.problems]


def test_every_combination_is_a_job_and_the_last_option_changes_fastest() -> None:
    jobs = of("run.env.LR=0.1,0.01", "policy.priority=10,20")
    assert [setting for setting, _ in jobs] == [
        {"run.env.LR": "0.1", "policy.priority": "10"},
        {"run.env.LR": "0.1", "policy.priority": "20"},
        {"run.env.LR": "0.01", "policy.priority": "10"},
        {"run.env.LR": "0.01", "policy.priority": "20"},
    ]
    last = jobs[-1][1]
    assert (last.run.env, last.policy.priority) == ({"LR": "0.01", "A": "a"}, 20)
    assert {spec.name for _, spec in jobs} == {"digits"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1..3", ["1", "2", "3"]),
        ("3..1", ["3", "2", "1"]),
        ("-1..1", ["-1", "0", "1"]),
        ("0..100..50", ["0", "50", "100"]),
        ("10..0..4", ["10", "6", "2"]),
        ("1..2,9", ["1", "2", "9"]),
        ('"1..3"', ["1..3"]),
        ('"a,b",c', ["a,b", "c"]),
        ("'a\"b',c", ['a"b', "c"]),
        ('"","x"', ["", "x"]),
        ("don't,x", ["don't", "x"]),
        ("a b, c", ["a b", "c"]),
        ("[1,2],{a=3,b=4}", ["[1,2]", "{a=3,b=4}"]),
        ("1...3", ["1...3"]),
        ("0.1", ["0.1"]),
    ],
)
def test_values_of_a_variable(given: str, expected: list[str]) -> None:
    jobs = of(f"run.env.X={given}")
    assert [spec.run.env["X"] for _, spec in jobs] == expected
    assert [setting["run.env.X"] for setting, _ in jobs] == expected


def test_values_are_what_their_key_wants() -> None:
    jobs = of('run.command=["a", "b"],["c"]', "policy.max_time=2h,'90s'", "network.encrypt=true")
    assert [(spec.run.command, spec.policy.max_time_s) for _, spec in jobs] == [
        (("a", "b"), 7200.0),
        (("a", "b"), 90.0),
        (("c",), 7200.0),
        (("c",), 90.0),
    ]
    assert jobs[1][0]["policy.max_time"] == "90s"
    assert all(spec.network.encrypt for _, spec in jobs)


def test_what_is_wrong_is_told_all_at_once_and_once() -> None:
    bad = problems("policy.priority=50,900,nine", "nosuch=1", "run.env.SEED=1..9")
    one, two, three = sorted(bad)
    assert one.startswith("--sweep nosuch=1: nosuch: unknown key")
    assert two.startswith("--sweep policy.priority=900: policy.priority: 900 is more than 100")
    assert three.startswith("--sweep policy.priority=nine: policy.priority: expected")


def test_problems_of_file_and_options_come_together() -> None:
    bad = problems("run.env.X=1,,2", "x", text=JOB + "[policy]\npriority = 900\n")
    assert [line.partition(": ")[0] for line in bad] == [
        "job.toml:6",
        "--sweep run.env.X=1,,2",
        "--sweep x",
    ]


@pytest.mark.parametrize(
    ("sweeps", "told"),
    [
        (["run.env.X"], "is not key=value,value"),
        (["run.env.X="], "a value is missing"),
        (["run.env.X='a,b"], "a ' is not closed"),
        (["run.env.X=[1,2"], "a bracket is not closed"),
        (["run.env.X=1..5..0"], "1..5..0 never ends"),
        (["run.env.X=1..1001"], "1..1001 has 1,001 values"),
        (["run.env.X=1,2,1"], "1 stands there twice"),
        (["run.env.X=1", "run.env.X=2"], "run.env.X is swept already"),
        (["run.env.X=1..40", "run.env.Y=1..26"], "1,040 combinations: a sweep has at most 1,000"),
        (["name=a,b"], "name cannot be swept"),
        (["run.workdir=a,b"], "run.workdir cannot be swept: one folder is sent for all"),
        ([f"run.env.X{n}=1" for n in range(17)], "17 keys: a sweep has at most 16"),
    ],
)
def test_options_that_make_no_sweep(sweeps: Sequence[str], told: str) -> None:
    (only,) = problems(*sweeps)
    assert told in only


def test_a_sweep_may_have_a_thousand_jobs() -> None:
    assert len(of("run.env.X=1..1000")) == 1000


def test_an_id_is_never_a_number() -> None:
    assert sweep_id(12) == "s12"
    assert sweep_id(0) == ""
    assert sweep_number("s12") == 12
    for word in ("12", "s", "S12", "s1x", "s-1", "ss1", "", "s٣", "s" + "1" * 19):
        assert sweep_number(word) is None, word


def test_a_label_is_short_and_tells_keys_apart() -> None:
    assert label({"run.env.LR": "0.1", "policy.priority": "3"}) == "LR=0.1 priority=3"
    assert label({"run.env.max": "1", "policy.restart.max": "2"}) == (
        "run.env.max=1 policy.restart.max=2"
    )
    assert (
        label({"k": "1\n2026-11-20 job 7: cancelled\x1b]0;"})
        == "k=1?2026-11-20 job 7: cancelled?]0;"
    )
    long = label({"run.env.X": "y" * 99})
    assert (len(long), long[-1]) == (64, "…")
