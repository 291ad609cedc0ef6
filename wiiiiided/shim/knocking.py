"""Getting in at another machine's one port: the connector's side of the knock, without I/O.

    this shim                                                     the daemon at the port
    KNOCK      role, attempt, job, ranks, a nonce       72 B ──►
                                                        ◄── 36 B   CHALLENGE  a nonce
    PROOF      HMAC with the attempt's key              36 B ──►
                                                        ◄── 36 B   OPEN       HMAC with the same key
    from here on the connection is the other shim's

    KNOCK      0 "WIIKNOCK"  8 version u8  9 role u8  10 zero 2 B  12 attempt u32  16 job u64
               24 from rank u32  28 to rank u32  32 acceptor's process 8 B  40 nonce 32 B
    others     0 "WK"  2 kind u8  3 value u8  4 nonce, HMAC or zeros 32 B

In place of CHALLENGE or OPEN may come REFUSAL, its value a reason. wiiiiided/wire has both sides of
this for everybody else; a shim uses the standard library alone, and a test lets the two talk.
"""

from __future__ import annotations

import hmac
import os
import struct

MAGIC, SHORT_MAGIC = b"WIIKNOCK", b"WK"
VERSION = 1
STORE = 3  # the role
CHALLENGE, PROOF, OPEN, REFUSAL = 2, 3, 4, 5

BY_VERSION, MALFORMED, UNKNOWN, ABSENT, BY_PROOF, BUSY = 1, 2, 3, 4, 5, 6
# The port's daemon does not say more to somebody who has not proved himself: an attempt that has
# not begun there yet, and a key that is wrong, are refused in the same way.
PASSING = frozenset((UNKNOWN, ABSENT, BUSY, BY_PROOF))
_WORDS = {
    BY_VERSION: "it speaks another version: install the same wiiiiided on both machines",
    MALFORMED: "it did not understand the knock: do both machines run the same wiiiiided?",
    UNKNOWN: "it does not know this attempt",
    ABSENT: "the job's share there has not begun, or is over",
    BY_PROOF: "it refuses the attempt's key, or does not know this attempt",
    BUSY: "it has too many connections waiting to be let in",
}

_KNOCK = struct.Struct("<8sBBxxIQII8s32s")
_ANSWER = struct.Struct("<2sBB32s")
_LABEL = b"wiiiiide knock\0"


class Refused(Exception):
    """(reason, sentence): the other side does not let us in, or is not who it should be."""


class Knock:
    """Send `data_to_send`, receive exactly `wanted` bytes, until `done`."""

    def __init__(self, key: bytes, job: int, attempt: int, rank: int) -> None:
        self.done = False
        self._key = key
        self._knock = _KNOCK.pack(
            MAGIC, VERSION, STORE, attempt, job, rank, 0, bytes(8), os.urandom(32)
        )
        self._challenge = b""
        self._in = b""
        self._out = self._knock

    @property
    def wanted(self) -> int:
        return 0 if self.done else _ANSWER.size - len(self._in)

    def data_to_send(self) -> bytes:
        out, self._out = self._out, b""
        return out

    def receive_data(self, data: bytes) -> None:
        """At most `wanted` bytes; raises Refused."""
        self._in += data
        if len(self._in) == _ANSWER.size:
            message, self._in = self._in, b""
            self._answered(message)

    def _answered(self, message: bytes) -> None:
        magic, kind, value, _ = _ANSWER.unpack(message)
        if magic != SHORT_MAGIC or kind not in (CHALLENGE, OPEN, REFUSAL):
            raise Refused(MALFORMED, "something else than wiiiiided answers there")
        if kind == REFUSAL:
            raise Refused(value, _WORDS.get(value, f"it refuses, for reason {value}"))
        if kind == CHALLENGE and not self._challenge:
            self._challenge = message
            self._out = self._proof(PROOF)
        elif self._challenge and hmac.compare_digest(message, self._proof(OPEN)):
            self.done = True
        else:
            raise Refused(BY_PROOF, "it could not prove that it has the attempt's key")

    def _proof(self, kind: int) -> bytes:
        covered = _LABEL + bytes([kind]) + self._knock + self._challenge
        return _ANSWER.pack(SHORT_MAGIC, kind, 0, hmac.digest(self._key, covered, "sha256"))
