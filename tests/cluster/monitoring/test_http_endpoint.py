"""The daemon's /metrics: which requests get it, which do not, and that none can hold it up."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, free_port, private_daemon
from tests.kit.prometheus import parse
from wiiiiided.cluster.monitoring import http_endpoint
from wiiiiided.cluster.monitoring.http_endpoint import (
    HEAD_BYTES,
    MetricsEndpoint,
    judge,
    read_token,
)
from wiiiiided.cluster.system.settings import Address, BadSettings, Settings, read_settings
from wiiiiided.errors import HostError

TOKEN = "0123456789abcdef0123456789abcdef"
RIGHT = f"Authorization: Bearer {TOKEN}"
PAGE = "wiiiiide_up 1\n"


def head(first: str = "GET /metrics HTTP/1.1", *headers: str) -> bytes:
    return "\r\n".join((first, "Host: a", *(headers or (RIGHT,)), "", "")).encode("latin-1")


# ---- what a request is worth


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (head(), 200),
        (head("GET /metrics?x=1 HTTP/1.0"), 200),
        (head("GET /metrics HTTP/1.1", f"AUTHORIZATION:bearer   {TOKEN}  "), 200),
        (head("GET /metrics HTTP/1.1", "Accept: */*"), 401),
        (head("GET /metrics HTTP/1.1", "Authorization: Bearer"), 401),
        (head("GET /metrics HTTP/1.1", f"Authorization: Bearer {TOKEN[:-1]}"), 401),
        (head("GET /metrics HTTP/1.1", f"Authorization: Bearer {TOKEN}x"), 401),
        (head("GET /metrics HTTP/1.1", f"Authorization: Bearer {TOKEN} {TOKEN}"), 401),
        (head("GET /metrics HTTP/1.1", f"Authorization: Basic {TOKEN}"), 401),
        (head("GET /metrics HTTP/1.1", "Authorization: Bearer \xff\xfe"), 401),
        (head("GET /other HTTP/1.1", "Accept: */*"), 401),
        (head("POST /metrics HTTP/1.1", "Accept: */*"), 401),
        (head("GET / HTTP/1.1"), 404),
        (head("GET /metrics/ HTTP/1.1"), 404),
        (head("POST /metrics HTTP/1.1"), 405),
        (head("HEAD /metrics HTTP/1.1"), 405),
        (head("GET /metrics HTTP/1.1", RIGHT, RIGHT), 401),
        (head("GET /metrics HTTP/2.0"), 400),
        (head("GET  /metrics HTTP/1.1"), 400),
        (head("GET http://a/metrics HTTP/1.1"), 404),
        (head("GET /metrics HTTP/1.1", "X: y\n" + RIGHT), 401),
        (head("GET /metrics HTTP/1.1", " " + RIGHT), 401),
        (head("GET /metrics HTTP/1.1", "Authorization : Bearer " + TOKEN), 401),
        (head("GET /metrics HTTP/1.1", "no colon", RIGHT), 200),
        (head("get /metrics HTTP/1.1"), 405),
        (head("GET /metrics HTTP/1.1 "), 400),
        (head("GET /m\tetrics HTTP/1.1"), 404),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    ],
)
def test_a_request_is_judged(request_bytes: bytes, code: int) -> None:
    assert judge(request_bytes, TOKEN.encode()) == code


def test_no_token_is_right_where_there_is_none() -> None:
    assert judge(head("GET /metrics HTTP/1.1", "Authorization: Bearer "), b"") == 401


@contextlib.contextmanager
def processor_seconds(limit: float) -> Iterator[None]:
    """Ends what takes longer, by the processor's time: what else the machine does is no matter."""

    def enough(*_: object) -> None:
        raise AssertionError(f"more than {limit:g} s of the processor for a few heads")

    before = signal.signal(signal.SIGVTALRM, enough)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(
    "around",
    [
        (b"GET / HTTP/1.1\r\na:", b"\n\r\n\r\n"),  # blanks here took minutes once
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer ", b"\n\r\n\r\n"),
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer x", b" x\r\n\r\n"),
        (b"GET / HTTP/1.1\r\n", b"\n\r\n\r\n"),
        (b"GET /", b"\n\r\n\r\n"),
        (b"", b"\n\r\n\r\n"),
    ],
)
def test_no_head_takes_long_whatever_it_is_full_of(around: tuple[bytes, bytes]) -> None:
    """All 256 bytes, alone and in turns with a blank: under a second together where each is read
    once, and minutes for one of them where it is read again from each of its places."""
    first, last = around
    room = HEAD_BYTES - len(first) - len(last)
    with processor_seconds(30):
        for byte in range(256):
            for filling in (bytes([byte]), bytes([byte]) + b" ", b"\r\n" + bytes([byte])):
                full = (filling * room)[:room]
                assert judge(first + full + last, TOKEN.encode()) in (400, 401)


# ---- the token


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o640)
    return path


def test_the_token_is_the_files_one_word(token: Path) -> None:
    assert read_token(str(token)) == TOKEN.encode()


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o666])
def test_a_token_that_every_user_can_read_is_refused(token: Path, mode: int) -> None:
    token.chmod(mode)
    with pytest.raises(HostError, match=f"mode 0{mode:o}.*chmod o= "):
        read_token(str(token))


@pytest.mark.parametrize(
    "text", ["", "\n", "short", "two words of some length", "ä" * 20, "x" * 1025]
)
def test_what_is_no_token_is_refused(token: Path, text: str) -> None:
    token.write_text(text)
    with pytest.raises(HostError, match="openssl rand -hex 32 makes one") as caught:
        read_token(str(token))
    assert not text.strip() or text not in str(caught.value)


def test_a_token_file_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="none cannot be read: No such file"):
        read_token(str(tmp_path / "none"))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(HostError, match="does not hold a token"):
        read_token(str(tmp_path / "pipe"))


# ---- the settings


def settings_of(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "wiiiiided.toml"
    path.write_text(text)
    return read_settings(path)


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:9464", Address("127.0.0.1", 9464)),
        ("[::1]:1", Address("::1", 1)),
        ("10.1.2.3:65535", Address("10.1.2.3", 65535)),
    ],
)
def test_an_address_of_one_interface(tmp_path: Path, listen: str, address: Address) -> None:
    text = f'[metrics]\nlisten = "{listen}"\ntoken_file = "/t"\n'
    assert settings_of(tmp_path, text) == Settings(metrics_listen=address, metrics_token_file="/t")
    assert str(address) == listen


@pytest.mark.parametrize(
    ("listen", "says"),
    [
        ('"0.0.0.0:9464"', 'is every interface; name one, for example "127.0.0.1:9464"'),
        ('"[::]:9464"', "is every interface"),
        ('":9464"', 'is every interface; name one, for example "127.0.0.1:9464"'),
        ('"[]:9464"', "is every interface"),
        ('"[::ffff:0.0.0.0]:9464"', "is every interface"),
        ('"224.0.0.1:9464"', "is a group of machines"),
        ('"localhost:9464"', 'is not an address and a port, as in "127.0.0.1:9464"'),
        ('"127.0.0.1"', "is not an address and a port"),
        ('"127.0.0.1:0"', "is not an address and a port"),
        ('"127.0.0.1:65536"', "is not an address and a port"),
        ('"127.0.0.1:९"', "is not an address and a port"),
        ("9464", "is not an address and a port"),
    ],
)
def test_another_address_is_refused_in_a_sentence(tmp_path: Path, listen: str, says: str) -> None:
    with pytest.raises(BadSettings, match=r"metrics\.listen: ") as caught:
        settings_of(tmp_path, f'[metrics]\nlisten = {listen}\ntoken_file = "/t"\n')
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ['listen = "127.0.0.1:9464"', 'token_file = "/t"'])
def test_an_endpoint_without_a_token_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadSettings, match="listen and token_file go together"):
        settings_of(tmp_path, f"[metrics]\n{text}\n")


def test_a_token_file_is_named_by_its_whole_path(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match=r"'metrics\.token' is not an absolute path"):
        settings_of(tmp_path, '[metrics]\nlisten = "127.0.0.1:1"\ntoken_file = "metrics.token"\n')


# ---- the endpoint alone


@contextlib.asynccontextmanager
async def served(
    token: Path, page: Callable[[], str] = lambda: PAGE
) -> AsyncIterator[MetricsEndpoint]:
    endpoint = MetricsEndpoint(page)
    await endpoint.apply(
        Settings(metrics_listen=Address("127.0.0.1", 0), metrics_token_file=str(token))
    )
    assert endpoint.port is not None
    try:
        yield endpoint
    finally:
        await endpoint.close()
        assert endpoint.port is None


async def ask(endpoint: MetricsEndpoint, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


def test_an_answer_is_whole_and_ends_the_connection(token: Path) -> None:
    async def body() -> None:
        async with served(token) as endpoint:
            answer, _, page = (await ask(endpoint, head())).partition(b"\r\n\r\n")
            assert page == PAGE.encode()
            assert answer.decode().split("\r\n") == [
                "HTTP/1.1 200 OK",
                "Content-Type: text/plain; version=0.0.4; charset=utf-8",
                f"Content-Length: {len(PAGE)}",
                "Cache-Control: no-store",
                "X-Content-Type-Options: nosniff",
                "Connection: close",
            ]
            said = await ask(endpoint, head("GET /metrics HTTP/1.1", "Accept: */*"))
            assert b'\r\nWWW-Authenticate: Bearer realm="wiiiiide"\r\n' in said
            assert PAGE.encode() not in said
            assert b"\r\nAllow: GET\r\n" in await ask(endpoint, head("PUT /metrics HTTP/1.1"))

    asyncio.run(body())


def test_a_request_in_pieces_is_heard(token: Path) -> None:
    async def body() -> None:
        async with served(token) as endpoint:
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            for byte in head():
                writer.write(bytes([byte]))
                await writer.drain()
            assert (await reader.read()).endswith(PAGE.encode())
            writer.close()

    asyncio.run(body())


def test_a_head_without_end_is_cut_off(token: Path) -> None:
    async def body() -> None:
        async with served(token) as endpoint:
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            writer.write(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES)
            assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 400 ")
            writer.close()

    asyncio.run(body())


def test_a_client_that_dawdles_is_dropped(token: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "WITHIN_S", 0.05)

    async def body() -> None:
        async with served(token) as endpoint:
            for data in (b"", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\n\n"):
                with contextlib.suppress(ConnectionResetError):
                    assert await ask(endpoint, data) == b""

    asyncio.run(body())


def test_a_client_that_does_not_read_is_dropped(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_endpoint, "WITHIN_S", 0.2)

    async def body() -> None:
        async with served(token, lambda: "x" * (64 << 20)) as endpoint:
            with socket.create_connection(("127.0.0.1", endpoint.port or 0)) as deaf:
                deaf.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(deaf, head())
                async with asyncio.timeout(30):
                    while not endpoint._open:
                        await asyncio.sleep(0.005)
                    while endpoint._open:
                        await asyncio.sleep(0.005)

    asyncio.run(body())


def test_of_too_many_at_once_the_last_are_closed(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_endpoint, "CONNECTIONS", 2)
    monkeypatch.setattr(
        http_endpoint, "WITHIN_S", 60.0
    )  # an idle connection stays until it goes by itself

    async def body() -> None:
        async with served(token) as endpoint:
            idle = [await asyncio.open_connection("127.0.0.1", endpoint.port) for _ in range(2)]
            async with asyncio.timeout(30):
                while len(endpoint._open) < 2:
                    await asyncio.sleep(0.005)
            with contextlib.suppress(ConnectionResetError):
                assert await ask(endpoint, head()) == b""
            idle[0][1].close()
            async with asyncio.timeout(30):
                while len(endpoint._open) > 1:
                    await asyncio.sleep(0.005)
            assert (await ask(endpoint, head())).startswith(b"HTTP/1.1 200 ")
            idle[1][1].close()

    asyncio.run(body())


def test_a_page_that_cannot_be_made_is_a_500(token: Path) -> None:
    def broken() -> str:
        raise ZeroDivisionError

    async def body() -> None:
        async with served(token, broken) as endpoint:
            assert (await ask(endpoint, head())).startswith(b"HTTP/1.1 500 ")

    asyncio.run(body())


def test_settings_open_change_and_close_it(token: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with served(token) as endpoint:
            at = Settings(metrics_listen=Address("127.0.0.1", 0), metrics_token_file=str(token))
            port = endpoint.port
            token.write_text("f" * 32)
            await endpoint.apply(at)  # another token, the same place
            assert endpoint.port == port
            assert (await ask(endpoint, head())).startswith(b"HTTP/1.1 401 ")
            new = head("GET /metrics HTTP/1.1", f"Authorization: Bearer {'f' * 32}")
            assert (await ask(endpoint, new)).startswith(b"HTTP/1.1 200 ")
            token.chmod(0o644)
            await endpoint.apply(at)  # a token that leaked is not served on with
            assert endpoint.port is None
            assert "metrics are not served" in caplog.text
            token.chmod(0o600)
            await endpoint.apply(at)
            assert endpoint.port is not None
            await endpoint.apply(Settings())
            assert endpoint.port is None
            await endpoint.apply(at)

    asyncio.run(body())


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_comes_while_it_closes_is_not_left_waiting(
    token: Path, turns: int
) -> None:
    """The loop is that many turns on with the connection when the endpoint closes."""

    async def body() -> bytes:
        async with served(token) as endpoint:
            assert endpoint.port is not None
            came = socket.create_connection(("127.0.0.1", endpoint.port))
            came.sendall(head())
            for _ in range(turns):
                await asyncio.sleep(0)
            await endpoint.close()
        came.setblocking(False)
        with came, contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(30):
                return await asyncio.get_running_loop().sock_recv(came, 1 << 16)
        return b""

    assert asyncio.run(body())[:9] in (b"", b"HTTP/1.1 ")


def test_a_port_in_use_is_a_line_in_the_log(token: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = Address(*other.getsockname())
            endpoint = MetricsEndpoint(lambda: PAGE)
            await endpoint.apply(Settings(metrics_listen=address, metrics_token_file=str(token)))
            assert endpoint.port is None
        says = f"cannot listen on {address}: Address already in use; another program has that port"
        assert says in caplog.text

    asyncio.run(body())


# ---- a real daemon


def configure(daemon: PrivateDaemon, token: Path, port: int) -> None:
    listen = f'listen = "127.0.0.1:{port}"\ntoken_file = "{token}"\n'
    daemon.paths.config.write_text(f"[metrics]\n{listen}")


def scrape(port: int, token: str = TOKEN) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def is_closed(port: int) -> bool:
    try:
        scrape(port)
    except ConnectionError:
        return True
    return False


def test_a_daemon_serves_its_metrics_and_a_reload_moves_them(token: Path) -> None:
    first, second = free_port("127.0.0.1"), free_port("127.0.0.1")
    with private_daemon(start=False) as daemon:
        configure(daemon, token, first)
        daemon.start()
        assert daemon.process is not None
        job = daemon.submit("import time; time.sleep(600)")
        daemon.wait_for(job, "running")
        status, text = scrape(first)
        assert status == 200
        page = parse(text)
        (labels,) = page["wiiiiide_job_state"].samples
        assert dict(labels)["state"] == "running"
        assert dict(labels)["job_id"] == str(job)
        assert list(page["wiiiiide_node_up"].samples.values()) == [1]
        assert scrape(first, "x" * 32)[0] == 401
        configure(daemon, token, second)
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not is_closed(second), 30, "it has moved")
        assert is_closed(first)
        daemon.paths.config.write_text("")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: is_closed(second), 30, "it is closed")
        daemon.client.cancel(job, now=True)
        assert TOKEN not in daemon.said()


def test_a_port_in_use_keeps_no_daemon_from_its_jobs(token: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, private_daemon(start=False) as daemon:
        configure(daemon, token, other.getsockname()[1])
        daemon.start()
        assert daemon.end_of(daemon.submit("pass")).state == "done"
        assert "metrics are not served: cannot listen on 127.0.0.1:" in daemon.said()


def test_a_wildcard_ends_the_start_with_a_sentence(token: Path) -> None:
    with private_daemon(start=False) as daemon:
        daemon.paths.config.write_text(
            f'[metrics]\nlisten = "0.0.0.0:9464"\ntoken_file = "{token}"\n'
        )
        daemon.start(wait=False)
        assert daemon.ended_by_itself() == 78
        assert "metrics.listen: '0.0.0.0:9464' is every interface" in daemon.said()
