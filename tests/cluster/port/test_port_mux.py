"""The one port, with real sockets on loopback: connections reach their process, or are closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.port.test_fd_handoff import Listener
from tests.kit.conditions import wait_until
from tests.kit.leaks import open_descriptors
from tests.kit.port_mux import Port
from wiiiiided.backend.net import tls
from wiiiiided.backend.wire.challenge import ANSWER_BYTES
from wiiiiided.backend.wire.port_auth import PortClient, PortRequest, Rejected, RejectReason
from wiiiiided.cluster.port import fd_handoff
from wiiiiided.cluster.port import port_mux as module
from wiiiiided.cluster.port.port_mux import PortMux, uid_at
from wiiiiided.errors import HostError

KEY, OTHER_KEY = bytes(range(32)), bytes(32)
UID = "0123456789abcdef"
REQUEST = PortRequest(7, 1, "data", 0, 1, UID)
STORE = module._STORE
WITHIN_S = 20.0

Lines = Callable[[], list[str]]


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    monkeypatch.setattr(fd_handoff, "ANSWER_S", WITHIN_S)  # a thread answers here
    tls.server_context()
    with socket.socket() as warm:  # whatever a first socket or loop makes for good
        warm.fileno()
    before = set(open_descriptors())
    with Port(tmp_path) as port:
        yield port
    # Fewer is no fault: what earlier tests left may have been collected meanwhile.
    assert not set(open_descriptors()) - before


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.WARNING, "wiiiiide")
    return lambda: [record.getMessage() for record in caplog.records]


def authenticate(
    sock: socket.socket, key: bytes = KEY, request: PortRequest = REQUEST, more: bytes = b""
) -> None:
    """Knock to the end; `more` goes out with the proof. Refused when it is refused."""
    client = PortClient(key, request)
    while not client.done:
        said = client.data_to_send()
        sock.sendall(said + (more if len(said) == ANSWER_BYTES else b""))
        data = sock.recv(client.wanted)
        if not data:
            raise EOFError
        client.receive_data(data)


def is_closed(sock: socket.socket) -> bool:
    """Whether the other side has ended it, whatever it said before."""
    sock.setblocking(False)
    try:
        while sock.recv(1000):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def until_closed(sock: socket.socket) -> None:
    wait_until(lambda: is_closed(sock), WITHIN_S, "the connection is closed")


# -- which connection gets where ----


def test_a_worker_gets_the_connection_with_not_a_byte_missing(port: Port) -> None:
    worker = Listener(port.attempt(7, 1, KEY) / f"door-{UID}")
    with port.connect() as sock:
        authenticate(sock, more=b"HELLO at once")
        worker.close_listening()
        (taken,) = worker.taken
        assert taken.recv(100) == b"HELLO at once"
        taken.setblocking(True)
        taken.sendall(b"hello")
        assert sock.recv(100) == b"hello"
        wait_until(lambda: port.stages() == (0, 0, 0), WITHIN_S, "the port has forgotten it")
    worker.close()


def test_a_port_request_in_single_bytes_gets_there_too(port: Port) -> None:
    worker = Listener(port.attempt(7, 1, KEY) / f"door-{UID}")
    with port.connect() as sock:
        client = PortClient(KEY, REQUEST)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not client.done:
            for byte in client.data_to_send():
                sock.sendall(bytes([byte]))
            client.receive_data(sock.recv(client.wanted))
        worker.close()
    assert worker.said == [b"W"]


def test_another_machines_store_pipe_gets_to_the_shim(port: Port) -> None:
    shim = Listener(port.attempt(7, 1, KEY) / "door", b"+")
    with port.connect() as sock:
        authenticate(sock, request=PortRequest(7, 1, "store", 4, 0))
        shim.close()
    assert shim.said == [b"R"]


@pytest.mark.parametrize("pieces", [[5], [1, 4], [1, 1, 1, 1, 1]])
def test_a_ranks_store_client_gets_to_its_shim_and_nothing_is_read_from_it(
    port: Port, pieces: list[int]
) -> None:
    shim = Listener(port.attempt(7, 1, KEY) / "door", b"+")
    with port.connect() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        left = STORE
        for size in pieces:
            sock.sendall(left[:size])
            left = left[size:]
        shim.close_listening()
        assert shim.said == [b"L"]
        shim.taken[0].setblocking(True)
        assert shim.taken[0].recv(100) == STORE
    shim.close()


def test_a_store_client_is_offered_again_until_its_shim_has_an_endpoint(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []
    offer = port.handoff.local_store

    async def noted(connection: socket.socket) -> bool:
        taken.append(await offer(connection))
        return taken[-1]

    monkeypatch.setattr(port.handoff, "local_store", noted)
    directory = port.attempt(7, 1, KEY)
    with port.connect(STORE):
        wait_until(lambda: len(taken) > 0, WITHIN_S, "it was offered once")
        shim = Listener(directory / "door", b"+")
        shim.close()
    assert shim.said == [b"L"]
    assert taken[0] is False


@pytest.mark.parametrize(
    ("uid", "words"), [(None, "is not on this machine"), (54321, "is user 54321's")]
)
def test_a_store_client_of_another_user_is_refused(
    port: Port, lines: Lines, monkeypatch: pytest.MonkeyPatch, uid: int | None, words: str
) -> None:
    monkeypatch.setattr(module, "uid_at", lambda _: uid)
    port.attempt(7, 1, KEY)
    with port.connect(STORE) as sock:
        until_closed(sock)
    assert words in lines()[0]


def test_tls_gets_to_the_daemon(port: Port) -> None:
    with port.connect() as raw, tls.client_context().wrap_socket(raw) as sock:
        sock.sendall(b"echo")
        assert sock.recv(100) == b"echo"
    assert port.controls == 1
    wait_until(lambda: port.stages() == (0, 0, 0), WITHIN_S, "the port has forgotten it")


def test_over_ipv6_it_is_the_same(tmp_path: Path) -> None:
    with Port(tmp_path, "::1") as port:
        shim = Listener(port.attempt(7, 1, KEY) / "door", b"+", 2)
        with port.connect() as sock, port.connect(STORE):
            authenticate(sock, request=PortRequest(7, 1, "store", 4, 0))
            shim.close()
        assert sorted(shim.said) == [b"L", b"R"]


# -- refusals ----


def refusal(port: Port, key: bytes = KEY, request: PortRequest = REQUEST) -> int:
    with port.connect() as sock, pytest.raises(Rejected) as caught:
        authenticate(sock, key, request)
    return caught.value.reason


@pytest.mark.parametrize(
    ("key", "asked"),
    [
        (OTHER_KEY, REQUEST),
        (KEY, PortRequest(8, 1, "data", 0, 1, UID)),
        (KEY, PortRequest(7, 2, "data", 0, 1, UID)),
        (KEY, PortRequest(7, 0, "data", 0, 1, UID)),
    ],
    ids=["another key", "another job", "a later attempt", "an earlier attempt"],
)
def test_a_wrong_key_and_an_attempt_that_is_not_here_look_alike(
    port: Port, lines: Lines, key: bytes, asked: PortRequest
) -> None:
    port.attempt(7, 1, KEY)
    assert refusal(port, key, asked) == RejectReason.PROOF
    wait_until(lambda: bool(lines()), WITHIN_S, "a line in the log")
    assert f"job {asked.job}, attempt {asked.attempt}" in lines()[0]
    assert KEY.hex() not in " ".join(lines())


def test_an_attempt_that_is_over_admits_no_connection_any_more(port: Port) -> None:
    worker = port.attempt(7, 1, KEY) / f"door-{UID}"
    with socket.socket(socket.AF_UNIX) as left:  # a process that has not ended yet
        left.bind(str(worker))
        left.listen(1)
        port.live.clear()
        port.attempt(7, 2, OTHER_KEY)
        assert refusal(port) == RejectReason.PROOF


def test_a_missing_process_is_absent_to_clients_with_the_key(port: Port, lines: Lines) -> None:
    port.attempt(7, 1, KEY)
    assert refusal(port) == RejectReason.ABSENT
    assert refusal(port, request=PortRequest(7, 1, "store", 4, 0)) == RejectReason.ABSENT
    assert lines() == []  # it will come again: nothing to complain of


def test_a_worker_with_a_full_queue_is_busy(port: Port) -> None:
    with socket.socket(socket.AF_UNIX) as worker:
        worker.bind(str(port.attempt(7, 1, KEY) / f"door-{UID}"))
        worker.listen(0)
        with port.connect() as first:
            authenticate(first)
            assert refusal(port) == RejectReason.BUSY


def test_a_recorded_port_request_opens_nothing(port: Port) -> None:
    worker = Listener(port.attempt(7, 1, KEY) / f"door-{UID}")
    recorded: list[bytes] = []
    client = PortClient(KEY, REQUEST)
    with port.connect() as sock:
        while not client.done:
            recorded.append(client.data_to_send())
            sock.sendall(recorded[-1])
            client.receive_data(sock.recv(client.wanted))
    worker.close()
    with port.connect(recorded[0]) as again:
        assert len(again.recv(ANSWER_BYTES)) == ANSWER_BYTES
        again.sendall(recorded[1])
        assert again.recv(100)[:4] == bytes([*b"WK", 5, RejectReason.PROOF])
        assert again.recv(100) == b""


@pytest.mark.parametrize(
    "word", [b"GET / HTTP/1.1\r\n\r\n", b"WIIKNOCX" + bytes(64), b"\0\0\0\0\0", b"\0" * 4096]
)
def test_a_peer_of_no_known_protocol_is_closed_without_an_answer(
    port: Port, lines: Lines, word: bytes
) -> None:
    with port.connect(word) as sock:
        sock.settimeout(WITHIN_S)
        try:
            assert sock.recv(100) == b""
        except ConnectionResetError:
            pass  # what it sent was not all read
    wait_until(lambda: "was refused" in " ".join(lines()), WITHIN_S, "a line in the log")


def test_something_that_begins_like_tls_and_is_not_is_closed(port: Port, lines: Lines) -> None:
    with port.connect(b"\x16\x03\x01\xff\xff" + b"x" * 300) as sock:
        until_closed(sock)
    assert port.controls == 0
    assert "TLS failed" in lines()[0]


def test_a_connection_that_ends_at_once_is_not_logged(port: Port, lines: Lines) -> None:
    for word in (b"", b"WI", STORE[:4], PortClient(KEY, REQUEST).data_to_send()):
        port.connect(word).close()
    with port.connect(PortClient(KEY, REQUEST).data_to_send()) as challenged:
        challenged.recv(1, socket.MSG_PEEK)  # it goes without having read that: a reset
    wait_until(lambda: port.stages() == (0, 0, 0), WITHIN_S, "all have gone")
    assert lines() == []
    with port.connect(b"x" * 5) as last:
        until_closed(last)
    assert len(lines()) == 1


@pytest.mark.parametrize(
    "word",
    [
        b"",
        b"WII",
        b"WIIKNOCK",
        PortClient(KEY, REQUEST).data_to_send(),
        b"\x16\x03\x01\0\xf0" + b"\1",
    ],
    ids=["silence", "three bytes", "half a request", "no proof", "half a TLS greeting"],
)
def test_a_connection_that_stalls_is_closed_in_time(
    port: Port, monkeypatch: pytest.MonkeyPatch, word: bytes
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.1)
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.1)
    port.attempt(7, 1, KEY)
    with port.connect(word) as sock:
        until_closed(sock)


# -- floods, and the port itself ----


def test_a_crowd_of_the_silent_is_bounded_and_members_still_get_in(
    port: Port, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "YOUNG_S", 0.0)
    worker = Listener(port.attempt(7, 1, KEY) / f"door-{UID}")
    crowd = [port.connect() for _ in range(200)]
    wait_until(lambda: sum(port.stages()) <= module.MAX_SILENT, WITHIN_S, "the oldest have gone")
    with port.connect() as sock:
        authenticate(sock)
        worker.close()
    assert worker.said == [b"W"]
    assert port.stages()[0] <= module.MAX_SILENT
    for one in crowd:
        one.close()
    wait_until(lambda: port.stages() == (0, 0, 0), WITHIN_S, "all have gone")
    assert "came and said nothing" in lines()[0]
    assert len(lines()) < 10  # one a second, not one each


def test_a_whole_job_may_come_at_once_and_take_its_time(
    port: Port, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than may wait there for long: first all connect, then all greet, then all prove."""
    for limit in ("YOUNG_S", "SILENT_S", "HANDSHAKE_S"):
        monkeypatch.setattr(module, limit, 5 * WITHIN_S)
    count = module.MAX_HANDSHAKES + 20
    worker = Listener(port.attempt(7, 1, KEY) / f"door-{UID}", b"", count)
    crowd = [(port.connect(), PortClient(KEY, REQUEST)) for _ in range(count)]
    for _ in range(2):
        for sock, client in crowd:
            sock.sendall(client.data_to_send())
        for sock, client in crowd:
            client.receive_data(sock.recv(client.wanted))
    assert all(client.done for _, client in crowd)
    worker.close()
    for sock, _ in crowd:
        sock.close()
    assert worker.said == [b"W"] * count
    assert lines() == []


@pytest.mark.parametrize("limit", ["YOUNG_S", "CROWD"])
def test_many_connections_that_begin_to_authenticate_are_bounded_and_told(
    port: Port, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(module, limit, 0)
    monkeypatch.setattr(module, "HANDSHAKE_S", 5 * WITHIN_S)
    worker = Listener(port.attempt(7, 1, KEY) / f"door-{UID}")
    request = PortClient(OTHER_KEY, REQUEST).data_to_send()
    crowd = [port.connect(request) for _ in range(module.MAX_HANDSHAKES + 50)]
    for one in crowd[:50]:
        one.settimeout(WITHIN_S)
        said = b""
        while data := one.recv(100):
            said += data
        assert said[ANSWER_BYTES:][:4] == bytes([*b"WK", 5, RejectReason.BUSY])
    assert port.stages()[1] <= module.MAX_HANDSHAKES
    with port.connect() as sock:
        authenticate(sock)
        worker.close()
    assert worker.said == [b"W"]
    for one in crowd:
        one.close()


def test_a_crowd_without_certificates_is_bounded_inside_of_tls_too(
    port: Port, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNCERTIFIED", 4)
    monkeypatch.setattr(module, "YOUNG_S", 0.0)
    context = tls.client_context()
    crowd = [context.wrap_socket(port.connect()) for _ in range(6)]
    for one in crowd[:2]:
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert one.recv(1) == b""
    for one in crowd[2:]:
        one.sendall(b"x")
        assert one.recv(1) == b"x"
    for one in crowd:
        one.close()
    wait_until(lambda: port.stages() == (0, 0, 0), WITHIN_S, "all have gone")
    assert "show no certificate" in lines()[0]


def test_a_connection_that_was_answered_and_stays_still_counts(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNCERTIFIED", 4)
    monkeypatch.setattr(module, "YOUNG_S", 0.0)
    monkeypatch.setattr(module, "GOODBYE_S", 5 * WITHIN_S)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")

    monkeypatch.setattr(port.mux, "_on_control", answer)
    context = tls.client_context()
    crowd = [context.wrap_socket(port.connect()) for _ in range(8)]
    wait_until(lambda: port.stages() == (0, 0, 4), WITHIN_S, "the oldest had to go")
    for one in crowd:
        one.close()
    wait_until(lambda: port.stages() == (0, 0, 0), WITHIN_S, "all have gone")


class Shown:
    """A client's context with a certificate that the server's verifies."""

    def __init__(self, folder: Path) -> None:
        certificate, pem = tls._make_certificate()
        path = folder / "both.pem"
        path.write_bytes(pem)
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server.verify_mode = ssl.CERT_OPTIONAL
        self.server.load_cert_chain(path)
        self.server.load_verify_locations(cadata=certificate)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client.check_hostname, self.client.verify_mode = False, ssl.CERT_NONE
        self.client.load_cert_chain(path)


def test_members_are_not_among_the_uncertified_that_are_closed(
    port: Port, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Shown(tmp_path)
    monkeypatch.setattr(module, "MAX_UNCERTIFIED", 0)
    monkeypatch.setattr(module, "YOUNG_S", 0.0)
    monkeypatch.setattr(port.mux, "_tls", lambda: shown.server)
    with shown.client.wrap_socket(port.connect()) as member:
        member.sendall(b"x")
        assert member.recv(1) == b"x"
        stranger = tls.client_context().wrap_socket(port.connect())
        with stranger, contextlib.suppress(ssl.SSLError, ConnectionError):
            assert stranger.recv(1) == b""
        member.sendall(b"y")
        assert member.recv(1) == b"y"


def words(chance: random.Random) -> bytes:
    """What a port may hear from the world: noise, with and without a beginning that is right."""
    begin = chance.choice([b"", b"\x16\x03\x01", b"WIIKNOCK", STORE, b"\0", b"WII"])
    request = bytearray(PortClient(KEY, REQUEST).data_to_send())
    request[chance.randrange(8, len(request))] ^= 1 << chance.randrange(8)
    noise = begin + chance.randbytes(chance.randrange(300))
    return bytes(request) + noise if chance.random() < 0.3 else noise


def test_noise_harms_no_other_connection(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.2)
    monkeypatch.setattr(module, "HANDSHAKE_S", 0.2)
    chance, worker = random.Random(6), Listener(port.attempt(7, 1, KEY) / f"door-{UID}")
    for _ in range(150):
        with port.connect() as sock, contextlib.suppress(OSError):
            sock.sendall(words(chance))
            if chance.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
    wait_until(lambda: port.stages() == (0, 0, 0), WITHIN_S, "all have gone")
    monkeypatch.undo()
    with port.connect() as sock:
        authenticate(sock)
        worker.close()
    assert worker.said == [b"W"]


def test_without_descriptors_it_rests_and_goes_on(
    port: Port, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REST_S", 0.05)
    worker = Listener(port.attempt(7, 1, KEY) / f"door-{UID}")
    sock = socket.socket()
    gc.collect()  # no descriptor that an earlier test left becomes free meanwhile
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        sock.settimeout(WITHIN_S)
        sock.connect((port.address, port.number))
        wait_until(lambda: bool(lines()), WITHIN_S, "a line in the log")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "cannot be accepted now" in lines()[0]
    with sock:
        authenticate(sock)
        worker.close()
    assert worker.said == [b"W"]


def test_a_restarted_daemon_has_its_port_at_once_and_no_connection_notices(port: Port) -> None:
    worker = Listener(port.attempt(7, 1, KEY) / f"door-{UID}", b"", 2)
    with port.connect() as first:
        authenticate(first)
        port.stop()
        with pytest.raises(ConnectionRefusedError):
            port.connect()
        port.start()
        assert port.mux.problem == ""
        first.sendall(b"still here")
        wait_until(lambda: bool(worker.taken), WITHIN_S, "the worker has it")
        worker.taken[0].setblocking(True)
        assert worker.taken[0].recv(100) == b"still here"
        with port.connect() as second:
            authenticate(second)
            worker.close()
    assert worker.said == [b"W", b"W"]


def test_closing_ends_every_connection(port: Port) -> None:
    port.attempt(7, 1, KEY)
    silent, greeting, raw = (port.connect(word) for word in (b"", b"WIIKNOCK", b""))
    with tls.client_context().wrap_socket(raw) as control:
        control.sendall(b"x")
        control.recv(1)
        wait_until(lambda: sum(port.stages()) == 3, WITHIN_S, "all three are there")
        port.stop()
        until_closed(silent)
        until_closed(greeting)
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            assert control.recv(1) == b""
        silent.close()
        greeting.close()
    port.start()


async def nobody(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raise AssertionError("nobody comes in here")


def test_a_port_that_is_taken_is_said_and_tried_again(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LISTEN_AGAIN_S", 0.02)
    blocker = socket.create_server(("127.0.0.1", 0))
    number = blocker.getsockname()[1]

    async def try_it() -> list[str]:
        mux = PortMux("127.0.0.1", number, tls.server_context, nobody, port.handoff, 0)
        await mux.open()
        problems = [mux.problem]
        blocker.close()
        async with asyncio.timeout(WITHIN_S):
            while mux.problem:
                await asyncio.sleep(0.01)
        problems.append(mux.problem)
        socket.create_connection(("127.0.0.1", number), WITHIN_S).close()
        await mux.close()
        return problems

    first, last = asyncio.run(try_it())
    assert f"cannot listen on 127.0.0.1:{number} yet" in first
    assert last == ""


def test_an_address_that_is_not_there_yet_can_be_closed_again(port: Port) -> None:
    async def try_it() -> str:
        mux = PortMux("192.0.2.77", 9461, tls.server_context, nobody, port.handoff, 0)
        await mux.open()
        await mux.close()
        return mux.problem

    assert "It must be an address of this machine" in asyncio.run(try_it())


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1", "localhost"])
def test_it_never_listens_everywhere(port: Port, address: str) -> None:
    mux = PortMux(address, 0, tls.server_context, nobody, port.handoff, 0)
    with pytest.raises(HostError, match="no address of one interface"):
        asyncio.run(mux.open())


def test_a_defect_in_the_daemons_own_part_is_logged_and_closes_one_connection(
    port: Port, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port.mux, "_on_control", nobody)
    with port.connect() as raw, tls.client_context().wrap_socket(raw) as sock:
        assert sock.recv(10) == b""
    wait_until(lambda: bool(lines()), WITHIN_S, "a line in the log")
    assert "defect of wiiiiided" in lines()[0]


def test_a_connection_that_was_closed_on_both_sides_is_no_defect(
    port: Port, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def closed(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    def abort(transport: Any) -> None:  # Python 3.11.2's
        transport._ssl_protocol._abort()

    monkeypatch.setattr(port.mux, "_on_control", closed)
    monkeypatch.setattr(asyncio.sslproto._SSLProtocolTransport, "abort", abort)
    with port.connect() as raw, tls.client_context().wrap_socket(raw) as sock:
        assert sock.recv(10) == b""
    wait_until(lambda: port.stages() == (0, 0, 0), WITHIN_S, "the port has forgotten it")
    assert not lines()


# -- the process at the other end ----


@pytest.mark.parametrize(
    ("listening", "connecting"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("127.0.0.1", "::ffff:127.0.0.1")],
)
def test_the_kernel_says_whose_the_other_end_is(listening: str, connecting: str) -> None:
    family = socket.AF_INET6 if ":" in listening else socket.AF_INET
    with (
        socket.create_server((listening, 0), family=family) as listener,
        socket.socket(socket.AF_INET6 if ":" in connecting else socket.AF_INET) as client,
    ):
        client.connect((connecting, listener.getsockname()[1]))
        with listener.accept()[0] as taken:
            assert uid_at(taken) == os.getuid()
            client.close()
            assert uid_at(taken) is None
    assert uid_at(client) is None
