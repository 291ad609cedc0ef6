"""Decides which tests of the suite run.

A test runs unless a reason to skip it stands. The reasons are the suite's own, as noted by
decorators.py; three kinds of them are overruled here, because they do not hold for the
backend under test.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.conformance import settings

# True of gloo when these were written. They test what any CPU backend may offer.
_WRITTEN_FOR_MPI = {
    "Only MPI supports CPU all_to_all_single",
    "Only MPI supports all_to_all",
}

# These ask for GPUs or NCCL and touch neither: they check what torch refuses, on any backend.
_ASKS_FOR_TOO_MUCH = {
    "test_batch_isend_irecv_op_list_err",
    "test_new_subgroups_by_enumeration_input_rank_exceeds_world_size",
    "test_new_subgroups_by_enumeration_negative_input_rank",
    "test_new_subgroups_group_size_exceeds_world_size",
    "test_new_subgroups_overlap_not_allowed",
    "test_new_subgroups_world_size_not_divisible_by_group_size",
}
_TOO_MUCH = re.compile(r"needs .* GPU|NCCL Batch Send Recv Only")

_NUMBER_OF_RANKS = re.compile(r"Test requires (?:an exact )?world size of (\d+)")


class Group(enum.StrEnum):
    """What becomes of a test."""

    RUNS = "run"
    GPU = "need a GPU"
    OTHER_BACKEND = "are for another backend"
    OTHER_WORLD = "need another number of ranks"
    DISABLED = "are disabled by PyTorch"
    OTHER = "do not run for another reason"


@dataclass(frozen=True)
class Verdict:
    """What becomes of one test, with how many ranks it runs, and the reasons that stand."""

    group: Group
    ranks: int
    reasons: tuple[str, ...] = ()


Census = Mapping[str, Verdict]


def judge(test: str, reasons: tuple[str, ...]) -> Verdict:
    """Weigh the suite's reasons to skip `test`."""
    ranks = settings.RANKS
    standing = []
    for reason in reasons:
        if wish := _NUMBER_OF_RANKS.fullmatch(reason):
            # Not skipped but obeyed: the test gets the ranks it asks for.
            ranks = int(wish[1])
        elif reason not in _WRITTEN_FOR_MPI and not (
            test in _ASKS_FOR_TOO_MUCH and _TOO_MUCH.match(reason)
        ):
            standing.append(reason)
    return Verdict(_group(standing), ranks, tuple(standing))


def _group(standing: list[str]) -> Group:
    """One group per test: of several reasons, the one that is hardest to change."""
    everything = " | ".join(standing).lower()
    for group, signs in (
        (Group.GPU, ("needs a gpu", " gpus", "cuda")),
        (Group.OTHER_BACKEND, ("nccl", "mpi", "ucc", "backend")),
        (Group.OTHER_WORLD, ("world size", "ranks")),
        (Group.DISABLED, ("github.com/pytorch", "flakiness", "failing")),
    ):
        if any(sign in everything for sign in signs):
            return group
    return Group.OTHER if standing else Group.RUNS


def take() -> dict[str, Verdict]:
    """Judge every test of the suite; only where the suite is loaded, so in the fork server."""
    from tests.conformance import decorators, suite

    return {
        name: judge(name, decorators.reasons(getattr(suite.Conformance, name)))
        for name in sorted(dir(suite.Conformance))
        if name.startswith("test_")
    }


def runnable(census: Census) -> list[str]:
    """The tests that run."""
    return [name for name, verdict in census.items() if verdict.group is Group.RUNS]
