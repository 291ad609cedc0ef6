"""What a shim is told: the job's words and the machine's, brought together."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from msgspec.structs import replace

from tests.control.world import GIB, World, spec
from wiiiiided.control.job import Job
from wiiiiided.daemon.order import Surroundings, command, interpreter, order_for, secret_lines
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.spawn import JobUser
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import Output, Run

USER = JobUser("eve", 1234, 1234, "/home/eve", other=True)
HERE = Surroundings("b", USER, "/opt/venv/bin/python", {"PATH": "/usr/bin"}, 77)


def placed(given: object) -> Job:
    world = World(Node("a", 4, GIB), Node("b", 8, GIB))
    return world.job(world.submit(given))  # type: ignore[arg-type]


def test_a_share_of_two_nodes() -> None:
    job = placed(spec(resources={"nodes": (2, 2), "workers_per_node": 2}))
    assert job.attempt is not None
    order = order_for(job, 3, job.attempt.layout, "/w", HERE, Settings())
    assert (order.world_size, order.first_rank, order.workers) == (4, 2, 2)
    assert (order.node_index, order.nodes, order.restart_count) == (1, 2, job.restarts)
    assert order.threads == 4  # eight cores for two workers
    assert order.argv == ["/opt/venv/bin/python", "train.py"]
    assert order.env["PATH"] == "/opt/venv/bin:/usr/bin"
    assert order.env["HOME"] == "/home/eve"
    assert order.listener_uid == 77
    assert order.file_mode == 0o640


def test_the_jobs_own_environment_wins() -> None:
    given = spec()
    given = replace(given, run=Run(("python", "x"), env={"HOME": "/elsewhere", "LR": "0.1"}))
    job = placed(replace(given, resources=replace(given.resources, use=("b",))))
    assert job.attempt is not None
    order = order_for(job, 1, job.attempt.layout, "/w", HERE, Settings())
    assert order.env["HOME"] == "/elsewhere"
    assert order.env["LR"] == "0.1"


def test_the_log_tier_reaches_the_ranks_and_their_own_variable_wins() -> None:
    for output, env, tier in (
        (Output(), {}, "normal"),
        (Output(log="verbose"), {}, "verbose"),
        (Output(log="verbose"), {"WIIIIIDE_LOG": "silent"}, "silent"),
    ):
        given = replace(spec(resources={"use": ("b",)}), run=Run(("x",), env=env), output=output)
        job = placed(given)
        assert job.attempt is not None
        order = order_for(job, 1, job.attempt.layout, "/w", HERE, Settings())
        assert order.env["WIIIIIDE_LOG"] == tier


def test_which_python(tmp_path: Path) -> None:
    assert interpreter(None, "/own/python") == "/own/python"
    assert interpreter(str(tmp_path), "/own/python") == f"{tmp_path}/bin/python"
    assert interpreter("/usr/bin/python3.12", "/own/python") == "/usr/bin/python3.12"
    assert command(("python3", "-m", "x"), "/p/python") == ["/p/python", "-m", "x"]
    assert command(("./run.sh", "python"), "/p/python") == ["./run.sh", "python"]


def test_secrets_survive_a_shell(tmp_path: Path) -> None:
    value = 'it\'s $HOME `id` "x"\nnext'
    path = tmp_path / "secrets"
    path.write_bytes(secret_lines({"KEY": value}))
    shell = f'. {shlex.quote(str(path))}; printf %s "$KEY"'
    found = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert found.stdout == value
