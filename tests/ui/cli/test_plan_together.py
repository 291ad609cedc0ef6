"""`wiiiiide plan` and real daemons: the script really runs, and nothing of it is left."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.kit.daemons import PrivateDaemon, private_cluster, private_daemon
from tests.ui.cli.kit import Program

SCRIPT = """
import os
import torch
import torch.distributed as dist
import wiiiiided.torch as wide

print("starts at", os.environ.get("WIIIIIDE_EVERY_START"), flush=True)
dist.init_process_group("wiiiiide")
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = wide.parallel(model, optimizer, save="ckpt/", save_every=1)
for step in range(int(os.environ["STEPS"])):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).pow(2).mean().backward()
    optimizer.step()
run.save()
left = os.listdir("ckpt") if os.path.exists("ckpt") else []
if os.environ.get("WIIIIIDE_PROBE") and left:
    raise RuntimeError(f"a trial has saved {left}")
dist.destroy_process_group()
"""
DIVIDED = """
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset
import wiiiiided.torch as wide

dist.init_process_group("wiiiiide")
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = wide.Batches(TensorDataset(torch.randn(6400, 64)), batch_size=64)
wide.parallel(model, optimizer, data=data)
while True:
    for (x,) in data:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""
JOB = """\
name = "digits"
[run]
command = ["python", "train.py"]
env = {{ STEPS = "{steps}" }}
[resources]
nodes = {nodes}
workers_per_node = {workers}
"""


def folder(path: Path, nodes: int, workers: int, steps: int, script: str = SCRIPT) -> str:
    (path / "job.toml").write_text(JOB.format(nodes=nodes, workers=workers, steps=steps))
    (path / "train.py").write_text(script)
    return str(path)


def is_empty(daemon: PrivateDaemon) -> bool:
    """Whether there is neither a job nor a file of one."""
    kept = [daemon.paths.jobs, daemon.paths.state / "archives"]
    files = [name for place in kept for name in os.listdir(place) if name[:1].isalnum()]
    return daemon.client.history() == () and not files


def test_a_script_is_tried_on_one_machine_and_leaves_nothing(tmp_path: Path) -> None:
    with private_daemon() as daemon:
        program = Program(str(daemon.home))
        job = folder(tmp_path, nodes=1, workers=2, steps=20)
        process = program.start("plan", job, "--yes", "--json")
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        found = json.loads(out)
        (row,) = found["rows"]
        assert row["why"] == "use one machine: there is no other"
        (machine,) = found["machines"]
        assert (machine["workers"], machine["samples"]) == (2, 64.0)
        assert found["gradient_bytes"] == 4 * (64 * 64 + 64)
        assert is_empty(daemon)
        kept = daemon.client.foretold("digits").plan
        assert kept is not None
        assert kept.rows[0].samples_per_s == row["samples_per_s"]
        program.close()


def test_ranks_that_divide_a_batch_are_timed_with_half_of_it_too(tmp_path: Path) -> None:
    with private_daemon() as daemon:
        program = Program(str(daemon.home))
        job = folder(tmp_path, nodes=1, workers=2, steps=0, script=DIVIDED)
        process = program.start("plan", job, "--yes", "--json")
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        (machine,) = json.loads(out)["machines"]
        assert machine["samples"] == pytest.approx(64, rel=0.02)  # ranks may halve a step apart
        assert machine["part_samples"] == pytest.approx(32, rel=0.02)
        assert 0 < machine["part_s"] < 10
        assert is_empty(daemon)
        program.close()


@pytest.mark.soak
def test_machines_of_a_cluster_are_tried_and_auto_begins_with_what_was_found(
    tmp_path: Path,
) -> None:
    with private_cluster(2) as (first, second):
        program = Program(str(second.home))  # on a member: the coordinator does it
        job = folder(tmp_path, nodes=2, workers=1, steps=10**9)
        process = program.start("plan", job, "--yes", "--json")
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        found = json.loads(out)
        assert len(found["machines"]) == 2
        assert len(found["links"]) == 1
        assert is_empty(first)
        kept = first.client.foretold("digits").plan
        assert kept is not None
        exact = [row for row in kept.rows if row.gradients == "exact"]  # as the job trains
        every = [row.every for row in exact if row.every > 1]
        number = int(program.run("submit", job, "--set", "run.env.STEPS=2").out)
        assert first.end_of(number, 120).state == "done"
        (said,) = {line for line in first.output(number) if line.startswith("starts at")}
        wanted = f"starts at {every[0]}@{kept.shape}" if every else "starts at None"
        assert said == wanted
        program.close()
