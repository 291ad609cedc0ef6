"""Three machines on a shaped wire, installed and joined as the README says: cluster.py's ground.

The machines are those of the tests (tests/kit/fleet): systemd booted by nspawn, a network namespace
each, tbf on every cable.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lib.fleet import FleetError
from lib.hosts import Traffic
from tests.kit.fleet import Fleet
from tests.kit.machines import BIN
from tests.machines.cluster import Cluster

__all__ = ["BIN", "Cluster", "FleetError"]  # for cluster.py, besides what is below

PATIENCE_S = 120.0
JOB = """
name = "bench"
[run]
command = ["python", "script.py"]
[resources]
nodes = 3
workers_per_node = 1
"""


@contextmanager
def founded(rate: str) -> Iterator[Cluster]:
    """A cluster of three machines whose cables carry `rate`."""
    with Fleet("abc", rate=rate) as fleet:
        cluster = Cluster(fleet)
        cluster.found()
        cluster.all_there()
        yield cluster


def job_folder(cluster: Cluster, name: str, script: str) -> str:
    """A job file and its script on the first machine."""
    folder = f"/home/ada/{name}"
    machine = cluster.fleet["a"]
    machine.run("mkdir", "-p", folder, user="ada")
    machine.write(f"{folder}/job.toml", JOB, owner="ada")
    machine.write(f"{folder}/script.py", script, owner="ada")
    return folder


def followed(cluster: Cluster, folder: str) -> list[tuple[float, str]]:
    """Run a job to its end; each line of its ranks, with the moment it came."""
    argv = cluster.fleet["a"].command(
        BIN / "wiiiiide", "submit", "-f", f"{folder}/job.toml", user="ada"
    )
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [(time.monotonic(), line.rstrip("\n")) for line in process.stdout]
        said = process.stderr.read()
    if process.returncode:
        raise FleetError(f"the job in {folder} ended with {process.returncode}: {said}")
    return lines


def together(cluster: Cluster, commands: Sequence[Sequence[str]]) -> list[str]:
    """A command on each machine at the same time; what each printed."""
    running = [
        subprocess.Popen(
            machine.command(*argv, user="ada"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for machine, argv in zip(cluster.fleet, commands, strict=True)
    ]
    said = [process.communicate(timeout=PATIENCE_S) for process in running]
    for process, (_, errors) in zip(running, said, strict=True):
        if process.returncode:
            raise FleetError(f"a command of the comparison failed: {errors[-2000:]}")
    return [output for output, _ in said]


def sent_bytes(cluster: Cluster, letter: str) -> int:
    """Through a machine's cable so far, as its kernel counts."""
    return int(Traffic.of(cluster.fleet.network.hosts[letter]).out_bytes)


def wire_rate(cluster: Cluster) -> float:
    """Payload bytes a second from the first machine to the second, as iperf3 measures it."""
    server = subprocess.Popen(
        cluster.fleet["b"].command("iperf3", "--server", "--one-off"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        address = cluster.fleet.address("b")
        client = ["iperf3", "--client", address, "--time", "2", "--json"]
        for _ in range(50):
            done = cluster.fleet["a"].run(*client, check=False)
            report = json.loads(done.stdout or "{}")
            if "error" not in report:
                return float(report["end"]["sum_received"]["bits_per_second"]) / 8
            time.sleep(0.1)
        raise FleetError(f"iperf3: {report['error']}")
    finally:
        server.kill()
        server.wait()
