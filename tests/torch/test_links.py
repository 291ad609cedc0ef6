"""What the backend offers between hosts beyond torch.distributed's own functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.faults import failure_of, make_group
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.torch import links, set_interface, stats


def _report(me: Rank) -> Any:
    assert len(links()) == 2  # to both ranks of the other host, none inside this one
    dist.all_reduce(torch.ones(500_000))
    found = links()
    assert all(link.codec.startswith("none: ") for link in found)
    told = max(link.sent for link in found), found[0].checksum, stats()
    dist.barrier()  # a rank that leaves ends its links
    return told


def test_links_say_what_they_carried_and_why() -> None:
    for sent, checksum, counted in run_ranks(_report, "abab"):
        assert 500_000 * 4 // 2 <= sent < 500_000 * 4 // 2 * 1.1  # half of a host's sum a rank
        assert checksum
        assert sent <= counted.wire_out
        assert counted.wire_out_raw <= counted.wire_out


def _none(me: Rank) -> int:
    return len(links())


def test_one_host_has_no_links() -> None:
    assert run_ranks(_none, 2) == [0, 0]


@pytest.mark.parametrize("setting", ["lz4", "auto", "none"])
def test_every_codec_gives_the_same(setting: str) -> None:
    run_ranks(_sparse, "ab", env={"WIIIIIDE_CODEC": setting})


def _sparse(me: Rank) -> None:
    x = torch.zeros(700_001)
    x[me.rank :: 50] = torch.arange(len(x[me.rank :: 50]), dtype=torch.float32)
    want = x.clone()
    other = 1 - me.rank
    want[other::50] += torch.arange(len(want[other::50]), dtype=torch.float32)
    for _ in range(3):
        got = x.clone()
        dist.all_reduce(got)
        assert torch.equal(got, want)


@pytest.mark.parametrize("env", [{"WIIIIIDE_TLS": "on"}, {"WIIIIIDE_CHECKSUM": "off"}])
def test_settings_of_a_link_work(env: dict[str, str]) -> None:
    run_ranks(_sparse, "ab", env=env)


def _late(me: Rank) -> None:
    failure = failure_of(set_interface, "eth0")
    assert failure is not None
    assert "before the first process group" in failure.text


def test_an_interface_is_set_before_the_first_group() -> None:
    run_ranks(_late, 1)


def _unknown(me: Rank) -> str:
    set_interface("nosuch0")
    failure = failure_of(make_group, me)
    return "" if failure is None else failure.text


def test_an_interface_is_not_asked_for_where_all_ranks_share_a_host() -> None:
    assert run_ranks(_unknown, 2, backend=None) == ["", ""]
