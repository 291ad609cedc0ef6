"""Samples of ranks, made by hand: a rank that works at a steady pace, and what it has counted."""

from __future__ import annotations

from typing import Any

from wiiiiided.domain.metrics import RankSample, RunRecord


def sample(rank: int = 0, at: float = 0.0, **counters: Any) -> RankSample:
    """A sample in which everything that is not named is 0."""
    zeros: dict[str, Any] = {
        **dict.fromkeys(("operations", "failed", "shm_bytes"), 0),
        **dict.fromkeys(("wire_out", "wire_in", "wire_out_raw", "wire_in_raw"), 0),
        **dict.fromkeys(("exchange_s", "waiting_s", "encode_s", "decode_s"), 0.0),
        "pid": 100 + rank,
    }
    return RankSample(rank=rank, at=at, **{**zeros, **counters})


def steady(rank: int, at: float, waiting: float = 0.0, **more: Any) -> RankSample:
    """Ten operations a second, and so much of the time waiting."""
    return sample(
        rank,
        at,
        operations=int(at * 10),
        exchange_s=at * max(waiting, 0.1),
        waiting_s=at * waiting,
        **more,
    )


def empty_record(**fields: Any) -> RunRecord:
    known: dict[str, Any] = {"job": 1, "name": "digits", "attempt": 1, "nodes": ("a",)}
    return RunRecord(**{**known, "workers": 2, "started_at": 1000.0, **fields})
