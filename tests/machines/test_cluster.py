"""Three machines as one: the main path, from any of them."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.kit.conditions import wait_until
from tests.machines.cluster import SECONDS, Cluster

pytestmark = [pytest.mark.needs("root", "machines", "disks", "ip"), pytest.mark.timeout(600)]
PORT = 9461


def test_three_machines_train_one_model(cluster: Cluster) -> None:
    job = cluster.train(30, at="b", workers=2)
    assert cluster.ended(job)["state"] == "done", cluster.story(job)
    log = cluster.log(job, "c")
    digests = re.findall(r"digest (\w{64})", log)
    assert len(digests) == 6
    assert len(set(digests)) == 1
    assert {line.split(" ")[0] for line in log.splitlines()} == {
        *("a:0", "a:1", "b:2", "b:3", "c:4", "c:5")
    }
    assert cluster.view(job, "c")["nodes"] == ["a", "b", "c"]
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", log)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("backend", ["gloo"])
def test_another_backend_finds_its_way(cluster: Cluster, backend: str) -> None:
    script = (
        "import os, torch, torch.distributed as dist\n"
        f"dist.init_process_group({backend!r})\n"
        "x = torch.ones(1); dist.all_reduce(x); print('sum', x.item(), flush=True)\n"
        "dist.destroy_process_group()\n"
        "os._exit(0)  # gloo's threads may abort the process while the interpreter ends\n"
    )
    job = cluster.submit("python", "sum.py", files={"sum.py": script}, backend=backend)
    assert cluster.ended(job)["state"] == "done", cluster.story(job)
    assert cluster.log(job).count("sum 3.0") == 3


@pytest.mark.needs("debian-python")
def test_it_runs_on_the_python_it_was_given(cluster: Cluster) -> None:
    """And every test of a cluster ends with a look for defects in the logs."""
    for machine in cluster.fleet:
        program = machine.run("readlink", f"/proc/{machine.show('MainPID')}/exe").stdout.strip()
        assert program == str(machine.python)


def test_any_machine_shows_all_of_them(cluster: Cluster) -> None:
    job = cluster.training()
    for letter in "abc":
        machine = cluster.fleet[letter]

        def complete(letter: str = letter) -> bool:
            top = cluster.fleet[letter].wiiiiide("top", "--once", "--json", check=False)
            if top.returncode:
                return False  # the coordinator did not answer in time
            seen = json.loads(top.stdout)
            nodes = {node["name"]: node for node in seen["nodes"]}
            now = seen["jobs"][0]["now"] if seen["jobs"] else None
            ranks = now["ranks"] if now else []
            return (
                set(nodes) == set("abc")
                and all(node["state"] in ("ok", "slow") for node in nodes.values())
                and [rank["node"] for rank in ranks] == ["a", "b", "c"]
            )

        wait_until(complete, SECONDS, f"top on {letter} shows three nodes and their ranks")
        screen = machine.wiiiiide("top", "--once").stdout
        assert "3/3 nodes" in screen
        listed = json.loads(machine.wiiiiide("ps", "--json").stdout)["jobs"]
        assert [one["id"] for one in listed] == [job]
        assert set(cluster.nodes(letter)) == set("abc")
    cluster.fleet["c"].wiiiiide("cancel", str(job))
    report = cluster.fleet["b"].wiiiiide("report", str(job)).stdout
    assert all(re.search(rf"\b{letter}\b", report) for letter in "abc")


def test_logs_are_followed_from_another_machine(cluster: Cluster) -> None:
    job = cluster.train(40, 0.05, at="a")
    c = cluster.fleet["c"]
    followed = subprocess.run(
        c.command(c.bin / "wiiiiide", "logs", "-f", str(job)),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )
    assert followed.stdout.count("digest") == 3
    assert "step 40 loss" in followed.stdout
    assert re.search(r"^b:1 │ begins at 0", followed.stdout, re.MULTILINE)


def test_a_job_is_cancelled_from_another_machine_and_nothing_is_left(cluster: Cluster) -> None:
    job = cluster.training()
    cluster.fleet["c"].wiiiiide("cancel", str(job))
    assert cluster.view(job)["state"] == "cancelled"
    cluster.nothing_left()


def test_a_job_belongs_to_its_user_on_its_machine(cluster: Cluster) -> None:
    job = cluster.training(at="b")
    refused = cluster.fleet["c"].wiiiiide("cancel", str(job), user="ada", check=False)
    assert refused.returncode == 5
    assert "ada" in refused.stderr
    assert cluster.view(job)["state"] == "running"
    cluster.fleet["b"].wiiiiide("cancel", str(job), user="ada")


def test_outputs_come_back_from_all_machines(cluster: Cluster) -> None:
    job = cluster.train(3)
    cluster.ended(job)
    machine = cluster.fleet["b"]
    machine.wiiiiide("pull", str(job), user="ada", cwd="/home/ada")
    found = machine.run("ls", f"/home/ada/job-{job}/out").stdout.split()
    assert found == ["rank-0", "rank-1", "rank-2"]


def test_outputs_are_there_when_their_machine_is_off(cluster: Cluster) -> None:
    job = cluster.train(3)
    cluster.ended(job)
    home = "outputs of b, c brought back"
    cluster.until(job, lambda: home in cluster.fleet["a"].wiiiiide("show", str(job)).stdout, home)
    cluster.fleet["c"].shut_down()
    machine = cluster.fleet["b"]
    machine.wiiiiide("pull", "-o", "home", str(job), user="ada", cwd="/home/ada")
    assert machine.run("ls", "/home/ada/home/out").stdout.split() == ["rank-0", "rank-1", "rank-2"]


def test_nothing_of_a_job_listens_but_the_one_port(cluster: Cluster) -> None:
    cluster.training(workers=2)
    for letter in cluster.fleet.letters:
        own = (cluster.fleet.address(letter), PORT)
        assert cluster.fleet.network.hosts[letter].listeners() == [own]


def test_the_second_submit_ships_nothing(cluster: Cluster) -> None:
    files = {"train.py": "print('here', flush=True)", "data.bin": "x" * 3_000_000}
    before = _received(cluster, "c")
    cluster.ended(cluster.submit("python", "train.py", files=files))
    between = _received(cluster, "c")
    assert between - before > 3_000_000
    job = cluster.submit_folder(cluster.last_folder)
    assert cluster.ended(job)["state"] == "done", cluster.story(job)
    assert _received(cluster, "c") - between < 1_000_000


def _received(cluster: Cluster, letter: str) -> int:
    path = "/sys/class/net/eth0/statistics/rx_bytes"
    return int(cluster.fleet[letter].run("cat", path).stdout)


def test_a_drained_machine_gets_no_new_jobs(cluster: Cluster) -> None:
    cluster.fleet["b"].wiiiiide("drain", "c", "fan broken")
    try:
        assert cluster.nodes()["c"]["state"] == "drained"
        job = cluster.submit("python", "-c", "print(1)", nodes="1-3")
        assert cluster.ended(job)["nodes"] == ["a", "b"]
        waiting = cluster.submit("python", "-c", "print(1)", nodes=3)
        why = cluster.fleet["a"].wiiiiide("why", str(waiting)).stdout
        assert "c" in why
        assert "fan broken" in why
    finally:
        cluster.fleet["a"].wiiiiide("resume", "c")
    assert cluster.ended(waiting)["state"] == "done"
