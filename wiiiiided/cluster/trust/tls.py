"""TLS 1.3 between daemons, and the identity of the peer.

    context     used by                   shows            wants to see
    ───────     ───────                   ─────            ────────────
    server      every daemon              its certificate  one of the cluster's, or none (a joiner)
    client      a member, a coordinator   its certificate  one of the cluster's
    greeting    a joiner, first           nothing          anything: it only fetches the authority
    joining     a joiner, then            nothing          one of that authority

No certificate is compared with this machine's clock (X509_V_FLAG_NO_CHECK_TIME): a machine whose
battery is empty wakes up in 1970, and must get through to its cluster all the same. The coordinator
does, with the one clock that counts, and can say so in a sentence (membership/members). Host
names are not looked at either: a node is the one its certificate names, wherever it is.

No session is ever resumed, so each connection shows its certificate, and a removed node's old
session is worth nothing.
"""

from __future__ import annotations

import hashlib
import math
import ssl
from dataclasses import dataclass
from typing import Any, Final

from wiiiiided.cluster.trust.certificate import Role, der_of
from wiiiiided.cluster.trust.identity import Identity
from wiiiiided.errors import HostError

NO_CHECK_TIME: Final = 0x200000  # openssl/x509_vfy.h; Python has no name for it


@dataclass(frozen=True)
class VerifiedPeer:
    """A peer with a certificate of the cluster; membership/members says whether it counts."""

    name: str
    fingerprint: str  # SHA-256 of the certificate, hexadecimal
    role: Role
    until: float = math.inf  # seconds since 1970


def server_context(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    _believe(context, identity.authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    _show(context, identity)
    return context


def client_context(identity: Identity) -> ssl.SSLContext:
    context = joining_context(identity.authority)
    _show(context, identity)
    return context


def greeting_context() -> ssl.SSLContext:
    """A context that trusts any certificate, in which nothing secret may be sent."""
    context = _client()
    context.verify_mode = ssl.CERT_NONE
    return context


def joining_context(ca_pem: str) -> ssl.SSLContext:
    context = _client()
    _believe(context, ca_pem)
    return context


def peer_of(connection: ssl.SSLObject | ssl.SSLSocket) -> VerifiedPeer | None:
    """The peer, by a certificate that was verified; None: it showed none."""
    der = connection.getpeercert(binary_form=True)
    about = connection.getpeercert()
    if not der or not about:  # greeting: shown and not verified
        return None
    subject = _subject(about)
    unit = subject.get("organizationalUnitName")
    role: Role = "coordinator" if unit == "coordinator" else "member"
    until = float(ssl.cert_time_to_seconds(str(about["notAfter"])))
    return VerifiedPeer(subject.get("commonName", ""), hashlib.sha256(der).hexdigest(), role, until)


def why_not_coordinator(identity: Identity, peer: VerifiedPeer | None) -> str:
    """Why a member must not talk to this peer; empty when its own coordinator is at the other
    end."""
    if peer is None:
        return "no certificate of this cluster was shown"
    if peer.role != "coordinator" or peer.name != identity.coordinator.name:
        return f"{peer.name} is not the coordinator of this cluster ({identity.coordinator.name})"
    return ""


def _subject(about: dict[str, Any]) -> dict[str, str]:
    """((("commonName", "b"),), …) → {"commonName": "b"}"""
    return {key: value for part in about["subject"] for key, value in part}


def _client() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    return context


def _believe(context: ssl.SSLContext, ca_pem: str) -> None:
    """Trust one authority, and none of the system's."""
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= NO_CHECK_TIME
    try:
        context.load_verify_locations(cadata=der_of(ca_pem))
    except ssl.SSLError:
        raise HostError("the bytes sent as the cluster's authority are no certificate") from None


def _show(context: ssl.SSLContext, identity: Identity) -> None:
    try:
        context.load_cert_chain(identity.key_file)
    except (OSError, ssl.SSLError) as problem:
        raise HostError(
            f"{identity.key_file} cannot be used ({problem}): restore it from a copy, or make this "
            "machine join again"
        ) from problem
