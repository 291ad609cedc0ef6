"""One request on the daemon's socket: frames out, frames in, and a limit to every wait."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from wiiiiided import __version__
from wiiiiided.cluster.client.errors import (
    DaemonLost,
    DaemonRefused,
    TimedOut,
    lost,
    mismatch,
    no_daemon,
    not_allowed,
)
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.framing import (
    BLOB,
    BLOB_END,
    LIMITS,
    MESSAGE,
    Parser,
    StreamError,
    frame,
)
from wiiiiided.config import Paths

Result = TypeVar("Result")
NoticeHandler = Callable[[str], None]
Progress = Callable[[int, int], None]  # bytes sent, bytes altogether

ANSWER_S = 10.0  # of a plain question: a person sits before an empty screen
PATIENT_S = 30.0  # of what makes the daemon work; systemd restarts one that is stuck for so long
CONNECT_S = 5.0
RECEIVE_BYTES = 1 << 18
# No wait is longer at a time: a Ctrl-C that comes just before one is noticed after it.
SLICE_S = 0.5


class Connection:
    """One request on its socket. Use it as a context. `notice` hears what the daemon has to say to
    a person before it answers; without it those sentences are answers like any other."""

    def __init__(
        self, link: socket.socket, timeout_s: float | None, notice: NoticeHandler | None = None
    ) -> None:
        self._socket = link
        self._timeout_s = timeout_s
        self._notice = notice
        self._parser = Parser()
        self._frames: deque[tuple[bytes, bytes]] = deque()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def waiting(self) -> bool:
        """Whether an answer is here already."""
        return bool(self._frames)

    def begin(self, request: m.Request) -> None:
        """Hello, the request, and the other side's Hello."""
        hello = m.encode(m.Hello(m.PROTOCOL, __version__, notices=True))
        self._send(frame(MESSAGE, hello) + frame(MESSAGE, m.encode(request)))
        kind, payload = self.receive(within_s=min(PATIENT_S, self._timeout_s or PATIENT_S))
        theirs = decode(m.decode_hello, payload) if kind == MESSAGE else None
        if theirs is None or theirs.protocol != m.PROTOCOL:
            raise mismatch(theirs)

    def answer(self, deadline: float | None = None) -> m.Answer:
        """The next answer; DaemonRefused when it is a no."""
        while True:
            kind, payload = self.receive(deadline)
            if kind != MESSAGE:
                raise mismatch(None)
            answer = self.heard(payload)
            if answer is not None:
                return answer

    def heard(self, payload: bytes) -> m.Answer | None:
        """An answer; None when it was a notice, and the person has heard it."""
        answer: m.Answer = decode(m.decode_answer, payload)
        if isinstance(answer, m.Refusal):
            raise DaemonRefused(answer)
        if isinstance(answer, m.Notice) and self._notice is not None:
            self._notice(answer.text)
            return None
        return answer

    def receive(
        self, deadline: float | None = None, within_s: float | None = None
    ) -> tuple[bytes, bytes]:
        """The next frame. The deadline is the caller's; without one, the connection's holds."""
        patience_s = within_s or self._timeout_s
        end = deadline
        if end is None and patience_s is not None:
            end = time.monotonic() + patience_s
        while not self._frames:
            data = self._some(end)
            if data is None and deadline is not None:
                raise TimedOut("the time is up")
            if data is None:
                raise DaemonLost(
                    f"the daemon has not answered for {patience_s:.0f} s",
                    "systemctl status wiiiiided, or its log, may say why",
                )
            try:
                self._frames.extend(self._parser.feed(data))
            except StreamError as problem:
                raise mismatch(None) from problem
        return self._frames.popleft()

    def _some(self, end: float | None) -> bytes | None:
        """The message that has come; None when `end` passes before."""
        while True:
            left = SLICE_S if end is None else min(SLICE_S, max(0.001, end - time.monotonic()))
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                if end is not None and time.monotonic() >= end:
                    return None
                continue
            except OSError as problem:
                raise lost() from problem
            if not data:
                raise lost()
            return data

    def send_file(self, path: str, size: int, progress: Progress | None) -> None:
        """An archive in pieces; stops early when the daemon has something to say."""
        sent = 0
        with open(path, "rb") as file:
            while piece := file.read(LIMITS[BLOB]):
                self._send(frame(BLOB, piece))
                sent += len(piece)
                if progress is not None:
                    progress(sent, size)
                if self.waiting or select.select([self._socket], [], [], 0)[0]:
                    return
        self._send(frame(BLOB_END))

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(self._timeout_s or PATIENT_S)
        try:
            self._socket.sendall(data)
        except TimeoutError as problem:
            raise DaemonLost("the daemon does not take what is sent to it") from problem
        except OSError:
            pass  # it closed its end; perhaps it said why before that: `receive` finds either


class Blob:
    """Bytes that the daemon sends, as something to `read` from."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._left = b""
        self._ended = False
        try:
            self._more()  # so that a refusal is raised at once
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Blob:
        return self

    def __exit__(self, *problem: object) -> None:
        self._connection.close()

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes; none at the end."""
        while not self._left and not self._ended:
            self._more()
        data, self._left = self._left[:size], self._left[size:]
        return data

    def _more(self) -> None:
        kind, payload = self._connection.receive()
        if kind == BLOB:
            self._left = payload
        elif kind == MESSAGE:
            answer = self._connection.heard(payload)
            if answer is not None:
                self._ended = True
                expect(answer, m.EndOfAnswers)
        # After BLOB_END comes EndOfAnswers, or a Refusal that says what is missing.


def connect(paths: Paths) -> socket.socket:
    """A connected socket, or the sentence that says why not."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    deadline = time.monotonic() + CONNECT_S
    try:
        while True:
            link.settimeout(CONNECT_S)
            try:
                link.connect(str(paths.socket))
                return link
            except BlockingIOError:  # its queue of callers is full
                if time.monotonic() > deadline:
                    raise DaemonLost("the daemon has too many callers: try again") from None
                time.sleep(0.02)
    except PermissionError as problem:
        link.close()
        raise not_allowed(paths) from problem
    except OSError as problem:
        link.close()
        raise no_daemon(paths, problem) from problem
    except BaseException:
        link.close()
        raise


def decode(decoder: Callable[[bytes], Result], payload: bytes) -> Result:
    try:
        return decoder(payload)
    except msgspec.MsgspecError as problem:
        raise mismatch(None) from problem


def expect(answer: object, kind: type[Result]) -> Result:
    if not isinstance(answer, kind):
        raise mismatch(None)
    return answer
