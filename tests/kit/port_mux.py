"""The one port of a pretended machine: a real Gate over real directories, its loop in a thread.

    with Port(tmp_path) as port:
        port.attempt(7, 1, KEY)                   # as if job 7 ran here
        connect((port.address, port.number))
        port.stop(); port.start()                 # the daemon restarts, on the same port

TLS is that of net.tls, which needs no cluster; what comes over it is echoed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Self

from wiiiiided.backend.net import tls
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.port.fd_handoff import FdHandoff
from wiiiiided.cluster.port.port_mux import PortMux

STEP_S = 60.0
TURNS = 20


class Port:
    """A machine's port mux and its jobs' directories."""

    def __init__(
        self, folder: Path, address: str = "127.0.0.1", number: int = 0, uid: int | None = None
    ) -> None:
        user = JobAccount.this()
        self.address, self.number = address, number
        self.job_dirs = JobDirs(folder, user)
        self.live: set[tuple[int, int]] = set()
        self.handoff = FdHandoff(self.job_dirs, self._alive)
        self.controls = 0  # connections that came through TLS
        self.mux: PortMux
        self._uid = user.uid if uid is None else uid
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def _alive(self) -> Iterable[tuple[int, int]]:
        return set(self.live)

    def attempt(self, job: int, attempt: int, key: bytes) -> Path:
        """As if this attempt ran here; its directory."""
        self.job_dirs.make(job, attempt)
        self.job_dirs.write(job, attempt, "key", key)
        self.live.add((job, attempt))
        return self.job_dirs.attempt(job, attempt)

    def start(self) -> Self:
        """A daemon comes up, on the port it had."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.mux = PortMux(
            self.address, self.number, self._context, self._echo, self.handoff, self._uid
        )
        self.run(self.mux.open())
        self.number = self.mux.port
        return self

    def stop(self) -> None:
        """It goes, as an orderly daemon does."""
        self.run(self.mux.close())
        for _ in range(TURNS):
            self.call(lambda: None)  # transports close in turns of their own, TLS in several
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """In the port mux's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(STEP_S)

    def call(self, action: Callable[[], Any]) -> Any:
        async def act() -> Any:
            await asyncio.sleep(0)
            return action()

        return self.run(act())

    def stages(self) -> tuple[int, int, int]:
        """How many are silent, in their handshake, inside."""

        def counted() -> tuple[int, int, int]:
            mux = self.mux
            inside = len(mux._uncertified) + len(mux._inside)
            return len(mux._silent), len(mux._shaking), inside

        return self.call(counted)  # type: ignore[no-any-return]

    def connect(self, says: bytes = b"") -> socket.socket:
        sock = socket.create_connection((self.address, self.number), timeout=STEP_S)
        sock.sendall(says)
        return sock

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _context(self) -> ssl.SSLContext:
        return tls.server_context()

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.controls += 1
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
