"""Hosts made of namespaces, on one switch, with links that can be slowed down; and their ranks.

The network is that of the tests (tests/kit/networks.py): nothing of it has a name, and not even a
SIGKILL of the benchmark leaves a namespace, an interface or a mount behind. Added here are cores,
the interfaces' counters, and ranks at the end of a line that they inherit (lib/link.py).
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib import link
from lib.fleet import HERE, START_SECONDS, Fleet, FleetError, rank_program
from tests.kit.networks import BURST_KB, Network, Space, new_port

INTERFACE = "eth0"
_NEEDED = {
    "ip": "iproute2",
    "tc": "iproute2",
    "ss": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "taskset": "util-linux",
    "mount": "mount",
}
# Ethernet 14, IPv4 20, TCP 20 and its timestamps 12.
HEADER_BYTES = 66


@dataclass(frozen=True)
class LinkSpeed:
    """A link's speed as it is called here and as tc calls it; empty: as fast as the kernel goes."""

    name: str
    rate: str

    @property
    def free_bytes(self) -> int:
        """Bytes a call may send at once after a rest, before the rate begins to count."""
        return BURST_KB * 1024 if self.rate else 0


GIGABIT, FAST = LinkSpeed("1 Gbit", "1gbit"), LinkSpeed("100 Mbit", "100mbit")
SLOW = LinkSpeed("10 Mbit", "10mbit")
UNSHAPED = LinkSpeed("unshaped", "")


@dataclass(frozen=True)
class Traffic:
    """The traffic of a host's interface since the host was made, or between two looks."""

    out_bytes: float
    in_bytes: float
    out_packets: float
    in_packets: float

    @classmethod
    def of(cls, space: Space) -> Traffic:
        folder = Path(f"/proc/{space.pid}/root/sys/class/net/{INTERFACE}/statistics")
        names = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
        return cls(*(int((folder / name).read_text()) for name in names))

    def since(self, earlier: Traffic, calls: int) -> Traffic:
        """The traffic of one of so many calls."""
        return Traffic(
            (self.out_bytes - earlier.out_bytes) / calls,
            (self.in_bytes - earlier.in_bytes) / calls,
            (self.out_packets - earlier.out_packets) / calls,
            (self.in_packets - earlier.in_packets) / calls,
        )

    @property
    def most(self) -> float:
        """The busier direction, headers included as far as the counter has them."""
        return max(self.out_bytes, self.in_bytes)

    @property
    def most_payload(self) -> float:
        """The same without headers, of which every packet the counter has seen carries one."""
        outward = self.out_bytes - HEADER_BYTES * self.out_packets
        return max(outward, self.in_bytes - HEADER_BYTES * self.in_packets)


def require_hosts(also: Mapping[str, str] | None = None) -> None:
    """Raises FleetError where hosts cannot be made. `also`: further programs and their packages."""
    if os.geteuid() != 0:
        raise FleetError("making hosts out of network namespaces needs root: run it with sudo")
    needed = {**_NEEDED, **(also or {})}
    missing = {tool: package for tool, package in needed.items() if shutil.which(tool) is None}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        lack = f"there is no {', '.join(missing)} here (Debian: apt-get install {packages})"
        raise FleetError(lack)


@dataclass(frozen=True)
class NetHost:
    """One host: its address, how many ranks it has, where it lives, and the cores it has."""

    address: str
    ranks: int
    space: Space
    cores: tuple[int, ...]

    def inside(self, words: Sequence[str]) -> list[str]:
        """The command that runs these words here, on the host's cores."""
        return self.space.inside(["taskset", "-c", ",".join(map(str, self.cores)), *words])


def own_cores(ranks: Sequence[int], cores: Sequence[int]) -> list[tuple[int, ...]]:
    """For each host a core a rank that no other host has; all for all where there are too few."""
    if sum(ranks) > len(cores):
        return [tuple(cores)] * len(ranks)
    ends = itertools.accumulate(ranks)
    return [tuple(cores[end - count : end]) for count, end in zip(ranks, ends, strict=True)]


class Hosts(Network):
    """Hosts with so many ranks each, on one switch; `pinned`: on cores of their own, if enough."""

    def __init__(self, ranks: Sequence[int], *, pinned: bool = False) -> None:
        super().__init__("abcdefgh"[: len(ranks)])
        here = sorted(os.sched_getaffinity(0))
        cores = own_cores(ranks, here) if pinned else [tuple(here)] * len(ranks)
        self.are_pinned = len(set(cores)) == len(cores)  # each has cores of its own
        self.all = [
            NetHost(self.address(letter), count, self.hosts[letter], own)
            for letter, count, own in zip(self.letters, ranks, cores, strict=True)
        ]

    @property
    def ranks(self) -> int:
        return sum(host.ranks for host in self.all)

    @property
    def placement(self) -> list[NetHost]:
        """Each rank's host, in the order of the ranks."""
        return [host for host in self.all for _ in range(host.ranks)]

    def traffic(self) -> list[Traffic]:
        return [Traffic.of(host.space) for host in self.all]


class HostsFleet(Fleet):
    """Ranks of one program on hosts, with settings in their environment."""

    def __init__(self, hosts: Hosts, settings: dict[str, str], program: str) -> None:
        self._hosts, self._settings = hosts, settings
        super().__init__(program, hosts.ranks)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _start(self, launcher: Sequence[str]) -> None:
        port = new_port()
        for rank in range(self.ranks):
            self._start_rank(rank, port)
        # Each rank says who it is as if it had been asked.
        self._collect(list(range(self.ranks)), START_SECONDS)

    def _start_rank(self, rank: int, port: int) -> None:
        host = self._hosts.placement[rank]
        ours, theirs = socket.socketpair()
        self._lines[rank] = ours
        with theirs:
            own = {link.LINE: str(theirs.fileno())}
            process = subprocess.Popen(
                host.inside(rank_program(self._program)),
                env=_surroundings()
                | {"PYTHONPATH": str(HERE)}
                | self._environment(rank, port)
                | self._settings
                | own,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        self._processes.append(process)
        self._pidfds.append(os.pidfd_open(process.pid))

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        """The environment torchrun would give this rank."""
        hosts = self._hosts
        host = hosts.placement[rank]
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank - hosts.placement.index(host)),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(host.ranks),
            "GROUP_RANK": str(hosts.all.index(host)),
            "MASTER_ADDR": hosts.all[0].address,
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }


def _surroundings() -> dict[str, str]:
    """This program's environment without what could help or hinder a backend."""
    strange = ("GLOO_", "WIIIIIDE_")
    return {name: text for name, text in os.environ.items() if not name.startswith(strange)}
