"""A machine that was alone becomes a coordinator, or a member.

    joiner                                          coordinator
    ──────                                          ───────────
    TLS, verifying nothing; Opening(greet)   ──►
                                             ◄──    Opened(authority's certificate)
    its SHA-256 = the token's?   no: stop. Nothing secret was said
    TLS, verified against that certificate,
    the other end's says "coordinator"; Opening(join)
                                             ──►
                                             ◄──    Opened
    JoinRequest: secret, signing request     ──►
                                             ◄──    Joined: certificate
    everything into <state>/cluster.new, rename

The private key is made here and stays here. Every wait is bounded; every failure is a Refuse
that says where and what to do, and leaves this machine as it was. Whether jobs of its own stand in
the way is for the caller to look at first.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from wiiiiided import __version__
from wiiiiided.cluster.membership import own_address
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import abort
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.trust import tls
from wiiiiided.cluster.trust.certificate import Certificate, check_name, der_of
from wiiiiided.cluster.trust.identity import (
    IN_A_CLUSTER,
    ClusterMembership,
    Identity,
    NodeEndpoint,
    adopt_membership,
    create_cluster,
    endpoint,
)
from wiiiiided.cluster.trust.signing_request import new_request
from wiiiiided.cluster.trust.token import Token
from wiiiiided.domain.exit_codes import FAILED, NO_DAEMON, NOT_ALLOWED, USAGE
from wiiiiided.domain.node import PORT, Node
from wiiiiided.errors import UsageError

CONNECT_S = 5.0
ANSWER_S = 10.0
ANSWER_BYTES = 256 << 10  # of a machine that is not verified yet
SENTENCE_CHARS = 1000


Answer = TypeVar("Answer")


def init_cluster(
    state: Path, node: Node, request: m.Init, clock: Callable[[], float] = time.time
) -> m.ClusterView:
    """Make this machine the coordinator of a new cluster."""
    with_port = request.port or PORT
    try:
        address = own_address.told(request.address) if request.address else ""
        address = address or own_address.by_default_route()
        own_address.check_port(address, with_port)
        identity = create_cluster(
            state,
            cluster=request.cluster or node.name,
            node=node.name,
            address=address,
            port=with_port,
            now=clock(),
        )
    except UsageError as problem:
        raise Refuse(USAGE, str(problem)) from None
    return view_of(identity)


async def join_cluster(state: Path, node: Node, request: m.Join) -> m.ClusterView:
    """Make this machine a member of the cluster that its token was made for."""
    if Identity.load(state) is not None:  # before a token is used for nothing
        raise Refuse(USAGE, IN_A_CLUSTER)
    try:
        token = Token.parse(request.token)
        name = check_name(request.name or node.name, "node", "--name")
        told = own_address.told(request.address) if request.address else ""
        port = request.port or PORT
        there = await _greet(request.host, port, token)
        address = told or own_address.towards(there.address)
        own_address.check_port(address, request.own_port or PORT)
        node = replace(
            node, name=name, address=address, port=request.own_port or PORT, version=__version__
        )
        identity = await _join(state, node, token, there)
    except UsageError as problem:
        raise Refuse(USAGE, str(problem)) from None
    return view_of(identity)


def view_of(identity: Identity | None, node: str = "") -> m.ClusterView:
    """This machine's role, as init, join, leave and renew answer it; `node` when it is alone."""
    if identity is None:
        return m.ClusterView(cluster="", role="alone", node=node)
    return m.ClusterView(
        cluster=identity.cluster,
        role=identity.role,
        node=identity.node,
        address=identity.endpoint,
        coordinator=identity.coordinator.name,
        coordinator_address=identity.coordinator.endpoint,
        certificate_until=identity.certificate.until,
    )


# ---- the two connections


class _FoundCoordinator(msgspec.Struct, frozen=True):
    """The result of the first connection."""

    address: str  # an IP: the second goes to the same machine, whatever a name means by then
    port: int
    authority: str


async def _greet(host: str, port: int, token: Token) -> _FoundCoordinator:
    """The authority's certificate, which is the one that the token was made for."""
    async with _connected(host, port, tls.greeting_context()) as connection:
        opened = await connection.open("greet")
        ip = connection.address
    try:
        digest = hashlib.sha256(der_of(opened.authority)).digest()
    except UsageError:
        digest = b""
    if not hmac.compare_digest(digest, token.digest):
        raise Refuse(
            NOT_ALLOWED,
            f"the certificate at {endpoint(host, port)} is not the one the token was made for: "
            "nothing secret was sent",
            "is it the right machine, and does the token belong to its cluster?",
        )
    return _FoundCoordinator(ip, port, opened.authority)


async def _join(state: Path, node: Node, token: Token, there: _FoundCoordinator) -> Identity:
    context = tls.joining_context(there.authority)
    key, request = new_request(node.name)
    async with _connected(there.address, there.port, context) as connection:
        connection.check_coordinator()
        await connection.open("join")
        joined = await connection.ask(
            p.JoinRequest(token.id.hex(), token.secret.hex(), request, node), p.decode_joined
        )
    if isinstance(joined, p.TurnedAway):
        raise _turned_away(joined)
    membership = ClusterMembership(
        role="member",
        cluster=joined.cluster,
        cluster_id=joined.cluster_id,
        node=node.name,
        address=node.address,
        port=node.port,
        # The way that has just been gone, not the one that the coordinator believes in.
        coordinator=NodeEndpoint(joined.coordinator.name, there.address, there.port),
    )
    certificate = Certificate(joined.certificate, joined.until)
    return adopt_membership(state, membership, there.authority, key, certificate)


class _JoinConnection:
    """One of the two connections: frames out, frames in, each within its time."""

    def __init__(
        self, where: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._where = where
        self._reader, self._writer = reader, writer
        self._parser = framing.Parser(ANSWER_BYTES)

    @property
    def address(self) -> str:
        """The IP at the other end."""
        return str(self._writer.get_extra_info("peername")[0])

    def check_coordinator(self) -> None:
        """A member has a certificate of that authority, too: it must not be told the secret."""
        peer = tls.peer_of(self._writer.get_extra_info("ssl_object"))
        if peer is None or peer.role != "coordinator":
            text = f"{self._where} is a member of the cluster, not its coordinator"
            raise Refuse(USAGE, f"{text}: nothing secret was sent", "join at the coordinator")

    async def open(self, purpose: p.Purpose) -> p.Opened:
        opening = p.Opening(purpose, p.PROTOCOLS, __version__)
        answer: p.Opened | p.TurnedAway = await self.ask(opening, p.decode_opened)
        if isinstance(answer, p.TurnedAway):
            raise _turned_away(answer)
        return answer

    async def ask(self, message: m.Message, decode: Callable[[bytes], Answer]) -> Answer:
        self._writer.write(framing.frame(framing.MESSAGE, p.encode(message)))
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._writer.drain()
                return decode(await self._message())
        except TimeoutError:
            problem = f"{self._where} has not answered for {ANSWER_S:g} s"
        except EOFError:
            problem = f"{self._where} has closed the connection"
        except OSError as error:
            problem = f"the connection to {self._where} broke: {_reason(error)}"
        except (msgspec.DecodeError, framing.StreamError):
            problem = f"{self._where} does not speak the protocol of wiiiiided {__version__}"
        raise Refuse(NO_DAEMON, problem, "its log has more: journalctl -u wiiiiided, over there")

    async def _message(self) -> bytes:
        while data := await self._reader.read(1 << 16):
            for kind, payload in self._parser.feed(data):
                if kind != framing.MESSAGE:
                    raise framing.StreamError("a message was expected")
                return payload
        raise EOFError


@asynccontextmanager
async def _connected(
    host: str, port: int, context: ssl.SSLContext
) -> AsyncIterator[_JoinConnection]:
    where = endpoint(host, port)
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(
                host, port, ssl=context, server_hostname="", limit=ANSWER_BYTES
            )
    except ssl.SSLCertVerificationError:
        raise Refuse(
            NOT_ALLOWED,
            f"the certificate at {where} is not of the cluster the token was made for: nothing "
            "secret was sent",
        ) from None
    except (OSError, UnicodeError) as problem:
        raise _unreachable(where, problem) from None
    try:
        yield _JoinConnection(where, reader, writer)
    finally:
        abort(writer.transport)  # all is said; TLS's good-bye would be one more wait


def _unreachable(where: str, problem: OSError | UnicodeError) -> Refuse:
    if isinstance(problem, ConnectionRefusedError):
        return Refuse(
            NO_DAEMON,
            f"nothing listens at {where}: is wiiiiided running there, was wiiiiide init run, does "
            "a firewall stand between?",
        )
    if isinstance(problem, TimeoutError):
        text = f"no answer from {where} within {CONNECT_S:g} s: is the machine on, does a firewall "
        return Refuse(NO_DAEMON, text + "drop packets to that port?")
    if isinstance(problem, socket.gaierror | UnicodeError):
        text = f"the name in {where[:200]!r} means no machine that is known here"
        return Refuse(USAGE, text, "give its IP address")
    if isinstance(problem, ssl.SSLError | ConnectionResetError | BrokenPipeError):
        text = f"the program at {where} does not speak TLS 1.3: is that the port of wiiiiided?"
        return Refuse(NO_DAEMON, text)
    return Refuse(NO_DAEMON, f"cannot connect to {where}: {_reason(problem)}")


def _turned_away(answer: p.TurnedAway) -> Refuse:
    code = answer.code if 1 <= answer.code <= 125 else FAILED
    return Refuse(code, answer.message[:SENTENCE_CHARS], answer.hint[:SENTENCE_CHARS])


def _reason(problem: OSError | UnicodeError) -> str:
    if number := getattr(problem, "errno", None):
        return os.strerror(number)  # asyncio puts words and the address in its place
    return str(problem) or type(problem).__name__
