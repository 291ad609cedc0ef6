"""The cluster as `wiiiiide doctor` judges it: pure, one finding a line, like doctor_checks.

cluster    what this machine is, and whether the coordinator hears it
one port   whether its own port answers
node b     with --peers: whether b's port answers from here, and what that says
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wiiiiided.cluster.rpc.messages import DaemonStatus
from wiiiiided.ui.cli.doctor.model import Facts, Finding, PeerFacts, PortProbe, fail, ok, warn

LEAST_MTU = 1280  # what every IPv6 link carries; less is a tunnel worth a look


def cluster(facts: Facts) -> Finding | None:
    """The machine's role; None without a daemon, whose own line says enough."""
    status = facts.daemon
    if status is None:
        return None
    if status.role == "alone":
        return ok("none: this machine is alone")
    if status.role == "coordinator":
        return ok(f"{status.cluster}, this machine coordinates it")
    words = f"{status.cluster}, a member; {status.coordinator} coordinates it"
    if status.linked:
        return ok(words)
    return fail(
        f"{words}, and does not hear this machine; jobs that run go on",
        f"is {status.coordinator} on, its daemon running, its port open? wiiiiide doctor there. "
        "If this machine was removed: wiiiiide leave, and join with a new token",
    )


def one_port(facts: Facts) -> Finding | None:
    """Whether the machine's own port answers; None outside a cluster."""
    status, found = facts.daemon, facts.port
    if status is None or not status.node.endpoint or found is None:
        return None
    endpoint = status.node.endpoint
    if found.seconds is not None:
        return ok(f"{endpoint} answers; a firewall must let others through")
    return fail(
        f"{endpoint} does not answer on this machine itself",
        f"is {status.node.address} still its address (ip addr), and the port free "
        f"(ss -ltnp 'sport = {status.node.port}')? the daemon tries again every 2 s",
    )


def examine_peers(status: DaemonStatus, peers: Sequence[PeerFacts]) -> list[Finding]:
    """A finding for each of the others."""
    if not peers:
        return [Finding("ok", "nodes", "there is no other")]
    return [replace(_peer(status, peer), title=f"node {peer.name}") for peer in peers]


def _peer(status: DaemonStatus, peer: PeerFacts) -> Finding:
    found = peer.reach
    if found is None:
        return warn("its address is not known", "wiiiiide doctor there")
    if found.seconds is None:
        words, do = _unreachable(peer, found)
        return fail(f"{peer.endpoint} {words}", do)
    words = f"{peer.endpoint} answers in {found.seconds * 1e3:.1f} ms"
    if found.mtu is not None:
        words += f", MTU {found.mtu}"
    return _reachable(status, peer, found, words)


def _reachable(status: DaemonStatus, peer: PeerFacts, found: PortProbe, words: str) -> Finding:
    if peer.state == "lost":
        return fail(
            f"{words}, but the coordinator does not hear it",
            f"on {peer.name}: wiiiiide doctor, systemctl status wiiiiided",
        )
    if peer.version and peer.version != status.version:
        return warn(
            f"{words}; it has wiiiiided {peer.version}, this machine {status.version}",
            "bring all to one version; daemons one version apart work together meanwhile",
        )
    if found.mtu is not None and found.mtu < LEAST_MTU:
        return warn(words, "look at the tunnel or VPN on the way: packets are small there")
    return ok(f"{words}, {peer.state}")


def _unreachable(peer: PeerFacts, found: PortProbe) -> tuple[str, str]:
    number = peer.endpoint.rpartition(":")[2]
    if found.problem == "refused":
        return "refuses", (
            f"no daemon listens there, or a firewall rejects: on {peer.name}, systemctl status "
            f"wiiiiided and wiiiiide doctor"
        )
    if found.problem == "silent":
        return "does not answer", (
            f"{peer.name} is off, or a firewall drops: let TCP port {number} in on {peer.name} "
            "from all nodes"
        )
    if found.problem == "no-route":
        return (
            "has no route from here",
            f"ip route get {peer.endpoint.rpartition(':')[0].strip('[]')}",
        )
    if found.problem == "forbidden":
        return "may not be connected to from here", (
            f"a firewall of this machine forbids it: let TCP port {number} out"
        )
    return f"cannot be reached: {found.words}", "look at the network of both machines"
