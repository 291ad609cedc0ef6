"""Two real daemons made one by the commands of a person, from init to leave."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.daemons import free_port, private_daemon
from tests.ui.cli.kit import Program

SCRIPT = """
import os
rank = os.environ["RANK"]
os.makedirs("runs", exist_ok=True)
open(f"runs/{rank}.txt", "w").write(rank)
open("runs/who.txt", "w").write(rank)
print(f"hello from {rank}")  # in one piece: a line may be shown before its end
"""

OTHER = "other-machine"  # both are on one host, whose name the first has
JOB = """
name = "digits"
[run]
command = ["python", "train.py"]
[resources]
nodes = "all"
[output]
collect = ["runs/**"]
"""


@pytest.fixture
def machines() -> Iterator[tuple[Program, Program]]:
    """The command on each of two machines."""
    with private_daemon() as first, private_daemon() as second:
        made = Program(str(first.home)), Program(str(second.home))
        yield made
        for program in made:
            program.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def place() -> tuple[str, ...]:
    return "--address", "127.0.0.1", "--port", str(free_port("127.0.0.1"))


def found(first: Program, second: Program) -> None:
    """init on one, and on the other what that has printed."""
    line = first.run("init", "--cluster", "lab", *place())
    assert line.code == 0, line.err
    program, *words = shlex.split(line.out)
    assert program == "wiiiiide"
    joined = second.run(*words, "--name", OTHER, *place())
    assert joined.code == 0, joined.err
    assert joined.err.startswith(f"{OTHER} (127.0.0.1:")


def test_a_job_over_two_machines_from_either_of_them(
    machines: tuple[Program, Program], folder: Path
) -> None:
    first, second = machines
    found(first, second)
    listed = second.run("nodes", "--json").json
    a, b = (one["node"]["name"] for one in listed["nodes"])
    assert (listed["cluster"], b) == ("lab", OTHER)
    assert [one["coordinator"] for one in listed["nodes"]] == [True, False]

    dry = second.run("submit", "--dry-run", "--json", str(folder)).json
    assert [share["node"] for share in dry["shares"]] == [a, OTHER]
    width = max(len(a), len(b))
    sent = second.run("submit", "-f", str(folder))
    assert (sent.code, sorted(sent.out.split("\n"))) == (
        0,
        sorted(["", f"{a:>{width}}:0 │ hello from 0", f"{b:>{width}}:1 │ hello from 1"]),
    )
    assert sent.err.startswith("sent ")
    again = first.run("submit", "--hold", str(folder))
    assert again.err.startswith("nothing sent: the coordinator has the folder already\n")
    assert first.run("cancel", "2").code == 0
    assert first.run("logs", "1", "--node", OTHER).out.endswith(":1 │ hello from 1\n")
    names = first.run("pull", "1", "-o", "results", cwd=folder).out.split()
    assert names == [f"results/runs/{name}.txt" for name in ("0", "1", "who")] + [
        f"results/runs/who.txt.{OTHER}"
    ]
    assert (folder / f"results/runs/who.txt.{OTHER}").read_text() == "1"


def test_what_an_administrator_does_with_machines(machines: tuple[Program, Program]) -> None:
    first, second = machines
    found(first, second)
    assert second.run("drain", OTHER, "fan", "broken").err.endswith(": fan broken\n")
    states = {n["node"]["name"]: n["state"] for n in first.run("nodes", "--json").json["nodes"]}
    assert states[OTHER] == "drained"
    assert first.run("resume", OTHER).code == 0
    assert first.run("drain", "nobody").code == 6
    assert second.run("renew").err.startswith(f"the certificate of {OTHER} is good until 20")
    assert first.run("leave").code == 1  # the other is still there

    assert first.run("nodes", "remove", OTHER).code == 0
    assert second.run("leave").code == 0
    words = json.loads(first.run("token", "create", "--json").out)
    with tempfile.TemporaryFile("w+") as file:
        file.write(words["token"] + "\n")
        file.seek(0)
        back = second.run("join", words["address"], "-", "--name", OTHER, *place(), stdin=file)
    assert back.code == 0, back.err
    again = second.run("leave")
    assert (again.code, again.err.endswith(" is a machine alone\n")) == (0, True)
    assert first.run("leave").code == 0
    assert first.run("nodes", "--json").json["cluster"] == ""
