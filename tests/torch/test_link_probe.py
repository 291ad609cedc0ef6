"""What a pair of machines exchanges while its link is timed."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.kit.ranks import Rank, run_ranks
from wiiiiided.domain.plan import EXACT, TIMED, PairLine
from wiiiiided.torch.link_probe import PairTimer

COUNT = 400_001


def _exchanged(me: Rank) -> list[list[float]]:
    """Of each codec, what has become of elements that this rank held."""
    timer, found = PairTimer(dist.group.WORLD, 0.1), []
    for codec in TIMED:
        values = torch.full((COUNT,), float(me.rank + 1))
        timer.exchange(codec, values, torch.zeros(COUNT))
        found.append(values.tolist())
    return found


@pytest.mark.parametrize(("hosts", "ranks"), [("ab", ((0,), (1,))), ("aab", ((0, 1), (2,)))])
def test_each_element_is_exchanged_once_by_one_rank_of_each_machine(
    hosts: str, ranks: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    told = run_ranks(_exchanged, hosts)
    for codec, arrays in zip(TIMED, zip(*told, strict=True), strict=True):
        for mine in ranks:  # of a machine with two ranks each exchanges a share, and no more
            touched = [torch.tensor(arrays[rank]).sub(rank + 1).abs() > 0.1 for rank in mine]
            assert torch.stack(touched).sum(0).eq(1).all(), codec
    if hosts == "ab":
        exact = TIMED.index(EXACT)
        assert set(told[0][exact]) == set(told[1][exact]) == {3.0}


def _line(me: Rank) -> PairLine:
    return PairTimer(dist.group.WORLD, 0.1).line(0, 1, COUNT)


def test_a_pair_is_timed_alike_on_all_its_ranks() -> None:
    first, *others = run_ranks(_line, "aab")
    assert all(other == first for other in others)
    assert set(first.byte_s) == set(TIMED)
    assert all(seconds > 0 for seconds in first.byte_s.values())
    assert first.bits_per_s == pytest.approx(8 / first.byte_s[EXACT])
