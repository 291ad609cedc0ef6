"""Ranks' reports to each other at the end of a leg of a round, and what in them must agree. Pure.

All ranks hear the same reports and decide the same: they go on, or raise the same sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wiiiiided.errors import Mismatch, UsageError
from wiiiiided.train.rounds import HostReport

Numbers = np.ndarray[tuple[int], np.dtype[np.float64]]
Hosts = Sequence[Sequence[int]]  # the ranks of each


class RoundReport(NamedTuple):
    """A rank's report at the end of a leg."""

    samples: float  # of this round
    counted_steps: float  # before which run.samples() was called
    step_s: float  # of the last few
    usual_step_s: float  # of a minute
    busy_s: float  # of the ranks in the exchanges of the round before
    link_s: float  # what those took on the link
    origin: float
    settings: float  # of the inner optimizer, a digest
    wishes_save: float  # a SaveWish
    steps: float  # of this round
    batches: float  # that the host's loop has got in it
    unstepped: float  # batches of the epoch's end that no step has taken
    measured_s: float  # since hosts' shares changed, or since the run began
    scheduled: float  # steps of the scheduler
    has_changed: float  # 1: settings are not those of the beginning
    is_agreed: float  # 1: there is nothing to exchange
    is_asked: float  # 1: the script wants hosts to agree (run.agree(), run.save())
    unsent: tuple[float, ...]  # by fragment: samples since it was sent

    @classmethod
    def read(cls, row: Sequence[float]) -> RoundReport:
        """Make a report from the numbers that travelled."""
        named = len(cls._fields) - 1
        return cls._make([*row[:named], tuple(row[named:])])

    def row(self) -> Numbers:
        """The numbers that travel."""
        return np.array([*self[:-1], *self.unsent])


def check_reports(told: Sequence[RoundReport]) -> None:
    """Raise on all ranks if hosts are not at the same place, or differ in weights or samples."""
    _check_places(told)
    check_origins([row.origin for row in told])
    first = told[0]
    for rank, theirs in enumerate(told):
        if theirs.counted_steps - theirs.steps != first.counted_steps - first.steps:
            raise Mismatch(
                f"rank {rank} called run.samples() before {theirs.counted_steps:g} of "
                f"{theirs.steps:g} steps of this round and rank 0 before {first.counted_steps:g} "
                f"of {first.steps:g}: all ranks say how many samples they had, or none"
            )


def _check_places(told: Sequence[RoundReport]) -> None:
    asked = [rank for rank, row in enumerate(told) if row.is_asked]
    others = [rank for rank, row in enumerate(told) if not row.is_asked]
    if asked and others:
        raise Mismatch(
            f"rank {asked[0]} called run.agree() or run.save() after {told[asked[0]].steps:g} "
            f"steps of this round, and rank {others[0]} is in its loop, after "
            f"{told[others[0]].steps:g}: hosts may make different numbers of steps, so leave a "
            "loop at its end, or after a step before which data.is_round_over was true, by what is "
            "the same on all hosts (data.epochs_done)"
        )


def check_origins(told: Sequence[float]) -> None:
    """Raise unless all began from the same weights: else a mean of their changes means nothing."""
    for rank, theirs in enumerate(told):
        if theirs != told[0]:
            raise UsageError(
                f"rank {rank}'s host and rank 0's have loaded different weights, or only one of "
                "them has: with `every` load the same model, or states that were saved after the "
                "same exchange, on every host"
            )


def weight_of(host: int, samples: Sequence[float], hosts: Hosts) -> float:
    """A host's part of all samples; `samples`: by rank."""
    by_host = [sum(samples[rank] for rank in ranks) for ranks in hosts]
    total = sum(by_host)
    return by_host[host] / total if total else 1 / len(by_host)


def host_reports(told: Sequence[RoundReport], hosts: Hosts) -> list[HostReport]:
    """The reports of each host's ranks as one."""
    return [_host_report([told[rank] for rank in ranks]) for ranks in hosts]


def _host_report(rows: Sequence[RoundReport]) -> HostReport:
    return HostReport(
        steps=int(rows[0].steps),
        batches=int(rows[0].batches),
        unstepped=int(rows[0].unstepped),
        samples=sum(row.samples for row in rows),
        step_s=max(row.step_s for row in rows),
        usual_step_s=max(row.usual_step_s for row in rows),
        measured_s=min(row.measured_s for row in rows),
    )
