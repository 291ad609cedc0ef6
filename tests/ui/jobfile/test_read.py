"""From a text to a spec: every value in its place, and all problems at once, in order."""

from __future__ import annotations

import pytest

from tests.kit.jobfiles import read
from tests.ui.jobfile.corpus import BAD, COMPLETE, RUN
from wiiiiided.domain import spec
from wiiiiided.errors import UsageError
from wiiiiided.ui.jobfile.findings import MOST
from wiiiiided.ui.jobfile.problem import Invalid, Problem
from wiiiiided.ui.jobfile.read import default_name


def problems_of(text: str, *sets: str) -> tuple[Problem, ...]:
    with pytest.raises(Invalid) as caught:
        read(text, "job.toml", sets)
    return caught.value.problems


def test_every_value_reaches_its_field() -> None:
    assert read(COMPLETE, "job.toml") == spec.JobSpec(
        name="digits",
        run=spec.Run(
            command=("python", "train.py", "--epochs", "5", ""),
            workdir="../digits",
            python="/srv/venvs/torch",
            env={"OMP_NUM_THREADS": "1", "WIIIIIDE_LOG": "verbose", "odd name.x": ""},
            pass_env=("WANDB_API_KEY", "_x1"),
        ),
        resources=spec.Resources(
            nodes=(2, 4),
            workers_per_node="cores",
            cores_per_worker=2,
            min_memory=8 << 30,
            min_cores=4,
            min_gpus=1,
            use=("a", "b", "node-3.lan"),
            avoid=("pi",),
        ),
        network=spec.Network(
            backend="gloo",
            codec="lz4",
            interface="192.168.1.0/24",
            encrypt=True,
            gradients="topk:0.01",
            every="auto",
        ),
        policy=spec.Policy(
            priority=100,
            after=(12, 13),
            max_time_s=28800.0,
            warn_before_s=90.0,
            warn_signal="SIGTERM",
            grace_s=0.5,
            restart=spec.Restart(max=3, on=("failure", "node-lost"), backoff_s=10.0),
            hang_timeout_s=600.0,
            stop_alone_s=15.0,
        ),
        output=spec.Output(collect=("runs/**", "ckpt/last.pt", "..data/*", "**")),
        notify=spec.Notify(
            command=("notify-send", "job {id} {state}", "${HOME} { print } {}"),
            on=("running", "restarting", "done", "failed", "cancelled"),
        ),
    )


def test_what_is_left_out_has_the_defaults_of_the_spec() -> None:
    job = read(RUN, "/home/ada/mnist/job.toml")
    assert job == spec.JobSpec(name="mnist", run=spec.Run(command=("python", "train.py")))


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/home/ada/mnist/job.toml", "mnist"),
        ("/home/ada/mnist/../lm/job.toml", "lm"),
        ("/job.toml", "job"),
        (f"/home/{'x' * 80}/job.toml", "x" * 64),
        ("/home/a\x1bb/job.toml", "a_b"),
        ("/home/ /job.toml", "job"),
        ("/home/\udc80/job.toml", "_"),
        ("/home/x\0y/job.toml", "xy"),
    ],
)
def test_a_job_without_a_name_has_that_of_its_folder(file: str, name: str) -> None:
    assert default_name(file) == name
    assert read(RUN, file).name == name


@pytest.mark.parametrize(
    ("max_time", "warned_s"), [("8h", 60.0), ("10m", 60.0), ("5m", 30.0), ("3s", 0.3)]
)
def test_the_warning_comes_at_most_a_tenth_of_the_time_before_the_end(
    max_time: str, warned_s: float
) -> None:
    job = read(RUN + f'[policy]\nmax_time = "{max_time}"\n', "job.toml")
    assert job.policy.warn_before_s == pytest.approx(warned_s)


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    text = (
        """\
nam = "digits"

[policy]
priority = 500          # too much
restart = { max = -1,
""".replace("-1,\n", "-1, on = ['never'] }\n")
        + """\

[run]
workdir = ""
command = [
    "python",
    5,
]
env.RANK = "0"

[[nodes]]
a = 1

[resources]
avoid = ["b"]
use = ["b"]
nodes = "all of them"
"""
    )
    places = [(problem.line, problem.key) for problem in problems_of(text)]
    assert places == [
        (1, "nam"),
        (4, "policy.priority"),
        (5, "policy.restart.max"),
        (5, "policy.restart.on[0]"),
        (8, "run.workdir"),
        (11, "run.command[1]"),
        (13, "run.env.RANK"),
        (15, "nodes"),
        (19, "resources.avoid[0]"),
        (21, "resources.nodes"),
    ]


def test_problems_of_one_line_are_told_from_left_to_right() -> None:
    problems = problems_of(RUN + "policy = 3\n[resources]\nnodes = 0\n[network]\ncodec = 1\n")
    assert [problem.line for problem in problems] == [3, 5, 7]
    problems = problems_of('run = { zzz = 1, command = "x", env = { A = 1 }, workdir = 5 }')
    assert [problem.key for problem in problems] == [
        "run.zzz",
        "run.command",
        "run.env.A",
        "run.workdir",
    ]


def test_what_several_keys_have_wrong_is_told_beside_what_one_has() -> None:
    text = RUN + 'env = { A = "1", B = 2 }\npass_env = ["A", "x y"]\n'
    assert [problem.key for problem in problems_of(text)] == [
        "run.env.B",
        "run.pass_env[0]",
        "run.pass_env[1]",
    ]


def test_a_command_that_is_wrong_is_not_called_missing() -> None:
    text = (
        RUN + '[notify]\ncommand = "x"\non = ["done"]\n[policy.restart]\nmax = "3"\non = ["hang"]\n'
    )
    assert [problem.key for problem in problems_of(text)] == [
        "notify.command",
        "policy.restart.max",
    ]


def test_many_problems_are_told_in_part_and_counted() -> None:
    text = RUN + "".join(f"key{number} = 1\n" for number in range(30_000))
    problems = problems_of(text)
    assert len(problems) == MOST + 1
    assert [problem.line for problem in problems[:3]] == [3, 4, 5]
    assert str(problems[-1]) == f"job.toml: and {30_000 - MOST} more problems"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[run]\ncommand = [python]\n",
            "job.toml:2: not TOML: Invalid value (column 12); texts stand in quotes",
        ),
        (
            "[run]\n\nname\n",
            (
                "job.toml:3: not TOML: Expected '=' after a key in a key/value pair (column 5); "
                "write key = value"
            ),
        ),
        (
            '[run]\r\ncommand = ["x",\r\n\r\n',
            "job.toml:2: not TOML: Invalid value (end of file); texts stand in quotes",
        ),
        (
            "a = 1\na = 2\n",
            (
                "job.toml:2: not TOML: Cannot overwrite a value (column 6); "
                "the key stands twice; leave one out"
            ),
        ),
        (
            "[run]\n[run]\n",
            (
                "job.toml:2: not TOML: Cannot declare ('run',) twice (column 5); "
                "put both parts into one table"
            ),
        ),
        (
            "a = 'x\x1b'",
            "job.toml:1: not TOML: Found invalid character '\\x1b' (column 7)",
        ),
        (
            f"[policy]\npriority = {'9' * 5000}\n",
            "job.toml: a number of thousands of digits; a job file needs none",
        ),
        (
            "\na = " + "[" * 100,
            "job.toml:2: nested more than 64 deep; a job file needs four",
        ),
    ],
    ids=["value", "equals", "end", "twice", "table", "control", "digits", "deep"],
)
def test_a_text_that_is_not_toml_has_one_problem_with_its_line(text: str, says: str) -> None:
    assert [str(problem) for problem in problems_of(text)] == [says]


def test_a_text_built_to_keep_the_parser_busy_is_refused() -> None:
    for text in (".".join("a" * 500_000) + " = 1", "a = " + "[" * 500_000):
        (problem,) = problems_of(text)
        assert "nested" in problem.message


def test_a_number_too_long_to_be_printed_is_refused_in_words() -> None:
    (problem,) = problems_of(RUN + f"[policy]\npriority = 0x{'f' * 6000}\n")
    assert problem.message == "a number of more than 60 digits is more than 100"
    (problem,) = problems_of(RUN + f"[policy]\nmax_time = 0x{'f' * 6000}\n")
    assert "found a number of more than 60 digits" in problem.message


def test_nothing_of_a_file_can_paint_the_terminal() -> None:
    escape = "\\u001b[2J"
    text = f'"{escape}" = 1\nname = "{escape}"\n[run]\ncommand = "{escape}"\nenv."{escape}" = 1\n'
    for problem in problems_of(text):
        assert str(problem).isprintable()


def test_a_file_with_a_strange_name_can_be_told_of() -> None:
    with pytest.raises(Invalid) as caught:
        read("", "a\x1b\udc80\n.toml")
    assert str(caught.value).startswith("a\\x1b\\udc80\\n.toml: run.command: missing")


def test_every_message_fits_a_few_lines() -> None:
    for bad in BAD.values():
        assert all(len(says) < 400 for says in bad.says)
    text = f'["{"x" * 13000}"]\n[run]\ncommand = "{"x" * 13000}"\nworkdir = "~{"y" * 9000}"\n'
    assert all(len(str(problem)) < 900 for problem in problems_of(text))


def test_invalid_is_an_error_of_this_package_and_its_text_has_every_problem() -> None:
    with pytest.raises(UsageError) as caught:
        read("a = 1\nb = 2\n", "job.toml")
    assert str(caught.value).count("\n") == 2


def test_a_problem_is_a_sentence_with_and_without_its_parts() -> None:
    assert str(Problem("f", 7, "a.b", "wrong", "do it")) == "f:7: a.b: wrong; do it"
    assert str(Problem("f", None, "", "wrong")) == "f: wrong"


def test_a_job_of_more_text_than_is_stored_is_told_what_to_do_about_it() -> None:
    globs = ", ".join(f'"{n:04}/{"x" * 300}"' for n in range(1000))
    (problem,) = problems_of(f"{RUN}[output]\ncollect = [{globs}]\n")
    assert "all its texts together; at most 262144 are possible" in str(problem)
    assert "put long texts into a file of the working directory" in str(problem)
    words = ", ".join(f'"{"{reason}" * 1000}"' for _ in range(17))
    (problem,) = problems_of(f"{RUN}[notify]\ncommand = [{words}]\n")
    assert "notify.command: has 136000 characters, all its words together; at most 131072" in str(
        problem
    )
