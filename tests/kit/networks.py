"""Machines on a network of their own, made of namespaces: needs root, iproute2 and util-linux.

    with Network("ab") as network:                      # eth0: 10.42.0.1 and 10.42.0.2
        network.lan("eth1", "10.43.0.{}/24")            # a second card in each
        outcomes = network.watch(body, "aab")           # three ranks, the last one on the other
        network.cut("b")                                # its cable is out; `heal` puts it back

         host a: net, mount, uts          switch: net
          eth0 10.42.0.1 ═══veth═══ a-eth0 ┐
          own /sys, /dev/shm, /etc/hosts   ├ eth0
         host b                            │
          eth0 10.42.0.2 ═══veth═══ b-eth0 ┘

No namespace has a name: each lives as long as a process that holds it (and the ranks inside), and
that one dies with the test run, so that not even a SIGKILL leaves an interface or a mount behind.
In a host's own /etc/hosts its name is 127.0.1.1, as Debian's installer writes it.

Ranks come from the fork server of tests.kit.ranks and enter their host before anything else. They
meet at a TCPStore of torch's that a process beside rank 0 keeps, as under torchrun.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from tests.kit.ranks import Outcome, Rank, _context, watch_ranks

_COMMAND_S = 60.0
_END_S = 5.0
# A namespace's holder does this before it only waits for its input to end. A host's /sys shows the
# interfaces of the namespace it was mounted in, so it needs one of its own. Without name servers
# no process waits for one: torch's Store asks for the name of everyone who connects.
_HOLD = (
    "mount -t sysfs none /sys; mount -t tmpfs none /dev/shm; "
    'echo "$0" > /proc/sys/kernel/hostname; printf "$1" > /dev/shm/hosts; '
    "mount --bind /dev/shm/hosts /etc/hosts; : > /dev/shm/resolv.conf; "
    "if [ -e /etc/resolv.conf ]; then mount --bind /dev/shm/resolv.conf /etc/resolv.conf; fi; "
    "ip link set lo up; echo ready; exec cat"
)
# Of a shaped cable. A gigabit in bursts of 32 KB passes half of it: the kernel's timer is no finer.
BURST_KB = 256
_SYN, _SYN_ACK, _FLAGS_AT = "0x02", "0x12", 33  # of a TCP header behind an IPv4 one of 20 bytes
_ALL = 3  # ETH_P_ALL: packets of every protocol
_RECEIVE_BUFFER_FORCE = 33  # SO_RCVBUFFORCE: above the limit for those without root
_ports = itertools.count(29500)  # below those the kernel gives out by itself


class Connection(NamedTuple):
    """One end of a TCP connection, or a listener (then `theirs` is empty)."""

    ours: str
    our_port: int
    theirs: str
    their_port: int


def tcp_of(pid: int) -> list[tuple[str, str]]:
    """Our and their address of each TCP connection of a process."""
    return [(one.ours, one.theirs) for one in connections_of(pid) if one.theirs]


def connections_of(pid: int) -> list[Connection]:
    """TCP connections and listeners of a process, in whatever namespace it is."""
    found = []
    for one in psutil.Process(pid).net_connections("tcp"):
        if one.status in (psutil.CONN_ESTABLISHED, psutil.CONN_LISTEN):
            theirs = (one.raddr[0], one.raddr[1]) if one.raddr else ("", 0)
            found.append(Connection(one.laddr[0], one.laddr[1], *theirs))
    return found


class Space:
    """Network, mounts and host name of one host (or of the switch), as long as this lives."""

    def __init__(self, name: str, hosts: str = "") -> None:
        self.name = name
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--uts"]
        self._process = subprocess.Popen(
            [*words, "sh", "-ec", _HOLD, name, hosts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._process.stdout.readline() != b"ready\n":
            said = self._process.stderr.read().decode(errors="replace").strip()
            self.close()
            raise AssertionError(f"the namespaces of {name} could not be made: {said}")

    def inside(self, words: Sequence[str]) -> list[str]:
        """The command that runs these words in here; it becomes them, so their pid is its own."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", "--", *words]

    def run(self, words: str) -> str:
        """Run short commands in here, one a line; what they say."""
        shell = self.inside(["sh", "-ec", words])
        done = subprocess.run(shell, capture_output=True, text=True, timeout=_COMMAND_S)
        assert not done.returncode, f"`{words}` failed in {self.name}: {done.stderr.strip()}"
        return done.stdout

    def listeners(self) -> list[tuple[str, int]]:
        """Address and port of everything that listens in here, of any process."""
        found = []
        for name in ("tcp", "tcp6"):
            lines = Path(f"/proc/{self.pid}/net/{name}").read_text().splitlines()[1:]
            for local, _, state in (line.split()[1:4] for line in lines):
                if state == "0A":
                    address, _, port = local.partition(":")
                    found.append((_address(address), int(port, 16)))
        return found

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


def _address(digits: str) -> str:
    """An address out of /proc/net/tcp: words of four bytes, each the wrong way round."""
    raw = bytes.fromhex(digits)
    turned = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    if len(turned) == 4:
        return ".".join(map(str, turned))
    return ":".join(turned[at : at + 2].hex() for at in range(0, 16, 2))


WILDCARDS = {"0.0.0.0", ":".join(["0000"] * 8)}


@dataclass(frozen=True)
class _Lan:
    interface: str
    addresses: dict[str, str]  # by letter, without their prefix


class Network:
    """Hosts, a letter each, on one switch."""

    def __init__(self, letters: str, addresses: str = "10.42.0.{}/24") -> None:
        """`addresses`: of eth0, with the host's number in place of the braces; empty: no eth0."""
        self.letters = letters
        self._lans: dict[str, _Lan] = {}
        self._stack = contextlib.ExitStack()
        try:
            self._switch = self._space("switch")
            self.hosts = {
                letter: self._space(f"host-{letter}", self._names(letter, addresses))
                for letter in letters
            }
            if addresses:
                self.lan("eth0", addresses)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _space(self, name: str, hosts: str = "") -> Space:
        space = Space(name, hosts)
        self._stack.callback(space.close)
        return space

    def _names(self, letter: str, addresses: str) -> str:
        """/etc/hosts of a host: its own name is loopback, the others' are their addresses."""
        lines = ["127.0.0.1 localhost", f"127.0.1.1 host-{letter}"]
        for number, other in enumerate(self.letters, 1):
            if addresses and other != letter:
                lines.append(f"{addresses.format(number).partition('/')[0]} host-{other}")
        return "".join(f"{line}\\n" for line in lines)

    # -- cables ----

    def lan(self, interface: str, addresses: str, only: str = "") -> None:
        """A card in each host (or in these), on a network of its own."""
        self._switch.run(f"ip link add {interface} type bridge; ip link set {interface} up")
        found = {}
        for number, letter in enumerate(self.letters, 1):
            if only and letter not in only:
                continue
            host, port = self.hosts[letter], f"{letter}-{interface}"
            address = addresses.format(number)
            self._switch.run(
                f"ip link add {port} type veth peer name {interface} netns {host.pid}\n"
                f"ip link set {port} master {interface} up"
            )
            extra = "nodad" if ":" in address else ""
            host.run(f"ip addr add {address} dev {interface} {extra}; ip link set {interface} up")
            found[letter] = address.partition("/")[0]
        self._lans[interface] = _Lan(interface, found)

    def address(self, letter: str, interface: str = "eth0") -> str:
        return self._lans[interface].addresses[letter]

    def cut(self, letter: str, interface: str = "eth0") -> None:
        """Pull the cable: the host's card loses its carrier."""
        self._switch.run(f"ip link set {letter}-{interface} down")

    def heal(self, letter: str, interface: str = "eth0") -> None:
        """Put back what `cut` or `silence` took away."""
        port = f"{letter}-{interface}"
        self._switch.run(f"ip link set {port} master {interface} up")

    def silence(self, letter: str, interface: str = "eth0") -> None:
        """Nothing gets through, but the card has a carrier: the fault is behind the switch."""
        self._switch.run(f"ip link set {letter}-{interface} nomaster")

    def shape(self, rate: str, interface: str = "eth0") -> None:
        """Both directions of every host's cable at a rate such as 10mbit; empty: as they can."""
        tbf = f"tbf rate {rate} burst {BURST_KB}kb latency 50ms"
        rule = f"root {tbf if rate else 'noqueue'}"
        for letter in self._lans[interface].addresses:
            self.hosts[letter].run(f"tc qdisc replace dev {interface} {rule}")
            self._switch.run(f"tc qdisc replace dev {letter}-{interface} {rule}")

    def bridge(self, name: str, address: str) -> None:
        """A bridge as docker makes it, up, with the same address on every host."""
        for host in self.hosts.values():
            host.run(
                f"ip link add {name} type bridge; ip addr add {address} dev {name}\n"
                f"ip link add veth0 type veth peer name veth1; ip link set veth0 master {name} up\n"
                f"ip link set veth1 up; ip link set {name} up"
            )

    def route(self, letter: str, interface: str, gateway: str) -> None:
        """The switch is a host's router: `gateway` (with its prefix) is its address there."""
        self._switch.run(
            f"ip addr add {gateway} dev {interface}; echo 1 > /proc/sys/net/ipv4/ip_forward"
        )
        self.hosts[letter].run(f"ip route add default via {gateway.partition('/')[0]}")

    def firewall(self, letter: str, but_for_port: int, interface: str = "eth0") -> None:
        """Connections to a host are dropped without a word, but for one port; those it makes pass.

        There is no iptables in this kernel's namespaces; tc can send what it recognises elsewhere.
        """
        at = f"tc filter add dev {interface} ingress protocol ip"
        tcp = "u32 match ip protocol 6 0xff"
        self.hosts[letter].run(
            f"ip link add nowhere type bridge; ip link set nowhere up\n"
            f"tc qdisc add dev {interface} clsact\n"
            f"{at} prio 1 {tcp} match ip dport {but_for_port} 0xffff flowid 1:1\n"
            f"{at} prio 2 {tcp} match u8 {_SYN} {_SYN_ACK} at {_FLAGS_AT} "
            "action mirred egress redirect dev nowhere"
        )

    def tap(self, letter: str, interface: str = "eth0") -> socket.socket:
        """A socket that hears all that passes through a host's cable, as a man in the middle."""
        home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _set_namespace(f"/proc/{self._switch.pid}/ns/net")
            try:
                tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
                tap.bind((f"{letter}-{interface}", _ALL))
            finally:
                _set_namespace(f"/proc/self/fd/{home}")  # a socket stays where it was made
        finally:
            os.close(home)
        tap.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, 16 * 2**20)
        tap.setblocking(False)
        self._stack.callback(tap.close)
        return tap

    # -- ranks ----

    def watch(
        self,
        body: Callable[..., Any],
        hosts: str,
        *args: Any,
        store: str = "",
        port: int = 0,
        env: dict[str, str] | None = None,
        timeout_s: float = 60.0,
        group_timeout_s: float = 60.0,
        during: Callable[[list[Outcome], float], None] | None = None,
    ) -> list[Outcome]:
        """As tests.kit.ranks.watch_ranks, on these hosts. `store`: what MASTER_ADDR is."""
        pids = [self.hosts[letter].pid for letter in hosts]
        place = _Place(pids, store or self.address(hosts[0]), port or new_port(), group_timeout_s)
        with _store(pids[0], place.port):
            return watch_ranks(
                _in_its_place, len(hosts), body, place, args,
                backend=None, timeout_s=timeout_s, env=env, during=during,
            )  # fmt: skip

    def run(self, body: Callable[..., Any], hosts: str, *args: Any, **options: Any) -> list[Any]:
        """Run and require success; what each rank returned."""
        outcomes = self.watch(body, hosts, *args, **options)
        for outcome in outcomes:
            assert outcome.exit_code == 0, f"rank {outcome.rank}: {outcome.trace or outcome.error}"
            assert not outcome.error, f"rank {outcome.rank}: {outcome.trace}"
        return [outcome.value for outcome in outcomes]


def new_port() -> int:
    """For a Store: another for each, though the last one's connections may linger."""
    return next(_ports)


@dataclass(frozen=True)
class _Place:
    pids: Sequence[int]  # by rank: a process in its host
    store: str
    port: int
    timeout_s: float


def _in_its_place(me: Rank, body: Callable[..., Any], place: _Place, args: Sequence[Any]) -> Any:
    """Inside a rank: enter its host, join the others, do the work."""
    import torch.distributed as dist

    with _kept_directory():
        _enter(place.pids[me.rank])
    os.environ.update(
        MASTER_ADDR=place.store,
        MASTER_PORT=str(place.port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # as torchrun does: rank 0 need not keep it
    )
    dist.init_process_group(
        "wiiiiide",
        init_method="env://",
        rank=me.rank,
        world_size=me.size,
        timeout=timedelta(seconds=place.timeout_s),
    )
    return body(me, *args)


@contextlib.contextmanager
def _store(pid: int, port: int) -> Iterator[None]:
    """The Store of a run, in the host of this process; it outlives every rank."""
    ours, theirs = _context.Pipe()
    controller = _context.Process(target=_keep_store, args=(theirs, pid, port), daemon=True)
    controller.start()
    theirs.close()
    try:
        assert ours.poll(_COMMAND_S), "the Store did not open"
        ours.recv()
        yield
    finally:
        ours.close()
        controller.join(_END_S)
        if controller.is_alive():
            controller.kill()
        controller.join()
        controller.close()


def _keep_store(pipe: Any, pid: int, port: int) -> None:
    from torch._C._distributed_c10d import TCPStore

    _enter(pid)
    store = TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    with contextlib.suppress(EOFError):
        pipe.recv()


@contextlib.contextmanager
def _kept_directory() -> Iterator[None]:
    """Entering other mounts goes to their root."""
    here = os.getcwd()
    yield
    os.chdir(here)


def _enter(pid: int) -> None:
    """This process lives among the mounts and interfaces of another from now on."""
    for kind in ("net", "uts", "mnt"):
        _set_namespace(f"/proc/{pid}/ns/{kind}")


def _set_namespace(path: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, 0):
            raise OSError(ctypes.get_errno(), f"setns to {path}")
    finally:
        os.close(fd)
