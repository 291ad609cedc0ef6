"""The one port as `wiiiiide doctor` finds it, its own and those of the other machines.

A TCP connection is opened and closed again, and nothing is sent on it: that packets come through is
all it tests; which machines a daemon accepts, only the daemon can say. All machines are tried at
once; each has three seconds.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from wiiiiided.cluster.rpc.messages import NodeView
from wiiiiided.domain.node import Node
from wiiiiided.ui.cli.doctor.model import PeerFacts, PortProbe

CONNECT_S = 3.0  # one lost SYN is sent again after one second, a second one after three
AT_ONCE = 32
IPV6_MTU = 24  # of linux/in6.h; Python does not name it
IP_MTU = 14

PROBLEMS = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "no-route",
    errno.ENETUNREACH: "no-route",
    errno.EPERM: "forbidden",
    errno.EACCES: "forbidden",
}


def reach(node: Node) -> PortProbe:
    """Try a TCP connection from here to the one port of a machine."""
    family = socket.AF_INET6 if ":" in node.address else socket.AF_INET
    begun = time.monotonic()
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as link:
        link.settimeout(CONNECT_S)
        try:
            link.connect((node.address, node.port))
        except TimeoutError:
            return PortProbe(problem="silent")
        except OSError as problem:
            kind = PROBLEMS.get(problem.errno or 0, "other")
            return PortProbe(problem=kind, words=problem.strerror or str(problem))
        return PortProbe(time.monotonic() - begun, mtu=_mtu(link, family))


def _mtu(link: socket.socket, family: socket.AddressFamily) -> int | None:
    """The largest packet that the kernel sends on this way, as far as it knows."""
    level, option = (
        (socket.IPPROTO_IPV6, IPV6_MTU)
        if family == socket.AF_INET6
        else (socket.IPPROTO_IP, IP_MTU)
    )
    try:
        return link.getsockopt(level, option)
    except OSError:
        return None


def peers(views: Sequence[NodeView], own: str) -> list[PeerFacts]:
    """The other machines, as they can be reached from this one."""
    others = [view for view in views if view.node.name != own]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reached = pool.map(lambda view: reach(view.node) if view.node.endpoint else None, others)
        return [
            PeerFacts(view.node.name, view.node.endpoint, view.state, view.node.version, how)
            for view, how in zip(others, reached, strict=True)
        ]
