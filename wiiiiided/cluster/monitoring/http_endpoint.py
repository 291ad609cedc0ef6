"""GET /metrics: the metrics for Prometheus, over HTTP, only where wiiiiided.toml says so.

    Prometheus ──► GET /metrics HTTP/1.1                    400 no HTTP, or too much of it
                   Authorization: Bearer <token>            401 without the token, whatever is asked
                                                            404 another path · 405 another method
               ◄── 200, one page, the connection closes

Everything a caller can do is bounded: few connections (more are closed unheard), few bytes, few
seconds. Nothing is read but one request's head, and that by splitting it: a regular expression that
tries one line in n³ ways held up the whole daemon, and no timeout helps where nothing else runs.
A web page that reaches the port by a trick of DNS has no token, so it learns nothing. There is no
TLS: listen on loopback, or where only a proxy is.

prometheus_client would load 5,300 lines into the daemon to write 25 lines of text, and its server
is a thread that knows neither token nor limit.

Jobs matter more than metrics: when the endpoint cannot be opened, a line in the log says so, and
the daemon goes on. A reload reads the token again, and moves, opens or closes the endpoint.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import os
import socket
import stat
from collections.abc import Callable
from http import HTTPStatus

from wiiiiided.cluster.monitoring.prometheus import CONTENT_TYPE
from wiiiiided.cluster.rpc.shutdown import stop_listening
from wiiiiided.cluster.system.settings import Address, Settings
from wiiiiided.errors import HostError
from wiiiiided.log import logger

HEAD_BYTES = 8192  # of a request; Prometheus sends a few hundred
WITHIN_S = 5.0  # from the first byte in to the last one out
CONNECTIONS = 16  # at once; one Prometheus needs one
BACKLOG = 16
TOKEN_BYTES = (16, 1024)  # 16 letters and digits cannot be guessed over a network
VISIBLE = frozenset(range(0x21, 0x7F))  # bytes a token is made of
VERSIONS = ("HTTP/1.0", "HTTP/1.1")

Page = Callable[[], str]


class MetricsEndpoint:
    """The endpoint, where there is one. `page` makes what is served, at every request."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._token = b""
        self._server: asyncio.Server | None = None
        self._at: Address | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()  # two reloads in a row must not open twice

    @property
    def port(self) -> int | None:
        """The port at which it listens; None: it does not listen."""
        return self._server.sockets[0].getsockname()[1] if self._server is not None else None

    async def apply(self, settings: Settings) -> None:
        """Open, move or close the endpoint, as the settings say. Never raises: see the log."""
        async with self._changing:
            address = settings.metrics_listen
            try:
                token = read_token(settings.metrics_token_file) if address is not None else b""
                if address != self._at:
                    await self._stop()
                    self._token = token
                    if address is not None:
                        await self._start(address)
                self._token = token
            except HostError as problem:
                logger.error("metrics are not served: %s", problem)
                await self._stop()

    async def close(self) -> None:
        async with self._changing:
            await self._stop()

    async def _start(self, address: Address) -> None:
        listener = _bind(address)
        self._server = await asyncio.start_server(
            self._accept, sock=listener, limit=HEAD_BYTES, backlog=BACKLOG
        )
        self._at = address
        logger.info("metrics are served on http://%s/metrics", address)

    async def _stop(self) -> None:
        server, self._server, self._at = self._server, None, None
        if server is None:
            return
        await stop_listening(server)
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        logger.info("metrics are no longer served")

    # ---- one connection, one request

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if len(self._open) > CONNECTIONS:
                return
            async with asyncio.timeout(WITHIN_S):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass  # the caller went away or dawdles, or the endpoint closes
        finally:
            writer.transport.abort()  # nothing, where the connection has ended well
            self._open.discard(task)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return response(400)
        code = judge(head, self._token)
        if code != 200:
            return response(code)
        try:
            return response(200, self._page().encode(errors="replace"))
        except Exception:
            logger.exception("a defect while making the page of metrics")
            return response(500)


def judge(head: bytes, token: bytes) -> int:
    """The status of a request, in linear time; a caller without the token learns nothing else.
    Header lines that are none are passed over: only one request is ever read of a connection."""
    first, *rest = head.decode("latin-1").split("\r\n")
    asked = first.split(" ")
    if len(asked) != 3 or asked[2] not in VERSIONS:
        return 400
    headers = (line.partition(":") for line in rest)
    said = [value.split() for name, _, value in headers if name.lower() == "authorization"]
    if len(said) != 1 or not _is_bearer(said[0], token):
        return 401
    if asked[1].partition("?")[0] != "/metrics":
        return 404
    return 200 if asked[0] == "GET" else 405


def _is_bearer(words: list[str], token: bytes) -> bool:
    if len(words) != 2 or words[0].lower() != "bearer":
        return False
    return hmac.compare_digest(words[1].encode("latin-1"), token)


def response(code: int, page: bytes = b"") -> bytes:
    """A whole answer. Other codes than 200 say themselves in words."""
    phrase = HTTPStatus(code).phrase
    body = page if code == 200 else f"{code} {phrase}\n".encode()
    lines = [
        f"HTTP/1.1 {code} {phrase}",
        f"Content-Type: {CONTENT_TYPE if code == 200 else 'text/plain; charset=utf-8'}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if code == 401:
        lines.append('WWW-Authenticate: Bearer realm="wiiiiide"')
    if code == 405:
        lines.append("Allow: GET")
    return "\r\n".join((*lines, "", "")).encode() + body


def read_token(path: str) -> bytes:
    """The token in a file that other users cannot read; HostError with what to do."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold us up
        try:
            about = os.fstat(fd)
            text = os.read(fd, TOKEN_BYTES[1] + 2) if stat.S_ISREG(about.st_mode) else b""
        finally:
            os.close(fd)
    except OSError as problem:
        raise HostError(f"{path} cannot be read: {problem.strerror}") from problem
    if about.st_mode & 0o007:
        mode = stat.S_IMODE(about.st_mode)
        raise HostError(f"{path} is open to every user (mode {mode:04o}): chmod o= {path}")
    token = text.strip()
    least, most = TOKEN_BYTES
    if not least <= len(token) <= most or not VISIBLE.issuperset(token):
        what = f"one word of {least} to {most} plain characters"
        raise HostError(f"{path} does not hold a token, {what}: openssl rand -hex 32 makes one")
    return token


def _bind(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        hint = {
            errno.EADDRINUSE: "; another program has that port",
            errno.EADDRNOTAVAIL: "; this machine has no such address",
        }.get(problem.errno or 0, "")
        raise HostError(f"cannot listen on {address}: {problem.strerror}{hint}") from problem
    return listener
