"""Whom do you want? Asked at a machine's one port before a connection is passed on (sans-IO).

All of a machine is behind one port, kept by its daemon. Who connects there for a process of a job
says which, and proves with the attempt's key that it belongs to the same attempt:

    connector                                                      daemon
    KNOCK      which process of which attempt, a nonce  72 B ──►
                                                        ◄── 36 B   CHALLENGE  a nonce
    PROOF      HMAC with the attempt's key              36 B ──►
                                                        ◄── 36 B   OPEN       HMAC with the same key
    whatever the two have to say: not one byte of it has been read by the daemon

In place of CHALLENGE or OPEN the daemon may send REFUSAL (36 B) with a reason.

    KNOCK      0 "WIIKNOCK"  8 version u8  9 role u8  10 zero 2 B  12 attempt u32  16 job u64
               24 connector's rank u32  28 acceptor's rank u32  32 acceptor's uid 8 B  40 nonce 32 B
    CHALLENGE  0 "WK"  2 kind u8 = 2  3 zero u8    4 nonce 32 B
    PROOF      0 "WK"  2 kind u8 = 3  3 zero u8    4 HMAC-SHA256 32 B
    OPEN       0 "WK"  2 kind u8 = 4  3 zero u8    4 HMAC-SHA256 32 B
    REFUSAL    0 "WK"  2 kind u8 = 5  3 reason u8  4 zero 32 B

    roles      1 data, 2 watch: for a worker, whose uid is named; 3 store: for the shim that keeps
               the job's Store, uid zero

As in wire.handshake both HMACs cover all of KNOCK and CHALLENGE and which side speaks, so they can
neither be replayed nor reflected. A job that is not here is challenged like any other: a stranger
learns nothing but that a daemon listens. The worker then does the handshake of its group as on any
other connection; this only finds the way to it.
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

MAGIC: Final = b"WIIKNOCK"
VERSION: Final = 1
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 32
ROLES: Final = ("data", "watch", "store")  # their numbers are 1, 2 and 3
NOBODY: Final = "0" * 16  # the uid in a knock for the store

_KNOCK: Final = struct.Struct("<8sBBxxIQII8s32s")
_ANSWER: Final = struct.Struct("<2sBB32s")  # every other message
_LETTERS: Final = b"WK"
_LABEL: Final = b"wiiiiide knock\0"  # a key used here proves nothing anywhere else
KNOCK_BYTES: Final = _KNOCK.size
ANSWER_BYTES: Final = _ANSWER.size


class Message(enum.IntEnum):
    """What is said; but for KNOCK, the third byte of it."""

    KNOCK = 1
    CHALLENGE = 2
    PROOF = 3
    OPEN = 4
    REFUSAL = 5


class Reason(enum.IntEnum):
    """Why a daemon refuses. UNKNOWN and ABSENT are said to those alone who have the key."""

    VERSION = 1
    MALFORMED = 2
    UNKNOWN = 3
    ABSENT = 4
    PROOF = 5
    BUSY = 6


_WORDS: Final[dict[int, str]] = {
    Reason.VERSION: "it speaks another version of this protocol: install the same wiiiiided on "
    "both machines",
    Reason.MALFORMED: "it did not understand us: do both machines run the same wiiiiided?",
    Reason.UNKNOWN: "it has no such process of this attempt",
    Reason.ABSENT: "that process has not opened its door yet, or has ended",
    Reason.PROOF: "it does not run this attempt of the job, or has another key for it",
    Reason.BUSY: "too many connections wait there to be let in",
}


class State(enum.Enum):
    """What a side waits for."""

    KNOCK = "knock"
    VERDICT = "verdict"  # of the daemon: challenge or refuse
    CHALLENGE = "challenge"
    PROOF = "proof"
    PROVED = "door"  # of the daemon: open or refuse
    OPEN = "answer to our proof"
    DONE = "done"
    FAILED = "failed"


# What may come in which state; in a state that is not here, nothing may.
MAY_COME: Final = {
    State.KNOCK: (Message.KNOCK,),
    State.CHALLENGE: (Message.CHALLENGE, Message.REFUSAL),
    State.PROOF: (Message.PROOF,),
    State.OPEN: (Message.OPEN, Message.REFUSAL),
}


class Unwelcome(Refused):
    """A daemon has refused a knock."""

    def __init__(self, sentence: str, reason: int) -> None:
        super().__init__(sentence)
        self.reason = reason  # of Reason, or one that a later version knows


@dataclass(frozen=True)
class Knock:
    """Who wants to be let in to whom."""

    job: int
    attempt: int
    role: str  # of ROLES
    connector: int  # ranks, as the handshake that follows has them; the store is kept by 0's shim
    acceptor: int
    uid: str = NOBODY  # of the acceptor's process: 16 hexadecimal digits

    def __str__(self) -> str:
        whom = "the store" if self.role == "store" else f"rank {self.acceptor}"
        return (
            f"the {self.role} connection of rank {self.connector} to {whom} "
            f"of job {self.job}, attempt {self.attempt}"
        )


class _Side(Exchange):
    """What both sides share: a state, a key, a transcript."""

    def __init__(self, state: State, random: Callable[[int], bytes]) -> None:
        super().__init__()
        self.state = state
        self._random = random
        self._knock = b""  # as it travels: both HMACs cover it
        self._challenge = b""
        self._key = b""

    @property
    def done(self) -> bool:
        """Whether the way is open; what data_to_send holds must still go."""
        return self.state is State.DONE

    def _expected(self) -> Expected | None:
        if self.state not in MAY_COME:
            return None
        if self.state is State.KNOCK:
            return Expected(self.state.value, KNOCK_BYTES, [MAGIC])
        beginnings = [_LETTERS + bytes([kind]) for kind in MAY_COME[self.state]]
        return Expected(self.state.value, ANSWER_BYTES, beginnings)

    def _proof(self, kind: Message) -> bytes:
        """PROOF or OPEN, whole. All that is covered has a fixed size."""
        covered = _LABEL + bytes([kind]) + self._knock + self._challenge
        return _ANSWER.pack(_LETTERS, kind, 0, hmac.digest(self._key, covered, "sha256"))

    def _fail(self, sentence: str) -> NoReturn:
        self.state = State.FAILED
        raise Refused(sentence)


class Knocker(_Side):
    """The side that opened the connection: CHALLENGE ──► OPEN ──► DONE."""

    def __init__(
        self, key: bytes, knock: Knock, random: Callable[[int], bytes] = os.urandom
    ) -> None:
        super().__init__(State.CHALLENGE, random)
        self.knock = knock
        self._key = _checked(key)
        self._knock = self._out = _packed(knock, random(NONCE_BYTES))

    def _on_message(self, message: bytes) -> None:
        _, kind, value, _ = _ANSWER.unpack(message)
        if kind == Message.REFUSAL:
            self.state = State.FAILED
            unknown = f"for reason {value}, which this version does not know"
            raise Unwelcome(f"the daemon refuses it: {_WORDS.get(value, unknown)}", value)
        if self.state is State.CHALLENGE:
            self._challenge = message
            self._out = self._proof(Message.PROOF)
            self.state = State.OPEN
        elif hmac.compare_digest(message, self._proof(Message.OPEN)):
            self.state = State.DONE
        else:
            self._fail(
                "the daemon could not prove itself. It has another key for this attempt, or "
                "something stands between the two"
            )


class Porter(_Side):
    """The daemon's side: KNOCK ──► VERDICT ──► PROOF ──► PROVED ──► DONE.

    It believes nothing of the knock until it is proved, and opens when its caller has the door.
    """

    def __init__(self, random: Callable[[int], bytes] = os.urandom) -> None:
        super().__init__(State.KNOCK, random)
        self.knock: Knock | None = None

    def challenge(self, key: bytes | None) -> None:
        """Let the knock be proved with this key; None: it cannot be, and nobody sees why."""
        self._insist(State.VERDICT)
        self._key = self._random(KEY_BYTES) if key is None else _checked(key)
        nonce = self._random(NONCE_BYTES)
        self._challenge = self._out = _ANSWER.pack(_LETTERS, Message.CHALLENGE, 0, nonce)
        self.state = State.PROOF

    def open(self) -> None:
        """Whom it wants is there: data_to_send says so."""
        self._insist(State.PROVED)
        self._out = self._proof(Message.OPEN)
        self.state = State.DONE

    def refuse(self, reason: Reason) -> None:
        """It comes at a bad time, or to somebody who is not there: data_to_send says so."""
        self._insist(State.VERDICT, State.PROOF, State.PROVED)
        self._out = _ANSWER.pack(_LETTERS, Message.REFUSAL, reason, b"")
        self.state = State.FAILED

    def _on_message(self, message: bytes) -> None:
        if self.state is State.KNOCK:
            self._read(message)
        elif hmac.compare_digest(message, self._proof(Message.PROOF)):
            self.state = State.PROVED
        else:
            self._refuse(
                f"{self.knock}: that attempt is not here, or its proof is wrong", Reason.PROOF
            )

    def _read(self, message: bytes) -> None:
        """A whole KNOCK with the right magic: from here on the other side is worth an answer."""
        self._knock, self.state = message, State.VERDICT
        _, version, role, attempt, job, connector, acceptor, uid, _ = _KNOCK.unpack(message)
        if version != VERSION:
            self._refuse(
                f"a knock of version {version}, this side speaks {VERSION}: install the same "
                "wiiiiided on both machines",
                Reason.VERSION,
            )
        if not 1 <= role <= len(ROLES):
            self._refuse(f"a knock for role {role}, known are 1 to {len(ROLES)}", Reason.MALFORMED)
        self.knock = Knock(job, attempt, ROLES[role - 1], connector, acceptor, uid.hex())

    def _refuse(self, sentence: str, reason: Reason) -> NoReturn:
        self.refuse(reason)
        self._fail(sentence)

    def _insist(self, *states: State) -> None:
        if self.state not in states:
            raise RuntimeError(f"a knock in state {self.state.value} takes no verdict")


def _packed(knock: Knock, nonce: bytes) -> bytes:
    """The first message. What does not fit in it comes from a broken card: said in words."""
    try:
        uid = bytes.fromhex(knock.uid)
        if len(uid) != 8:
            raise ValueError("a process's uid has 16 hexadecimal digits")
        role = 1 + ROLES.index(knock.role)
        ranks = (knock.connector, knock.acceptor)
        return _KNOCK.pack(MAGIC, VERSION, role, knock.attempt, knock.job, *ranks, uid, nonce)
    except (ValueError, struct.error) as problem:
        raise Refused(f"{knock!r} cannot be said in a knock: {problem}") from problem


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise Refused(f"the attempt's key has {len(key)} bytes, it must have {KEY_BYTES}")
    return key
