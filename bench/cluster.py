"""What does a cluster of three machines cost: to start a job, to ship a folder, to exchange, idle?

Everything is what a person does: wiiiiide submit on one of three machines that were installed and
joined as the README says, on cables of 1 Gbit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lib import machine, measure, proc, program, report
from lib.fleet import FleetError
from lib.hosts import Traffic, require_hosts
from lib.measure import BYTES, RATIO, SECONDS, SHARE, Chapter, Measure, ratios
from lib.report import console

from tests.kit.fleet import Fleet
from tests.kit.machines import BIN
from tests.machines.cluster import Cluster

RATE = "1gbit"
NEEDED = {"systemd-nspawn": "systemd-container", "dbus-daemon": "dbus", "iperf3": "iperf3"}
FOLDER_BYTES = 20_000_000
NOTHING_LARGE = 200_000  # bytes: links and figures send less meanwhile
OVER_START_S, OVER_WIRE, EXCHANGE, IDLE = 1.5, 1.3, 1.03, 0.003  # what is asked
METHOD = (
    "Three machines: systemd booted by systemd-nspawn on one, a network namespace each, both"
    " directions of every cable shaped to 1 Gbit by tbf. They share the processors of the one. The"
    " median over rounds is held against what is asked. A start: from the beginning of `wiiiiide"
    " submit -f` on the first machine until it has shown a line of every rank, less the time in"
    " which the same interpreter prints one on all three at once without a daemon. Shipping: from"
    " the acknowledged submit, or the first bytes if they went before it, until as many bytes have"
    " left the first machine as two copies of the folder have; the wire's time is that many bytes"
    " at the rate that iperf3 found in the same run. The exchange: all_reduce of 25 MB over three"
    " ranks, the median call of each job, rounds alternating between the daemon and torchrun on"
    " the same machines. Idle: utime + stime of the daemons' stat over {idle:.0f} s with no job."
)
HELLO = "print('here', flush=True)\n"
EXCHANGE_SCRIPT = """
import json, time
import torch
import torch.distributed as dist

dist.init_process_group("wiiiiide")
noise = torch.randn(25_000_000 // 4)  # as gradients are: no codec makes it smaller
x = noise.clone()
times = []
for turn in range(CALLS + 3):
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(x)
    times.append(time.perf_counter() - begin)
    x.copy_(noise)
if dist.get_rank() == 0:
    print("TIMES", json.dumps(times[3:]), flush=True)
dist.destroy_process_group()
"""
PATIENCE_S = 120.0
JOB = """
name = "bench"
[run]
command = ["python", "script.py"]
[resources]
nodes = 3
workers_per_node = 1
"""


@dataclass(frozen=True)
class ClusterPlan:
    starts: int = 9
    ships: int = 5
    exchanges: int = 5
    calls: int = 15
    idle_s: float = 60.0


QUICK = ClusterPlan(3, 2, 3, 7, 5.0)


# ---- the machines, and what is done there


@contextmanager
def _founded(rate: str) -> Iterator[Cluster]:
    """A cluster of three machines whose cables carry `rate`."""
    with Fleet("abc", rate=rate) as fleet:
        cluster = Cluster(fleet)
        cluster.found()
        cluster.all_there()
        yield cluster


def _job_folder(cluster: Cluster, name: str, script: str) -> str:
    """A job file and its script on the first machine."""
    folder = f"/home/ada/{name}"
    first = cluster.fleet["a"]
    first.run("mkdir", "-p", folder, user="ada")
    first.write(f"{folder}/job.toml", JOB, owner="ada")
    first.write(f"{folder}/script.py", script, owner="ada")
    return folder


def _followed(cluster: Cluster, folder: str) -> list[tuple[float, str]]:
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


def _together(cluster: Cluster, commands: Sequence[Sequence[str]]) -> list[str]:
    """A command on each machine at the same time; what each printed."""
    running = [
        subprocess.Popen(
            each.command(*argv, user="ada"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for each, argv in zip(cluster.fleet, commands, strict=True)
    ]
    said = [process.communicate(timeout=PATIENCE_S) for process in running]
    for process, (_, errors) in zip(running, said, strict=True):
        if process.returncode:
            raise FleetError(f"a command of the comparison failed: {errors[-2000:]}")
    return [output for output, _ in said]


def _sent_bytes(cluster: Cluster, letter: str) -> int:
    """Through a machine's cable so far, as its kernel counts."""
    return int(Traffic.of(cluster.fleet.network.hosts[letter]).out_bytes)


def _wire_rate(cluster: Cluster) -> float:
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
            found = json.loads(done.stdout or "{}")
            if "error" not in found:
                return float(found["end"]["sum_received"]["bits_per_second"]) / 8
            time.sleep(0.1)
        raise FleetError(f"iperf3: {found['error']}")
    finally:
        server.kill()
        server.wait()


# ---- what is measured


def _starts(cluster: Cluster, plan: ClusterPlan) -> Chapter:
    folder = _job_folder(cluster, "hello", HELLO)
    whole, bare, over = [], [], []
    _followed(cluster, folder)  # the first one ships, and compiles what is imported
    for _ in range(plan.starts):
        begin = time.monotonic()
        lines = _followed(cluster, folder)
        last = max(at for at, line in lines if line.endswith("here"))
        whole.append(last - begin)
        begin = time.monotonic()
        _together(cluster, [[str(BIN / "python"), "-c", HELLO]] * 3)
        bare.append(time.monotonic() - begin)
        over.append(whole[-1] - bare[-1])
    return Chapter(
        "From submit to the first line of every rank",
        [
            Measure("submit -f on one, a line of each of three", SECONDS, whole),
            Measure("the interpreter alone, on all three at once", SECONDS, bare),
            Measure("what is on top of it", SECONDS, over, OVER_START_S),
        ],
    )


class _Counter:
    """Notes when a machine's cable began to carry something large, and when it had carried all."""

    def __init__(self, cluster: Cluster, letter: str, amount: int) -> None:
        self._cluster, self._letter = cluster, letter
        self._from = _sent_bytes(cluster, letter)
        self._amount = amount
        self.began: float | None = None
        self.reached: float | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def count(self) -> int:
        return _sent_bytes(self._cluster, self._letter) - self._from

    def _watch(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while self.reached is None and time.monotonic() < end:
            count = self.count
            if self.began is None and count > NOTHING_LARGE:
                self.began = time.monotonic()
            if count >= self._amount:
                self.reached = time.monotonic()
            time.sleep(0.002)

    def took(self, since: float) -> float:
        """From `since`, or from the first bytes if they went before it."""
        self._thread.join()
        if self.reached is None or self.began is None:
            raise FleetError("the folder has not arrived")
        return self.reached - min(since, self.began)


def _shipping(cluster: Cluster, plan: ClusterPlan) -> Chapter:
    folder = _job_folder(cluster, "large", HELLO)
    data = f"{folder}/data.bin"
    rate = _wire_rate(cluster)
    took, to_wire, again = [], [], []
    for _ in range(plan.ships):
        cluster.fleet["a"].run(
            *("dd", "if=/dev/urandom", f"of={data}", f"bs={FOLDER_BYTES}", "count=1"), user="ada"
        )
        counter = _Counter(cluster, "a", 2 * FOLDER_BYTES)
        job = _submitted(cluster, folder)
        took.append(counter.took(time.monotonic()))
        to_wire.append(took[-1] / (2 * FOLDER_BYTES / rate))
        cluster.ended(job)
        before = _sent_bytes(cluster, "a")
        cluster.ended(_submitted(cluster, folder))
        again.append(float(_sent_bytes(cluster, "a") - before))
    return Chapter(
        "A folder of 20 MB to two other machines",
        [
            Measure("from the acknowledged submit to the last byte", SECONDS, took),
            Measure("the same, next to the wire's time", RATIO, to_wire, OVER_WIRE),
            Measure("sent by the second submit, until its job is over", BYTES, again),
        ],
    )


def _submitted(cluster: Cluster, folder: str) -> int:
    argv = cluster.fleet["a"].command(BIN / "wiiiiide", "submit", f"{folder}/job.toml", user="ada")
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return int(done.stdout)


def _exchange(cluster: Cluster, plan: ClusterPlan) -> Chapter:
    script = EXCHANGE_SCRIPT.replace("CALLS", str(plan.calls))
    folder = _job_folder(cluster, "exchange", script)
    for letter in "bc":
        cluster.fleet[letter].run("mkdir", "-p", folder, user="ada")
        cluster.fleet[letter].write(f"{folder}/script.py", script, owner="ada")
    ours, theirs = [], []
    for turn in range(plan.exchanges):
        ours.append(_median("\n".join(line for _, line in _followed(cluster, folder))))
        theirs.append(_median(_together(cluster, _torchrun(cluster, folder, 29500 + turn))[0]))
    return Chapter(
        "all_reduce of 25 MB over three machines",
        [
            Measure("under the daemon", SECONDS, ours),
            Measure("under torchrun", SECONDS, theirs),
            Measure("the daemon's time, next to torchrun's", RATIO, ratios(ours, theirs), EXCHANGE),
        ],
    )


def _torchrun(cluster: Cluster, folder: str, port: int) -> list[list[str]]:
    head = cluster.fleet.address("a")
    return [
        [
            *(str(BIN / "torchrun"), "--nnodes=3", f"--node-rank={number}"),
            *(f"--master-addr={head}", f"--master-port={port}", f"{folder}/script.py"),
        ]
        for number in range(3)
    ]


def _median(said: str) -> float:
    line = next(line for line in said.splitlines() if "TIMES" in line)
    times = sorted(json.loads(line.partition("TIMES")[2]))
    return float(times[len(times) // 2])


def _idle(cluster: Cluster, plan: ClusterPlan) -> Chapter:
    pids = {m.name: m.host_pid(int(m.show("MainPID"))) for m in cluster.fleet}
    before = {name: proc.cpu_seconds(pid) for name, pid in pids.items()}
    time.sleep(plan.idle_s)
    shares = {
        name: (proc.cpu_seconds(pid) - before[name]) / plan.idle_s for name, pid in pids.items()
    }
    measures = [
        Measure(f"{'coordinator' if name == 'a' else 'member'} {name}", SHARE, [share], IDLE)
        for name, share in shares.items()
    ]
    return Chapter("Processor time of idle daemons", measures)


def _run(plan: ClusterPlan, say: Callable[[str], None]) -> list[Chapter]:
    with _founded(RATE) as cluster:
        chapters = []
        for what in (_starts, _shipping, _exchange, _idle):
            say(what.__name__.strip("_"))
            chapters.append(what(cluster, plan))
    return chapters


def main() -> int:
    given = program.arguments(program.parser(__doc__ or ""))
    require_hosts(NEEDED)
    plan = QUICK if given.quick else ClusterPlan()
    about, screen = machine.about(), console()
    with report.progress(screen) as say:
        chapters = _run(plan, say)
    method = METHOD.format(idle=plan.idle_s)
    result = measure.result("cluster", about, method, chapters, not given.quick)
    report.finish(result, given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
