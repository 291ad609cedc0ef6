"""The first words between two ranks on different hosts, before the first frame (sans-IO).

    connector                                                      acceptor
    HELLO      its rank, the other's rank, a nonce      80 B ──►
                                                        ◄── 36 B   CHALLENGE  version, a nonce
    PROOF      HMAC with the group's key                36 B ──►
                                                        ◄── 36 B   WELCOME    HMAC with the same key
    frames …                                                       frames …

In place of CHALLENGE or WELCOME the acceptor may send REFUSAL (36 B): a reason, its versions.

    HELLO      0 "WIIIIIDE"  8 min u8  9 max u8  10 role u8  11 zero u8  12 generation u32
               16 group u64  24 connector's rank u32  28 acceptor's rank u32
               32 connector's uid 8 B  40 acceptor's uid 8 B  48 nonce 32 B
    CHALLENGE  0 "WI"  2 kind u8 = 2  3 version u8  4 nonce 32 B
    PROOF      0 "WI"  2 kind u8 = 3  3 zero u8     4 HMAC-SHA256 32 B
    WELCOME    0 "WI"  2 kind u8 = 4  3 zero u8     4 HMAC-SHA256 32 B
    REFUSAL    0 "WI"  2 kind u8 = 5  3 reason u8   4 min u8  5 max u8  6 zero 30 B

`challenge` has the exchange itself and why it is safe; here are the fields and the reasons.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from wiiiiided.backend.wire.challenge import NONCE_BYTES, AuthClient, AuthServer, AuthState, Terms
from wiiiiided.backend.wire.header import VERSION
from wiiiiided.errors import HandshakeFailed

MAGIC: Final = b"WIIIIIDE"
VERSIONS: Final = (VERSION, VERSION)  # the oldest and the newest this package speaks
ROLES: Final = ("data", "watch")  # their numbers are 1 and 2

_HELLO: Final = struct.Struct("<8sBBBxIQII8s8s32s")
HELLO_BYTES: Final = _HELLO.size
_TERMS: Final = Terms(
    "handshake", "the group's key", MAGIC, MAGIC[:2], b"wiiiiide handshake\0", HELLO_BYTES
)


class RefusalReason(enum.IntEnum):
    """Why an acceptor refuses. Few: an unauthenticated peer is told no more than a member needs."""

    VERSION = 1
    MALFORMED = 2
    UNKNOWN = 3
    PROOF = 4
    BUSY = 5


_WORDS: Final[dict[int, str]] = {
    RefusalReason.MALFORMED: "it did not understand our greeting: do both hosts run the same "
    "wiiiiided?",
    RefusalReason.UNKNOWN: "it is no member of that group, or not of this generation of it",
    RefusalReason.PROOF: "our proof is wrong: the two have different keys, or are not the ranks "
    "that they expect",
    RefusalReason.BUSY: "it has too many connections waiting to be let in; try again",
}


@dataclass(frozen=True)
class ConnectionClaim:
    """Which rank connects to which, and what for."""

    group: int  # nonce of the group's incarnation
    generation: int
    connector: int  # ranks in that group
    acceptor: int
    connector_uid: str  # of the processes: 16 hexadecimal digits
    acceptor_uid: str
    role: str  # of ROLES

    def __str__(self) -> str:
        return (
            f"the {self.role} connection of rank {self.connector} to rank {self.acceptor} "
            f"in group {self.group:016x}, generation {self.generation}"
        )


class Connector(AuthClient):
    """The rank that opened the connection."""

    def __init__(
        self,
        key: bytes,
        claim: ConnectionClaim,
        binding: bytes = b"",
        versions: tuple[int, int] = VERSIONS,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(_TERMS, key, _hello(claim, versions, random(NONCE_BYTES)), binding)
        self.claim = claim
        self.version = 0  # the acceptor's choice, once it has made one
        self._versions = versions

    def _check_challenge(self, value: int) -> None:
        if not self._versions[0] <= value <= self._versions[1]:
            self._fail(
                f"{self.claim}: the other side chose version {value} of the wire format, "
                f"we speak {_range(*self._versions)}"
            )
        self.version = value

    def _refusal(self, reason: int, body: bytes) -> HandshakeFailed:
        why = _WORDS.get(reason, f"for reason {reason}, which this version does not know")
        if reason == RefusalReason.VERSION:
            why = _no_common_version(body[0], body[1], *self._versions)
        return HandshakeFailed(f"{self.claim} was refused: {why}")

    def _unproved(self) -> str:
        return (
            f"{self.claim}: the other side could not prove itself. "
            "It has another key, or something stands between the two"
        )


class Acceptor(AuthServer):
    """The rank that was connected to. Its caller compares the claim with what it knows: `admit`
    or `refuse`. A right proof is welcomed at once."""

    WRONG_PROOF = RefusalReason.PROOF

    def __init__(
        self,
        binding: bytes = b"",
        versions: tuple[int, int] = VERSIONS,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(_TERMS, binding, random)
        self.claim: ConnectionClaim | None = None
        self.version = 0  # the chosen one, once it is
        self._versions = versions
        self.refusal_body = bytes(versions)

    def admit(self, key: bytes) -> None:
        """The claim may be true: let it be proved with this key."""
        self.challenge(key, self.version)

    def _on_message(self, message: bytes) -> None:
        super()._on_message(message)
        if self.state is AuthState.PROVED:
            self.welcome()

    def _read_hello(self, hello: bytes) -> None:
        _, low, high, role, generation, group, connector, acceptor, uid, mine, _ = _HELLO.unpack(
            hello
        )
        least, most = self._versions
        if low > high:
            self._fail(f"a greeting offers versions {low} to {high}, which is none")
        if min(high, most) < max(low, least):
            self._reject(_no_common_version(low, high, least, most), RefusalReason.VERSION)
        if not 1 <= role <= len(ROLES):
            self._fail(f"a greeting asks for role {role}, known are 1 to {len(ROLES)}")
        self.version = min(high, most)
        self.claim = ConnectionClaim(
            group, generation, connector, acceptor, uid.hex(), mine.hex(), ROLES[role - 1]
        )

    def _wrong_proof(self) -> str:
        return (
            f"{self.claim}: its proof is wrong. It has another key, or something stands "
            "between the two"
        )

    def _fail(self, sentence: str) -> NoReturn:
        if self.state in (AuthState.VERDICT, AuthState.PROOF):
            self.refuse(RefusalReason.MALFORMED)
        super()._fail(sentence)


def _hello(claim: ConnectionClaim, versions: tuple[int, int], nonce: bytes) -> bytes:
    """The first message. A claim that does not fit comes from a broken card: said in words."""
    try:
        uids = [bytes.fromhex(uid) for uid in (claim.connector_uid, claim.acceptor_uid)]
        if [len(uid) for uid in uids] != [8, 8]:
            raise ValueError("a process's uid has 16 hexadecimal digits")
        role = 1 + ROLES.index(claim.role)
        ranks = (claim.connector, claim.acceptor)
        return _HELLO.pack(
            MAGIC, *versions, role, claim.generation, claim.group, *ranks, *uids, nonce
        )
    except (ValueError, struct.error) as problem:
        raise HandshakeFailed(f"{claim!r} cannot be said in a handshake: {problem}") from problem


def _range(low: int, high: int) -> str:
    return f"version {low}" if low == high else f"versions {low} to {high}"


def _no_common_version(low: int, high: int, least: int, most: int) -> str:
    """The same sentence on both sides: theirs first, then ours."""
    return (
        f"the other side speaks {_range(low, high)} of the wire format, this side "
        f"{_range(least, most)}: install the same wiiiiided on both hosts"
    )
