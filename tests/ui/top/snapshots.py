"""Hand-made snapshots for screens: three nodes with a straggler, one machine, two hundred."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from tests.kit.fake_daemon import ended, line, view
from wiiiiided.cluster.rpc.messages import JobDetail, JobRow, Snapshot, StoryLine
from wiiiiided.domain.metrics import JobNow, NodeNow, RankNow, Rates, Straggler, TrainingMetrics
from wiiiiided.ui.top.ui import LogView

__all__ = ["ended", "job", "line", "node", "snapshot", "three", "view"]

AT = 1_000_000.0 + 2472  # 41 minutes and 12 seconds after the job began
GIB = 1 << 30
RATES = Rates(
    steps=3.22,
    samples=412.0,
    operations=51.2,
    shm=1.9e9,
    wire_out=61.2e6,
    wire_in=60.8e6,
    wire_out_raw=128e6,
    wire_in_raw=128e6,
    exchange=0.18,
    waiting=0.1,
)
HISTORY = (100.0, 180.0, 250.0, 330.0, 400.0, 410.0, 405.0, 412.0)


def node(name: str = "a", **changes: Any) -> NodeNow:
    """A node that works on job 17, changed as wanted."""
    fields: dict[str, Any] = {
        "name": name,
        "state": "ok",
        "cores": 8,
        "memory": 16 * GIB,
        "cpu": 0.71,
        "memory_used": 0.38,
        "rates": RATES,
        "codec": "lz4",
        "codec_why": "the link is slower than the codec",
        "jobs": (17,),
        "history": HISTORY,
        "unit": "samples/s",
    }
    return NodeNow(**{**fields, **changes})


def idle(name: str, **changes: Any) -> NodeNow:
    """A node without ranks."""
    nothing = {"rates": Rates(), "jobs": (), "codec": "", "codec_why": "", "history": ()}
    return node(name, **{"state": "idle", "cpu": 0.02, "unit": "op/s", **nothing, **changes})


def job(number: int = 17, now: bool = True, **changes: Any) -> JobRow:
    """A job that runs; with now=False its view alone."""
    shown = view(number, started_at=1_000_000.0, **changes)
    if not now:
        return JobRow(shown)
    return JobRow(shown, _now(number))


def _now(number: int, **changes: Any) -> JobNow:
    fields: dict[str, Any] = {"step": 7951, "total": 23460, "loss": 0.412, "eta_s": 4810.0}
    return JobNow(number, **{"rates": RATES, **fields, "memory": 3 * GIB, **changes})


def doing(number: int = 17, **changes: Any) -> JobRow:
    """A job that runs, with other figures."""
    return JobRow(job(number).job, _now(number, **changes))


def queued(number: int, **changes: Any) -> JobRow:
    waits = {"state": "queued", "started_at": None, "attempt": 0, "nodes": ()}
    return JobRow(view(number, **{**waits, "why": "waits for a, which runs job 17", **changes}))


def slow_job(**changes: Any) -> JobRow:
    """A job whose rank on c holds the others up."""
    row = job(17, nodes=("a", "b", "c"), why="runs on a b c", **changes)
    why = "rank 4 on c costs +41 % step time: the others wait 29 % of the time, it waits 0 %"
    return JobRow(row.job, _now(17, straggler=Straggler(4, "c", 0.41, why)))


def snapshot(*nodes: NodeNow, jobs: tuple[JobRow, ...] = (), **changes: Any) -> Snapshot:
    fields: dict[str, Any] = {"at": AT, "every_s": 1.0, "cluster": "lab"}
    return Snapshot(**{**fields, **changes}, nodes=nodes, jobs=jobs)


def three() -> Snapshot:
    """The screen of the sketch: a is the coordinator, c is slow."""
    slow = Rates(
        steps=3.22, samples=231.9, shm=1.9e9, wire_out=58.8e6, wire_in=59.3e6,
        wire_out_raw=124e6, wire_in_raw=124e6, exchange=0.04,
    )  # fmt: skip
    return snapshot(
        node("a", coordinator=True),
        node("b", cpu=0.69, memory_used=0.41),
        node("c", state="slow", note="swapping", rates=slow, cpu=0.99, memory_used=0.91),
        jobs=(slow_job(), queued(18, name="lm"), JobRow(ended(16, name="first"))),
    )


def alone() -> Snapshot:
    """One machine, as most have: nothing travels."""
    rates = Rates(steps=3.22, samples=412.0, operations=51.2, shm=1.9e9, exchange=0.18)
    return snapshot(node("box", rates=rates, codec="", codec_why=""), jobs=(job(),), cluster="box")


def many(count: int) -> Snapshot:
    nodes = tuple(node(f"node-{place:03}", cpu=place / 200) for place in range(count))
    return snapshot(*nodes, jobs=(job(17, why=f"runs on {count} nodes"), queued(18, name="lm")))


def with_lost() -> Snapshot:
    """b has been silent for a while, d for long, e is drained, f has nothing to do."""
    return snapshot(
        node("a", coordinator=True),
        node("b", age_s=7.0),
        node("d", state="lost", age_s=312.0, cpu=None, memory_used=None),
        idle("e", state="drained", note="fan broken"),
        idle("f"),
        jobs=(job(),),
    )


def troubled() -> Snapshot:
    """Three nodes: b is drained and works on, c is slow; and one that is not heard of any more."""
    nodes = {node.name: node for node in three().nodes}
    return snapshot(
        nodes["a"],
        node("b", state="drained", note="fan broken; swapping"),
        nodes["c"],
        node("d", state="lost", age_s=95.0, cpu=None, memory_used=None, rates=Rates(), history=()),
        jobs=(slow_job(),),
    )


def lost_one() -> Snapshot:
    """The job's third node is silent: what it did is not shown, and the job says what it waits
    for."""
    stalled = Rates(steps=0.0, samples=0.0, operations=0.0, exchange=1.0, waiting=1.0)
    why = (
        "runs on a b c; c has not been heard of for 40 s, and its share counts as running until "
        "it is (wiiiiide nodes lost c, if that machine is off for good)"
    )
    return snapshot(
        node("a", coordinator=True, rates=stalled),
        node("b", rates=stalled),
        node("c", state="lost", age_s=40.0, cpu=None, memory_used=None, rates=Rates(), history=()),
        jobs=(
            JobRow(
                job(17, nodes=("a", "b", "c"), why=why).job, _now(17, eta_s=None, rates=stalled)
            ),
        ),
    )


def nasty() -> Snapshot:
    """Names and reasons that try to leave their place."""
    return snapshot(
        node("漢字の機械", note="\x1b[2J\x1b]0;title\x07"),
        node("e\u0301\u0301clair\u202egnp", note="a\nb\tc"),
        node("👩‍👩‍👧‍👦 family", note="‮reversed"),
        jobs=(
            job(17, name="\x1b[31mred\r\n", why="漢" * 200),
            queued(18, name="[bold]x[/bold]", why="\x9b31m\u2028 two\tlines"),
        ),
        cluster="lab\x1b[0m",
    )


def mixed() -> Snapshot:
    """Two jobs whose scripts say different things: each node has its own unit."""
    return snapshot(
        node("a"),
        node("b", unit="step/s", jobs=(18,)),
        node("c", unit="op/s", jobs=(19,), rates=Rates(operations=51.2, exchange=0.5)),
        idle("d"),
        jobs=(job(17), job(18, name="lm"), job(19, name="bench")),
    )


def two_slow() -> Snapshot:
    """A straggler in each of two jobs: their lines say whose they are."""
    why = "rank 1 on vm costs +87 % step time: the others wait 51 % of the time, it waits 4 %"
    found = Straggler(1, "vm", 0.87, why)
    return snapshot(node("vm", state="slow"), jobs=(slow_job(), doing(18, straggler=found)))


def reporting() -> Snapshot:
    """A job whose script reports numbers by name, and whose ranks were looked at."""
    ranks = tuple(RankNow(n, "vm", RATES, memory=(n + 1) * GIB, cpu=0.9 + n) for n in range(2))
    said = {"accuracy": 0.9123, "lr": 1e-4, "grad_norm": None}
    now = doing(17, cpu=2.8, ranks=ranks, metrics=said)
    silent = {"step": None, "total": None, "loss": None, "eta_s": None}
    gloo = doing(18, cpu=1.0, rates=Rates(measured=False), **silent)
    return snapshot(node("vm"), jobs=(now, gloo))


def turns() -> Snapshot:
    """Ranks wait for each other, and for no one in particular."""
    why = "ranks take turns: they wait 31 % of the time in the mean, for no one rank"
    return snapshot(node("vm"), jobs=(doing(17, turns=why),))


def unmeasured() -> Snapshot:
    """Jobs over another backend, or none: only what scripts say is known."""
    said = Rates(steps=3.22, samples=412.0, measured=False)
    return snapshot(
        node("a", rates=said, codec=""),
        node("b", rates=Rates(measured=False), codec="", unit="op/s", history=(0.0, 0.0)),
        jobs=(doing(17, rates=said), doing(18, rates=Rates(measured=False))),
    )


# ---- a training on three machines, of which one is slow: the picture of the README

FAST = Rates(
    steps=10.93, samples=43.7, operations=32.8, shm=1.2e8, wire_out=24.9e6, wire_in=24.7e6,
    wire_out_raw=49.1e6, wire_in_raw=49.0e6, exchange=0.79, waiting=0.73, encode=0.02, decode=0.01,
)  # fmt: skip
LATE = replace(FAST, exchange=0.17, waiting=0.1, wire_out=24.7e6, wire_in=24.9e6)


def _past(place: int) -> tuple[float, ...]:
    """Throughput that is steady, with a dip that all share: they are in step."""
    dips = {20: 0.7, 21: 0.55, 22: 0.8, 45: 0.85}
    return tuple(43.7 * dips.get(at, 0.93 + 0.07 * math.sin(at + place / 9)) for at in range(60))


def training() -> Snapshot:
    nodes = (
        node("m1", coordinator=True, rates=FAST, history=_past(0), cpu=0.46, memory_used=0.22),
        node("m2", rates=FAST, history=_past(1), cpu=0.61, memory_used=0.48),
        node("m3", state="slow", rates=LATE, history=_past(2), cpu=0.97, memory_used=0.83),
    )
    ranks = tuple(
        RankNow(
            rank, f"m{rank + 1}", LATE if rank == 2 else FAST, 1430, 0.352, int(1.1e9 + rank * 5e7),
            cpu=1.9, waits_for=None if rank == 2 else 2,
        )
        for rank in range(3)
    )  # fmt: skip
    why = "rank 2 on m3 costs +170 % step time: the others wait 73 % of the time, it waits 10 %"
    row = doing(
        17, step=1430, total=3000, loss=0.352, eta_s=143.0, ranks=ranks, cpu=5.7,
        memory=int(3.45e9), straggler=Straggler(2, "m3", 1.7, why), metrics={"lr": 3e-4},
        rates=replace(FAST, samples=131.1),
    )  # fmt: skip
    place = {"nodes": ("m1", "m2", "m3"), "workers": 3}
    row = replace(row, job=replace(row.job, name="charlm", why="runs on m1 m2 m3", **place))
    waits = "waits for 2 nodes; 0 of 3 are free (m1, m2, m3 run job 17)"
    error = "ValueError: exploding gradients"
    why = f"on m2 rank 1 ended with exit code 1: {error}"  # as the daemon has it
    failed = replace(ended(15, "failed", 1, name="small", why=why), error=error, ended_at=AT - 190)
    over = replace(ended(14, name="ddp"), ended_at=AT - 1900)
    rows = (row, queued(18, name="next", why=waits), JobRow(failed), JobRow(over))
    return snapshot(*nodes, jobs=rows)


EVEN = replace(FAST, steps=3.0, samples=768.0, exchange=0.12, waiting=0.04)


def balanced() -> Snapshot:
    """The same where every machine takes by its speed, and gradients travel in int8."""
    found = training()
    row = found.jobs[0]
    assert row.now is not None
    shares = (0.4286, 0.4286, 0.1428)
    why = "3.94 times smaller, 0.71 % left for the next exchange"
    ranks = tuple(
        replace(
            rank, rates=replace(EVEN, samples=768 * shares[rank.rank]), waits_for=None,
            codec="int8", codec_why=why,
            training=TrainingMetrics(
                noise_scale=1890.0, share=shares[rank.rank], wanted_share=shares[rank.rank],
                speed_spread=3.0, balance_gain=2.33,
            ),
        )
        for rank in row.now.ranks
    )  # fmt: skip
    now = replace(row.now, ranks=ranks, straggler=None, rates=EVEN)
    nodes = tuple(
        replace(one, state="ok", cpu=0.97, codec="int8", codec_why=why, rates=rank.rates)
        for one, rank in zip(found.nodes, ranks, strict=True)
    )
    return replace(found, nodes=nodes, jobs=(replace(row, now=now), *found.jobs[1:]))


def rounds() -> Snapshot:
    """The same where hosts exchange seldom, and each makes as many steps as it can meanwhile."""
    found = balanced()
    row = found.jobs[0]
    assert row.now is not None
    told = tuple(
        replace(
            rank, step=1430 if rank.rank < 2 else 477,
            training=TrainingMetrics(
                share=rank.training.share, own_steps=True, round_compute=0.93,
                round_steps=16.0 if rank.rank < 2 else 5.0,
            ),
        )
        for rank in row.now.ranks
    )  # fmt: skip
    now = replace(row.now, ranks=told)
    return replace(found, jobs=(replace(row, now=now), *found.jobs[1:]))


def training_losses() -> dict[int, tuple[float, ...]]:
    curve = (0.34 + 3.8 * math.exp(-at / 40) + 0.06 * math.sin(at * at) for at in range(240))
    return {17: tuple(curve)}


def training_log() -> LogView:
    lines = []
    for at in range(40):
        step, where = 1040 + 10 * at, at % 3
        text = f"step {step} loss {0.34 + 30 / step + 0.004 * math.sin(at):.4f} lr 3.0e-04"
        lines.append(replace(line(text, rank=where, node=f"m{where + 1}"), at=AT - 40 + at))
    return LogView(17, tuple(lines))


def training_detail() -> JobDetail:
    said = ("submitted by ada", "starting on m1 m2 m3, attempt 1", "running on m1 m2 m3")
    story = tuple(StoryLine(AT - 2500 + 10 * at, text) for at, text in enumerate(said))
    spec = {"name": "charlm", "command": ["python", "train.py"], "resources": {"nodes": 3}}
    return JobDetail(training().jobs[0].job, spec, (), story, "/var/lib/wiiiiide-jobs/17")
