"""A machine that joins: what it verifies, what it sends, and what it leaves when it fails.

The coordinator here is a small TLS server with the real contexts and the real Members.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cluster.trust.kit import DAY_S, a_cluster, a_member
from tests.kit.daemons import free_port
from wiiiiided.cluster.membership import joining, own_address
from wiiiiided.cluster.membership.joining import init_cluster, join_cluster, view_of
from wiiiiided.cluster.membership.members import Members
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.cluster.trust.authority import Authority
from wiiiiided.cluster.trust.identity import Identity
from wiiiiided.cluster.trust.tls import client_context, peer_of, server_context
from wiiiiided.cluster.trust.token import Token
from wiiiiided.domain.node import PORT, Node
from wiiiiided.errors import HostError

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

NODE = Node("b", 4, 1 << 30, boot_id="boot")


class Coordinator:
    """Answers greet, join and, for the tests of certificates, link."""

    def __init__(self, state: Path, now: float | None = None, address: str = "127.0.0.1") -> None:
        self.store = StateStore(state)
        self.now = time.time() if now is None else now
        self.identity = a_cluster(state, now=self.now, address=address)
        authority = Authority.load(self.identity.directory)
        self.members = Members(self.store._db, self.identity, authority, lambda: self.now)
        self.context = server_context(self.identity)
        self.authority = authority.certificate  # what it says when it is greeted
        self.heard = b""  # every byte that came out of TLS
        self.requests: list[p.JoinRequest] = []

    def token(self, ttl_s: float = 3600.0, uses: int = 1) -> str:
        return self.members.create_token(ttl_s, uses, "root").token

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            frames = self._frames(reader)
            opening = p.decode_opening(await anext(frames))
            say(writer, self._opened(opening, writer))
            if opening.purpose == "join":
                request = p.decode_join(await anext(frames))
                self.requests.append(request)
                say(writer, self._joined(request))
            await writer.drain()
            await reader.read()  # until it has heard that
        except StopAsyncIteration:
            pass  # it has gone

    async def _frames(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        parser = framing.Parser()
        while data := await reader.read(1 << 16):
            self.heard += data
            for _, payload in parser.feed(data):
                yield payload

    def _opened(self, opening: p.Opening, writer: asyncio.StreamWriter) -> p.Opened | p.TurnedAway:
        if opening.purpose == "link":
            no = self.members.verdict(peer_of(writer.get_extra_info("ssl_object")))
            return p.TurnedAway(5, no) if no else p.Opened(1, "1")
        return p.Opened(1, "1", self.authority if opening.purpose == "greet" else "")

    def _joined(self, request: p.JoinRequest) -> p.Joined | p.TurnedAway:
        try:
            return self.members.admit(request)
        except Refuse as no:
            return p.TurnedAway(no.code, str(no), no.hint)


def say(writer: asyncio.StreamWriter, message: m.Message) -> None:
    writer.write(framing.frame(framing.MESSAGE, p.encode(message)))


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Coordinator]:
    made = Coordinator(tmp_path / "a")
    yield made
    made.store.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of the machine that joins."""
    path = tmp_path / "b"
    path.mkdir(mode=0o700)
    return path


@asynccontextmanager
async def listening(
    answer: Answer, context: ssl.SSLContext | None, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """A server, which at the end waits until every connection has ended."""
    tasks: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except OSError:
            pass  # the joiner has hung up
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(served(reader, writer)))

    async with await asyncio.start_server(accept, host, 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)


def a_join(port: int, token: str, host: str = "127.0.0.1", name: str = "") -> m.Join:
    address = "::1" if ":" in host else "127.0.0.1"
    return m.Join(host, port, token, name=name, address=address, own_port=free_port("127.0.0.1"))


def joined(there: Coordinator, state: Path, token: str, name: str = "") -> m.ClusterView:
    async def run() -> m.ClusterView:
        async with listening(there.answer, there.context) as port:
            return await join_cluster(state, NODE, a_join(port, token, name=name))

    return asyncio.run(run())


def refused(there: Coordinator, state: Path, token: str, sentence: str, code: int) -> Refuse:
    """It is refused with that sentence, and this machine is as it was."""
    with pytest.raises(Refuse, match=sentence) as caught:
        joined(there, state, token)
    assert caught.value.code == code
    assert list(state.iterdir()) == []
    assert Token.parse(token).secret.hex() not in f"{caught.value} {caught.value.hint}"
    return caught.value


def was_told(there: Coordinator, token: str) -> bool:
    """Whether the secret, in any of its forms, has come out of TLS at the other end."""
    secret = Token.parse(token).secret
    forms = (secret, secret.hex().encode(), token[-16:].encode())
    return any(form in there.heard for form in forms)


# ---- the way it should go


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_with_the_right_token_a_machine_becomes_a_member(
    tmp_path: Path, state: Path, host: str
) -> None:
    there = Coordinator(tmp_path / "a", address="::1" if ":" in host else "127.0.0.1")
    ports = []

    async def run() -> m.ClusterView:
        async with listening(there.answer, there.context, host) as port:
            ports.append(port)
            return await join_cluster(state, NODE, a_join(port, there.token(), host))

    try:
        view = asyncio.run(run())
        identity = Identity.load(state)
        assert identity is not None
        assert view == view_of(identity)
        assert (identity.role, identity.cluster, identity.node) == ("member", "lab", "b")
        assert identity.cluster_id == there.identity.cluster_id
        assert identity.coordinator.name == "a"
        assert identity.coordinator.port == ports[0]
        assert identity.coordinator.address in ("127.0.0.1", "::1")
        assert there.members.until("b") == identity.certificate.until == view.certificate_until
        assert there.requests[0].node.endpoint == identity.endpoint
        assert there.requests[0].node.boot_id == "boot"
    finally:
        there.store.close()


def test_the_private_key_does_not_travel(there: Coordinator, state: Path) -> None:
    joined(there, state, there.token())
    lines = (state / "cluster" / "node.key").read_text().splitlines()
    assert lines[1] == "-----BEGIN PRIVATE KEY-----"
    assert len(there.heard) > 500
    assert lines[2].encode() not in there.heard
    assert b"PRIVATE" not in there.heard


def test_a_member_can_be_called_otherwise_than_its_host(there: Coordinator, state: Path) -> None:
    assert joined(there, state, there.token(), name="other").node == "other"
    assert there.members.names() == ["a", "other"]


@pytest.mark.parametrize("now", [86400.0, 4_000_000_000.0])
def test_clocks_that_are_decades_apart_do_not_matter(
    tmp_path: Path, state: Path, now: float
) -> None:
    there = Coordinator(tmp_path / "a", now=now)
    try:
        assert joined(there, state, there.token()).certificate_until == now + 400 * DAY_S
        assert as_member(there, Identity.load(state)) == ""
    finally:
        there.store.close()


# ---- coordinators that a joiner does not trust


def test_another_cluster_is_noticed_before_anything_secret_is_said(
    there: Coordinator, tmp_path: Path, state: Path
) -> None:
    other = Coordinator(tmp_path / "other")
    token = other.token()
    other.store.close()
    refused(there, state, token, "not the one the token was made for: nothing secret was sent", 5)
    assert b"greet" in there.heard
    assert not was_told(there, token)


def test_a_server_that_shows_the_right_authority_without_its_certificate_learns_nothing(
    there: Coordinator, tmp_path: Path, state: Path
) -> None:
    """It has the authority's certificate, which is no secret, and stands in the middle."""
    token = there.token()
    other = a_cluster(tmp_path / "other")
    there.context = server_context(other)
    refused(there, state, token, "not of the cluster .* nothing secret was sent", 5)
    assert not was_told(there, token)


def test_a_member_that_poses_as_the_coordinator_learns_nothing(
    there: Coordinator, tmp_path: Path, state: Path
) -> None:
    token = there.token()
    there.context = server_context(a_member(tmp_path / "c", there.identity, node="c"))
    refused(there, state, token, "is a member .* not its coordinator: nothing secret was sent", 2)
    assert not was_told(there, token)


@pytest.mark.parametrize("text", ["", "garbage", "x" * 100_000])
def test_what_is_no_authority_is_not_believed(there: Coordinator, state: Path, text: str) -> None:
    token = there.token()
    there.authority = text
    refused(there, state, token, "not the one the token was made for", 5)
    assert not was_told(there, token)


def test_a_second_certificate_behind_the_right_one_is_not_believed(
    there: Coordinator, tmp_path: Path, state: Path
) -> None:
    token = there.token()
    other = a_cluster(tmp_path / "other")
    there.authority += other.authority
    there.context = server_context(other)
    refused(there, state, token, "nothing secret was sent", 5)
    assert not was_told(there, token)


# ---- joiners that a coordinator does not trust


def test_a_used_token_is_refused(there: Coordinator, state: Path, tmp_path: Path) -> None:
    token = there.token()
    (tmp_path / "c").mkdir()
    joined(there, tmp_path / "c", token, name="c")
    no = refused(there, state, token, "used up", 5)
    assert "wiiiiide token create" in no.hint


def test_an_expired_token_is_refused(there: Coordinator, state: Path) -> None:
    token = there.token(60.0)
    there.now += 61
    refused(there, state, token, "expired", 5)


def test_an_unknown_token_is_refused(there: Coordinator, state: Path) -> None:
    made_up = Token.create(Authority.load(there.identity.directory).digest)
    refused(there, state, made_up.text, "does not know this token", 5)


def test_a_name_that_is_taken_is_refused(there: Coordinator, state: Path, tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    joined(there, tmp_path / "c", there.token())
    no = refused(there, state, there.token(), "b is a member already", 2)
    assert "--name" in no.hint


def as_member(there: Coordinator, identity: Identity | None) -> str:
    """What a machine hears that wants a link: empty, or the sentence."""
    assert identity is not None

    async def run() -> str:
        async with listening(there.answer, there.context) as port:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client_context(identity), server_hostname=""
            )
            say(writer, p.Opening("link", p.PROTOCOLS, "1"))
            try:
                async with asyncio.timeout(10):
                    frames = await reader.read(1 << 16)
            except OSError:
                frames = b""
            finally:
                writer.transport.abort()
            if not frames:
                return "hung up"
            (answer,) = framing.Parser().feed(frames)
            opened: p.Opened | p.TurnedAway = p.decode_opened(answer[1])
            return opened.message if isinstance(opened, p.TurnedAway) else ""

    return asyncio.run(run())


def test_a_member_is_let_in_until_it_is_removed(there: Coordinator, state: Path) -> None:
    joined(there, state, there.token())
    identity = Identity.load(state)
    assert as_member(there, identity) == ""
    there.members.remove("b")
    assert "b was removed" in as_member(there, identity)


def test_an_expired_member_hears_why_it_is_refused(there: Coordinator, state: Path) -> None:
    joined(there, state, there.token())
    there.now += 401 * DAY_S
    assert "b has expired by the clock of a" in as_member(there, Identity.load(state))


def test_a_certificate_that_no_member_was_admitted_with_is_refused(
    there: Coordinator, tmp_path: Path
) -> None:
    stray = a_member(tmp_path / "b", there.identity)
    assert "not a member" in as_member(there, stray)


def test_a_certificate_of_another_cluster_does_not_get_through_tls(
    there: Coordinator, tmp_path: Path
) -> None:
    stranger = a_member(tmp_path / "b", a_cluster(tmp_path / "other"))
    (stranger.directory / "authority.pem").write_text(there.identity.authority)
    assert as_member(there, stranger) == "hung up"
    assert there.heard == b""


# ---- what is in the way


def against(state: Path, port: int, token: str) -> Refuse:
    with pytest.raises(Refuse) as caught:
        asyncio.run(join_cluster(state, NODE, a_join(port, token)))
    assert list(state.iterdir()) == []
    return caught.value


def test_where_nothing_listens_it_says_what_to_look_for(there: Coordinator, state: Path) -> None:
    port = free_port("127.0.0.1")
    no = against(state, port, there.token())
    assert f"nothing listens at 127.0.0.1:{port}: is wiiiiided running there" in str(no)
    assert no.code == 4


def test_a_name_that_means_nothing_is_said(
    there: Coordinator, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(host: str, *_: object, **__: object) -> None:
        host.encode("idna")
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for host in ("no-such-machine.invalid", "x" * 300, "a..b"):
        with pytest.raises(Refuse, match="means no machine"):
            asyncio.run(join_cluster(state, NODE, a_join(9461, there.token(), host)))


def serve(state: Path, token: str, answer: bytes) -> Refuse:
    """Against a server that sends this instead of TLS, and then nothing."""

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()

    async def run() -> None:
        async with listening(other, None) as port:
            await join_cluster(state, NODE, a_join(port, token))

    with pytest.raises(Refuse) as caught:
        asyncio.run(run())
    assert list(state.iterdir()) == []
    return caught.value


def test_what_does_not_speak_tls_is_said(there: Coordinator, state: Path) -> None:
    no = serve(state, there.token(), b"SSH-2.0-OpenSSH_9.2p1\r\n")
    assert "does not speak TLS 1.3" in str(no)


def test_a_coordinator_that_never_answers_is_given_up(
    there: Coordinator, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "CONNECT_S", 0.2)
    assert "no answer from 127.0.0.1" in str(serve(state, there.token(), b""))
    monkeypatch.setattr(joining, "CONNECT_S", 5.0)
    monkeypatch.setattr(joining, "ANSWER_S", 0.2)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    monkeypatch.setattr(there, "answer", silent)
    refused(there, state, there.token(), "has not answered", 4)


@pytest.mark.parametrize(
    "said",
    [
        b"J\x00\x00\x00\x02{}",
        b"J\xff\xff\xff\xff",
        b"B\x00\x00\x00\x01x",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_another_protocol_is_said(
    there: Coordinator, state: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()

    monkeypatch.setattr(there, "answer", other)
    refused(there, state, there.token(), "does not speak the protocol", 4)


def test_a_closed_connection_is_said(
    there: Coordinator, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pass

    monkeypatch.setattr(there, "answer", other)
    refused(there, state, there.token(), "has closed the connection|broke", 4)


def test_a_sentence_of_the_coordinator_is_passed_on_within_bounds(
    there: Coordinator, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(there, "_opened", lambda *_: p.TurnedAway(0, "no " * 10_000, "hint"))
    no = refused(there, state, there.token(), "no no no", 1)
    assert len(str(no)) <= 1000


def test_a_certificate_for_another_key_is_not_taken(
    there: Coordinator, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(request: p.JoinRequest) -> p.Joined:
        made = there.members.admit(request)
        return replace(made, certificate=there.identity.certificate.pem)

    monkeypatch.setattr(there, "_joined", other)
    with pytest.raises(HostError, match="not for this machine's key"):
        joined(there, state, there.token())
    assert list(state.iterdir()) == []


def test_a_machine_in_a_cluster_uses_no_second_token(there: Coordinator, state: Path) -> None:
    joined(there, state, there.token())
    token = there.token()
    with pytest.raises(Refuse, match="in a cluster already"):
        joined(there, state, token, name="c")
    assert not was_told(there, token)


def test_mistakes_are_found_before_the_coordinator_is_asked(
    there: Coordinator, state: Path
) -> None:
    token = there.token()
    right = a_join(1, token)
    for wrong, sentence in (
        (replace(right, token="no token"), "this is no token"),
        (replace(right, name="no name"), "cannot be the name"),
        (replace(right, address="0.0.0.0"), "is not one address"),
        (replace(right, address="203.0.113.77"), "not of this machine"),
    ):
        with pytest.raises(Refuse, match=sentence) as caught:
            asyncio.run(join_cluster(state, NODE, wrong))
        assert caught.value.code == 2


def test_loopback_is_not_taken_by_itself(there: Coordinator, state: Path) -> None:
    token = there.token()

    async def run() -> None:
        async with listening(there.answer, there.context) as port:
            await join_cluster(state, NODE, m.Join("127.0.0.1", port, token))

    with pytest.raises(Refuse, match=r"127\.0\.0\.1 for a trial"):
        asyncio.run(run())
    assert not was_told(there, token)


def test_a_port_that_is_taken_here_is_found_before_the_token_is_used(
    there: Coordinator, state: Path
) -> None:
    token = there.token()

    async def run() -> None:
        async with listening(there.answer, there.context) as port:
            await join_cluster(state, NODE, replace(a_join(port, token), own_port=port))

    with pytest.raises(HostError, match="another program listens"):
        asyncio.run(run())
    assert not was_told(there, token)


def test_a_client_that_speaks_tls_1_2_gets_nowhere(there: Coordinator) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def run() -> None:
        async with listening(there.answer, there.context) as port:
            await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="")

    with pytest.raises(OSError):  # an alert, or the end of the connection
        asyncio.run(run())
    assert there.heard == b""


# ---- init


def test_init_makes_a_coordinator_where_it_was_told(state: Path) -> None:
    port = free_port("127.0.0.1")
    view = init_cluster(state, NODE, m.Init("lab", "127.0.0.1", port), lambda: 1_800_000_000.0)
    assert view == m.ClusterView(
        cluster="lab",
        role="coordinator",
        node="b",
        address=f"127.0.0.1:{port}",
        coordinator="b",
        coordinator_address=f"127.0.0.1:{port}",
        certificate_until=1_800_000_000.0 + 400 * DAY_S,
    )
    assert view == view_of(Identity.load(state))


def test_init_by_itself_takes_address_port_and_name(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(own_address, "by_default_route", lambda: "192.0.2.9")
    monkeypatch.setattr(own_address, "check_port", lambda *place: asked.append(place))
    view = init_cluster(state, NODE, m.Init())
    assert (view.cluster, view.address) == ("b", f"192.0.2.9:{PORT}")
    assert asked == [("192.0.2.9", PORT)]


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (m.Init(address="0.0.0.0"), "is not one address"),
        (m.Init(address="203.0.113.77"), "not of this machine"),
        (m.Init("a/b", "127.0.0.1", 1), "cannot be the name of a cluster.*--cluster"),
    ],
)
def test_an_init_that_makes_no_sense_changes_nothing(
    state: Path, request_: m.Init, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_address, "check_port", lambda *place: None)
    with pytest.raises(Refuse, match=sentence) as caught:
        init_cluster(state, NODE, request_)
    assert caught.value.code == 2
    assert list(state.iterdir()) == []


def test_a_second_init_is_refused(state: Path) -> None:
    init_cluster(state, NODE, m.Init("lab", "127.0.0.1", free_port("127.0.0.1")))
    with pytest.raises(Refuse, match="in a cluster already"):
        init_cluster(state, NODE, m.Init("lab", "127.0.0.1", free_port("127.0.0.1")))


def test_a_machine_alone_says_so() -> None:
    assert view_of(None, "b") == m.ClusterView(cluster="", role="alone", node="b")
