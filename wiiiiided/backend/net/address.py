"""On which of its addresses a rank listens for other machines: a pure choice, with its reason.

Host names lie (Debian's own is 127.0.1.1), a docker0 has the same address on every machine, and
of two networks only one may lead to the others. So no user is asked for a name. Each rank publishes
the addresses of its machine (net/interfaces finds them), and the kernel's routes decide:

    b's candidates            my route there          kept?
    eth0     10.0.0.6/24      from 10.0.0.5           yes: same network, both ends face the Store
    docker0  172.17.0.1/16    that is my own address  no
    eth1     192.168.7.6/24   none                    no
                                └─► listen on 10.0.0.5

The surest sign comes first. A source that reaches the Store has been seen to work at both ends;
that beats equal networks, because two homes may well both be 192.168.1.0/24 while a tunnel joins
them. A bridge inside a machine is never better than a real interface, unless the Store is there.

Nothing here does I/O: `route` is the one question to the kernel, and a test answers it itself.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from wiiiiided.errors import HostError

# From an address to the source the kernel would use to go there; None: it cannot go there.
Route = Callable[[str], str | None]

# One machine publishes no more. Real ones have a handful; a peer must not make us work for hours.
MAX_CANDIDATES: Final = 32
MAX_INTERFACE_NAME: Final = 32  # the kernel's own limit is 15; an alias ("eth0:backup") is longer
MAX_SPEED_MBIT: Final = 10_000_000
HOSTS_IN_A_SENTENCE: Final = 3
WHAT_TO_DO: Final = (
    "Set WIIIIIDE_INTERFACE on every machine to the interface, address or network"
    " (such as eth1, 10.0.0.5 or 10.0.0.0/24) over which they reach each other"
)

# Bridges and pairs that containers and virtual machines live behind: inside one machine.
_BRIDGE: Final = re.compile(
    r"docker|br-[0-9a-f]{12}$|virbr|veth|cni|flannel|cali|cilium|lxcbr|lxdbr|incusbr|podman"
    r"|nerdctl|vmnet|vboxnet|vnet|kube|nodelocaldns|dummy|lo$"
)
# They lead to other machines, but not at the speed of a wire.
_TUNNEL: Final = re.compile(r"tailscale|wg|tun|tap|zt|nebula|ppp|ipsec|gre|sit|utun")


@dataclass(frozen=True)
class Candidate:
    """An address of a machine, as it is published in the Store."""

    address: str
    interface: str
    prefix: int
    speed_mbit: int  # 0: the driver does not say
    towards_store: bool  # the kernel's source for what goes to the Store

    def __str__(self) -> str:
        return f"{self.interface} {self.address}/{self.prefix}"

    def near(self, address: str) -> bool:
        """Whether an address lies in this one's network."""
        other = ipaddress.ip_address(address)
        network = ipaddress.ip_network(f"{self.address}/{self.prefix}", strict=False)
        return other.version == network.version and other in network


@dataclass(frozen=True)
class AddressChoice:
    """Where to listen (normally one address), why, and the address of each host that decided."""

    listen: list[str]
    reason: str
    targets: dict[str, str]


@dataclass(frozen=True)
class _Route:
    """A candidate of another host that the kernel can reach, and where the way begins."""

    mine: Candidate
    theirs: Candidate

    @property
    def marks(self) -> int:
        return self.mine.towards_store + self.theirs.towards_store

    @property
    def near(self) -> bool:
        return self.mine.near(self.theirs.address)

    @property
    def evidence(self) -> tuple[int, ...]:
        """The smaller the better; the module's docstring says why in this order."""
        ends = (self.mine, self.theirs)
        return (
            self.marks < 2,
            max(map(_seclusion, ends)),
            -self.marks,
            any(_TUNNEL.match(end.interface) for end in ends),
            not self.near,
            -min(end.speed_mbit for end in ends),
            ":" in self.theirs.address,
        )

    @property
    def why(self) -> str:
        if self.marks == 2:
            return "the network of the Store"
        if self.near:
            return "the same network"
        return "the way to the Store" if self.marks else "through a router"


def seclusion(interface: str, address: str) -> int:
    """0: other machines can be expected behind it; 1: a bridge inside this one; 2: unconfigured."""
    if ipaddress.ip_address(address).is_link_local:
        return 2
    return 1 if _BRIDGE.match(interface) else 0


def _seclusion(candidate: Candidate) -> int:
    return seclusion(candidate.interface, candidate.address)


def choose(
    mine: Sequence[Candidate],
    theirs: Mapping[str, Sequence[Candidate]],
    route: Route,
    *,
    loopback: bool = False,
    here: str = "this machine",
    same: Collection[str] = (),
) -> AddressChoice:
    """Where `here` listens for the ranks of the hosts in `theirs`.

    `loopback`: all ranks are known to share one machine and network namespace. `same`: these hosts
    do, though others do not (their identity is forced, for tests): what serves others serves them.
    Raises HostError, with the addresses of both, for a host that no address leads to.
    """
    if loopback or (theirs and all(host in same for host in theirs)):
        return _on_loopback(theirs, route)
    best = {
        host: _best(host, found, mine, route, here)
        for host, found in theirs.items()
        if host not in same
    }
    served: dict[str, list[str]] = {}
    for host, way in best.items():
        served.setdefault(way.mine.address, []).append(host)
    # A peer that looks at the first address only should find the one that serves most hosts.
    listen = sorted(served, key=lambda address: -len(served[address]))
    sentences = [_sentence([(host, best[host]) for host in served[one]]) for one in listen]
    targets = {host: best[host].theirs.address if host in best else listen[0] for host in theirs}
    return AddressChoice(listen, "; ".join(sentences) or "there is no other machine", targets)


def targets(
    published: Sequence[str], mine: Sequence[Candidate], route: Route, host: str
) -> list[str]:
    """The order in which to try the addresses that a rank of `host` listens on.

    Those without hope (no route, or our own) come last instead of not at all: trying them gives
    the caller a reason to name. Raises HostError for what is no address to connect to.
    """
    if len(published) > MAX_CANDIDATES:
        raise HostError(
            f"{host} listens on {len(published)} addresses; at most {MAX_CANDIDATES} are tried"
        )
    for address in published:
        _checked(address, host, loopback=True)

    def hope(address: str) -> tuple[int, ...]:
        source = _source(address, mine, route)
        if isinstance(source, str):
            return (1,)
        return (0, not source.near(address), not source.towards_store, ":" in address)

    return sorted(published, key=hope)


def dump(candidates: Sequence[Candidate]) -> list[list[str | int | bool]]:
    """Plain lists for the Store."""
    return [
        [one.address, one.interface, one.prefix, one.speed_mbit, one.towards_store]
        for one in candidates
    ]


def load(value: object, host: str) -> list[Candidate]:
    """The candidates of another machine's `dump`; HostError for anything else."""
    if not isinstance(value, list) or len(value) > MAX_CANDIDATES:
        raise HostError(
            f"{host} published no list of at most {MAX_CANDIDATES} addresses."
            " Check that every machine runs the same version of wiiiiide"
        )
    return [_loaded(row, host) for row in value]


def _loaded(row: object, host: str) -> Candidate:
    match row:
        case [str(address), str(interface), int(prefix), int(speed), bool(store)] if (
            type(prefix) is type(speed) is int  # a bool is an int too
        ):
            address = _checked(address, host)
        case _:
            raise HostError(f"{host} published an address that cannot be read: {row!r:.100}")
    if not 0 <= prefix <= ipaddress.ip_address(address).max_prefixlen:
        raise HostError(f"{host} published {address} with a prefix of {prefix} bits")
    if not 0 < len(interface) <= MAX_INTERFACE_NAME or not interface.isprintable():
        raise HostError(f"{host} published {address} on an interface without a proper name")
    if not 0 <= speed <= MAX_SPEED_MBIT:
        raise HostError(f"{host} published {address} with a speed of {speed} Mbit/s")
    return Candidate(address, interface, prefix, speed, store)


def _checked(text: str, host: str, *, loopback: bool = False) -> str:
    """The address in its one canonical form; HostError for what no process can listen on."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise HostError(f"{host} published {text[:100]!r}, which is not an IP address") from None
    strange = address.is_unspecified or address.is_multicast
    strange |= address.is_loopback and not loopback
    if isinstance(address, ipaddress.IPv6Address):
        # fe80:: means another network on every machine; ::ffff:127.0.0.1 hides what it is.
        strange |= address.is_link_local or address.ipv4_mapped is not None
    if strange:
        raise HostError(f"{host} published {address}, which no other machine can connect to")
    return str(address)


def _on_loopback(hosts: Mapping[str, object], route: Route) -> AddressChoice:
    for address in ("127.0.0.1", "::1"):
        if route(address) == address:
            reason = f"{address}: all ranks share this machine and its network namespace"
            return AddressChoice([address], reason, dict.fromkeys(hosts, address))
    raise HostError(
        "the loopback interface has no address here, and ranks of one machine need it."
        " Bring it up: ip link set lo up"
    )


def _best(
    host: str, found: Sequence[Candidate], mine: Sequence[Candidate], route: Route, here: str
) -> _Route:
    """The likeliest way to a host, or HostError saying why there is none."""
    ways: list[_Route] = []
    refused: list[str] = []
    for theirs in found:
        source = _source(theirs.address, mine, route)
        if isinstance(source, str):
            refused.append(f"{theirs} ({source})")
        else:
            ways.append(_Route(source, theirs))
    if not ways:
        raise HostError(
            f"no address of {host} can be reached from {here}: {here} has"
            f" {_listed(map(str, mine))}; {host} has {_listed(refused)}. {WHAT_TO_DO}"
        )
    return min(ways, key=lambda way: way.evidence)  # min takes the first of equals: their order


def _source(address: str, mine: Sequence[Candidate], route: Route) -> Candidate | str:
    """Which of my addresses the way to another begins at, or why that one is of no use."""
    if any(one.address == address for one in mine):
        return "also an address of this machine"
    source = route(address)
    if source is None:
        return "no route to it"
    if source == address:
        return "also an address of this machine"
    if ipaddress.ip_address(source).is_loopback:
        return f"the route to it begins at {source}"
    for one in mine:
        if one.address == source:
            return one
    # The user named another address of the same network than the one the kernel takes first.
    for one in mine:
        if one.near(source):
            return one
    return f"the route to it begins at {source}, which is not to be used"


def _sentence(served: Sequence[tuple[str, _Route]]) -> str:
    """Such as: eth1 (10.0.0.5): it routes to 10.0.0.6 of b, the network of the Store."""
    first = served[0][1]
    shown = [f"{way.theirs.address} of {host}" for host, way in served[:HOSTS_IN_A_SENTENCE]]
    if more := len(served) - len(shown):
        shown.append(f"{more} more")
    return (
        f"{first.mine.interface} ({first.mine.address}): it routes to {_listed(shown)}, {first.why}"
    )


def _listed(words: Iterable[str]) -> str:
    texts = list(words)
    if len(texts) < 2:
        return texts[0] if texts else "no network address"
    return f"{', '.join(texts[:-1])} and {texts[-1]}"
