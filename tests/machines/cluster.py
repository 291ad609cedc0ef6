"""Three machines that are one cluster, as the tests of this folder use them: a coordinates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tests.kit.conditions import wait_until
from tests.kit.fleet import Fleet
from tests.kit.machines import Machine

ENDED = ("done", "failed", "cancelled")
SECONDS = 120.0  # for anything that takes some on an idle machine: three machines share this one

JOB = """
name = "{name}"
[run]
command = {command}
[resources]
nodes = {nodes}
workers_per_node = {workers}
{resources}
[network]
backend = "{backend}"
[policy]
{policy}
[output]
collect = ["out/**"]
"""

# Every node keeps a checkpoint of its own, as there is no shared file system; all go on from the
# latest step that every rank has. Each start leaves a line, so that a rank that ran twice shows.
TRAIN = """
import hashlib, os, sys, time
import torch
import torch.distributed as dist
from wiiiiided.torch.api import progress

steps, pause_s = int(sys.argv[1]), float(sys.argv[2])
dist.init_process_group("wiiiiide")
rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
attempt = os.environ["WIIIIIDE_ATTEMPT"]
def kept(name, how, write):
    with open(name, how) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    folder = os.open(".", os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)

kept("starts", "a", lambda file: file.write(f"{attempt} {rank}\\n"))
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

def saved(step):
    return f"step-{step}.pt"

have = max([int(n[5:-3]) for n in os.listdir() if n.startswith("step-")], default=0)
first = torch.tensor(have)
dist.all_reduce(first, dist.ReduceOp.MIN)
if first:
    state = torch.load(saved(int(first)))
    model.module.load_state_dict(state)
print(f"begins at {int(first)}", flush=True)
for step in range(int(first) + 1, steps + 1):
    torch.manual_seed(1000 * step + rank)
    x = torch.randn(16, 64)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    progress(step, total=steps, loss=loss.item(), samples=16)
    if local == 0:
        kept("new.pt", "wb", lambda file: torch.save(model.module.state_dict(), file))
        os.replace("new.pt", saved(step))
        if os.path.exists(saved(step - 5)):
            os.remove(saved(step - 5))
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    time.sleep(pause_s)
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print("digest", hashlib.sha256(weights).hexdigest(), flush=True)
os.makedirs("out", exist_ok=True)
with open(f"out/rank-{rank}", "w") as file:
    file.write(hashlib.sha256(weights).hexdigest())
dist.destroy_process_group()
"""


class Cluster:
    """The machines, and what people do there. Any of them will do for a command."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._folders = 0
        self.last_folder = ""

    def found(self) -> None:
        """Install, init and join, as the README has it."""
        with ThreadPoolExecutor(len(self.fleet.letters)) as pool:
            list(pool.map(self._install, self.fleet))
        line = self.fleet["a"].wiiiiide("init", "--cluster", "lab").stdout.strip()
        for letter in self.fleet.letters[1:]:
            self.join(letter, line)

    def _install(self, machine: Machine) -> None:
        machine.wiiiiide("service", "install")
        machine.run("useradd", "--create-home", "--groups", "wiiiiide", "ada")
        machine.run("useradd", "--create-home", "bob")

    def join(self, letter: str, line: str) -> None:
        """Run the line that init or token create has printed."""
        program, *words = line.split()
        assert program == "wiiiiide", line
        self.fleet[letter].wiiiiide(*words)

    # ---- jobs

    def submit(
        self,
        *command: str,
        at: str = "a",
        user: str = "ada",
        nodes: int | str = 3,
        workers: int = 1,
        policy: str = "",
        resources: str = "",
        backend: str = "wiiiiide",
        files: dict[str, str] | None = None,
    ) -> int:
        folder = self.folder(
            *(at, user, files or {"train.py": TRAIN}),
            name=f"job{self._folders}",
            command=json.dumps(command),
            nodes=json.dumps(nodes),
            workers=workers,
            policy=policy,
            resources=resources,
            backend=backend,
        )
        return self.submit_folder(folder, at, user)

    def submit_folder(self, folder: str, at: str = "a", user: str = "ada") -> int:
        done = self.fleet[at].wiiiiide("submit", "--json", f"{folder}/job.toml", user=user)
        return int(json.loads(done.stdout)["id"])

    def folder(self, at: str, user: str, files: dict[str, str], **job: Any) -> str:
        self._folders += 1
        folder = self.last_folder = f"/home/{user}/job{self._folders}"
        self.fleet[at].run("mkdir", folder, user=user)
        for name, text in {"job.toml": JOB.format(**job), **files}.items():
            self.fleet[at].write(f"{folder}/{name}", text, owner=user)
        return folder

    def train(self, steps: int, pause_s: float = 0.0, **how: Any) -> int:
        return self.submit("python", "train.py", str(steps), str(pause_s), **how)

    def training(self, pause_s: float = 0.2, **how: Any) -> int:
        """A job that trains, on and on; every node has its third checkpoint, or a later one."""
        job = self.train(100_000, pause_s, **how)
        # No rank is through with the fourth step before all have kept the third.
        self.until(job, lambda: self.steps(job) >= 4, "it has made four steps")
        return job

    def show(self, job: int, at: str = "a") -> dict[str, Any]:
        shown = self.fleet[at].wiiiiide("show", str(job), "--json").stdout
        found: dict[str, Any] = json.loads(shown)
        return found

    def view(self, job: int, at: str = "a") -> dict[str, Any]:
        found: dict[str, Any] = self.show(job, at)["job"]
        return found

    def pids(self, job: int) -> dict[str, list[int]]:
        """Of its ranks, by node, as soon as every node has told: `show` does not wait for long."""
        found: dict[str, list[int]] = {}

        def told() -> bool:
            found.clear()
            for rank in self.show(job)["ranks"]:
                found.setdefault(rank["node"], []).append(rank["pid"])
            return bool(found) and not any(None in pids for pids in found.values())

        self.until(job, told, "its nodes tell the pids of its ranks")
        return found

    def log(self, job: int, at: str = "a", *options: str) -> str:
        return self.fleet[at].wiiiiide("logs", *options, str(job)).stdout

    def steps(self, job: int) -> int:
        """The last that rank 0 has said."""
        return max(map(int, re.findall(r"step (\d+) loss", self.log(job))), default=0)

    def goes_on(self, job: int) -> None:
        """It makes steps."""
        before = self.steps(job)
        self.until(job, lambda: self.steps(job) > before + 2, "it goes on")

    def ended(self, job: int, within_s: float = SECONDS) -> dict[str, Any]:
        self.until(job, lambda: self.view(job)["state"] in ENDED, "it is over", within_s)
        return self.view(job)

    def running(self, job: int, attempt: int = 1) -> None:
        def so() -> bool:
            view = self.view(job)
            assert view["state"] not in ENDED, view["why"]
            return (view["attempt"], view["state"]) == (attempt, "running")

        self.until(job, so, f"attempt {attempt} runs")

    def until(
        self, job: int, condition: Callable[[], bool], what: str, within_s: float = SECONDS
    ) -> None:
        try:
            wait_until(condition, within_s, f"job {job}: {what}")
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.story(job)}") from None

    def story(self, job: int) -> str:
        """All that is known, for a test that failed: what cannot be had now is left out."""
        first = self.fleet["a"]
        asked: list[Callable[[], str]] = [
            lambda: first.wiiiiide("show", str(job), check=False).stdout,
            lambda: first.wiiiiide("logs", str(job), check=False).stdout[-4000:],
            *(lambda m=m: f"---- {m.name}\n{m.journal()[-6000:]}" for m in self.fleet),
        ]
        said = []
        for ask in asked:
            try:
                said.append(ask())
            except Exception as problem:  # the machine is off, or its daemon does not answer
                said.append(f"---- {problem}")
        return "\n".join(said)

    def starts(self, job: int, letter: str) -> list[str]:
        """`attempt rank`, a line for each start of a rank on that node."""
        path = f"/var/lib/wiiiiide-jobs/{job}/files/work/starts"
        return self.fleet[letter].run("cat", path, check=False).stdout.splitlines()

    # ---- machines

    def nodes(self, at: str = "a") -> dict[str, dict[str, Any]]:
        listed = json.loads(self.fleet[at].wiiiiide("nodes", "--json").stdout)["nodes"]
        return {one["node"]["name"]: one for one in listed}

    def all_there(self, within_s: float = SECONDS) -> None:
        """The machines of the fleet, and no others."""
        seen: dict[str, str] = {}

        def so() -> bool:
            seen.clear()
            seen.update(self._states())
            there = all(state in ("ok", "idle") for state in seen.values())
            return there and set(seen) == set(self.fleet.letters)

        try:
            wait_until(so, within_s, "every node is there")
        except AssertionError as problem:
            raise AssertionError(f"{problem}: {seen}") from None

    def _states(self) -> dict[str, str]:
        """As the coordinator has them; none while its daemon does not answer."""
        listed = self.fleet["a"].wiiiiide("nodes", "--json", check=False)
        if listed.returncode:
            return {}
        return {one["node"]["name"]: one["state"] for one in json.loads(listed.stdout)["nodes"]}

    def daemon(self, letter: str) -> int:
        return int(self.fleet[letter].show("MainPID"))

    def kill_daemon(self, letter: str) -> None:
        self.fleet[letter].run("kill", "-KILL", str(self.daemon(letter)))

    def segments(self, machine: Machine) -> str:
        return machine.run("ls", "/dev/shm").stdout

    @contextmanager
    def no_daemon(self, letter: str) -> Iterator[None]:
        """Its daemon is stopped meanwhile."""
        self.fleet[letter].run("systemctl", "stop", "wiiiiided")
        yield
        self.fleet[letter].run("systemctl", "start", "wiiiiided")

    # ---- after a test

    def reset(self) -> None:
        """In order again, whatever a test has done: all on, plugged in, members and no others, none
        drained, no job under way; and no defect in their logs."""
        for letter in self.fleet.letters:
            self.fleet.heal(letter)
            machine = self.fleet[letter]
            machine.thaw()  # first: nothing starts in a cgroup that is frozen
            if not machine.is_on():
                machine.boot()
            machine.run("systemctl", "reset-failed", "wiiiiided", check=False)
            machine.run("systemctl", "start", "wiiiiided")
        wait_until(lambda: "a" in self._states(), SECONDS, "the coordinator answers")
        self._found_again()
        self.all_there()
        wait_until(self._no_jobs, SECONDS, "no job is under way")
        self.nothing_left()
        for machine in self.fleet:
            machine.no_defects()

    def _found_again(self) -> None:
        """The members are those it was founded with."""
        first = self.fleet["a"]
        states = self.nodes()
        for name in set(states) - set(self.fleet.letters):
            first.wiiiiide("nodes", "remove", "--force", name)
        for letter in sorted(set(self.fleet.letters) - set(states)):
            # By force: the coordinator does not know it. It may be out already.
            self.fleet[letter].wiiiiide("leave", "--force", check=False)
            self.join(letter, first.wiiiiide("token", "create").stdout.strip())
        for name, one in self.nodes().items():
            if "drained by" in one["why"]:  # its state may be "lost" still
                first.wiiiiide("resume", name)

    def _no_jobs(self) -> bool:
        """Whether there is none; else those that there are, are cancelled. One may end by itself
        meanwhile, which cancel calls an error."""
        listed = json.loads(self.fleet["a"].wiiiiide("ps", "--json").stdout)["jobs"]
        if listed:
            ids = [str(job["id"]) for job in listed]
            self.fleet["a"].wiiiiide("cancel", "--now", *ids, check=False)
        return not listed

    def nothing_left(self) -> None:
        """A shim reports a job's end and then ends itself: a moment later."""
        for machine in self.fleet:
            what = f"nothing is left of jobs on {machine.name}"
            wait_until(lambda m=machine: not self.leftovers(m), SECONDS, what)

    def leftovers(self, machine: Machine) -> str:
        """Processes of jobs, and shared memory, that outlived them."""
        ranks = [f"{process}" for process in machine.processes_of("wiiiiide-job")]
        return "\n".join([*ranks, self.segments(machine)]).strip()
