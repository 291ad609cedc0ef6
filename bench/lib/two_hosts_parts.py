"""The parts of two_hosts.py by name, and the hosts that each needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lib import two_hosts_cost as cost
from lib import two_hosts_speed as speed
from lib.two_hosts_sides import Run


@dataclass(frozen=True)
class Part:
    """`ranks` are those of each host."""

    title: str
    run: Run
    ranks: tuple[int, ...] = (2, 2)


PARTS: dict[str, Part] = {
    "all_reduce": Part("all_reduce against gloo and the link", speed.all_reduce),
    "latency": Part("small messages", speed.latency),
    "scatter": Part("reduce_scatter and all_gather", speed.scatter),
    "async": Part("many small operations at once", speed.many),
    "codec": Part("the codec, chosen by itself or off", cost.codec),
    "checks": Part("what checksum and TLS cost", cost.checks),
    "memory": Part("memory for exchange", cost.memory),
    "three_hosts": Part("three hosts with uneven ranks", speed.three_hosts, (2, 1, 1)),
}


def by_hosts(names: Sequence[str]) -> dict[tuple[int, ...], list[Part]]:
    """The parts to run on each set of hosts, in the order of the table above."""
    found: dict[tuple[int, ...], list[Part]] = {}
    for name, part in PARTS.items():
        if name in names:
            found.setdefault(part.ranks, []).append(part)
    return found
