"""What a man in the middle between two hosts can read, with TLS and without."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.kit.networks import Network
from tests.kit.ranks import Rank

pytestmark = pytest.mark.needs("root", "ip", "unshare", "mount")

SECRET = 1234.5678


def reduce_a_secret(me: Rank) -> float:
    """Small and large, and a message: every way that data takes."""
    for count in (64, 500_000):
        x = torch.full((count,), SECRET)
        dist.all_reduce(x)
    if me.rank:
        dist.send(torch.full((64,), SECRET), 0)
    else:
        dist.recv(torch.empty(64), 1)
    return float(x[-1])


def packets(tap: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            yield tap.recv(2**17)
        except BlockingIOError:
            return


@pytest.mark.parametrize("tls", ["off", "on"])
def test_what_passes_between_hosts_can_be_read_on_the_way_unless_tls_is_on(tls: str) -> None:
    with Network("ab") as network:
        tap = network.tap("b")
        env = {"WIIIIIDE_TLS": tls, "WIIIIIDE_CODEC": "none"}
        sums = network.run(reduce_a_secret, "ab", env=env)
        heard = list(packets(tap))
    assert sums == [pytest.approx(2 * SECRET)] * 2
    assert sum(map(len, heard)) > 2_000_000, "most of the exchange was not heard"
    pattern = struct.pack("<f", SECRET) * 8
    assert any(pattern in packet for packet in heard) == (tls == "off")
