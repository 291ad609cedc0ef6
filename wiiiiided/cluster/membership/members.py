"""The members of the cluster: known to the coordinator alone.

    token      made ──► used, `uses` times at most ──► used up
                 └────► expired
    member     admitted with a token ──► renewed … ──► removed
                                          │
               fingerprint "old new" ─────┘ until the new certificate is seen for the first time:
               a member that has not heard our answer still has the old one, and must get in

A certificate counts when the cluster's authority has signed it (TLS has seen to that), its name is
a member's, its fingerprint that member's, and its end not past by this machine's clock. So a
removed member is refused at once and everywhere: members listen to their coordinator alone.

Using a token and becoming a member are one transaction: no crash can do one without the other.
Tables are those of state/store; when they belong to an earlier cluster they are emptied first.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Final

from wiiiiided.cluster.peering.messages import Joined, JoinRequest
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.rpc.messages import TokenCreated
from wiiiiided.cluster.trust.authority import Authority
from wiiiiided.cluster.trust.certificate import Certificate, check_name
from wiiiiided.cluster.trust.identity import Identity, replace_certificate
from wiiiiided.cluster.trust.signing_request import new_request
from wiiiiided.cluster.trust.tls import VerifiedPeer
from wiiiiided.cluster.trust.token import SECRET_BYTES, Token, hash_of
from wiiiiided.domain.exit_codes import FAILED, NO_SUCH, NOT_ALLOWED, USAGE
from wiiiiided.domain.node import Node
from wiiiiided.errors import UsageError

MEMBERS: Final = 1024
TOKENS: Final = 1024  # that could still be used
REFUSED: Final = 10_000  # the latest; older ones are refused too, with a shorter sentence
UNUSED: Final = 8  # certificates made for a member that it has not shown yet
TTL_S: Final = (1.0, 30 * 86400.0)
USES: Final = (1, MEMBERS)

_NEW_TOKEN = "wiiiiide token create on any machine of the cluster makes a new one"


class Members:
    """The tables `members`, `refused` and `tokens`. Used from the store's one thread."""

    def __init__(
        self,
        db: sqlite3.Connection,
        identity: Identity,
        authority: Authority,
        clock: Callable[[], float],
    ) -> None:
        self._db = db
        self._authority = authority
        self._clock = clock
        self.identity = identity
        self._begin()

    def _begin(self) -> None:
        """The tables are this cluster's, and this machine is its first member."""
        with self._writing():
            sql = "SELECT 1 FROM facts WHERE name = 'cluster' AND value = ?"
            if not self._one(sql, self.identity.cluster_id):
                for table in ("members", "refused", "tokens", "nodes"):
                    self._db.execute(f"DELETE FROM {table}")
                row = (self.identity.cluster_id,)
                self._db.execute("INSERT OR REPLACE INTO facts VALUES ('cluster', ?)", row)
            self._put(self.identity.node, self.identity.certificate)

    # ---- tokens

    def create_token(self, ttl_s: float, uses: int, by: str) -> TokenCreated:
        if not TTL_S[0] <= ttl_s <= TTL_S[1]:
            raise Refuse(USAGE, "a token can be valid from 1 s to 30 days")
        if not USES[0] <= uses <= USES[1]:
            raise Refuse(USAGE, f"a token can be used from {USES[0]} to {USES[1]} times")
        token = Token.create(self._authority.digest)
        now = self._clock()
        row = (token.id.hex(), hash_of(token.secret), now + ttl_s, uses, now, by)
        with self._writing():
            self._db.execute("DELETE FROM tokens WHERE expires < ?", (now - TTL_S[1],))
            count = self._one("SELECT count(*) FROM tokens WHERE uses > 0 AND expires > ?", now)
            if count is not None and count[0] >= TOKENS:
                raise Refuse(FAILED, f"{TOKENS} tokens are not used yet: wait until some expire")
            self._db.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?)", row)
        return TokenCreated(token.text, self.identity.endpoint, now + ttl_s, uses)

    # ---- joining

    def admit(self, request: JoinRequest) -> Joined:
        """A machine with a token becomes a member; Refuse: nothing was changed."""
        name = request.node.name
        with self._writing():
            self._check_token(request)
            try:
                check_name(name, "node", "--name")
                self.check_place(request.node)
                self._check_room(name)
                certificate = self._authority.sign(request.request, name, "member", self._clock())
            except UsageError as problem:
                raise Refuse(USAGE, str(problem)) from None
            sql = "UPDATE tokens SET uses = uses - 1 WHERE id = ?"
            self._db.execute(sql, (request.token_id,))
            self._put(name, certificate)
        own = self.identity
        return Joined(
            certificate=certificate.pem,
            cluster=own.cluster,
            cluster_id=own.cluster_id,
            coordinator=Node(own.node, 0, 0, address=own.address, port=own.port),
            until=certificate.until,
        )

    def _check_token(self, request: JoinRequest) -> None:
        row = self._one("SELECT secret, expires, uses FROM tokens WHERE id = ?", request.token_id)
        # An unknown token and a wrong secret take the same way and get the same sentence.
        stored, expires, uses = row or (hash_of(secrets.token_bytes(SECRET_BYTES)), 0.0, 0)
        if not hmac.compare_digest(_hash_of_hex(request.secret), stored):
            raise Refuse(NOT_ALLOWED, "the coordinator does not know this token", _NEW_TOKEN)
        if self._clock() >= expires:
            raise Refuse(NOT_ALLOWED, "this token has expired", _NEW_TOKEN)
        if uses < 1:
            raise Refuse(NOT_ALLOWED, "this token is used up", _NEW_TOKEN)

    def check_place(self, node: Node) -> None:
        """Raise UsageError where a node's endpoint cannot be right: ranks of other machines connect
        there."""
        try:
            address = ipaddress.ip_address(node.address)
            if "%" in node.address:
                raise ValueError("a zone can be any text, and means nothing on another machine")
        except ValueError:
            raise UsageError(f"{node.address[:80]!r} is not the address of a node") from None
        if not 1 <= node.port <= 65535 or address.is_unspecified or address.is_multicast:
            raise UsageError(f"no machine can be reached at {address} port {node.port}")
        own = self.identity
        if address.is_loopback and not ipaddress.ip_address(own.address).is_loopback:
            raise UsageError(f"{address} leads nowhere from {own.node}: join with --address")
        if (str(address), node.port) == (own.address, own.port):
            raise UsageError(
                f"{own.endpoint} is the coordinator's own: for a second daemon on its machine, "
                "--port"
            )

    def _check_room(self, name: str) -> None:
        names = self.names()
        if name in names:
            raise Refuse(
                USAGE,
                f"{name} is a member already",
                f"join with --name; or, if it is this machine, wiiiiide nodes remove {name} first",
            )
        if len(names) >= MEMBERS:
            raise Refuse(FAILED, f"the cluster has {MEMBERS} machines; more are not supported")

    # ---- members

    def verdict(self, peer: VerifiedPeer | None) -> str:
        """Say why a certificate does not count; empty when it does."""
        if peer is None:
            return "no certificate was shown: only members may do this"
        known = self._fingerprints(peer.name)
        if peer.fingerprint not in known:
            return self._why_unknown(peer, bool(known))
        if (peer.role == "coordinator") != (peer.name == self.identity.node):
            return f"{peer.name} is not the coordinator of this cluster"
        if self._clock() >= peer.until:
            return (
                f"the certificate of {peer.name} has expired by the clock of {self.identity.node}: "
                f"wiiiiide nodes remove {peer.name}, then let it leave and join again"
            )
        if known[0] != peer.fingerprint or self.until(peer.name) != peer.until:
            self._forget_older(peer, known)
        return ""

    def was_removed(self, peer: VerifiedPeer) -> bool:
        """Whether a peer was a member once; also when another machine has its name now."""
        sql = "SELECT 1 FROM refused WHERE fingerprint = ?"
        return peer.name not in self.names() or self._one(sql, peer.fingerprint) is not None

    def _why_unknown(self, peer: VerifiedPeer, has_another: bool) -> str:
        if self._one("SELECT 1 FROM refused WHERE fingerprint = ?", peer.fingerprint):
            return f"{peer.name} was removed from the cluster; it can join again with a new token"
        if has_another and peer.until > (self.until(peer.name) or 0.0):
            # The state was restored from a copy. This one cannot be told from a removed one.
            return (
                f"the certificate of {peer.name} was renewed after this coordinator's state was "
                f"saved: wiiiiide nodes remove {peer.name}, then there wiiiiide leave --force and "
                "join"
            )
        if has_another:
            return f"the certificate of {peer.name} was replaced by a newer one"
        return f"{peer.name} is not a member of the cluster {self.identity.cluster}"

    def _forget_older(self, peer: VerifiedPeer, known: list[str]) -> None:
        """Forget the certificates that a member had before the one it shows. If that is the old one
        still, the new one has not arrived, and is due again."""
        left = " ".join(known[known.index(peer.fingerprint) :])
        with contextlib.suppress(Refuse), self._writing():  # else at its next connection
            row = (left, peer.until, peer.name)
            self._db.execute("UPDATE members SET fingerprint = ?, expires = ? WHERE name = ?", row)

    def names(self) -> list[str]:
        return [str(row[0]) for row in self._db.execute("SELECT name FROM members ORDER BY name")]

    def until(self, name: str) -> float | None:
        """The end of its certificate: the one it showed last, or was given since."""
        row = self._one("SELECT expires FROM members WHERE name = ?", name)
        return None if row is None else float(row[0])

    def renew(self, name: str, request: str) -> Certificate:
        """A new certificate for a member, which is at the other end of the link that asks."""
        known = self._fingerprints(name)
        if not known:
            raise self._no_such(name)
        if len(known) > UNUSED:
            raise Refuse(FAILED, f"{name} has not used its latest {UNUSED} certificates yet")
        try:
            certificate = self._authority.sign(request, name, "member", self._clock())
        except UsageError as problem:
            raise Refuse(USAGE, str(problem)) from None
        with self._writing():
            row = (" ".join([*known, certificate.fingerprint]), certificate.until, name)
            self._db.execute("UPDATE members SET fingerprint = ?, expires = ? WHERE name = ?", row)
        return certificate

    def renew_own(self) -> Identity:
        """A new certificate for the coordinator itself."""
        name = self.identity.node
        key, request = new_request(name)
        certificate = self._authority.sign(request, name, "coordinator", self._clock())
        self.identity = replace_certificate(self.identity, key, certificate)
        with self._writing():
            self._put(name, certificate)
        return self.identity

    def remove(self, name: str) -> None:
        """Its certificate is worth nothing from now on."""
        if name == self.identity.node:
            raise Refuse(USAGE, f"{name} is the coordinator: the cluster ends with it")
        known = self._fingerprints(name)
        if not known:
            raise self._no_such(name)
        now = self._clock()
        with self._writing():
            rows = [(fingerprint, name, now) for fingerprint in known]
            self._db.executemany("INSERT OR REPLACE INTO refused VALUES (?, ?, ?)", rows)
            sql = "SELECT rowid FROM refused ORDER BY rowid DESC LIMIT -1 OFFSET ?"
            self._db.execute(f"DELETE FROM refused WHERE rowid IN ({sql})", (REFUSED,))
            self._db.execute("DELETE FROM members WHERE name = ?", (name,))

    def _no_such(self, name: str) -> Refuse:
        there_are = ", ".join(self.names()[:20])
        return Refuse(NO_SUCH, f"there is no node {name[:80]!r}; there are {there_are}")

    # ---- the tables

    def _fingerprints(self, name: str) -> list[str]:
        """The digests of the certificate that a member uses, and of those made for it since; none:
        no member."""
        row = self._one("SELECT fingerprint FROM members WHERE name = ?", name)
        return [] if row is None else str(row[0]).split()

    def _put(self, name: str, certificate: Certificate) -> None:
        row = (name, certificate.fingerprint, certificate.until, self._clock())
        self._db.execute(
            "INSERT INTO members VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE "
            "SET fingerprint = excluded.fingerprint, expires = excluded.expires",
            row,
        )

    def _one(self, sql: str, value: str | float) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._db.execute(sql, (value,)).fetchone()
        return row

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Write in one transaction; Refuse: it could not be written, and nothing was changed."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.Error as problem:
            text = f"the coordinator cannot write its state: {problem}; nothing was changed"
            raise Refuse(FAILED, text) from problem


def _hash_of_hex(secret: str) -> str:
    try:
        raw = bytes.fromhex(secret[: 2 * SECRET_BYTES + 1])
    except ValueError:
        raw = b"not a secret"
    return hash_of(raw)
