"""One connection from its first moment to the end of its handshake, in either direction.

    CONNECTING ──► [ PORT_AUTH ] ──► [ TLS ] ──► TALKING ────────────────────────────► DONE
    (accepted: at once)                            └──► JUDGED ──► TALKING, by `admit`

It moves bytes between a stream and wire.handshake, and not one byte more than the handshake wants:
what follows belongs to the stream's next owner. Where the other side is behind a daemon's port it
authenticates there first (wire.port_auth), and is then connected to the process itself. The
Endpoint decides; this only advances. Whatever ends it is raised as OSError or HostError; `sentence`
says it in words.
"""

from __future__ import annotations

import enum
import errno
import os
import select
import socket
import ssl
from typing import Final

from wiiiiided.backend.net import tls
from wiiiiided.backend.net.stream import TcpStream
from wiiiiided.backend.wire.handshake import Acceptor, ConnectionClaim, Connector, RefusalReason
from wiiiiided.backend.wire.port_auth import PortClient
from wiiiiided.errors import HandshakeFailed, HostError

# The first two bytes of what TLS says when it greets, and when it gives up.
TLS_BEGINNINGS: Final = (b"\x16\x03", b"\x15\x03")

HINTS: Final = {
    errno.ECONNREFUSED: "nothing listens there. Has that process ended?",
    errno.EHOSTUNREACH: "nothing answers at that address, or a firewall forbids it",
    errno.ENETUNREACH: "this machine has no route there",
    errno.ETIMEDOUT: "nothing answers there, or a firewall drops packets",
    errno.EADDRNOTAVAIL: "that is no address one can connect to",
    errno.EMFILE: "this process has too many files open; raise ulimit -n",
    errno.ECONNRESET: "the other side broke off. Its log says why",
}


class Stage(enum.Enum):
    """The next event of a pending connection."""

    CONNECTING = "the connection"
    PORT_AUTH = "the daemon's answer"
    TLS = "TLS's own handshake"
    TALKING = "the next message of the handshake"
    JUDGED = "a verdict on its claim"
    DONE = "nothing more"


# Possible causes where it has not come in time.
OVERDUE: Final = {
    Stage.CONNECTING: "nothing answers there, or a firewall drops packets",
    Stage.PORT_AUTH: "it is stopped or very busy, or something else has that port",
    Stage.TLS: "is TLS on at both ends?",
    Stage.TALKING: "that process is stopped, or does not know of the group",
    Stage.JUDGED: "there is no such group here",
}


class HungUp(HandshakeFailed):
    """The other side went by itself, or we close: news, not a complaint."""


class Overdue(HandshakeFailed):
    """It has had its time."""


class PendingConnection:
    """The base of both directions."""

    def __init__(self, sock: socket.socket, label: str, secure: bool) -> None:
        self.stream: TcpStream | tls.TlsStream = TcpStream(sock)
        self.fd = sock.fileno()  # also after the end
        self.label = label  # the other side's address
        self.stage = Stage.CONNECTING
        self.watched = False  # by the endpoint
        self._sock = sock
        self._secure = secure
        self._unsent = b""
        self._hands: Acceptor | Connector | None = None

    @property
    def claim(self) -> ConnectionClaim | None:
        """The connector's claim, once it has come."""
        raise NotImplementedError

    def advance(self) -> Stage:
        """Go as far as the bytes go. OSError, HostError: it is over."""
        if self.stage is Stage.CONNECTING and self._connected():
            self.stage = Stage.PORT_AUTH
        if self.stage is Stage.PORT_AUTH and self._let_in():
            self._begin()
        if self.stage is Stage.TLS and self._shaken():
            self._hands, self.stage = self._greeting(), Stage.TALKING
        if self.stage is Stage.TALKING:
            self._talk()
        return self.stage

    def last_word(self) -> None:
        """Say why it is over, if the handshake has a word for it and the kernel takes it."""
        try:
            if self._hands is not None and (word := self._hands.data_to_send()):
                self.stream.send([word])
        except OSError:
            pass

    def hung_up(self) -> bool:
        """Whether the other side has gone, asked without reading."""
        poll = select.poll()
        poll.register(self.stream.fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def _connected(self) -> bool:
        return True

    def _let_in(self) -> bool:
        return True

    def _greeting(self) -> Acceptor | Connector:
        raise NotImplementedError

    def _begin(self) -> None:
        if self._secure:
            self.stream = tls.wrap(self._sock, server_side=isinstance(self, IncomingConnection))
            self.stage = Stage.TLS
        else:
            self._hands, self.stage = self._greeting(), Stage.TALKING

    def _shaken(self) -> bool:
        assert isinstance(self.stream, tls.TlsStream)
        try:
            return self.stream.shake_hands()
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
            raise HungUp("it hung up on TLS's handshake: is TLS on at both ends?") from None
        except ssl.SSLError as problem:
            why = (problem.reason or "no reason given").lower().replace("_", " ")
            raise HandshakeFailed(f"TLS failed ({why}): is TLS on at both ends?") from None

    def _talk(self) -> None:
        """Go on with the handshake until it is done, waits for a verdict or for the other side."""
        hands = self._hands
        assert hands is not None
        if self._exchange(hands):
            self.stage = Stage.DONE if hands.done else Stage.JUDGED

    def _exchange(self, hands: Acceptor | Connector | PortClient) -> bool:
        """Say what there is to say and read what is wanted; False: the other side is to act."""
        while self._said(hands.data_to_send()):
            if hands.done or hands.wanted == 0:
                return True
            data = self._read(hands.wanted)
            if not data:
                return False
            try:
                hands.receive_data(data)
            except HandshakeFailed:
                if data[:2] in TLS_BEGINNINGS:
                    raise HandshakeFailed(
                        "it speaks TLS, which is off here: set it alike"
                    ) from None
                raise
        return False

    def _said(self, more: bytes) -> bool:
        self._unsent += more
        if self._unsent or self.stream.wants_write():
            self._unsent = self._unsent[self.stream.send([self._unsent]) :]
        return not self._unsent and not self.stream.wants_write()

    def _read(self, wanted: int) -> bytes:
        room = bytearray(wanted)  # the size of a handshake's message: no peer chooses it
        count = self.stream.receive([room])
        if count == 0:
            raise HungUp("it hung up before the handshake was done")
        return bytes(room[: max(count, 0)])


class IncomingConnection(PendingConnection):
    """A peer has connected to us; it is admitted or refused once it has made its claim."""

    def __init__(self, sock: socket.socket, label: str, secure: bool, now: float) -> None:
        super().__init__(sock, label, secure)
        self.since = now
        self._acceptor: Acceptor | None = None

    @property
    def claim(self) -> ConnectionClaim | None:
        return None if self._acceptor is None else self._acceptor.claim

    def admit(self, key: bytes) -> None:
        """Let the other side prove its claim, which may be true."""
        assert self._acceptor is not None
        self._acceptor.admit(key)
        self.stage = Stage.TALKING

    def refuse(self, reason: RefusalReason) -> None:
        """Have `last_word` tell it why, if it has made a claim."""
        if self.claim is not None and self._acceptor is not None and not self._acceptor.done:
            self._acceptor.refuse(reason)

    def _greeting(self) -> Acceptor:
        self._acceptor = Acceptor(tls.binding(self.stream))
        return self._acceptor


class OutgoingConnection(PendingConnection):
    """We connect to a peer."""

    def __init__(
        self,
        sock: socket.socket,
        label: str,
        secure: bool,
        key: bytes,
        claim: ConnectionClaim,
        port_client: PortClient | None = None,
    ) -> None:
        super().__init__(sock, label, secure)
        self._key, self._claim = key, claim
        self.port_client = port_client  # what to say first, where a daemon has the port

    @property
    def claim(self) -> ConnectionClaim:
        return self._claim

    def _connected(self) -> bool:
        number = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))
        try:
            self._sock.getpeername()
        except OSError:
            return False  # the event was another's; the kernel is still at it
        return True

    def _let_in(self) -> bool:
        return self.port_client is None or self._exchange(self.port_client)

    def _greeting(self) -> Connector:
        return Connector(self._key, self._claim, tls.binding(self.stream))


def overdue(pending: PendingConnection, limit_s: float) -> Overdue:
    """The error of a connection that has waited too long."""
    waited = f"{pending.stage.value} has not come within {limit_s:g} s"
    return Overdue(f"{waited}: {OVERDUE[pending.stage]}")


def sentence(problem: OSError | HostError) -> str:
    """The cause of its end, for a log line or an error."""
    if not isinstance(problem, OSError):
        return str(problem)
    words = problem.strerror or str(problem)
    hint = HINTS.get(problem.errno or 0)
    return f"{words}: {hint}" if hint else words
