"""A daemon that says what a test wants, over a real unix socket in the real protocol.

    with FakeDaemon() as daemon:
        daemon.answers(m.Why, m.JobReason(17, "queued", "waits for a"))
        …
        assert daemon.requests == [m.Why(17)]

Answers are given in order, then the connection ends. For more, give a function: it gets the request
and a `Talk`, and does as it likes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from wiiiiided import __version__
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.framing import BLOB, BLOB_END, MESSAGE, Parser, frame
from wiiiiided.config import Paths

PATIENCE_S = 30.0  # of a test that waits for a condition; never waited out when all is well


def view(job: int = 17, **changes: Any) -> m.JobView:
    """A job that runs, changed as wanted."""
    fields: dict[str, Any] = {
        "id": job,
        "name": "digits",
        "state": "running",
        "owner": "ada",
        "priority": 50,
        "submitted_at": 1_000_000.0,
        "started_at": 1_000_010.0,
        "ended_at": None,
        "attempt": 1,
        "attempts": 4,
        "nodes": ("a",),
        "workers": 2,
        "code": None,
        "why": "runs on a",
    }
    return m.JobView(**{**fields, **changes})


def ended(job: int = 17, state: str = "done", code: int | None = 0, **changes: Any) -> m.JobView:
    """A job that is over."""
    why = changes.pop("why", state)
    return view(job, state=state, code=code, ended_at=1_000_200.0, why=why, **changes)


def line(text: str, rank: int = 0, at: float = 1.0, **changes: Any) -> m.LogLine:
    return m.LogLine(at, rank, changes.pop("stream", "out"), text, **changes)


def status() -> m.DaemonStatus:
    from wiiiiided.domain.node import Node

    node = Node("a", 2, 1 << 30)
    return m.DaemonStatus(__version__, 1, "private", node, 1.0, "/s", "/j", "ada", {})


def machine(name: str = "a", **changes: Any) -> m.NodeView:
    """A machine that does nothing, changed as wanted; fields of the node itself with `node=`."""
    from wiiiiided.domain.node import Node

    fields: dict[str, Any] = {
        "node": Node(name, 4, 1 << 30, version=__version__),
        "state": "idle",
        "why": "nothing runs on it",
    }
    return m.NodeView(**{**fields, **changes})


class FakeConnection:
    """One connection, from the daemon's side."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._parser = Parser()
        self._frames: list[tuple[bytes, bytes]] = []

    def frame(self) -> tuple[bytes, bytes]:
        while not self._frames:
            data = self.link.recv(1 << 16)
            if not data:
                raise EOFError
            self._frames.extend(self._parser.feed(data))
        return self._frames.pop(0)

    def blob(self) -> bytes:
        """The client's bytes, whole."""
        found = b""
        while (received := self.frame())[0] == BLOB:
            found += received[1]
        assert received[0] == BLOB_END
        return found

    def say(self, *answers: m.Answer | m.Hello) -> None:
        for answer in answers:
            self.link.sendall(frame(MESSAGE, m.encode(answer)))

    def send_blob(self, data: bytes) -> None:
        for start in range(0, len(data), 1 << 16):
            self.link.sendall(frame(BLOB, data[start : start + (1 << 16)]))
        self.link.sendall(frame(BLOB_END))


Handler = Callable[[Any, FakeConnection], None]


class FakeDaemon:
    """Listens from `start` on; `stop` takes it away, `start` brings it back."""

    def __init__(self) -> None:
        self.home = tempfile.mkdtemp(prefix="w")
        self.paths = Paths.private(self.home)
        self.hello = m.Hello(m.PROTOCOL, __version__)
        self.requests: list[m.Request] = []
        self.problems: list[BaseException] = []
        self._handlers: dict[type, Handler] = {}
        self._listener: socket.socket | None = None
        self._links: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._timers: list[threading.Timer] = []
        self.answers(m.GetStatus, status())
        self.answers(m.ListNodes, m.NodeList("", (machine(),)))

    def __enter__(self) -> FakeDaemon:
        self.start()
        return self

    def __exit__(self, *problem: object) -> None:
        for timer in self._timers:
            timer.join(PATIENCE_S)
        self.stop()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        shutil.rmtree(self.home)
        assert not self.problems, self.problems

    def answers(self, kind: type, *answers: m.Answer) -> None:
        """These answers to every request of this kind."""
        self._handlers[kind] = lambda request, connection: connection.say(*answers)

    def does(self, kind: type, handler: Handler) -> None:
        self._handlers[kind] = handler

    def asked(self, kind: type) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.paths.socket))
        self._listener.listen(64)
        self._spawn(self._accept, self._listener)

    def stop(self) -> None:
        """As a daemon that is killed: the socket's file may stay, connections end."""
        if self._listener is None:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._listener = None
        os.unlink(self.paths.socket)
        for link in list(self._links):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def restart(self, away_s: float = 0.3) -> None:
        """Gone at once, back a little later."""
        self.stop()
        timer = threading.Timer(away_s, self.start)
        self._timers.append(timer)
        timer.start()

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            self._links.add(link)
            if self._listener is not listener:  # stopped meanwhile: `stop` may not have seen it
                self._links.discard(link)
                link.close()
                return
            self._spawn(self._serve, link)

    def _serve(self, link: socket.socket) -> None:
        connection = FakeConnection(link)
        try:
            with link:
                m.decode_hello(connection.frame()[1])
                request = m.decode_request(connection.frame()[1])
                self.requests.append(request)
                connection.say(self.hello)
                handler = self._handlers.get(type(request))
                if handler is None:
                    connection.say(m.Refusal(1, f"the test has no answer to {request}"))
                else:
                    handler(request, connection)
        except (EOFError, OSError):
            pass  # the client went away, or the daemon was stopped
        except BaseException as problem:
            self.problems.append(problem)
        finally:
            self._links.discard(link)
