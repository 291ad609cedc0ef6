"""The running program: keys, snapshots, log lines and signals come in, frames go out.

One `select` waits for all of them. Signals and finished requests write a byte into a pipe, so that
nothing happens between two lines of code: a screen is never left half changed.

    SIGWINCH           draw again, in the new size
    SIGTSTP (Ctrl-Z)   give the terminal back, stop; SIGCONT takes it again
    SIGINT (Ctrl-C)    KeyboardInterrupt, after the terminal is given back
    SIGTERM, SIGHUP, SIGQUIT   the same, and then the end that the signal means
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from types import FrameType
from typing import NoReturn

from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.cluster.client.connection import Connection
from wiiiiided.cluster.rpc.messages import (
    JobDetail,
    JobRecords,
    JobView,
    NodeList,
    NodeView,
    Snapshot,
)
from wiiiiided.ui.top import log_feed, snapshot_feed
from wiiiiided.ui.top.background import BackgroundRequests
from wiiiiided.ui.top.column_memory import learned
from wiiiiided.ui.top.keymap import press
from wiiiiided.ui.top.keys import KeyDecoder
from wiiiiided.ui.top.losses import LossHistory
from wiiiiided.ui.top.order import selected_job, selected_node
from wiiiiided.ui.top.paint import Painter
from wiiiiided.ui.top.terminal import Terminal
from wiiiiided.ui.top.ui import CancelJob, Detail, DrainNode, Quit, ResumeNode, Scene, Ui
from wiiiiided.ui.top.view import clamp_scroll, view

IDLE_S = 1.0  # the longest wait: a silent daemon is noticed by looking at the clock
ESCAPE_S = 0.05  # after which an ESC was the key, and not the beginning of a sequence
ANSWER_S = 5.0  # an answer stands in the place of the keys for so long, or until a key
LOG_S = 0.25  # between frames for log lines alone: a job may write thousands a second
DETAIL_S = 3.0  # between two requests for the open page's facts
DETAILS, RECORDS = "details", "loss of job "  # names of requests
READ_BYTES = 4096
HEARD = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH),
)
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run(
    client: Client, connection: Connection, terminal: Terminal, ui: Ui, painter: Painter
) -> None:
    """Run until the user quits. The terminal is as it was, however this ends."""
    with _woken() as (wake_fd, pipe_fd):
        loop = TopLoop(client, connection, terminal, ui, painter, wake_fd, pipe_fd)
        try:
            terminal.enter()
            ended_by: int | None = loop.run()
        except OSError as problem:
            if problem.errno != errno.EIO:
                raise
            ended_by = signal.SIGHUP  # the terminal is gone; its signal is on the way
        finally:
            terminal.leave()
            loop.close()
    if ended_by is not None:
        _end_by(ended_by)


def _end_by(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise SystemExit(128 + number)  # the signal is ignored in this process


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the byte in the pipe tells the loop."""


@contextlib.contextmanager
def _woken() -> Iterator[tuple[int, int]]:
    """A pipe that every signal we hear writes its number into: (write end, read end)."""
    reads, writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before_fd = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    # Signals that the parent has set to be ignored stay ignored.
    heard = [number for number in HEARD if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _noted) for number in heard}
    try:
        yield writes, reads
    finally:
        signal.set_wakeup_fd(before_fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reads)
        os.close(writes)


class TopLoop:
    def __init__(
        self,
        client: Client,
        connection: Connection,
        terminal: Terminal,
        ui: Ui,
        painter: Painter,
        wake_fd: int,
        pipe_fd: int,
    ) -> None:
        self._client, self._terminal, self._ui, self._painter = client, terminal, ui, painter
        self._pipe_fd = pipe_fd
        self._keys = KeyDecoder()
        self._escape_at = 0.0  # when an ESC that nothing follows is the key of that name
        self._requests = BackgroundRequests(wake_fd)
        now = time.monotonic()
        self._watch = snapshot_feed.SnapshotFeed(
            client, self._requests, connection, ui.every_s, now
        )
        self._log = log_feed.LogFeed(client, self._requests)
        self._losses = LossHistory()
        self._recorded: set[int] = set()  # jobs whose record was asked for
        self._detail: Detail | None = None
        self._detail_of: int | str | None = None  # the job or node whose details are open
        self._detail_at = 0.0  # when they are to be asked for again
        self._snapshot: Snapshot | None = None
        self._came_at = 0.0
        self._was_gone = False
        self._draw_at: float | None = 0.0  # when the next frame is due; None: nothing has changed
        self._drawn_at = 0.0
        self._answer, self._answered_at = "", 0.0  # the message on the screen, and since when
        self._ended_by: int | None = None
        self._quit = False

    def close(self) -> None:
        self._requests.close()
        self._watch.close()
        self._log.close()

    def run(self) -> int | None:
        """Run, and return the signal that ended it; None: the user quit."""
        while not self._quit and self._ended_by is None:
            self._draw()
            # Asked before the read: the bytes that follow an ESC may be there already.
            escape = self._keys.unfinished and time.monotonic() >= self._escape_at
            ready = self._wait()
            if self._pipe_fd in ready:
                self._signals()
                self._requests_done()
            if self._terminal.keys_fd in ready:
                self._typed()
            elif escape:
                self._pressed(self._keys.flush())
            self._read(ready)
            self._tick()
        return self._ended_by

    # ---- input

    def _wait(self) -> set[int]:
        timeout = IDLE_S
        if self._draw_at is not None and not self._terminal.busy:
            timeout = min(IDLE_S, max(0.0, self._draw_at - time.monotonic()))
        if self._keys.unfinished:
            timeout = min(timeout, max(0.0, self._escape_at - time.monotonic()))
        connections = [one for one in (self._watch.connection, self._log.connection) if one]
        if any(one.waiting for one in connections):
            timeout = 0.0
        reads = [self._pipe_fd, self._terminal.keys_fd, *(one.fileno() for one in connections)]
        writes = [self._terminal.fd] if self._terminal.busy else []
        ready, writable, _ = select.select(reads, writes, [], timeout)
        if writable:
            self._terminal.flush()
        return {*ready, *(one.fileno() for one in connections if one.waiting)}

    def _signals(self) -> None:
        try:
            numbers = os.read(self._pipe_fd, READ_BYTES)
        except BlockingIOError:
            return
        for number in numbers:
            if number in (signal.SIGINT, *ENDING):
                self._ended_by = number
                return
        if signal.SIGTSTP in numbers:
            self._stop()
        if signal.SIGCONT in numbers and self._ended_by is None:
            self._terminal.enter()
        if any(numbers):  # not just finished requests
            self._terminal.forget()
            self._draw_at = 0.0

    def _stop(self) -> None:
        """Stop, as Ctrl-Z stops any program; a continued program goes on here."""
        self._terminal.leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, _noted)
        with contextlib.suppress(BlockingIOError):  # a kill while it was stopped comes first
            numbers = os.read(self._pipe_fd, READ_BYTES)
            self._ended_by = next((n for n in numbers if n in (signal.SIGINT, *ENDING)), None)
        if self._ended_by is None:
            self._terminal.enter()

    def _typed(self) -> None:
        data = os.read(self._terminal.keys_fd, READ_BYTES)
        if not data:  # the terminal is gone
            self._ended_by = signal.SIGHUP
        self._escape_at = time.monotonic() + ESCAPE_S
        self._pressed(self._keys.feed(data))

    def _pressed(self, keys: list[str]) -> None:
        for key in keys:
            if key == "redraw":
                self._terminal.forget()
            self._ui, action = press(self._ui, key, self._snapshot)
            self._ui = clamp_scroll(self._scene(), *self._terminal.size())
            self._draw_at = 0.0
            if isinstance(action, Quit):
                self._quit = True
                return
            if isinstance(action, CancelJob):
                self._cancel(action)
            elif isinstance(action, DrainNode | ResumeNode):
                self._drain(action)

    def _cancel(self, action: CancelJob) -> None:
        name = f"cancel {action.job}{' now' if action.now else ''}"
        if not self._requests.run(name, lambda: self._client.cancel(action.job, action.now)):
            self._say(f"job {action.job}: too much is being cancelled; try again")

    def _drain(self, action: DrainNode | ResumeNode) -> None:
        node, client = action.node, self._client
        if isinstance(action, DrainNode):
            reason = action.reason
            begun = self._requests.run(f"drain {node}", lambda: client.drain(node, reason))
        else:
            begun = self._requests.run(f"resume {node}", lambda: client.resume(node))
        if not begun:
            self._say(f"{node}: it is being done already")

    def _requests_done(self) -> None:
        now = time.monotonic()
        for name, result in self._requests.done():
            self._draw_at = 0.0
            if name == snapshot_feed.REQUEST:
                self._watch.opened(result, now)
            elif name == log_feed.REQUEST:
                self._log.opened(result)
            elif name == DETAILS:
                self._detailed(result)
            elif name.startswith(RECORDS):
                if isinstance(result, JobRecords):  # without a record the curve begins now
                    self._losses.begin(result.job.id, result.runs)
            elif isinstance(result, JobView):
                self._say(f"job {result.id} ({result.name}): {result.why}")
            elif isinstance(result, NodeView):
                self._say(f"{result.node.name}: {result.why}")
            elif isinstance(result, ClientError):
                self._say(f"{name}: {result}")

    def _read(self, ready: set[int]) -> None:
        now = time.monotonic()
        if self._watch.connection is not None and self._watch.connection.fileno() in ready:
            found = self._watch.read(now)
            if found is not None and not (self._ui.paused and self._snapshot):
                self._snapshot, self._came_at, self._draw_at = found, now, 0.0
                self._ui = learned(self._ui, found)
                self._losses.take(found)
        if self._log.connection is not None and self._log.connection.fileno() in ready:
            count = self._log.read()
            if self._ui.log_back:  # the lines on the screen stay where they are
                self._ui = replace(
                    self._ui, log_back=min(log_feed.LINES, self._ui.log_back + count)
                )
            if self._draw_at is None:
                self._draw_at = self._drawn_at + LOG_S

    def _tick(self) -> None:
        now = time.monotonic()
        self._watch.tick(now, self._ui.every_s)
        gone = self._watch.gone(now) is not None
        if self._ui.message != self._answer:
            self._answer, self._answered_at = self._ui.message, now
        elif self._answer and now - self._answered_at >= ANSWER_S:
            self._say("")
        due = self._drawn_at + IDLE_S  # clock, ages and countdown go on
        self._draw_at = due if self._draw_at is None else min(self._draw_at, due)
        if self._was_gone and not gone:
            self._log.again()
        self._was_gone = gone
        row = selected_job(self._snapshot, self._ui) if self._ui.log else None
        if (not gone or row is None) and self._log.want(row.job.id if row else None):
            self._ui = replace(self._ui, log_back=0)  # of another job the newest lines
        if not gone:
            self._ask_details(now)
            self._ask_record()

    def _ask_details(self, now: float) -> None:
        """Ask for the open page's facts that no snapshot has: at once, then every DETAIL_S."""
        job, node = selected_job(self._snapshot, self._ui), None
        if self._ui.focus == "nodes":
            job, node = None, selected_node(self._snapshot, self._ui)
        wanted = job.job.id if job else node.name if node else None
        if self._ui.page != "details" or wanted is None:
            self._detail = self._detail_of = None
            return
        if wanted != self._detail_of:
            self._detail, self._detail_of, self._detail_at = None, wanted, 0.0
        if now < self._detail_at:
            return
        number = job.job.id if job else 0
        client = self._client
        if self._requests.run(DETAILS, lambda: client.show(number) if number else client.nodes()):
            self._detail_at = now + DETAIL_S

    def _detailed(self, result: object) -> None:
        if isinstance(result, JobDetail) and result.job.id == self._detail_of:
            self._detail = Detail(job=result)
        elif isinstance(result, NodeList):
            found = [each for each in result.nodes if each.node.name == self._detail_of]
            self._detail = Detail(node=found[0]) if found else None
        elif isinstance(result, ClientError):
            self._detail = replace(self._detail or Detail(), note=str(result))

    def _ask_record(self) -> None:
        """Ask, once for each job that is selected and runs, for its losses before this session."""
        row = selected_job(self._snapshot, self._ui)
        if row is None or row.now is None or row.job.id in self._recorded:
            return
        number = row.job.id
        if self._requests.run(f"{RECORDS}{number}", lambda: self._client.records(number)):
            self._recorded.add(number)

    # ---- output

    def _say(self, text: str) -> None:
        self._ui, self._draw_at = replace(self._ui, message=text), 0.0

    def _scene(self) -> Scene:
        offset_s = time.localtime(self._snapshot.at).tm_gmtoff if self._snapshot else 0
        now = time.monotonic()
        since_s = now - self._came_at if self._snapshot else 0.0
        gone = self._watch.gone(now)
        return Scene(
            self._snapshot, self._ui, gone, self._log.view(), offset_s, since_s,
            self._losses.values(), self._detail,
        )  # fmt: skip

    def _draw(self) -> None:
        now = time.monotonic()
        if self._draw_at is None or now < self._draw_at or self._terminal.busy:
            return
        width, height = self._terminal.size()
        rows = self._painter.rows(view(self._scene(), width, height), width, height)
        self._terminal.show(rows, self._painter.encoding)
        self._draw_at, self._drawn_at = None, now
