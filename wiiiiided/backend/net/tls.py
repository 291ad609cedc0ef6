"""TLS 1.3 on a link: encryption for hosts that share a network with others, behind `Stream`.

There is no authority that could sign for processes born a moment ago, so no certificate is
verified here. Each process makes its own, self-signed, for as long as it lives; the key is never
on a disk. wire.handshake authenticates the other side: it runs inside the TLS connection
and covers the SHA-256 of the server's certificate, as each side sees it (`binding`):

    connector ── TLS, certificate M ── man in the middle ── TLS, certificate S ── acceptor
    HMAC(key, … M)  ──────────────────────────────────────────────────────────►  expects HMAC(… S)

The man in the middle has to show a certificate whose private key he has: TLS makes him sign with
it. So M is not S, both HMACs differ from what the other side expects, and he cannot make them
himself without the group's key. Both sides stop before the first frame. A holder of the group's key
is a member, and no man in the middle is needed to read along. (This is RFC 5929's
tls-server-end-point; TLS 1.3 has the better tls-exporter, which Python's ssl does not offer.)

TLS is driven between two buffers in memory (ssl.SSLObject), not by ssl.SSLSocket: that one turns
ETIMEDOUT and ECONNRESET into an end of stream (CPython gh-115627), so a lost host would pass for a
process that ended. Both were equally fast.

    send ──► records, encrypted ──► outgoing ──► held ──► socket     taken is what was encrypted
    receive ◄── records, decrypted ◄── incoming ◄──────── socket

Hence two of the rules in net.stream: what is encrypted must be written, so `wants_write` is true
until it is; and what is fetched from the socket is seen by no epoll: read until -1, or ask
`pending`.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from typing import Final

from wiiiiided.backend.net.stream import MAX_BUFFERS, Buffer, Stream, check_room
from wiiiiided.errors import HostError

# The most that one TLS record carries. Small buffers are joined up to it: each record costs 22
# bytes and a pass of the cipher.
RECORD_BYTES: Final = 16 * 1024
# Encrypted before a write, and fetched before decryption: a few records for
# each system call, and still in the cache.
BATCH_BYTES: Final = 128 * 1024


class TlsStream:
    """A TLS connection; `shake_hands` until it says True, before anything else."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_side: bool) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side)
        self._held = memoryview(b"")  # encrypted, and the socket was full
        self._dry = True  # the socket had nothing, and no whole record is left here
        self._ended = False
        self._problem: OSError | None = None  # it came behind bytes that are given out first

    @property
    def sock(self) -> socket.socket:
        """The socket, for its options and names; its bytes are this stream's."""
        return self._sock

    @property
    def tls(self) -> ssl.SSLObject:
        """The TLS object, for its certificate and version."""
        return self._tls

    def shake_hands(self) -> bool:
        """Go on with TLS's own handshake; whether it is done. OSError: it failed."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if not self._fetch(0):
                    return False
            except ssl.SSLError:
                self._flush()  # TLS has a last word, too
                raise
            else:
                self._flush()
                return True

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, buffers: Sequence[Buffer]) -> int:
        if not self._flush():
            return 0
        taken = 0
        for record in records(buffers[:MAX_BUFFERS]):
            taken += self._tls.write(record)  # memory takes it all
            if self._outgoing.pending >= BATCH_BYTES and not self._flush():
                return taken
        self._flush()
        return taken

    def receive(self, buffers: Sequence[Buffer]) -> int:
        check_room(buffers)
        put = 0
        for buffer in buffers[:MAX_BUFFERS]:
            view = memoryview(buffer)
            view = view.cast("B") if view.nbytes else view
            while view.nbytes:
                try:
                    count = self._read(view)
                except OSError as problem:
                    self._problem = problem
                    if put:
                        return put
                    raise
                if count <= 0:
                    return put or count
                put += count
                view = view[count:]
        return put

    def wants_write(self) -> bool:
        return bool(self._held)

    def pending(self) -> bool:
        return not self._dry

    def close(self) -> None:
        # No close_notify: frames have a good-bye of their own, and a forked child must not say one.
        self._sock.close()

    def _read(self, view: memoryview) -> int:
        if self._problem is not None:
            raise self._problem
        while not self._ended:
            try:
                # With a buffer it gives a count; typeshed does not know.
                return self._tls.read(len(view), view)  # type: ignore[arg-type, return-value]
            except ssl.SSLWantReadError:
                self._flush()  # it may have had to answer, as with new keys
                if not self._fetch(len(view)):
                    return -1
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                self._ended = True  # a killed process ends without TLS's good-bye
        return 0

    def _fetch(self, room: int) -> bool:
        """More bytes from the socket; whether there were any, or the end.

        Not much more than there is room for: an unauthenticated peer must not fill our memory.
        """
        try:
            data = self._sock.recv(min(room + RECORD_BYTES, BATCH_BYTES))
        except BlockingIOError:
            self._dry = True
            return False
        self._dry = False
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return True

    def _flush(self) -> bool:
        """Write what is encrypted; False: not all of it."""
        while self._held or self._outgoing.pending:
            if not self._held:
                self._held = memoryview(self._outgoing.read())
            try:
                self._held = self._held[self._sock.send(self._held, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                return False
        return True


def records(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """The same bytes in full records: small buffers joined, large ones cut where they lie."""
    joined = bytearray()
    for buffer in buffers:
        view = memoryview(buffer)
        view = view.cast("B") if view.nbytes else view
        while view.nbytes:
            if joined or len(view) < RECORD_BYTES:
                part = view[: RECORD_BYTES - len(joined)]
                joined += part
                if len(joined) == RECORD_BYTES:
                    yield joined
                    joined = bytearray()
            else:
                part = view[:RECORD_BYTES]
                yield part
            view = view[len(part) :]
    if joined:
        yield joined


def wrap(sock: socket.socket, server_side: bool) -> TlsStream:
    """TLS over a connected socket, which is this stream's from now on."""
    return TlsStream(sock, server_context() if server_side else client_context(), server_side)


def binding(stream: Stream) -> bytes:
    """The inner handshake's channel binding: the digest of the server's certificate; b"" for TCP.

    Both sides of one TLS connection get the same, once it has shaken hands.
    """
    if not isinstance(stream, TlsStream):
        return b""
    context = stream.tls.context
    if isinstance(context, _ServerContext):
        return context.digest
    certificate = stream.tls.getpeercert(binary_form=True)
    if certificate is None:
        raise HostError("the other side of a TLS connection has shown no certificate")
    return hashlib.sha256(certificate).digest()


class _ServerContext(ssl.SSLContext):
    """A context that knows the digest of the certificate it shows."""

    digest: bytes


@functools.cache
def server_context() -> ssl.SSLContext:
    """The acceptor's context, with this process's own certificate, made at the first call."""
    certificate, pem = _make_certificate()
    context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no session is resumed: each connection shows the certificate
    context.digest = hashlib.sha256(certificate).digest()
    # OpenSSL wants a file name. This one lives in memory and goes with its descriptor.
    fd = os.memfd_create("wiiiiide-tls", os.MFD_CLOEXEC)
    with open(fd, "wb", buffering=0) as file:
        file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    return context


@functools.cache
def client_context() -> ssl.SSLContext:
    """The connector's context, which verifies nothing: `binding` and the handshake do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _make_certificate() -> tuple[bytes, bytes]:
    """A new self-signed one: itself (DER), and with its key (PEM). Its dates mean nothing."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as problem:
        raise HostError(
            f"TLS needs the package cryptography, which cannot be loaded ({problem}): "
            "pip install cryptography, or turn TLS off"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "wiiiiide")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    return certificate.public_bytes(serialization.Encoding.DER), pem
