"""The addresses of this machine, and the kernel's routes from it: the I/O under net/address.

No packet is sent. `connect` on a UDP socket only makes the kernel look the route up and fix the
source address, which `getsockname` then tells; it honours every routing table, rule and metric
there is, which no reading of tables would.

    candidates() ── psutil: which are up, with which addresses ──► ranked, at most 32, for the Store
    route(address) ── UDP connect, getsockname ──────────────► the source, or None
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil

from wiiiiided.backend.net.address import MAX_CANDIDATES, Candidate, seclusion
from wiiiiided.backend.net.tuning import tune_probe
from wiiiiided.errors import HostError

# Any port will do, nothing is sent to it: this one is called "discard".
_PORT: Final = 9
# Names of one machine rarely have more addresses; a hostile DNS could have thousands.
_RESOLVED: Final = 8
# linux/if_addr.h: temporary, failed the check for duplicates, deprecated, not yet checked.
_UNSTABLE: Final = 0x01 | 0x08 | 0x20 | 0x40

Matcher = Callable[[str, str], bool]  # interface, address


def candidates(force: str = "", store_host: str = "") -> list[Candidate]:
    """Addresses other machines may know this one by, the likeliest first; empty if there are none.

    `force` (WIIIIIDE_INTERFACE) keeps those of an interface, an address or a network; several,
    with commas between them, keep what any of them matches. HostError if none does. `store_host`
    is MASTER_ADDR: the address this machine reaches it from is marked.
    """
    sources = _sources_towards(store_host)
    found = [
        Candidate(address, name, prefix, speed, address in sources)
        for name, address, prefix, speed in _addresses()
    ]
    if force.strip():
        found = _forced(found, force)
    unique = {one.address: one for one in reversed(found)}  # the first interface keeps it
    ranked = sorted((one for one in found if unique[one.address] is one), key=_rank)
    return ranked[:MAX_CANDIDATES]


def route(address: str) -> str | None:
    """The source address of what would go to `address`; None where there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            tune_probe(probe)
            probe.connect((address, _PORT))
            source = str(probe.getsockname()[0])
    except OSError:  # no route, or a kernel without this family
        return None
    return source.partition("%")[0]


def _rank(candidate: Candidate) -> tuple[int, ...]:
    secluded = seclusion(candidate.interface, candidate.address)
    return (not candidate.towards_store, secluded, ":" in candidate.address)


def _sources_towards(store_host: str) -> set[str]:
    """Where packets to the Store would begin; a name that means loopback says nothing."""
    if not store_host:
        return set()
    try:
        found = socket.getaddrinfo(store_host, _PORT, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return set()  # connecting to the Store says so better
    addresses = {str(entry[4][0]).partition("%")[0] for entry in found[:_RESOLVED]}
    sources = {route(one) for one in addresses if not ipaddress.ip_address(one).is_loopback}
    return {one for one in sources if one and not ipaddress.ip_address(one).is_loopback}


def _addresses() -> Iterator[tuple[str, str, int, int]]:
    """Interface, address, prefix and speed of all that another machine could be told."""
    devices = psutil.net_if_stats()
    unstable = _unstable()
    for name, entries in psutil.net_if_addrs().items():
        device = devices.get(_device(name))
        if device is None or not device.isup:
            continue
        for entry in entries:
            if entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            address = ipaddress.ip_address(entry.address.partition("%")[0])
            text = str(address)
            inside = address.is_loopback or address.is_unspecified or address.is_multicast
            # fe80:: needs the name of the other machine's interface to be of any use.
            if inside or (address.version == 6 and address.is_link_local) or text in unstable:
                continue
            prefix = _prefix(entry.netmask, address.max_prefixlen)
            yield name, text, prefix, max(0, device.speed)


def _device(name: str) -> str:
    return name.partition(":")[0]  # "eth0:1" is a second address of eth0, not a device


def _prefix(netmask: str | None, most: int) -> int:
    """255.255.255.0 → 24. Point-to-point links may have none: then no peer is near."""
    bits = bin(int(ipaddress.ip_address(netmask or "0.0.0.0")))[2:].rstrip("0")
    return len(bits) if bits and "0" not in bits else most


def _unstable() -> set[str]:
    """IPv6 addresses that are not there to stay; psutil does not tell them apart."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return set()
    fields = [line.split() for line in lines]
    return {
        str(ipaddress.IPv6Address(int(field[0], 16)))
        for field in fields
        if int(field[4], 16) & _UNSTABLE
    }


def _forced(found: list[Candidate], force: str) -> list[Candidate]:
    """The candidates the user asked for, or HostError with those there are instead."""
    wanted = [_matcher(word.strip()) for word in force.split(",") if word.strip()]
    kept = [one for one in found if any(match(one.interface, one.address) for match in wanted)]
    if kept:
        return kept
    raise HostError(
        f"WIIIIIDE_INTERFACE={force[:200]!r} matches nothing that other machines could reach."
        f" This machine has {_inventory(found)}. Name an interface, an address or a network"
        " (such as eth1, 10.0.0.5 or 10.0.0.0/24), or several with commas between them"
    )


def _matcher(word: str) -> Matcher:
    try:
        network = ipaddress.ip_network(word, strict=False)  # an address is a network of one
    except ValueError:
        return lambda interface, address: word in (interface, _device(interface))
    return lambda interface, address: ipaddress.ip_address(address) in network


def _inventory(found: list[Candidate]) -> str:
    shown = [str(one) for one in found[:MAX_CANDIDATES]]
    for name, about in psutil.net_if_stats().items():
        if not any(_device(one.interface) == name for one in found):
            without = "no address to connect to" if about.isup else "down"
            shown.append(f"{name} ({'loopback' if name == 'lo' else without})")
    return ", ".join(shown) or "no network interface"
