"""Three pretended machines under the state machine: they do what they are told, if they hear it.

    World (the coordinator) ── actions ──► Box   only while its link stands
                            ◄── reports ──       the rest waits for the next link

A box that has no link goes on with what it has. When its link stands again it is told what the
coordinator believes to be on it, says what is true, and ends what is not listed: as daemons do.
Here one can see what the control plane never can: what really runs, everywhere, at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.cluster.control.world import GIB, World
from wiiiiided.cluster.control import actions as a
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Attempt, Hung, Job, Running, Starting, Stopping
from wiiiiided.cluster.control.node_table import NodeRow
from wiiiiided.cluster.control.state import State
from wiiiiided.domain.node import Node
from wiiiiided.domain.states import ON_NODES

AttemptKey = tuple[int, int]  # job and attempt
LOST_S = 10.0  # so long the coordinator takes a box that is gone for one that is slow
SAME = ("3.11.7", "2.13.0", "0.6.0")


@dataclass
class Box:
    """A machine: what runs on it, and what it knows to have ended."""

    node: Node
    on: bool = True
    cabled: bool = True
    linked: bool = True
    alone_since: float = 0.0
    preparing: set[AttemptKey] = field(default_factory=set)
    running: dict[AttemptKey, Job] = field(default_factory=dict)
    stopping: set[AttemptKey] = field(default_factory=set)
    ended: dict[AttemptKey, tuple[int, bool]] = field(default_factory=dict)  # code, lost

    def end(self, key: AttemptKey, code: int, lost: bool = False) -> None:
        self.running.pop(key)
        self.stopping.discard(key)
        self.ended[key] = (code, lost)

    def stop(self, key: AttemptKey) -> None:
        self.preparing.discard(key)
        if key in self.running:
            self.stopping.add(key)
        else:
            self.ended.setdefault(key, (143, False))


class Fleet:
    """The coordinator on `a`, and the boxes."""

    def __init__(self, cores: list[int]) -> None:
        nodes = [Node(name, n, 8 * GIB) for name, n in zip("abc", cores, strict=False)]
        self.world = World(*nodes)
        self.boxes = {node.name: Box(node) for node in nodes}

    def feed(self, event: e.AnyEvent) -> None:
        self.do(self.world.feed(event))

    def do(self, actions: list[a.AnyAction]) -> None:
        for action in actions:
            box = self.boxes.get(getattr(action, "node", ""))
            if box is None or not box.linked:
                continue
            key = (action.id, getattr(action, "attempt", 0))
            match action:
                case a.PrepareWorkers():
                    box.preparing.add(key)
                case a.StartWorkers():
                    self.start(box, key)
                case a.StopWorkers():
                    box.stop(key)
                    self.report_ends(box)
                case _:
                    pass

    def start(self, box: Box, key: AttemptKey) -> None:
        box.preparing.discard(key)
        if key not in box.ended:  # its files are there: it was claimed before
            box.running[key] = self.world.job(key[0])

    # ---- what a box reports

    def report_ready(self, box: Box) -> None:
        for job, attempt in sorted(box.preparing):
            if box.linked:
                name = box.node.name
                self.feed(e.WorkersPrepared(self.world.now, job, attempt, name, *SAME))

    def report_started(self, box: Box) -> None:
        for job, attempt in sorted(box.running):
            if box.linked:
                self.feed(e.WorkersStarted(self.world.now, job, attempt, box.node.name))

    def report_ends(self, box: Box) -> None:
        for key, (code, lost) in sorted(box.ended.items()):
            if box.linked:
                name, now = box.node.name, self.world.now
                self.feed(e.WorkersEnded(now, *key, name, code, "it ended", lost))

    # ---- links

    def unlink(self, box: Box, *, noticed: bool = True) -> None:
        if box.linked:
            box.linked, box.alone_since = False, self.world.now
        box.cabled = False
        if noticed:
            self.feed(e.NodeLeft(self.world.now, box.node.name))

    def link(self, box: Box) -> None:
        """Reconciliation: what is listed is begun, followed or stopped; the rest is ended."""
        if not box.on or box.node.name not in self.boxes:
            return
        box.linked = box.cabled = True
        self.feed(e.NodeSeen(self.world.now, box.node))
        listed = {(job.id, job.attempt.number): job for job in self.believed(box)}  # type: ignore[union-attr]
        for key in [key for key in box.running if key not in listed]:
            box.end(key, 137)
        box.preparing &= set(listed)
        for key, job in listed.items():
            self.reconcile(box, key, job)
        self.report_ends(box)

    def believed(self, box: Box) -> list[Job]:
        name = box.node.name
        jobs = [job for job in self.world.state.jobs.values() if job.state in ON_NODES]
        return [job for job in jobs if job.attempt is not None and name in job.attempt.live]

    def reconcile(self, box: Box, key: AttemptKey, job: Job) -> None:
        attempt: Attempt | None = job.attempt
        assert attempt is not None
        match job.phase:
            case Starting() if not attempt.ordered:
                box.preparing.add(key)
            case Starting() if key not in box.running:
                self.start(box, key)
            case Running() | Hung() if key not in box.running:
                box.ended.setdefault(key, (143, True))
            case Stopping():
                box.stop(key)
            case _:
                pass

    def restart_coordinator(self) -> None:
        """All links are gone; what was stored is all there is, byte for byte."""
        old = self.world.state
        jobs = [again(job, Job) for job in old.jobs.values()]
        rows = [again(old.node_table.row(name), NodeRow) for name in old.nodes]
        self.world.state = State([old.nodes["a"]], jobs, rows, self.world.now)
        assert list(self.world.state.nodes.values()) == list(old.nodes.values())
        assert self.world.state.jobs == old.jobs
        assert self.world.state.claims == old.claims
        assert self.world.state.drained == old.drained
        for box in self.boxes.values():
            if box.linked:
                box.linked, box.alone_since = False, self.world.now
        self.link(self.boxes["a"])

    # ---- time and power

    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds
        for box in self.boxes.values():
            if not box.linked and seconds > LOST_S:
                self.unlink(box)
            for key, job in list(box.running.items()):
                alone_s = job.spec.policy.stop_alone_s
                alone = alone_s is not None and not box.linked
                if alone and self.world.now - box.alone_since >= (alone_s or 0.0):
                    box.end(key, 143)
        self.feed(e.Ticked(self.world.now))

    def power_off(self, box: Box) -> None:
        box.on = False
        box.preparing.clear()
        for key in list(box.running):
            box.end(key, 143, lost=True)
        self.unlink(box)

    # ---- what must always be true of what really runs

    def check(self) -> None:
        attempts: dict[int, set[int]] = {}
        for box in self.boxes.values():
            cores, alone = 0, 0
            for (number, attempt), job in box.running.items():
                attempts.setdefault(number, set()).add(attempt)
                assert job.attempt is not None
                cores += job.attempt.layout.on(box.node.name).cores
                alone += job.spec.resources.cores_per_worker is None
            assert cores <= box.node.cores, f"{box} has more than it has cores for"
            assert not alone or len(box.running) == 1, f"{box} should run one job"
        for number, found in attempts.items():
            assert len(found) == 1, f"job {number} runs twice: attempts {found}"


def again(value: Any, kind: Any) -> Any:
    """As the store gives it back."""
    found = msgspec.json.decode(msgspec.json.encode(value), type=kind)
    assert found == value
    return found
