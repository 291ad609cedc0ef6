"""The jobs of one `wiiiiide plan`: the user's script on each machine alone, then the links.

    machines()   a job a machine, at the same time; until every rank has said what its steps take
    links()      one job on all of them, a program of ours (wiiiiided/torch/link_probe)
    the end      what is left of them is ended at once, and forgotten with its files

They are ordinary jobs, so what runs has its turn first, and the machines look after them if this
program is killed: they end by themselves (policy.max_time), and are forgotten a minute later.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from wiiiiided.cluster.archive.pack import Packed, pack
from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.cluster.control.placement import workers_on
from wiiiiided.cluster.rpc.messages import JobReason
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.domain.limits import MAX_NAME
from wiiiiided.domain.node import Node
from wiiiiided.domain.plan import (
    LINKS,
    PROBE,
    SCRIPT,
    MachineProbe,
    PairLine,
    PairProbe,
    RankLine,
    ScriptFacts,
    read_line,
)
from wiiiiided.domain.spec import JobSpec, Notify, Output, Policy, Resources, Run
from wiiiiided.domain.states import ENDED
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.screen import say

Line = TypeVar("Line")

RUN_S = 90.0  # of a script, within which it makes its steps
MORE_S = 15.0  # for steps of half a batch, when those of whole ones were measured; within RUN_S
LINKS_S = (4.0, 20.0)  # of transfers, at least and at most; three a round
LOOK_S = 0.5
TAIL = 400  # lines of a rank that are looked through: it repeats what it says
END_S = 20.0  # for the end of the trial's jobs


class TrialJob(NamedTuple):
    """One job, and how many of its ranks, or pairs, have something to say."""

    id: int
    nodes: tuple[str, ...]
    speakers: int
    lasts_s: float


class TrialRun:
    """The trial's jobs; `close` removes them, and more may be started afterwards."""

    def __init__(self, client: Client, spec: JobSpec, archive: Packed) -> None:
        self._client, self._spec, self._archive = client, spec, archive
        self._jobs: list[int] = []
        self._waits: set[tuple[int, str]] = set()  # job and state of what was told

    def close(self) -> None:
        """End the jobs, in a thread: a machine that is away may keep one from ending for long."""
        ending = threading.Thread(target=self._end, daemon=True)
        ending.start()
        ending.join(END_S)
        if self._jobs:
            numbers = ", ".join(map(str, self._jobs))
            say(f"note: job {numbers} of the trial could not be removed yet: it ends by itself")

    def _end(self) -> None:
        jobs = list(self._jobs)
        try:
            for _ in self._client.cancel_all(jobs, now=True):
                pass  # a job that is over is refused, which does no harm
        except ClientError as problem:
            say(f"note: {problem}")
        for job in jobs:  # a job that stays is no reason to leave the others
            try:
                self._client.forget_trial(job)
                self._jobs.remove(job)
            except ClientError as problem:
                say(f"note: {problem}")

    # ---- what is measured

    def machines(self, nodes: Sequence[Node]) -> tuple[list[MachineProbe], ScriptFacts]:
        """Measure each machine alone with the script, all at the same time."""
        jobs = {}
        for node in nodes:
            spec = script_spec(self._spec, node.name)
            workers = workers_on(spec, node)
            made = self._client.submit(spec, self._archive, {})
            self._jobs.append(made.id)
            jobs[node.name] = TrialJob(made.id, (node.name,), workers, RUN_S)
        said = self._heard(list(jobs.values()), self._rank_lines)
        found = {name: said[job.id] for name, job in jobs.items()}
        return [machine(name, lines) for name, lines in found.items()], facts(found)

    def links(self, nodes: Sequence[Node], gradient_bytes: int) -> list[PairProbe]:
        """Measure the links of every pair of machines."""
        if len(nodes) == 1:
            return []
        names = tuple(node.name for node in nodes)
        least, most = LINKS_S
        budget_s = min(most, max(least, 3.0 * (len(nodes) - 1)))
        spec = links_spec(self._spec, names, gradient_bytes, budget_s)
        with tempfile.TemporaryDirectory() as empty:
            packed = pack(empty)
            try:
                made = self._client.submit(spec, packed, {})
            finally:
                packed.remove()
        self._jobs.append(made.id)
        pairs = len(nodes) * (len(nodes) - 1) // 2
        job = TrialJob(made.id, names, pairs, RUN_S + 3 * budget_s)
        # The order of ranks, and so of machines, is the daemon's.
        lines = self._heard([job], self._pair_lines)[made.id]
        order = self._client.show(made.id).job.nodes
        return [
            PairProbe(order[one.a], order[one.b], one.fixed_s, one.byte_s, one.bits_per_s)
            for one in lines
            if isinstance(one, PairLine) and max(one.a, one.b) < len(order)
        ]

    # ---- how

    def _heard(
        self, jobs: Sequence[TrialJob], lines: Callable[[int], list[Line]]
    ) -> dict[int, list[Line]]:
        """The lines of each job's ranks, once all have come."""
        found: dict[int, list[Line]] = {}
        since: dict[tuple[int, str], float] = {}  # by job, and what it has begun
        while True:
            for job in jobs:
                if job.id in found:
                    continue
                now = self._client.why(job.id)
                said = lines(job.id) if now.state not in ("queued", "starting") else []
                if len(said) < job.speakers:
                    self._check(job, now, since)
                elif not self._is_awaited(job, now, said, since):
                    found[job.id] = said
            if len(found) == len(jobs):
                return found
            time.sleep(LOOK_S)

    def _is_awaited(
        self,
        job: TrialJob,
        now: JobReason,
        said: Sequence[object],
        since: dict[tuple[int, str], float],
    ) -> bool:
        """Whether a rank measures more, and may go on: the lines of all are enough without that."""
        if now.state in ENDED or not any(isinstance(one, RankLine) and one.more for one in said):
            return False
        at = time.monotonic()
        measured, runs = since.setdefault((job.id, "more"), at), since.get((job.id, "running"), at)
        return at - measured <= MORE_S and at - runs <= job.lasts_s

    def _check(self, job: TrialJob, now: JobReason, since: dict[tuple[int, str], float]) -> None:
        """Raise CommandFailed if this job cannot give a result any more."""
        where = " ".join(job.nodes)
        if now.state in ENDED:
            raise CommandFailed(FAILED, _ended(where, now, self._spec.run.pass_env))
        if now.state == "queued":
            self._say_once(now, f"the trial on {where} waits for its turn")
            return
        # The folder is shipped while a job starts: over a slow link that takes as long as it takes.
        starts = now.state == "starting"
        begun = since.setdefault((job.id, "starting" if starts else "running"), time.monotonic())
        if time.monotonic() - begun <= job.lasts_s:
            return
        self._check_away(job)
        if not starts:
            raise CommandFailed(FAILED, self._late(job, where, now))
        self._say_once(now, f"the trial on {where} has not begun yet")

    def _say_once(self, now: JobReason, waits: str) -> None:
        if (now.id, now.state) not in self._waits:
            self._waits.add((now.id, now.state))
            say(f"{waits}: {now.why}; Ctrl-C gives it up")

    def _check_away(self, job: TrialJob) -> None:
        for view in self._client.nodes().nodes:
            if view.node.name in job.nodes and view.state == "lost":
                raise CommandFailed(
                    FAILED, f"{view.node.name} is away: {view.why}; plan without it (--nodes)"
                )

    def _late(self, job: TrialJob, where: str, now: JobReason) -> str:
        if job.lasts_s > RUN_S:
            return f"{where} did not measure their links within {job.lasts_s:.0f} s: {now.why}"
        return (
            f"the script made no steps on {where} that could be measured within {RUN_S:.0f} s: "
            "does it step an optimizer of torch, and is the start before it quick enough? It sees "
            f"{PROBE}=1 in its environment, and may do less then"
        )

    def _rank_lines(self, job: int) -> list[RankLine]:
        latest: dict[int, RankLine] = {}
        for line in self._client.logs(job, tail=TAIL):
            if isinstance(found := read_line(line.text), RankLine):
                latest[line.rank] = found
        return list(latest.values())

    def _pair_lines(self, job: int) -> list[PairLine]:
        found = (read_line(line.text) for line in self._client.logs(job, tail=TAIL))
        return [line for line in found if isinstance(line, PairLine)]


def _ended(where: str, now: JobReason, pass_env: Sequence[str]) -> str:
    if now.state == "done":
        return (
            f"the script ended on {where} before its steps could be measured: the trial needs some "
            "seconds of them"
        )
    failed = f"the trial failed on {where}: {now.error or now.why}"
    if missed := [name for name in pass_env if name in now.error]:
        return (
            f"{failed}: a trial does not get run.pass_env, and so no {missed[0]}; with {PROBE}=1 "
            "in its environment the script may do without"
        )
    return failed


# ---- what is run, and what was said. Pure


def script_spec(spec: JobSpec, node: str) -> JobSpec:
    """The user's job on one machine, without anything that others would notice."""
    run = replace(spec.run, pass_env=(), env={**spec.run.env, PROBE: SCRIPT})
    resources = replace(spec.resources, nodes=(1, 1), use=(node,), avoid=())
    return _quiet(spec, run, resources, 2 * RUN_S)


def links_spec(
    spec: JobSpec, names: tuple[str, ...], gradient_bytes: int, budget_s: float
) -> JobSpec:
    """The program that times links, with as many ranks on each machine as the job has."""
    module = ("-m", "wiiiiided.torch.link_probe", str(gradient_bytes), f"{budget_s:g}")
    # A job over gloo may have an interpreter without this package.
    python = spec.run.python if spec.network.backend == "wiiiiide" else None
    run = Run(("python", *module), python=python, env={**spec.run.env, PROBE: LINKS})
    resources = replace(spec.resources, nodes=(len(names), len(names)), use=names, avoid=())
    return _quiet(spec, run, resources, 2 * (RUN_S + 3 * budget_s))


def _quiet(spec: JobSpec, run: Run, resources: Resources, max_time_s: float) -> JobSpec:
    policy = Policy(priority=spec.policy.priority, max_time_s=max_time_s, warn_before_s=0.0)
    name = f"plan: {spec.name}"[:MAX_NAME]
    return replace(
        spec,
        name=name,
        run=run,
        resources=resources,
        policy=policy,
        output=Output(log=spec.output.log),
        notify=Notify(),
    )


def machine(name: str, lines: Sequence[RankLine]) -> MachineProbe:
    """A machine's ranks together: the slowest one's step, the sum of their samples."""
    have_parts = all(line.part_s > 0 for line in lines)
    return MachineProbe(
        name,
        len(lines),
        max(line.step_s for line in lines),
        sum(line.samples for line in lines),
        max(line.memory for line in lines),
        max(line.part_s for line in lines) if have_parts else 0.0,
        sum(line.part_samples for line in lines) if have_parts else 0.0,
    )


def facts(found: dict[str, list[RankLine]]) -> ScriptFacts:
    """Facts of the script, from the first rank."""
    first, *others = (line for lines in found.values() for line in lines)
    return ScriptFacts(
        first.gradient_bytes,
        first.way,
        first.coded,
        first.fixed,
        any(line.shares for line in (first, *others)),
        first.shape,
        first.data,
        any(line.global_batch for line in (first, *others)),
        first.gradients,
        first.every,
    )
