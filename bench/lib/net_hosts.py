"""Hosts made of namespaces, on one switch, with links that can be slowed down.

    bench ── holds ──► host-1: net, mount, uts          switch: net
                        eth0 10.42.0.1 ═══veth═══ port1 ┐
                        lo, own /sys, own /dev/shm      ├ br0
                       host-2                           │
                        eth0 10.42.0.2 ═══veth═══ port2 ┘

No namespace has a name. Each lives as long as the process that holds it and the ranks in it, and
all of these die with the benchmark (PR_SET_PDEATHSIG, and a pipe that ends): not even a SIGKILL
leaves a namespace, an interface or a mount behind. `ip netns add` would.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lib.fleet import FleetError

INTERFACE = "eth0"
_COMMAND_S = 20.0
_END_S = 5.0
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
# A namespace's holder does this before it only waits for its input to end. A host's /sys shows the
# interfaces of the namespace it was mounted in, so it needs one of its own.
_HOLD = (
    "mount -t sysfs none /sys; mount -t tmpfs none /dev/shm; "
    'echo "$0" > /proc/sys/kernel/hostname; ip link set lo up; echo ready; exec cat'
)
_BURST_KB = 256
# Ethernet 14, IPv4 20, TCP 20 and its timestamps 12.
HEADER_BYTES = 66


@dataclass(frozen=True)
class LinkSpeed:
    """A link's speed as it is called here and as tc calls it; None: as fast as the kernel goes."""

    name: str
    rate: str | None

    @property
    def free_bytes(self) -> int:
        """Bytes a call may send at once after a rest, before the rate begins to count."""
        return 0 if self.rate is None else _BURST_KB * 1024


GIGABIT, FAST = LinkSpeed("1 Gbit", "1gbit"), LinkSpeed("100 Mbit", "100mbit")
SLOW = LinkSpeed("10 Mbit", "10mbit")
UNSHAPED = LinkSpeed("unshaped", None)


@dataclass(frozen=True)
class Traffic:
    """The traffic of a host's interface since the host was made, or between two looks."""

    out_bytes: float
    in_bytes: float
    out_packets: float
    in_packets: float

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


def forbidden(also: Mapping[str, str] | None = None) -> str | None:
    """Why hosts cannot be made here, in a sentence, or None where they can.

    `also`: further programs, each with its Debian package.
    """
    if os.geteuid() != 0:
        return "making hosts out of network namespaces needs root: run it with sudo"
    needed = {**_NEEDED, **(also or {})}
    missing = {tool: package for tool, package in needed.items() if shutil.which(tool) is None}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        return f"there is no {', '.join(missing)} here (Debian: apt-get install {packages})"
    return None


class Namespaces:
    """Network, mounts and host name of one host, alive as long as this object's process."""

    def __init__(self, name: str) -> None:
        self.name = name
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--uts"]
        self._process = subprocess.Popen(
            [*words, "sh", "-ec", _HOLD, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the measuring program
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._process.stdout.readline() != b"ready\n":
            said = self._process.stderr.read().decode(errors="replace").strip()
            self.close()
            raise FleetError(f"the namespaces of {name} could not be made: {said}")

    def inside(self, words: Sequence[str]) -> list[str]:
        """The command that runs these words in here; it becomes them, so their pid is its own."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", "--", *words]

    def run(self, words: str) -> str:
        """Runs a short command in here and returns what it says."""
        done = subprocess.run(
            self.inside(words.split()), capture_output=True, text=True, timeout=_COMMAND_S
        )
        if done.returncode:
            raise FleetError(f"`{words}` failed in {self.name}: {done.stderr.strip()}")
        return done.stdout

    def traffic(self) -> Traffic:
        folder = Path(f"/proc/{self.pid}/root/sys/class/net/{INTERFACE}/statistics")
        names = ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")
        return Traffic(*(int((folder / name).read_text()) for name in names))

    def close(self) -> None:
        process = self._process
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class NetHost:
    """One host: its address, how many ranks it has, where it lives, and the cores it has."""

    address: str
    ranks: int
    space: Namespaces
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


class Hosts:
    """Hosts with so many ranks each, on one switch; `pinned`: on cores of their own, if enough."""

    def __init__(self, ranks: Sequence[int], *, pinned: bool = False) -> None:
        self.all: list[NetHost] = []
        here = sorted(os.sched_getaffinity(0))
        self._cores = own_cores(ranks, here) if pinned else [tuple(here)] * len(ranks)
        self._spaces: list[Namespaces] = []
        self._shaped = False
        try:
            self._build(ranks)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def are_pinned(self) -> bool:
        """Whether each host has cores of its own."""
        return len(set(self._cores)) == len(self._cores)

    @property
    def ranks(self) -> int:
        return sum(host.ranks for host in self.all)

    @property
    def placement(self) -> list[NetHost]:
        """Each rank's host, in the order of the ranks."""
        return [host for host in self.all for _ in range(host.ranks)]

    def shape(self, link: LinkSpeed) -> None:
        """Slows both directions of every host's link down, or lets them go as they can."""
        if link.rate is None and not self._shaped:
            return
        rule = f"tbf rate {link.rate} burst {_BURST_KB}kb latency 50ms"
        for number, host in enumerate(self.all, 1):
            for space, device in ((host.space, INTERFACE), (self._switch, f"port{number}")):
                if link.rate is None:
                    space.run(f"tc qdisc del dev {device} root")
                else:
                    space.run(f"tc qdisc replace dev {device} root {rule}")
        self._shaped = link.rate is not None

    def traffic(self) -> list[Traffic]:
        return [host.space.traffic() for host in self.all]

    def close(self) -> None:
        while self._spaces:
            self._spaces.pop().close()
        self.all = []

    @property
    def _switch(self) -> Namespaces:
        return self._spaces[0]

    def _make(self, name: str) -> Namespaces:
        self._spaces.append(Namespaces(name))
        return self._spaces[-1]

    def _build(self, ranks: Sequence[int]) -> None:
        switch = self._make("switch")
        switch.run("ip link add br0 type bridge")
        switch.run("ip link set br0 up")
        for number, count in enumerate(ranks, 1):
            space = self._make(f"host-{number}")
            host = NetHost(f"10.42.0.{number}", count, space, self._cores[number - 1])
            port = f"port{number}"
            peer = f"peer name {INTERFACE} netns {space.pid}"
            switch.run(f"ip link add {port} type veth {peer}")
            switch.run(f"ip link set {port} master br0 up")
            space.run(f"ip addr add {host.address}/24 dev {INTERFACE}")
            space.run(f"ip link set {INTERFACE} up")
            self.all.append(host)
