"""The Store's pipe between two machines in TLS 1.3, for jobs with network.encrypt.

    shim of another node                                        shim of the first node, the Store
    TLS: no certificate is verified                    ◄──►     shows one that its daemon has made
    HMAC(attempt's key, "C", digest of it)       ──►            for this attempt alone
                                                       ◄──      HMAC(attempt's key, "S", the same)
    from here on the Store's protocol

As between ranks (backend/net/tls): a man in the middle has to show a certificate of his own, so
both sides see different digests, and neither accepts the other's HMAC; without the attempt's key
he cannot make one. A side that encrypts accepts no plain connection.

A `TlsLink` is used like the socket below it, and raises BlockingIOError likewise. Two things
differ. `send` returns the length only when all is written, and must be called with the same bytes
until then. And bytes already fetched from the socket cause no epoll event: read until
BlockingIOError, or ask `pending`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import ssl

from wiiiiided.cluster.shim import protocol

CONNECTOR, STORE = b"C", b"S"
PROOF_BYTES = 32
FETCH_BYTES = 64 << 10
RECORD_BYTES = 16 << 10  # the most that one record carries
_LABEL = b"wiiiiide store over tls\0"


class Unproved(ConnectionError):
    """The other side does not have the attempt's key, or something is between the two."""


class TlsLink:
    """One connection. `digest` is of this side's own certificate, on the Store's side."""

    def __init__(
        self, link: socket.socket, context: ssl.SSLContext, key: bytes, digest: bytes = b""
    ) -> None:
        self._link, self._key, self._digest = link, key, digest
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._server = bool(digest)
        self._tls = context.wrap_bio(self._in, self._out, self._server)
        self._held = b""  # encrypted bytes for which the socket had no room
        self._taken = 0  # how many of `send`'s bytes those are
        self._shaken = self._proved = False
        self._proof = b""  # of the other side, as far as received

    def fileno(self) -> int:
        return self._link.fileno()

    def setblocking(self, flag: bool) -> None:
        self._link.setblocking(flag)

    def shutdown(self, how: int) -> None:
        self._link.shutdown(how)

    def close(self) -> None:
        self._link.close()

    @property
    def pending(self) -> bool:
        """Whether bytes may be read for which the socket causes no event."""
        return bool(self._in.pending or (self._proved and self._tls.pending()))

    def prove(self) -> None:
        """Return when both sides have proved the key; BlockingIOError: not yet; OSError: never."""
        if not self._shaken:
            self._shake()
            if not self._server:
                seen = self._tls.getpeercert(binary_form=True)
                self._digest = hashlib.sha256(seen or b"").digest()
                self._say(CONNECTOR)
        while len(self._proof) < PROOF_BYTES:
            data = self._read(PROOF_BYTES - len(self._proof))
            if not data:
                raise Unproved(0, "it closed the connection")
            self._proof += data
        theirs = CONNECTOR if self._server else STORE
        if not hmac.compare_digest(self._proof, self._hmac(theirs)):
            raise Unproved(0, "it could not prove itself inside TLS: something is between the two")
        self._proved = True
        if self._server:
            self._say(STORE)

    def recv(self, size: int) -> bytes:
        if not self._proved:
            self.prove()
        return self._read(size)

    def send(self, data: bytes | bytearray) -> int:
        if not self._taken:
            self._taken = self._tls.write(
                memoryview(data)[:RECORD_BYTES]
            )  # a memory BIO takes it all
        self._flush()
        taken, self._taken = self._taken, 0
        return taken

    def _shake(self) -> None:
        while not self._shaken:
            try:
                self._tls.do_handshake()
                self._shaken = True
            except ssl.SSLWantReadError:
                self._flush()
                self._fetch()
            except ssl.SSLError as problem:
                with contextlib.suppress(OSError):
                    self._flush()  # the alert
                why = (problem.reason or "it ended").lower().replace("_", " ")
                text = f"TLS fails ({why}): does every machine run the same wiiiiided?"
                raise Unproved(0, text) from problem
        self._flush()

    def _say(self, who: bytes) -> None:
        self._tls.write(self._hmac(who))
        self._flush()  # a new connection has room for that

    def _hmac(self, who: bytes) -> bytes:
        return hmac.digest(self._key, _LABEL + who + self._digest, "sha256")

    def _read(self, size: int) -> bytes:
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                with contextlib.suppress(BlockingIOError):
                    self._flush()  # TLS may have an answer to send, as with new keys
                self._fetch()
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return b""  # a killed process ends without close_notify

    def _fetch(self) -> None:
        data = self._link.recv(FETCH_BYTES)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    def _flush(self) -> None:
        while self._held or self._out.pending:
            self._held = self._held or self._out.read()
            self._held = self._held[self._link.send(self._held) :]


class StoreTls:
    """The first node's side, with its daemon's certificate; UnreadableFile without one."""

    def __init__(self, directory: int, key: bytes) -> None:
        self._key = key
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.num_tickets = 0  # no client resumes: each connection shows the certificate
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with open(os.open(protocol.PEM, flags, dir_fd=directory)) as file:
                self._context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
                text = file.read(protocol.MAX_FILE_BYTES)
            begin = text.index("-----BEGIN CERTIFICATE-----")
            self._digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[begin:])).digest()
        except (OSError, ValueError) as problem:
            raise protocol.UnreadableFile(f"the certificate for the Store: {problem}") from problem

    def wrap(self, link: socket.socket) -> TlsLink:
        return TlsLink(link, self._context, self._key, self._digest)


def connector(link: socket.socket, key: bytes) -> TlsLink:
    """A connection of another node's shim."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the HMACs prove more
    return TlsLink(link, context, key)
