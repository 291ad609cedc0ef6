"""Who is there? Asked and answered before the first frame between two hosts (sans-IO).

    connector                                                      acceptor
    HELLO      who I am, whom I mean, a nonce           80 B ──►
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

Both HMACs cover all of HELLO and CHALLENGE, and which side speaks: neither can be played back to
its sender (reflection) nor used in another connection (replay: both nonces are new). Whoever has no
key gets a nonce or a refusal, never an HMAC: the connector proves first. Sizes are fixed and
`wanted` is exact, so the first frame stays in the socket for whoever reads frames.
"""

from __future__ import annotations

import enum
import hmac
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from wiiiiided.errors import Refused
from wiiiiided.wire.exchange import Exchange, Expected
from wiiiiided.wire.header import VERSION

MAGIC: Final = b"WIIIIIDE"
VERSIONS: Final = (VERSION, VERSION)  # the oldest and the newest this package speaks
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 32
ROLES: Final = ("data", "watch")  # their numbers are 1 and 2

_HELLO: Final = struct.Struct("<8sBBBxIQII8s8s32s")
_ANSWER: Final = struct.Struct("<2sBB32s")  # every other message
_LABEL: Final = b"wiiiiide handshake\0"  # a key used here proves nothing anywhere else
HELLO_BYTES: Final = _HELLO.size
ANSWER_BYTES: Final = _ANSWER.size


class Message(enum.IntEnum):
    """What is said; but for HELLO, the third byte of it."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSAL = 5


class Reason(enum.IntEnum):
    """Why an acceptor refuses. Few: a stranger is told no more than a friend needs."""

    VERSION = 1
    MALFORMED = 2
    UNKNOWN = 3
    PROOF = 4
    BUSY = 5


_WORDS: Final[dict[int, str]] = {
    Reason.MALFORMED: "it did not understand our greeting: do both hosts run the same wiiiiided?",
    Reason.UNKNOWN: "it is no member of that group, or not of this generation of it",
    Reason.PROOF: "our proof is wrong: the two have different keys, or are not who they expect",
    Reason.BUSY: "it has too many connections waiting to be let in; try again",
}


class State(enum.Enum):
    """What a side waits for."""

    HELLO = "hello"
    VERDICT = "verdict"  # of the acceptor's caller: admit or refuse
    CHALLENGE = "challenge"
    PROOF = "proof"
    WELCOME = "welcome"
    DONE = "done"
    FAILED = "failed"


# What may come in which state; in a state that is not here, nothing may.
MAY_COME: Final = {
    State.HELLO: (Message.HELLO,),
    State.CHALLENGE: (Message.CHALLENGE, Message.REFUSAL),
    State.PROOF: (Message.PROOF,),
    State.WELCOME: (Message.WELCOME, Message.REFUSAL),
}


@dataclass(frozen=True)
class Claim:
    """Who connects to whom, and what for."""

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


class _Side(Exchange):
    """What both sides share: a state, a key, a transcript."""

    def __init__(self, binding: bytes, versions: tuple[int, int], state: State) -> None:
        super().__init__()
        self.version = 0  # the chosen one, once it is
        self.state = state
        self._binding = binding
        self._versions = versions
        self._hello = b""  # as it travels: both HMACs cover it
        self._challenge = b""
        self._key = b""

    @property
    def done(self) -> bool:
        """Whether the other side has proved itself; what data_to_send holds must still go."""
        return self.state is State.DONE

    def _expected(self) -> Expected | None:
        if self.state not in MAY_COME:
            return None
        if self.state is State.HELLO:
            return Expected(self.state.value, HELLO_BYTES, [MAGIC])
        beginnings = [MAGIC[:2] + bytes([kind]) for kind in MAY_COME[self.state]]
        return Expected(self.state.value, ANSWER_BYTES, beginnings)

    def _proof(self, kind: Message) -> bytes:
        """PROOF or WELCOME, whole. All that is covered has a fixed size, but for the last."""
        covered = _LABEL + bytes([kind]) + self._hello + self._challenge + self._binding
        return _answer(kind, 0, hmac.digest(self._key, covered, "sha256"))

    def _fail(self, sentence: str) -> NoReturn:
        self.state = State.FAILED
        raise Refused(sentence)


class Connector(_Side):
    """The side that opened the connection: CHALLENGE ──► WELCOME ──► DONE."""

    def __init__(
        self,
        key: bytes,
        claim: Claim,
        binding: bytes = b"",
        versions: tuple[int, int] = VERSIONS,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(binding, versions, State.CHALLENGE)
        self.claim = claim
        self._key = _checked(key)
        self._hello = self._out = _hello(claim, versions, random(NONCE_BYTES))

    def _on_message(self, message: bytes) -> None:
        _, kind, value, body = _ANSWER.unpack(message)
        if kind == Message.REFUSAL:
            self._fail(f"{self.claim} was refused: {self._why(value, body)}")
        elif self.state is State.CHALLENGE:
            self._prove(value, message)
        elif hmac.compare_digest(message, self._proof(Message.WELCOME)):
            self.state = State.DONE
        else:
            self._fail(
                f"{self.claim}: the other side could not prove itself. "
                "It has another key, or something stands between the two"
            )

    def _prove(self, version: int, challenge: bytes) -> None:
        if not self._versions[0] <= version <= self._versions[1]:
            self._fail(
                f"{self.claim}: the other side chose version {version} of the wire format, "
                f"we speak {_range(*self._versions)}"
            )
        self.version, self._challenge = version, challenge
        self._out = self._proof(Message.PROOF)
        self.state = State.WELCOME

    def _why(self, reason: int, body: bytes) -> str:
        if reason == Reason.VERSION:
            return _no_common_version(body[0], body[1], *self._versions)
        return _WORDS.get(reason, f"for reason {reason}, which this version does not know")


class Acceptor(_Side):
    """The side that was connected to: HELLO ──► VERDICT ──► PROOF ──► DONE.

    It believes nothing of the claim: the caller compares it with what it knows, and chooses the key
    by it.
    """

    def __init__(
        self,
        binding: bytes = b"",
        versions: tuple[int, int] = VERSIONS,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(binding, versions, State.HELLO)
        self.claim: Claim | None = None
        self._random = random

    def admit(self, key: bytes) -> None:
        """The claim may be true: let it be proved with this key."""
        self._insist(State.VERDICT)
        self._key = _checked(key)
        self._challenge = _answer(Message.CHALLENGE, self.version, self._random(NONCE_BYTES))
        self._out = self._challenge
        self.state = State.PROOF

    def refuse(self, reason: Reason) -> None:
        """The claim cannot be true, or comes at a bad time: data_to_send says so."""
        self._insist(State.VERDICT, State.PROOF)
        self._out = _answer(Message.REFUSAL, reason, bytes(self._versions).ljust(32, b"\0"))
        self.state = State.FAILED

    def _on_message(self, message: bytes) -> None:
        if self.state is State.HELLO:
            self._greet(message)
        elif hmac.compare_digest(message, self._proof(Message.PROOF)):
            self._out = self._proof(Message.WELCOME)
            self.state = State.DONE
        else:
            self._fail(
                f"{self.claim}: its proof is wrong. It has another key, or something stands "
                "between the two",
                Reason.PROOF,
            )

    def _greet(self, hello: bytes) -> None:
        """A whole HELLO with the right magic: from here on the other side is worth an answer."""
        self._hello, self.state = hello, State.VERDICT
        _, low, high, role, generation, group, connector, acceptor, uid, mine, _ = _HELLO.unpack(
            hello
        )
        least, most = self._versions
        if low > high:
            self._fail(f"a greeting offers versions {low} to {high}, which is none")
        if min(high, most) < max(low, least):
            self._fail(_no_common_version(low, high, least, most), Reason.VERSION)
        if not 1 <= role <= len(ROLES):
            self._fail(f"a greeting asks for role {role}, known are 1 to {len(ROLES)}")
        self.version = min(high, most)
        self.claim = Claim(
            group, generation, connector, acceptor, uid.hex(), mine.hex(), ROLES[role - 1]
        )

    def _insist(self, *states: State) -> None:
        if self.state not in states:
            raise RuntimeError(f"a handshake in state {self.state.value} takes no verdict")

    def _fail(self, sentence: str, reason: Reason = Reason.MALFORMED) -> NoReturn:
        if self.state in (State.VERDICT, State.PROOF):
            self.refuse(reason)
        super()._fail(sentence)


def _hello(claim: Claim, versions: tuple[int, int], nonce: bytes) -> bytes:
    """The first message. What does not fit in it comes from a broken card: said in words."""
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
        raise Refused(f"{claim!r} cannot be said in a handshake: {problem}") from problem


def _answer(kind: Message, value: int, body: bytes) -> bytes:
    return _ANSWER.pack(MAGIC[:2], kind, value, body)


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise Refused(f"the group's key has {len(key)} bytes, it must have {KEY_BYTES}")
    return key


def _range(low: int, high: int) -> str:
    return f"version {low}" if low == high else f"versions {low} to {high}"


def _no_common_version(low: int, high: int, least: int, most: int) -> str:
    """The same sentence on both sides: theirs first, then ours."""
    return (
        f"the other side speaks {_range(low, high)} of the wire format, this side "
        f"{_range(least, most)}: install the same wiiiiided on both hosts"
    )
