"""Runs as the daemon would have kept them, made by hand: their figures mean nothing."""

from __future__ import annotations

import math
from typing import Any

from msgspec.structs import replace

from tests.kit.fake_daemon import ended
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.metrics import Point, RankRecord, RankSample, Rates, RunRecord

HOSTILE = "<script>alert(1)</script>\"'&\u202egnp.exe\x1b[31m\x00" + "n" * 10_000
MIB = 1 << 20


def sample(rank: int = 0, **changes: Any) -> RankSample:
    """A rank that has run for 100 s: 20 of them in exchange, 5 of these waiting."""
    fields: dict[str, Any] = {
        "rank": rank,
        "at": 100.0,
        "pid": 4711 + rank,
        "operations": 4000,
        "failed": 0,
        "shm_bytes": 800 * MIB,
        "wire_out": 60 * MIB,
        "wire_in": 61 * MIB,
        "wire_out_raw": 100 * MIB,
        "wire_in_raw": 100 * MIB,
        "exchange_s": 20.0,
        "waiting_s": 5.0,
        "encode_s": 1.5,
        "decode_s": 0.5,
        "waited_for": {1 - rank % 2: 4.0},
        "codec": "lz4",
        "codec_why": "the link is slower than lz4",
        "step": 1000,
        "total": 1000,
        "samples": 32_000,
        "loss": 0.412,
    }
    return RankSample(**{**fields, **changes})


def rank(number: int = 0, node: str = "a", held_s: float = 0.0, **changes: Any) -> RankRecord:
    return RankRecord(number, node, sample(number, **changes), 300 * MIB, held_s)


def point(at: float, span: float = 1.0, **changes: Any) -> Point:
    """A stretch that ends at `at`: loss falls, the rate wobbles."""
    rates = Rates(
        steps=10.0 + math.sin(at / 7),
        samples=320.0 + 32 * math.sin(at / 7),
        operations=40.0,
        wire_out=1.2 * MIB,
        wire_out_raw=2.0 * MIB,
        exchange=0.2,
        waiting=0.05,
    )
    fields: dict[str, Any] = {
        "rates": rates,
        "step": int(10 * at),
        "loss": 0.4 + 2 * math.exp(-at / 20),
        "memory": int(600 * MIB + at * MIB),
        "straggler": None,
    }
    return Point(at, span, **{**fields, **changes})


def run(attempt: int = 1, **changes: Any) -> RunRecord:
    """An attempt of 100 s on two nodes, looked at all the time."""
    fields: dict[str, Any] = {
        "job": 17,
        "name": "digits",
        "attempt": attempt,
        "nodes": ("a", "b"),
        "workers": 4,
        "started_at": 1_000_010.0,
        "ended_at": 1_000_110.0,
        "state": "done",
        "code": 0,
        "observed_s": 100.0,
        "points": tuple(point(float(at)) for at in range(1, 101)),
        "ranks": tuple(rank(number, "ab"[number // 2]) for number in range(4)),
    }
    return RunRecord(**{**fields, **changes})


def records(*runs: RunRecord, **changes: Any) -> m.JobRecords:
    """A job that is done, with these attempts; `changes` are of the job."""
    told = (
        m.StoryLine(1_000_000.0, "was submitted by ada"),
        m.StoryLine(1_000_010.0, "is being started on a"),
        m.StoryLine(1_000_110.0, "done"),
    )
    story = changes.pop("story", told)
    fields = {"attempt": len(runs), "nodes": ("a", "b"), "workers": 4}
    spec = {"name": "digits", "run": {"command": ["python", "train.py", "a b"]}}
    return m.JobRecords(ended(17, **{**fields, **changes}), story, runs, spec)


def restarted(name: str = "digits", nodes: str = "abc") -> m.JobRecords:
    """Two attempts: the first failed, in the second the daemon was away and rank 4 is slow."""
    first = run(
        ended_at=1_000_050.0,
        state="failed",
        code=137,
        reason="rank 3 was killed by SIGKILL",
        name=name,
        points=tuple(point(float(at)) for at in range(1, 41)),
    )
    seen = [at for at in range(1, 301) if not 120 < at < 160]
    slow = dict.fromkeys((*range(60, 110), *range(200, 290)), 4) | dict.fromkeys(range(30, 36), 1)
    second = run(
        2,
        name=name,
        started_at=1_000_070.0,
        ended_at=1_000_370.0,
        nodes=tuple(nodes),
        workers=6,
        observed_s=260.0,
        points=tuple(point(float(at), straggler=slow.get(at)) for at in seen),
        ranks=tuple(
            rank(
                number,
                nodes[number // 2],
                138.0 if number == 4 else 5.0 * (number == 1),
                exchange_s=28.0 if number == 4 else 80.0,
                waiting_s=3.0 if number == 4 else 55.0,
                waited_for={4: 52.0} if number != 4 else {1: 2.0},
                samples=60_000 - 20_000 * (number >= 4),
                step=3000 - number // 3,
            )
            for number in range(6)
        ),
    )
    return records(first, second, name=name, nodes=tuple(nodes), workers=6)


def unmeasured() -> m.JobRecords:
    """A job of another backend: its counters say nothing, whatever stands in them."""
    seen = tuple(
        replace(each, rates=replace(each.rates, measured=False), straggler=1)
        for each in (point(float(at)) for at in range(1, 101))
    )
    ranks = tuple(rank(number, "ab"[number // 2], 50.0, measured=False) for number in range(4))
    return records(run(points=seen, ranks=ranks))


def diverged() -> m.JobRecords:
    """A job whose second rank said a loss at last that is no finite number."""
    ranks = tuple(rank(number, diverged=number == 1) for number in range(2))
    return records(run(ranks=ranks))


def hostile() -> m.JobRecords:
    """The same, with everything that can be text made to do harm."""

    def spoiled(run: RunRecord) -> RunRecord:
        ranks = tuple(
            replace(
                each,
                node=HOSTILE if each.rank < 3 else "b",
                totals=replace(
                    each.totals,
                    codec=HOSTILE,
                    codec_why=HOSTILE,
                    step=2**62 + each.rank,
                    samples=999_999_999 - each.rank,
                    loss=-1.2345e-7,
                    wire_out=2**62,
                ),
            )
            for each in run.ranks
        )
        state = "done" if run.state == "done" else HOSTILE
        points = tuple(
            replace(each, metrics={HOSTILE: each.at, "accuracy": None}) for each in run.points
        )
        told = {"name": HOSTILE, "state": state, "reason": HOSTILE, "points": points}
        return replace(run, nodes=(HOSTILE, "b"), ranks=ranks, **told)

    made = restarted()
    job = replace(made.job, name=HOSTILE, why=HOSTILE, owner=HOSTILE, nodes=(HOSTILE, "b"))
    spec = {"name": HOSTILE, "run": {"command": [HOSTILE]}}
    return m.JobRecords(job, (m.StoryLine(1e6, HOSTILE),), tuple(map(spoiled, made.runs)), spec)
