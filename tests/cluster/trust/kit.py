"""Clusters in a directory, and TLS between two of their nodes without a network."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

from wiiiiided.cluster.trust.authority import Authority
from wiiiiided.cluster.trust.certificate import Certificate, Role
from wiiiiided.cluster.trust.identity import (
    ClusterMembership,
    Identity,
    NodeEndpoint,
    adopt_membership,
    create_cluster,
)
from wiiiiided.cluster.trust.signing_request import new_request

DAY_S = 86400.0


def a_cluster(
    state: Path, *, node: str = "a", now: float | None = None, address: str = "127.0.0.1"
) -> Identity:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    at = time.time() if now is None else now
    return create_cluster(state, cluster="lab", node=node, address=address, port=9461, now=at)


def a_member(
    state: Path,
    coordinator: Identity,
    *,
    node: str = "b",
    now: float | None = None,
    role: Role = "member",
) -> Identity:
    """A member as its coordinator's authority would make it, without a request."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    key, request = new_request(node)
    at = time.time() if now is None else now
    authority = Authority.load(coordinator.directory)
    certificate = authority.sign(request, node, role, at)
    return adopt_membership(
        state, a_membership(coordinator, node), authority.certificate, key, certificate
    )


def a_membership(coordinator: Identity, node: str) -> ClusterMembership:
    return ClusterMembership(
        role="member",
        cluster=coordinator.cluster,
        cluster_id=coordinator.cluster_id,
        node=node,
        address="127.0.0.1",
        port=9462,
        coordinator=NodeEndpoint(coordinator.node, coordinator.address, coordinator.port),
    )


def a_certificate(coordinator: Identity, node: str = "b") -> tuple[str, Certificate]:
    """A key, and a certificate for it."""
    key, request = new_request(node)
    authority = Authority.load(coordinator.directory)
    return key, authority.sign(request, node, "member", time.time())


def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a connection, once each has accepted the other; ssl.SSLError: one has not."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (server.wrap_bio(up, down, server_side=True), client.wrap_bio(down, up))
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for end in ends:
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                pass
    return ends
