"""Under which address the other machines know this one: chosen by route, or checked when told.

    told          ─► an IP of this machine, never a wildcard; loopback for a trial on one machine
    by route      ─► the source of what would go to the coordinator, or to the outside
    no way out    ─► the only address there is; several: the person says which

No packet is sent: `connect` on a UDP socket only makes the kernel look the route up. A loopback
address is never chosen by itself: no other machine could reach it.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final

import psutil

from wiiiiided.errors import HostError, UsageError

# Addresses that no machine has (RFC 5737, RFC 3849): the way to them is the default route.
OUTSIDE: Final = ("192.0.2.1", "2001:db8::1")
_DISCARD: Final = 9  # a port; nothing is sent to it
# linux/in6.h: among several IPv6 addresses the lasting one, not this hour's.
_IPV6_ADDR_PREFERENCES, _PREFER_LASTING = 72, 0x0002

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def by_default_route() -> str:
    """Choose an address for init: the one that leads outside, or the only one; UsageError says what
    there is."""
    for outside in OUTSIDE:
        source = route(outside)
        if source and _is_reachable(ipaddress.ip_address(source)):
            return source
    found = addresses()
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"this machine has no default route and several addresses: {', '.join(found)}. Say "
            f"under which the other machines reach it: --address {found[0]}"
        )
    raise UsageError(
        "this machine has no address that another one could reach. Connect it to a network; for a "
        "trial on this machine alone: --address 127.0.0.1"
    )


def towards(coordinator: str) -> str:
    """Choose an address for join: the one from which this machine reaches the coordinator."""
    source = route(coordinator.partition("%")[0])
    if source and _is_reachable(ipaddress.ip_address(source)):
        return source
    found = addresses()
    what = f"this machine has {', '.join(found)}" if found else "this machine has no other"
    raise UsageError(
        f"the way to {coordinator} begins at {source or 'no address'}, where no other machine can "
        f"reach this one; {what}. Say which to use with --address (127.0.0.1 for a trial on one "
        "machine)"
    )


def told(text: str) -> str:
    """Check what --address says: an address of this machine, in its usual spelling; UsageError: it
    is none."""
    try:
        address = ipaddress.ip_address(text.strip().removeprefix("[").removesuffix("]"))
    except ValueError:
        raise UsageError(f"--address {text[:80]!r} is no IP address, such as 10.0.0.5") from None
    address = getattr(address, "ipv4_mapped", None) or address
    found = addresses()
    have = f"this machine has {', '.join(found) or 'none but 127.0.0.1'}"
    if address.is_unspecified or address.is_multicast:
        raise UsageError(f"--address {address} is not one address: name one; {have}")
    if address.is_loopback or str(address) in found:
        return str(address)
    if address.version == 6 and address.is_link_local:
        raise UsageError(f"--address {address} means another machine on every link; {have}")
    raise UsageError(f"--address {address} is not of this machine; {have}")


def check_port(address: str, port: int) -> None:
    """Whether the one port can be opened there; HostError says why not."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
            trial.listen(1)
        except OSError as problem:
            taken = problem.errno == errno.EADDRINUSE
            why = "another program listens there" if taken else problem.strerror
            raise HostError(
                f"cannot listen on {address} port {port}: {why}. Choose another with --port"
            ) from problem


def route(address: str) -> str | None:
    """The source of what would go to an address; None where there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, _IPV6_ADDR_PREFERENCES, _PREFER_LASTING)
            probe.connect((address, _DISCARD))
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:  # no route, or a kernel without this family
        return None


def addresses() -> list[str]:
    """The addresses of this machine that another one could reach, IPv4 first."""
    up = {name for name, about in psutil.net_if_stats().items() if about.isup}
    found = [
        ipaddress.ip_address(entry.address.partition("%")[0])
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6) and name.partition(":")[0] in up
    ]
    return [str(one) for one in sorted(found, key=lambda one: one.version) if _is_reachable(one)]


def interface_of(address: str) -> str:
    """The interface of this machine that has an address; empty: none has it."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in entries):
            return name
    return ""


def _is_reachable(address: _Ip) -> bool:
    # fe80:: means nothing without the name of the other machine's interface.
    inside = address.is_loopback or address.is_unspecified or address.is_multicast
    return not inside and not (address.version == 6 and address.is_link_local)
