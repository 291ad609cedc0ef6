"""What a shim is told: the job's words and the machine's, brought together."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cluster.control.world import GIB, World, spec
from wiiiiided.cluster.allocation.shim_order import (
    HostContext,
    command,
    interface,
    interfaces,
    interpreter,
    order_for,
    secret_lines,
)
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.control.job import Job, Saved
from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import Network, Output, Policy, Run

USER = JobAccount("eve", 1234, 1234, "/home/eve", other=True)
HERE = HostContext("b", USER, "/opt/venv/bin/python", {"PATH": "/usr/bin"}, 77)


def placed(given: object) -> Job:
    world = World(Node("a", 4, GIB), Node("b", 8, GIB))
    return world.job(world.submit(given))  # type: ignore[arg-type]


def test_an_allocation_of_two_nodes() -> None:
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


TABLE = {
    "lo": ("127.0.0.1", "::1"),
    "eth0": ("10.0.0.2", "fe80::1%eth0"),
    "ib0": ("192.168.7.2", "fd00::2"),
}
ENDPOINTS = {"a": "10.0.0.1:9461", "b": "10.0.0.2:9461"}


def at(node: str) -> HostContext:
    return HostContext(node, USER, "/opt/venv/bin/python", {}, 77, ENDPOINTS[node])


def test_allocations_of_two_machines_know_both_endpoints() -> None:
    job = placed(spec(resources={"nodes": (2, 2), "workers_per_node": 2}))
    assert job.attempt is not None
    for node in ("a", "b"):
        order = order_for(
            *(job, 1, job.attempt.layout, "/w", at(node), Settings(), ENDPOINTS),
            table=lambda: {"eth9": ("10.0.0.1", "10.0.0.2")},
        )
        assert (order.door, order.head) == (ENDPOINTS[node], ENDPOINTS["a"])
        assert (order.interface, order.format) == ("eth9", protocol.WITH_ENDPOINT)
        assert order.alone_s == 0.0  # the job does not ask for it


def test_a_machine_alone_gives_orders_as_it_always_did() -> None:
    given = replace(spec(resources={"use": ("b",)}), policy=Policy(stop_alone_s=600.0))
    job = placed(given)
    assert job.attempt is not None
    order = order_for(job, 1, job.attempt.layout, "/w", HERE, Settings())
    assert (order.door, order.head, order.interface, order.format) == ("", "", "", 1)
    assert order.alone_s == 0.0  # there is no coordinator to lose


def test_a_job_may_ask_to_end_when_it_is_alone() -> None:
    given = replace(spec(resources={"use": ("b",)}), policy=Policy(stop_alone_s=600.0))
    job = placed(given)
    assert job.attempt is not None
    order = order_for(job, 1, job.attempt.layout, "/w", at("b"), Settings(), ENDPOINTS)
    assert (order.alone_s, order.interface) == (600.0, "")


@pytest.mark.parametrize(
    ("wanted", "endpoint", "name"),
    [
        ("auto", "10.0.0.2:9461", "eth0"),
        ("auto", "[fd00::2]:9461", "ib0"),
        ("auto", "10.9.9.9:9461", ""),
        ("ib0", "10.0.0.2:9461", "ib0"),
        ("192.168.7.0/24", "10.0.0.2:9461", "ib0"),
        ("192.168.7.2", "10.0.0.2:9461", "ib0"),
        ("fe80::/10", "10.0.0.2:9461", "eth0"),
        ("172.16.0.0/12", "10.0.0.2:9461", "eth0"),
        ("eth5", "10.0.0.2:9461", "eth0"),
    ],
)
def test_the_interface_is_the_jobs_or_the_endpoints(wanted: str, endpoint: str, name: str) -> None:
    assert interface(wanted, endpoint, TABLE) == name


def test_this_machine_has_a_loopback() -> None:
    assert "127.0.0.1" in interfaces()["lo"]


def test_what_the_job_says_of_its_network_reaches_the_ranks() -> None:
    for network, expected in (
        (Network(), {"WIIIIIDE_CODEC": "auto", "WIIIIIDE_TLS": "off"}),
        (
            Network(codec="lz4", encrypt=True, interface="ib0"),
            {"WIIIIIDE_CODEC": "lz4", "WIIIIIDE_TLS": "on", "WIIIIIDE_INTERFACE": "ib0"},
        ),
    ):
        job = placed(replace(spec(resources={"use": ("b",)}), network=network))
        assert job.attempt is not None
        order = order_for(job, 1, job.attempt.layout, "/w", HERE, Settings())
        names = ("WIIIIIDE_CODEC", "WIIIIIDE_TLS", "WIIIIIDE_INTERFACE")
        assert {name: order.env[name] for name in names if name in order.env} == expected
        assert not order.encrypt  # on one machine nothing crosses a network


def test_ranks_know_the_signal_that_warns_them() -> None:
    job = placed(spec(resources={"use": ("b",)}, policy={"warn_signal": "SIGUSR2"}))
    assert job.attempt is not None
    order = order_for(job, 1, job.attempt.layout, "/w", HERE, Settings())
    assert order.env["WIIIIIDE_WARN_SIGNAL"] == "SIGUSR2"


def test_ranks_know_their_job_and_which_it_goes_on_from() -> None:
    job = replace(placed(spec(resources={"use": ("b",)})), submitted_at=1.5e9)
    assert job.attempt is not None
    env = order_for(job, 1, job.attempt.layout, "/w", HERE, Settings()).env
    assert env["WIIIIIDE_JOB"] == f"{job.id}-{1_500_000_000_000:x}"
    assert "WIIIIIDE_RESUMES" not in env
    resuming = replace(job, resumes=Saved(12, ("b",)))
    env = order_for(resuming, 1, job.attempt.layout, "/w", HERE, Settings()).env
    assert env["WIIIIIDE_RESUMES"] == "12"


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
    assert interpreter(str(tmp_path)) == f"{tmp_path}/bin/python"
    assert interpreter("/usr/bin/python3.12") == "/usr/bin/python3.12"
    assert command(("python3", "-m", "x"), "/p/python") == ["/p/python", "-m", "x"]
    assert command(("./run.sh", "python"), "/p/python") == ["./run.sh", "python"]


def test_secrets_survive_a_shell(tmp_path: Path) -> None:
    value = 'it\'s $HOME `id` "x"\nnext'
    path = tmp_path / "secrets"
    path.write_bytes(secret_lines({"KEY": value}))
    shell = f'. {shlex.quote(str(path))}; printf %s "$KEY"'
    found = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    assert found.stdout == value
