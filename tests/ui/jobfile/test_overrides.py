"""--set: what a value becomes, what it replaces, and what is said of a bad one."""

from __future__ import annotations

import pytest

from tests.kit.jobfiles import read
from tests.ui.jobfile.corpus import COMPLETE, RUN
from wiiiiided.domain.spec import JobSpec
from wiiiiided.ui.jobfile.overrides import value_for
from wiiiiided.ui.jobfile.problem import Invalid


def job(*sets: str, text: str = RUN) -> JobSpec:
    return read(text, "job.toml", sets)


def says(*sets: str, text: str = RUN) -> list[str]:
    with pytest.raises(Invalid) as caught:
        read(text, "job.toml", sets)
    return [str(problem) for problem in caught.value.problems]


def test_numbers_lists_tables_and_flags_are_read_as_toml() -> None:
    spec = job(
        "policy.priority=80",
        "resources.workers_per_node=4",
        'run.command=["python", "x.py"]',
        "network.encrypt=true",
        "policy.restart={ max = 3 }",
        "policy.after=[1, 2]",
    )
    assert spec.policy.priority == 80
    assert spec.resources.workers_per_node == 4
    assert spec.run.command == ("python", "x.py")
    assert spec.network.encrypt
    assert spec.policy.restart.max == 3
    assert spec.policy.after == (1, 2)


def test_what_is_not_toml_is_a_text() -> None:
    spec = job(
        "policy.max_time=1h30m",
        "resources.nodes=2-4",
        "resources.min_memory=8GiB",
        "resources.workers_per_node=cores",
        "network.backend=gloo",
        "network.interface=10.0.0.0/8",
    )
    assert spec.policy.max_time_s == 5400
    assert spec.resources.nodes == (2, 4)
    assert spec.resources.min_memory == 8 << 30
    assert spec.resources.workers_per_node == "cores"
    assert spec.network.backend == "gloo"
    assert spec.network.interface == "10.0.0.0/8"


@pytest.mark.parametrize(
    ("option", "name"),
    [("name=17", "17"), ("name=true", "true"), ('name="x y"', "x y"), ("name=[1]", "[1]")],
)
def test_where_text_is_wanted_any_value_is_text_and_quotes_are_taken_off(
    option: str, name: str
) -> None:
    assert job(option).name == name


@pytest.mark.parametrize("value", ["0.1", "", '"quoted"', "a=b", "true", " x ", "{", "1\n2", "é#"])
def test_a_variable_stays_exactly_as_it_is(value: str) -> None:
    assert job(f"run.env.LR={value}").run.env == {"LR": value}


def test_a_variable_is_added_to_those_of_the_file() -> None:
    env = job("run.env.LR=0.1", 'run.env."a.b"=c', text=RUN + 'env = { A = "1", LR = "2" }').run.env
    assert env == {"A": "1", "LR": "0.1", "a.b": "c"}


def test_a_list_is_replaced_and_the_later_option_counts() -> None:
    spec = job('resources.use=["x", "z"]', "policy.priority=1", "policy.priority=2", text=COMPLETE)
    assert spec.resources.use == ("x", "z")
    assert spec.policy.priority == 2


def test_a_whole_table_can_be_replaced_and_then_changed() -> None:
    spec = job("policy={ priority = 3 }", "policy.grace=1s", text=COMPLETE)
    assert spec.policy.priority == 3
    assert spec.policy.grace_s == 1
    assert spec.policy.max_time_s is None


def test_an_option_mends_what_is_wrong_in_the_file() -> None:
    assert job("policy.priority=1", text=RUN + "[policy]\npriority = 500\n").policy.priority == 1
    assert job('run.command=["x"]', text="").run.command == ("x",)


def test_a_bad_value_is_told_with_its_option() -> None:
    assert says("policy.priority=500", 'run.command=["x", 5]') == [
        "--set policy.priority=500: policy.priority: 500 is more than 100; choose 0 to 100",
        (
            '--set run.command=["x", 5]: run.command[1]: expected a string, found the number 5; '
            'write "5", in quotes'
        ),
    ]


def test_problems_of_the_file_come_first_then_options_in_their_order() -> None:
    found = says("network.codec=x", "name=", "run.env.RANK=1", text=RUN + "zzz = 1\n")
    assert [line.partition(": ")[0] for line in found] == [
        "job.toml:3",
        "--set network.codec=x",
        "--set name=",
        "--set run.env.RANK=1",
    ]


def test_an_unknown_key_gets_a_suggestion() -> None:
    assert says("worker_per_node=4", "policy.prio=4", "foo.bar=1") == [
        (
            "--set worker_per_node=4: worker_per_node: unknown key; "
            "did you mean resources.workers_per_node?"
        ),
        "--set policy.prio=4: policy.prio: unknown key; did you mean priority?",
        (
            "--set foo.bar=1: foo: unknown table; "
            "known here: name, run, resources, network, policy, output, notify"
        ),
    ]


@pytest.mark.parametrize(
    "option",
    ["", "policy.priority", "=3", "a b=3", "policy..priority=3", ".=1", "policy.=1", "é=1"],
)
def test_what_is_not_key_and_value_is_refused(option: str) -> None:
    (said,) = says(option)
    assert said == f"--set {option}: is not key=value; for example --set policy.priority=80"


def test_a_value_is_no_table() -> None:
    assert says("run.command.x=1", "run.env.A.b=1", text=RUN + 'env.A = "1"\n') == [
        "--set run.command.x=1: run.command is not a table",
        "--set run.env.A.b=1: run.env.A is not a table",
    ]


def test_a_table_that_is_none_in_the_file_is_told_once() -> None:
    assert says("policy.priority=1", text="policy = 3\n" + RUN) == [
        "job.toml:1: policy: expected a table, found the number 3; write [policy]"
    ]


def test_a_missing_command_is_not_blamed_on_an_option() -> None:
    (said,) = says("run.env.A=1", text="")
    assert said.startswith("job.toml: run.command: missing")


def test_an_option_that_meets_the_file_is_told_at_the_place_of_the_later_key() -> None:
    (said,) = says('resources.avoid=["a"]', text=RUN + '[resources]\nuse = ["a"]\n')
    assert said.startswith('--set resources.avoid=["a"]: resources.avoid[0]: "a" is in')


@pytest.mark.parametrize("value", ["1\nname = 'x'", "1\n[run]", "[" * 5000, "9" * 5000])
def test_a_value_cannot_bring_keys_of_its_own_or_break_the_parser(value: str) -> None:
    assert value_for(("policy", "priority"), value) == value


def test_bytes_that_are_no_text_are_refused() -> None:
    (said,) = says("run.env.A=\udcff")
    assert said == (
        '--set run.env.A=\\udcff: run.env.A: "\\udcff" is not valid Unicode; write it in UTF-8'
    )


def test_a_long_option_is_cut_in_its_problem() -> None:
    (said,) = says(f"policy.priority={'x' * 5000}")
    assert len(said) < 300
