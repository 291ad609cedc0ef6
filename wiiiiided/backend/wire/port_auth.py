"""Asking for a process at a machine's one port, before the connection is handed over (sans-IO).

All of a machine is behind one port, kept by its daemon. A process that connects there for a process
of its job says which, and proves with the attempt's key that it belongs to the same attempt:

    client                                                         daemon
    HELLO      which process of which attempt, a nonce  72 B ──►
                                                        ◄── 36 B   CHALLENGE  a nonce
    PROOF      HMAC with the attempt's key              36 B ──►
                                                        ◄── 36 B   WELCOME    HMAC with the same key
    what the two processes have to say: the daemon has not read one byte of it

In place of CHALLENGE or WELCOME the daemon may send REFUSAL (36 B) with a reason.

    HELLO      0 "WIIKNOCK"  8 version u8  9 role u8  10 zero 2 B  12 attempt u32  16 job u64
               24 client's rank u32  28 acceptor's rank u32  32 acceptor's uid 8 B  40 nonce 32 B
    CHALLENGE  0 "WK"  2 kind u8 = 2  3 zero u8    4 nonce 32 B
    PROOF      0 "WK"  2 kind u8 = 3  3 zero u8    4 HMAC-SHA256 32 B
    WELCOME    0 "WK"  2 kind u8 = 4  3 zero u8    4 HMAC-SHA256 32 B
    REFUSAL    0 "WK"  2 kind u8 = 5  3 reason u8  4 zero 32 B

    roles      1 data, 2 watch: for a worker, whose uid is named; 3 store: for the shim that keeps
               the job's Store, uid zero

`challenge` has the exchange itself and why it is safe. A job that is not here is challenged like
any other: an unauthenticated peer learns nothing but that a daemon listens. The worker then does
the handshake of its group as on any other connection; this only finds the way to it.

The shim loads this module: it imports the standard library alone.
"""

from __future__ import annotations

import enum
import os
import struct
from dataclasses import dataclass

from wiiiiided.backend.wire.challenge import NONCE_BYTES, AuthClient, AuthServer, Terms
from wiiiiided.errors import HandshakeFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC = b"WIIKNOCK"
VERSION = 1
ROLES = ("data", "watch", "store")  # their numbers are 1, 2 and 3
NO_UID = "0" * 16  # in a request for the store

_HELLO = struct.Struct("<8sBBxxIQII8s32s")
HELLO_BYTES = _HELLO.size
_TERMS = Terms("request", "the attempt's key", MAGIC, b"WK", b"wiiiiide knock\0", HELLO_BYTES)


class RejectReason(enum.IntEnum):
    """Why a daemon refuses. UNKNOWN and ABSENT are said to clients alone that have the key."""

    VERSION = 1
    MALFORMED = 2
    UNKNOWN = 3
    ABSENT = 4
    PROOF = 5
    BUSY = 6


# These may pass. An attempt that has not begun there yet and a wrong key are refused alike: the
# daemon says no more to a client that has not proved itself.
PASSING = frozenset(
    {RejectReason.UNKNOWN, RejectReason.ABSENT, RejectReason.BUSY, RejectReason.PROOF}
)

_WORDS: dict[int, str] = {
    RejectReason.VERSION: "it speaks another version of this protocol: install the same wiiiiided "
    "on both machines",
    RejectReason.MALFORMED: "it did not understand us: do both machines run the same wiiiiided?",
    RejectReason.UNKNOWN: "it has no such process of this attempt",
    RejectReason.ABSENT: "that process is not there yet, or has ended",
    RejectReason.PROOF: "it does not run this attempt of the job, or has another key for it",
    RejectReason.BUSY: "too many connections wait there to be let in",
}


class Rejected(HandshakeFailed):
    """A daemon has refused a request at its port."""

    def __init__(self, sentence: str, reason: int) -> None:
        super().__init__(sentence)
        self.reason = reason  # of RejectReason, or one that a later version knows


@dataclass(frozen=True)
class PortRequest:
    """Which process wants to be connected to which."""

    job: int
    attempt: int
    role: str  # of ROLES
    connector: int  # ranks, as the handshake that follows has them; the store is kept by 0's shim
    acceptor: int
    uid: str = NO_UID  # of the acceptor's process: 16 hexadecimal digits

    def __str__(self) -> str:
        whom = "the store" if self.role == "store" else f"rank {self.acceptor}"
        return (
            f"the {self.role} connection of rank {self.connector} to {whom} "
            f"of job {self.job}, attempt {self.attempt}"
        )


class PortClient(AuthClient):
    """The side that connected to the port."""

    def __init__(
        self, key: bytes, request: PortRequest, random: Callable[[int], bytes] = os.urandom
    ) -> None:
        super().__init__(_TERMS, key, _hello(request, random(NONCE_BYTES)))
        self.request = request

    def _refusal(self, reason: int, body: bytes) -> HandshakeFailed:
        unknown = f"for reason {reason}, which this version does not know"
        return Rejected(f"the daemon refuses it: {_WORDS.get(reason, unknown)}", reason)

    def _unproved(self) -> str:
        return (
            "the daemon could not prove itself. It has another key for this attempt, or "
            "something stands between the two"
        )


class PortServer(AuthServer):
    """The daemon's side: `welcome` when its caller has the process that is asked for."""

    WRONG_PROOF = RejectReason.PROOF

    def __init__(self, random: Callable[[int], bytes] = os.urandom) -> None:
        super().__init__(_TERMS, random=random)
        self.request: PortRequest | None = None

    def _read_hello(self, hello: bytes) -> None:
        _, version, role, attempt, job, connector, acceptor, uid, _ = _HELLO.unpack(hello)
        if version != VERSION:
            self._reject(
                f"a request of version {version}, this side speaks {VERSION}: install the same "
                "wiiiiided on both machines",
                RejectReason.VERSION,
            )
        if not 1 <= role <= len(ROLES):
            sentence = f"a request for role {role}, known are 1 to {len(ROLES)}"
            self._reject(sentence, RejectReason.MALFORMED)
        self.request = PortRequest(job, attempt, ROLES[role - 1], connector, acceptor, uid.hex())

    def _wrong_proof(self) -> str:
        return f"{self.request}: that attempt is not here, or its proof is wrong"


def _hello(request: PortRequest, nonce: bytes) -> bytes:
    """The first message. A request that does not fit comes from a broken card: said in words."""
    try:
        uid = bytes.fromhex(request.uid)
        if len(uid) != 8:
            raise ValueError("a process's uid has 16 hexadecimal digits")
        role = 1 + ROLES.index(request.role)
        ranks = (request.connector, request.acceptor)
        return _HELLO.pack(MAGIC, VERSION, role, request.attempt, request.job, *ranks, uid, nonce)
    except (ValueError, struct.error) as problem:
        raise HandshakeFailed(f"{request!r} cannot be said in a request: {problem}") from problem
