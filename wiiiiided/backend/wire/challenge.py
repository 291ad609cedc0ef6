"""Two sides prove to each other that they have the same key, without I/O: challenge and response.

    client                                                        server
    HELLO      its identity, its request, a nonce           ──►
                                                            ◄──   CHALLENGE  a nonce
    PROOF      HMAC with the key                            ──►
                                                            ◄──   WELCOME    HMAC with the same key

In place of CHALLENGE or WELCOME the server may send REFUSAL with a reason.

    HELLO      0 magic 8 B, then the fields of the protocol; its last 32 bytes are the nonce
    others     0 two letters  2 kind u8  3 value u8  4 nonce, HMAC or the protocol's own 32 B

Two protocols are made of this: `handshake` between two ranks, `port_auth` at a machine's port.
They differ in their `Terms`, in what HELLO says and in their reasons to refuse.

Both HMACs cover all of HELLO and CHALLENGE, and which side speaks: neither can be played back to
its sender (reflection) nor used in another connection (replay: both nonces are new). A peer without
the key gets a nonce or a refusal, never an HMAC: the client proves first. HMACs are compared in
constant time. Sizes are fixed and `wanted` is exact: bytes after the last message stay in the
socket for its next reader, and nothing is kept of a peer but the beginning of one message.

The shim loads this module: it imports the standard library alone.
"""

from __future__ import annotations

import enum
import hmac
import os
import struct
from dataclasses import dataclass

from wiiiiided.errors import HandshakeFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

KEY_BYTES = 32
NONCE_BYTES = 32
_ANSWER = struct.Struct("<2sBB32s")  # every message but HELLO
ANSWER_BYTES = _ANSWER.size


class AuthMessage(enum.IntEnum):
    """The kinds of messages; in all but HELLO the third byte."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSAL = 5


class AuthState(enum.Enum):
    """The message a side waits for."""

    HELLO = "hello"
    VERDICT = "verdict"  # the server's caller: challenge or refuse
    CHALLENGE = "challenge"
    PROOF = "proof"
    PROVED = "answer"  # the server's caller: welcome or refuse
    WELCOME = "welcome"
    DONE = "done"
    FAILED = "failed"


# The messages that may come in a state; in a state that is not here, none may.
MAY_COME = {
    AuthState.HELLO: (AuthMessage.HELLO,),
    AuthState.CHALLENGE: (AuthMessage.CHALLENGE, AuthMessage.REFUSAL),
    AuthState.PROOF: (AuthMessage.PROOF,),
    AuthState.WELCOME: (AuthMessage.WELCOME, AuthMessage.REFUSAL),
}


@dataclass(frozen=True)
class Terms:
    """The constants of a protocol."""

    name: str  # of the exchange, in sentences
    key: str  # the name of the key, in sentences
    magic: bytes  # HELLO begins with it
    letters: bytes  # every other message begins with them
    label: bytes  # every HMAC covers it: a key used here proves nothing in another protocol
    hello_bytes: int


class ChallengeResponse:
    """One side: send `data_to_send`, receive at most `wanted` bytes, until `done`."""

    def __init__(self, terms: Terms, state: AuthState, binding: bytes) -> None:
        self.state = state
        self._terms = terms
        self._binding = binding  # of the TLS session around it; covered by both HMACs
        self._hello = b""  # as it travels: both HMACs cover it
        self._challenge = b""
        self._key = b""
        self._in = bytearray()
        self._out = b""

    @property
    def done(self) -> bool:
        """Whether the other side has proved itself; what data_to_send holds must still go."""
        return self.state is AuthState.DONE

    @property
    def wanted(self) -> int:
        """How many bytes to read, and not one more; 0: it waits for nothing from the network."""
        if self.state not in MAY_COME:
            return 0
        size = self._terms.hello_bytes if self.state is AuthState.HELLO else ANSWER_BYTES
        return size - len(self._in)

    def data_to_send(self) -> bytes:
        """Bytes that must be sent now; each byte is given out once."""
        out, self._out = self._out, b""
        return out

    def receive_data(self, data: bytes) -> None:
        """Take at most `wanted` bytes. HandshakeFailed: send what data_to_send has, and close."""
        if not data:
            return
        if len(data) > self.wanted:
            self._fail(f"{len(data)} bytes came where {self.wanted} were expected")
        self._in += data
        self._check_beginning()
        if self.wanted == 0:
            message = bytes(self._in)
            self._in.clear()
            self._on_message(message)

    def _check_beginning(self) -> None:
        """Send a peer away at the first byte that no message of ours has there."""
        beginnings = [self._terms.magic]
        if self.state is not AuthState.HELLO:
            beginnings = [self._terms.letters + bytes([kind]) for kind in MAY_COME[self.state]]
        begin = bytes(self._in[: len(beginnings[0])])
        if not any(one.startswith(begin) for one in beginnings):
            self._fail(
                f"the bytes {begin!r} are no {self.state.value} of this protocol: "
                "something else than wiiiiided is at the other end"
            )

    def _on_message(self, message: bytes) -> None:
        raise NotImplementedError

    def _answer(self, kind: AuthMessage, value: int, body: bytes) -> bytes:
        return _ANSWER.pack(self._terms.letters, kind, value, body)

    def _proof(self, kind: AuthMessage) -> bytes:
        """PROOF or WELCOME, whole. All that is covered has a fixed size, but for the last."""
        heard = self._hello + self._challenge + self._binding
        covered = self._terms.label + bytes([kind]) + heard
        return self._answer(kind, 0, hmac.digest(self._key, covered, "sha256"))

    def _use_key(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise HandshakeFailed(
                f"{self._terms.key} has {len(key)} bytes, it must have {KEY_BYTES}"
            )
        self._key = key

    def _fail(self, sentence: str) -> NoReturn:
        self.state = AuthState.FAILED
        raise HandshakeFailed(sentence)


class AuthClient(ChallengeResponse):
    """The side that opened the connection: CHALLENGE ──► WELCOME ──► DONE."""

    def __init__(self, terms: Terms, key: bytes, hello: bytes, binding: bytes = b"") -> None:
        super().__init__(terms, AuthState.CHALLENGE, binding)
        self._use_key(key)
        self._hello = self._out = hello

    def _refusal(self, reason: int, body: bytes) -> HandshakeFailed:
        """The error when the server refuses."""
        raise NotImplementedError

    def _unproved(self) -> str:
        """The sentence for a server that has another key."""
        raise NotImplementedError

    def _check_challenge(self, value: int) -> None:
        """Check the server's choice; raises HandshakeFailed."""

    def _on_message(self, message: bytes) -> None:
        _, kind, value, body = _ANSWER.unpack(message)
        if kind == AuthMessage.REFUSAL:
            self.state = AuthState.FAILED
            raise self._refusal(value, body)
        if self.state is AuthState.CHALLENGE:
            self._check_challenge(value)
            self._challenge = message
            self._out = self._proof(AuthMessage.PROOF)
            self.state = AuthState.WELCOME
        elif hmac.compare_digest(message, self._proof(AuthMessage.WELCOME)):
            self.state = AuthState.DONE
        else:
            self._fail(self._unproved())


class AuthServer(ChallengeResponse):
    """The side that was connected to: HELLO ──► VERDICT ──► PROOF ──► PROVED ──► DONE.

    It believes nothing of HELLO: its caller compares that with what it knows, and chooses the key.
    """

    WRONG_PROOF = 0  # the reason that is sent for a wrong proof

    def __init__(
        self, terms: Terms, binding: bytes = b"", random: Callable[[int], bytes] = os.urandom
    ) -> None:
        super().__init__(terms, AuthState.HELLO, binding)
        self.refusal_body = b""  # behind the reason of a refusal, filled up with zeros
        self._random = random

    def challenge(self, key: bytes | None, value: int = 0) -> None:
        """Let HELLO be proved with this key; None: no key fits, and the client cannot see why."""
        self._insist(AuthState.VERDICT)
        self._use_key(self._random(KEY_BYTES) if key is None else key)
        nonce = self._random(NONCE_BYTES)
        self._challenge = self._out = self._answer(AuthMessage.CHALLENGE, value, nonce)
        self.state = AuthState.PROOF

    def welcome(self) -> None:
        """The client has proved itself and gets what it wants: data_to_send says so."""
        self._insist(AuthState.PROVED)
        self._out = self._proof(AuthMessage.WELCOME)
        self.state = AuthState.DONE

    def refuse(self, reason: int) -> None:
        """HELLO cannot be true, or comes at a bad time: data_to_send says so."""
        self._insist(AuthState.VERDICT, AuthState.PROOF, AuthState.PROVED)
        self._out = self._answer(AuthMessage.REFUSAL, reason, self.refusal_body)
        self.state = AuthState.FAILED

    def _read_hello(self, hello: bytes) -> None:
        """Content of a whole HELLO with the right magic; `_reject` when it cannot be answered."""
        raise NotImplementedError

    def _wrong_proof(self) -> str:
        """The sentence for a client that has another key."""
        raise NotImplementedError

    def _on_message(self, message: bytes) -> None:
        if self.state is AuthState.HELLO:
            # From here on the other side is worth an answer.
            self._hello, self.state = message, AuthState.VERDICT
            self._read_hello(message)
        elif hmac.compare_digest(message, self._proof(AuthMessage.PROOF)):
            self.state = AuthState.PROVED
        else:
            self._reject(self._wrong_proof(), self.WRONG_PROOF)

    def _reject(self, sentence: str, reason: int) -> NoReturn:
        self.refuse(reason)
        self._fail(sentence)

    def _insist(self, *states: AuthState) -> None:
        if self.state not in states:
            raise RuntimeError(f"a {self._terms.name} in state {self.state.value} takes no verdict")
