"""Which machines are admitted, which count as members, and which do not any more."""

from __future__ import annotations

import hmac
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cluster.trust.kit import DAY_S, a_cluster
from wiiiiided.cluster.membership import members as module
from wiiiiided.cluster.membership.members import Members
from wiiiiided.cluster.peering.messages import Joined, JoinRequest
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.cluster.trust.authority import Authority
from wiiiiided.cluster.trust.certificate import Certificate, Role
from wiiiiided.cluster.trust.identity import Identity, forget
from wiiiiided.cluster.trust.signing_request import new_request
from wiiiiided.cluster.trust.tls import VerifiedPeer, server_context
from wiiiiided.cluster.trust.token import Token
from wiiiiided.domain.node import Node

NOW = 1_800_000_000.0


class Coordinator:
    """A store, an identity and a clock that a test can set."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.now = NOW
        self.store = StateStore(state)
        self.identity = a_cluster(state, now=NOW)
        self.members = self.started()

    def started(self) -> Members:
        authority = Authority.load(self.identity.directory)
        return Members(self.db, self.identity, authority, lambda: self.now)

    @property
    def db(self) -> sqlite3.Connection:
        return self.store._db

    def token(self, ttl_s: float = 3600.0, uses: int = 1) -> Token:
        return Token.parse(self.members.create_token(ttl_s, uses, "root").token)

    def admit(self, name: str = "b", token: Token | None = None) -> VerifiedPeer:
        """A machine that has joined, as its TLS will show it."""
        joined = self.members.admit(a_request(token or self.token(), name))
        return peer_with(Certificate(joined.certificate, joined.until), name)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Coordinator]:
    made = Coordinator(tmp_path / "state")
    yield made
    made.store.close()


def a_node(name: str = "b", address: str = "127.0.0.1", port: int = 9462) -> Node:
    return Node(name, 4, 1 << 30, boot_id="boot", address=address, port=port)


def a_request(token: Token, name: str = "b") -> JoinRequest:
    _, request = new_request(name)
    return JoinRequest(token.id.hex(), token.secret.hex(), request, a_node(name))


def peer_with(certificate: Certificate, name: str = "b", role: Role = "member") -> VerifiedPeer:
    return VerifiedPeer(name, certificate.fingerprint, role, certificate.until)


def refused(coordinator: Coordinator, request: JoinRequest, sentence: str, code: int) -> None:
    """It is refused with that sentence, and no machine has become a member by it."""
    before = list(coordinator.db.iterdump())
    with pytest.raises(Refuse, match=sentence) as caught:
        coordinator.members.admit(request)
    assert caught.value.code == code
    assert list(coordinator.db.iterdump()) == before
    assert request.secret == "" or request.secret not in str(caught.value)


# ---- tokens


def test_a_token_names_the_authority_and_where_to_join(there: Coordinator) -> None:
    made = there.members.create_token(60.0, 2, "root")
    token = Token.parse(made.token)
    assert token.digest == Authority.load(there.identity.directory).digest
    assert (made.address, made.expires_at, made.uses) == ("127.0.0.1:9461", NOW + 60, 2)


def test_the_store_has_no_secret(there: Coordinator) -> None:
    token = there.token()
    dump = "\n".join(there.db.iterdump())
    assert token.id.hex() in dump
    assert token.secret.hex() not in dump
    assert token.text[-20:] not in dump


@pytest.mark.parametrize(
    ("ttl_s", "uses"), [(0.0, 1), (float("nan"), 1), (31 * DAY_S, 1), (60.0, 0), (60.0, 10_000)]
)
def test_a_token_beyond_all_bounds_is_not_made(there: Coordinator, ttl_s: float, uses: int) -> None:
    with pytest.raises(Refuse, match="a token can be") as caught:
        there.members.create_token(ttl_s, uses, "root")
    assert caught.value.code == 2


def test_the_number_of_tokens_is_bounded_and_old_ones_make_room(
    there: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOKENS", 3)
    for _ in range(3):
        there.token(60.0)
    with pytest.raises(Refuse, match="not used yet"):
        there.token()
    there.now += 61
    there.token()
    there.now += 61 * DAY_S
    there.token()
    assert there.db.execute("SELECT count(*) FROM tokens").fetchone() == (1,)


# ---- joining


def test_the_right_token_makes_a_member(there: Coordinator) -> None:
    joined = there.members.admit(a_request(there.token()))
    assert isinstance(joined, Joined)
    assert (joined.cluster, joined.cluster_id) == ("lab", there.identity.cluster_id)
    assert joined.coordinator.endpoint == "127.0.0.1:9461"
    assert joined.until == NOW + 400 * DAY_S
    assert there.members.names() == ["a", "b"]
    assert there.members.until("b") == joined.until
    assert there.members.verdict(peer_with(Certificate(joined.certificate, joined.until))) == ""


def test_a_token_is_good_for_as_many_as_it_was_made_for(there: Coordinator) -> None:
    token = there.token(uses=2)
    there.admit("b", token)
    there.admit("c", token)
    refused(there, a_request(token, "d"), "used up", 5)
    assert there.members.names() == ["a", "b", "c"]


def test_a_replayed_join_is_refused(there: Coordinator) -> None:
    token = there.token(uses=2)
    request = a_request(token)
    there.members.admit(request)
    refused(there, request, "b is a member already", 2)
    there.members.remove("b")
    there.members.admit(a_request(token, "c"))
    refused(there, request, "used up", 5)


def test_an_expired_token_is_refused(there: Coordinator) -> None:
    token = there.token(60.0)
    there.now += 60
    refused(there, a_request(token), "expired", 5)


def test_unknown_tokens_and_wrong_secrets_look_alike(there: Coordinator) -> None:
    token = there.token()
    right = a_request(token)
    wrong = bytes(16).hex()
    for request in (
        replace(right, token_id="ffffffffffff"),
        replace(right, secret=wrong),
        replace(right, secret=""),
        replace(right, token_id="ffffffffffff", secret=""),
        replace(right, secret="no hexadecimal"),
        replace(right, secret=right.secret + "00"),
        replace(right, secret=right.secret[:-2]),
        replace(right, secret="é" * 1000),
        replace(right, token_id="' OR 1 --"),
    ):
        refused(there, request, "does not know this token", 5)
    there.members.admit(right)


def test_secrets_are_compared_in_constant_time(
    there: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []
    real = hmac.compare_digest

    def watched(a: str, b: str) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(module.hmac, "compare_digest", watched)
    request = a_request(there.token())
    for one in (replace(request, secret="00"), replace(request, token_id="none"), request):
        try:
            there.members.admit(one)
        except Refuse:
            pass
    assert compared == [(64, 64)] * 3  # also where there is no such token


def test_a_name_that_is_taken_is_refused_and_the_token_stays_good(there: Coordinator) -> None:
    there.admit("b")
    token = there.token()
    refused(there, a_request(token, "b"), "b is a member already", 2)
    refused(there, a_request(token, "a"), "a is a member already", 2)
    there.admit("c", token)


@pytest.mark.parametrize("name", ["", "../b", "x" * 64, "b\x1b[2J", "-b"])
def test_a_name_that_could_be_anything_is_refused(there: Coordinator, name: str) -> None:
    request = replace(a_request(there.token()), node=a_node(name))
    refused(there, request, "cannot be the name", 2)


def test_a_signing_request_that_is_garbage_or_for_another_is_refused(there: Coordinator) -> None:
    right = a_request(there.token())
    refused(there, replace(right, request="garbage"), "cannot be read", 2)
    refused(there, replace(right, request=new_request("a")[1]), "not in the name of b", 2)
    there.members.admit(right)


@pytest.mark.parametrize(
    ("address", "port"),
    [
        ("0.0.0.0", 9462),
        ("::", 9462),
        ("224.0.0.1", 9462),
        ("b.example", 9462),
        ("", 9462),
        ("127.0.0.1", 0),
        ("127.0.0.1", 65536),
        ("127.0.0.1", 9461),
    ],
)
def test_a_node_that_cannot_be_reached_is_refused(
    there: Coordinator, address: str, port: int
) -> None:
    request = replace(a_request(there.token()), node=a_node("b", address, port))
    refused(there, request, "reached|address|coordinator's own", 2)


def test_loopback_is_refused_where_the_coordinator_is_on_a_network(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    try:
        identity = a_cluster(tmp_path, address="192.0.2.7")
        members = Members(store._db, identity, Authority.load(identity.directory), lambda: NOW)
        token = Token.parse(members.create_token(60.0, 1, "root").token)
        with pytest.raises(Refuse, match="leads nowhere from a"):
            members.admit(a_request(token))
    finally:
        store.close()


def test_the_number_of_members_is_bounded(
    there: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MEMBERS", 2)
    there.admit("b")
    refused(there, a_request(there.token(), "c"), "more are not supported", 1)


def test_when_the_member_cannot_be_written_the_token_is_not_used(there: Coordinator) -> None:
    request = a_request(there.token())
    there.db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON members BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )
    refused(there, request, "cannot write its state: disk full", 1)
    there.db.execute("DROP TRIGGER full")
    there.members.admit(request)


# ---- members


def test_a_peer_without_a_certificate_is_no_member(there: Coordinator) -> None:
    assert "no certificate" in there.members.verdict(None)


def test_a_certificate_that_was_never_given_out_does_not_count(there: Coordinator) -> None:
    peer = there.admit("b")
    assert "newer one" in there.members.verdict(VerifiedPeer("b", "00" * 32, "member", peer.until))
    assert "not a member" in there.members.verdict(VerifiedPeer("c", peer.fingerprint, "member"))
    assert "not a member" in there.members.verdict(VerifiedPeer("", "", "member"))


def test_a_member_is_never_the_coordinator(there: Coordinator) -> None:
    peer = there.admit("b")
    as_coordinator = VerifiedPeer("b", peer.fingerprint, "coordinator", peer.until)
    assert "b is not the coordinator" in there.members.verdict(as_coordinator)
    assert there.members.verdict(peer_with(there.identity.certificate, "a", "coordinator")) == ""


def test_a_removed_member_is_refused_from_then_on(there: Coordinator) -> None:
    peer = there.admit("b")
    there.members.remove("b")
    assert "b was removed" in there.members.verdict(peer)
    assert "b was removed" in there.started().verdict(peer)
    again = there.admit("b")  # the same name, with a new token and certificate
    assert there.members.verdict(again) == ""
    assert "b was removed" in there.members.verdict(peer)


def test_only_a_member_can_be_removed_and_never_the_coordinator(there: Coordinator) -> None:
    with pytest.raises(Refuse, match=r"no node 'c'; there are a") as caught:
        there.members.remove("c")
    assert caught.value.code == 6
    with pytest.raises(Refuse, match="a is the coordinator"):
        there.members.remove("a")
    assert there.members.names() == ["a"]


def test_what_was_removed_long_ago_is_still_refused(
    there: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REFUSED", 2)
    gone = []
    for name in "bcd":
        gone.append(there.admit(name))
        there.members.remove(name)
    assert there.db.execute("SELECT name FROM refused ORDER BY rowid").fetchall() == [
        ("c",),
        ("d",),
    ]
    assert "not a member" in there.members.verdict(gone[0])
    assert "was removed" in there.members.verdict(gone[2])


def test_an_expired_certificate_is_refused_by_the_coordinators_clock(there: Coordinator) -> None:
    peer = there.admit("b")
    there.now = peer.until - 1
    assert there.members.verdict(peer) == ""
    there.now = peer.until
    assert "b has expired by the clock of a" in there.members.verdict(peer)


def test_a_clock_that_goes_back_keeps_no_member_out(there: Coordinator) -> None:
    peer = there.admit("b")
    there.now = 1000.0
    assert there.members.verdict(peer) == ""


# ---- renewal


def renewed(there: Coordinator, name: str = "b") -> VerifiedPeer:
    return peer_with(there.members.renew(name, new_request(name)[1]), name)


def test_a_renewed_certificate_counts_and_the_old_one_until_the_new_is_seen(
    there: Coordinator,
) -> None:
    old = there.admit("b")
    there.now += 300 * DAY_S
    new = renewed(there)
    assert there.members.until("b") == new.until == there.now + 400 * DAY_S
    assert there.members.verdict(old) == ""  # it may not have heard our answer
    assert there.started().verdict(new) == ""
    assert "newer one" in there.members.verdict(old)
    assert there.members.verdict(new) == ""


def test_a_renewal_that_did_not_arrive_is_due_again(there: Coordinator) -> None:
    old = there.admit("b")
    there.now += 300 * DAY_S
    renewed(there)
    assert there.members.verdict(old) == ""
    assert there.members.until("b") == old.until


def test_of_several_renewals_any_that_arrived_counts(there: Coordinator) -> None:
    old = there.admit("b")
    first, second = renewed(there), renewed(there)
    assert there.members.verdict(first) == ""
    assert "newer one" in there.members.verdict(old)
    assert there.members.verdict(second) == ""
    assert "newer one" in there.members.verdict(first)


def test_a_certificate_renewed_after_the_state_was_saved_is_refused_and_says_so(
    there: Coordinator,
) -> None:
    old = there.admit("b")
    saved = sqlite3.connect(":memory:", isolation_level=None)
    there.db.backup(saved)
    there.now += 300 * DAY_S
    new = renewed(there)
    assert there.members.verdict(new) == ""
    authority = Authority.load(there.identity.directory)
    restored = Members(saved, there.identity, authority, lambda: there.now)
    no = restored.verdict(new)
    assert "of b was renewed after this coordinator's state was saved" in no
    assert "wiiiiide nodes remove b, then there wiiiiide leave --force and join" in no
    assert not restored.was_removed(new)
    assert restored.verdict(old) == ""
    saved.close()


def test_unused_certificates_are_bounded(
    there: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNUSED", 2)
    there.admit("b")
    last = [renewed(there) for _ in range(2)][-1]
    with pytest.raises(Refuse, match="not used its latest 2"):
        renewed(there)
    assert there.members.verdict(last) == ""
    renewed(there)


def test_removal_reaches_every_certificate_of_a_member(there: Coordinator) -> None:
    old = there.admit("b")
    new = renewed(there)
    there.members.remove("b")
    assert "was removed" in there.members.verdict(old)
    assert "was removed" in there.members.verdict(new)
    with pytest.raises(Refuse, match="no node 'b'"):
        renewed(there)


def test_a_member_gets_no_certificate_for_another(there: Coordinator) -> None:
    there.admit("b")
    before = list(there.db.iterdump())
    with pytest.raises(Refuse, match="not in the name of b"):
        there.members.renew("b", new_request("a")[1])
    assert list(there.db.iterdump()) == before


def test_the_coordinator_renews_its_own(there: Coordinator) -> None:
    there.now += 300 * DAY_S
    identity = there.members.renew_own()
    assert identity == Identity.load(there.state)
    assert identity.certificate != there.identity.certificate
    assert identity.role == "coordinator"
    assert there.members.until("a") == there.now + 400 * DAY_S
    assert there.members.verdict(peer_with(identity.certificate, "a", "coordinator")) == ""
    server_context(identity)


# ---- beginnings


def test_a_restart_changes_nothing(there: Coordinator) -> None:
    peer = there.admit("b")
    there.token()
    before = list(there.db.iterdump())
    assert there.started().verdict(peer) == ""
    assert list(there.db.iterdump()) == before


def test_a_new_cluster_begins_without_the_members_of_the_old(there: Coordinator) -> None:
    peer = there.admit("b")
    token = there.token()
    there.db.execute("INSERT INTO nodes VALUES ('b', x'00')")
    forget(there.state)
    there.identity = a_cluster(there.state, now=NOW)
    there.members = there.started()
    assert there.members.names() == ["a"]
    assert there.db.execute("SELECT count(*) FROM nodes").fetchone() == (0,)
    assert "not a member" in there.members.verdict(peer)
    refused(there, a_request(token), "does not know this token", 5)
