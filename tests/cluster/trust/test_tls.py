"""Which peer gets through TLS and under which name, whatever the clocks say."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from tests.cluster.trust.kit import DAY_S, a_cluster, a_member, shake_hands
from wiiiiided.cluster.trust.identity import Identity
from wiiiiided.cluster.trust.tls import (
    NO_CHECK_TIME,
    VerifiedPeer,
    client_context,
    greeting_context,
    joining_context,
    peer_of,
    server_context,
    why_not_coordinator,
)
from wiiiiided.errors import HostError

DECADES_OFF = [86400.0, time.time() - 401 * DAY_S, time.time() + 30 * 365 * DAY_S, 4_000_000_000.0]


def test_both_sides_know_the_identity_of_the_other(tmp_path: Path) -> None:
    coordinator = a_cluster(tmp_path / "a")
    member = a_member(tmp_path / "b", coordinator)
    there, here = shake_hands(server_context(coordinator), client_context(member))
    assert peer_of(there) == as_peer(member)
    assert peer_of(here) == as_peer(coordinator)
    assert there.version() == "TLSv1.3"
    there, here = shake_hands(server_context(member), client_context(coordinator))
    assert peer_of(there) == as_peer(coordinator)
    assert peer_of(here) == as_peer(member)


def as_peer(one: Identity) -> VerifiedPeer:
    return VerifiedPeer(one.node, one.certificate.fingerprint, one.role, one.certificate.until)


def test_a_joiner_shows_nothing_and_verifies_the_coordinator(tmp_path: Path) -> None:
    coordinator = a_cluster(tmp_path)
    there, here = shake_hands(server_context(coordinator), joining_context(coordinator.authority))
    assert peer_of(there) is None
    assert peer_of(here) == as_peer(coordinator)


def test_a_greeting_verifies_no_certificate(tmp_path: Path) -> None:
    there, here = shake_hands(server_context(a_cluster(tmp_path)), greeting_context())
    assert peer_of(there) is None
    assert peer_of(here) is None


def test_a_certificate_of_another_cluster_is_refused_by_both_sides(tmp_path: Path) -> None:
    ours, theirs = a_cluster(tmp_path / "a"), a_cluster(tmp_path / "b")
    member = a_member(tmp_path / "c", theirs)
    believing = client_context(member)
    believing.load_verify_locations(cadata=ours.authority)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server_context(ours), believing)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server_context(ours), client_context(member))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server_context(ours), joining_context(theirs.authority))


def test_a_node_cannot_sign_for_another(tmp_path: Path) -> None:
    """A member's key as an authority's: the chain must be refused."""
    coordinator = a_cluster(tmp_path / "a")
    member = a_member(tmp_path / "b", coordinator)
    key, _, pem = member.key_file.read_text().partition("\n")[2].partition("-----BEGIN CERT")
    (member.directory / "authority.key").write_text(key)
    (member.directory / "authority.pem").write_text("-----BEGIN CERT" + pem)
    forged = a_member(tmp_path / "c", member, node="c", role="coordinator")
    chain = forged.key_file.read_text() + "-----BEGIN CERT" + pem
    forged.key_file.write_text(chain)
    (forged.directory / "authority.pem").write_text(coordinator.authority)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server_context(coordinator), client_context(forged))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server_context(forged), joining_context(coordinator.authority))


@pytest.mark.parametrize("now", DECADES_OFF, ids=lambda now: time.strftime("%Y", time.gmtime(now)))
def test_a_clock_that_is_decades_off_keeps_no_machine_out(tmp_path: Path, now: float) -> None:
    coordinator = a_cluster(tmp_path / "a", now=now)
    member = a_member(tmp_path / "b", coordinator, now=now)
    there, here = shake_hands(server_context(coordinator), client_context(member))
    seen = peer_of(there)
    assert seen is not None
    assert seen.until == member.certificate.until == float(int(now + 400 * DAY_S))
    assert peer_of(here) == as_peer(coordinator)
    shake_hands(server_context(coordinator), joining_context(coordinator.authority))


def test_without_the_flag_the_clock_would_keep_it_out(tmp_path: Path) -> None:
    coordinator = a_cluster(tmp_path, now=time.time() - 401 * DAY_S)
    strict = joining_context(coordinator.authority)
    strict.verify_flags &= ~NO_CHECK_TIME
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(server_context(coordinator), strict)


@pytest.mark.parametrize("side", ["client", "server"])
def test_tls_1_2_is_refused(tmp_path: Path, side: str) -> None:
    coordinator = a_cluster(tmp_path)
    server, client = server_context(coordinator), joining_context(coordinator.authority)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if side == "client" else ssl.PROTOCOL_TLS_SERVER)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    if side == "client":
        old.check_hostname = False
        old.verify_mode = ssl.CERT_NONE
        client = old
    else:
        old.load_cert_chain(coordinator.key_file)
        server = old
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
        shake_hands(server, client)


def test_no_session_is_resumed(tmp_path: Path) -> None:
    coordinator = a_cluster(tmp_path / "a")
    member = a_member(tmp_path / "b", coordinator)
    server, client = server_context(coordinator), client_context(member)
    there, here = shake_hands(server, client)
    there.write(b"x")
    assert here.read(1) == b"x"  # a ticket would have come before it
    assert here.session is not None
    assert not here.session.has_ticket
    assert server.num_tickets == 0


def test_only_the_own_coordinator_is_listened_to(tmp_path: Path) -> None:
    coordinator = a_cluster(tmp_path / "a")
    member = a_member(tmp_path / "b", coordinator)
    assert why_not_coordinator(member, as_peer(coordinator)) == ""
    other = a_member(tmp_path / "c", coordinator, node="c")
    assert "c is not the coordinator" in why_not_coordinator(member, as_peer(other))
    same_name = VerifiedPeer("a", "00", "member")
    assert "a is not the coordinator" in why_not_coordinator(member, same_name)
    assert "no certificate" in why_not_coordinator(member, None)


def test_what_is_no_authority_and_a_missing_key_are_said(tmp_path: Path) -> None:
    coordinator = a_cluster(tmp_path)
    fake = ssl.DER_cert_to_PEM_cert(b"no certificate")
    with pytest.raises(HostError, match="authority"):
        joining_context(fake)
    coordinator.key_file.unlink()
    with pytest.raises(HostError, match=r"node\.key cannot be used"):
        server_context(coordinator)
