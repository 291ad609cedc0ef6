"""How much processor time watching takes: that of `wiiiiide top`, and that of the daemon.

    the bench ──── pty ──── wiiiiide top ──── socket ──── pretended daemon, a thread of the bench
    the bench ──── socket ──── wiiiiided ──── stats pages ◄──── 8 ranks that do nothing but count

One machine has no eight nodes: those that top shows are pretended, and all their figures change
from one second to the next, so that it has every row to draw again. The daemon is a real one.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import pty
import shutil
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lib.fleet import FleetError
from lib.measure import SHARE, Chapter, Measure
from lib.measured_daemon import WITHIN_S, MeasuredDaemon, console_script, until
from lib.proc import cpu_seconds
from wiiiiided import __version__
from wiiiiided.cluster.client import TimedOut
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.framing import MESSAGE, Parser, frame
from wiiiiided.config import Paths
from wiiiiided.domain.metrics import JobNow, NodeNow, RankNow, Rates, Straggler
from wiiiiided.errors import WiiiiideError
from wiiiiided.ui.top.terminal import SHOWN

TOP_SHARE = 0.03  # of a core, with NODES at one picture a second
NODES, MANY_NODES, JOBS, FIRST_JOB = 8, 200, 4, 17
COLUMNS, LINES = 120, 40
HISTORY = 60  # the most that a node has: as after a minute
RANKS = 8
WATCHERS = {"nobody watches": None, "one watcher at 1 s": 1.0, "one watcher at 0.25 s": 0.25}
# Of the pictures that were due, so many must have come: with fewer, something else was measured.
ENOUGH = 0.5
TOP_START_S = 3.0  # its imports and its first whole screen are not what is asked about
METHOD = (
    "Watching: the processor time (utime + stime, or schedstat where that is more) of a process"
    " over {seconds:g} s in {parts} parts, after its start. `wiiiiide top -i 1` runs in a pty of"
    f" {COLUMNS} × {LINES} and asks a pretended daemon that tells of {JOBS} running jobs once a"
    f" second, with every figure changed. The daemon is real and has a job of {RANKS} ranks that"
    " write to their stats pages 20 times a second; with nobody, one watcher at 1 s and one at"
    " 0.25 s it is looked at in turns."
)


@dataclass(frozen=True)
class WatchPlan:
    seconds: float = 30.0
    parts: int = 3
    wait_s: float = 16.0  # the daemon looks at a rank's memory oftener in its first 15 s

    @property
    def part_s(self) -> float:
        return self.seconds / self.parts


QUICK = WatchPlan(4.0, 1, 1.0)


def chapter(plan: WatchPlan) -> Chapter:
    title = f"Processor time of watching, {plan.seconds:g} s a row"
    try:
        return Chapter(
            title,
            [
                _top(plan, NODES, TOP_SHARE),
                _top(plan, MANY_NODES, None),
                *_daemon(plan),
            ],
        )
    except WiiiiideError as problem:
        raise FleetError(str(problem)) from problem


def _share(pid: int, spend: Callable[[], None]) -> float:
    """Of one core, while `spend` lets time pass."""
    begin, before = time.monotonic(), cpu_seconds(pid)
    spend()
    return (cpu_seconds(pid) - before) / (time.monotonic() - begin)


def _enough(what: str, came: int, due: float) -> None:
    if came < ENOUGH * due:
        raise FleetError(f"{what}: {came} pictures came where {due:.0f} were due")


# ---- top, and what it is told


def _top(plan: WatchPlan, nodes: int, asked: float | None) -> Measure:
    what = f"top, {nodes} nodes, {JOBS} jobs, once a second"
    with _pretended(nodes) as home, _on_terminal(home) as top:
        until(lambda: top.frames > 1, "top draws what it is told")
        time.sleep(TOP_START_S)
        before = top.frames
        parts = range(plan.parts)
        shares = [_share(top.pid, lambda: time.sleep(plan.part_s)) for _ in parts]
        _enough(what, top.frames - before, plan.seconds)
    return Measure(what, SHARE, shares, asked)


class Top:
    """The real program, on a terminal whose output a thread takes."""

    def __init__(self, home: str, ours: int, theirs: int) -> None:
        self.frames = 0
        self._ours = ours
        env = {**os.environ, "WIIIIIDE_HOME": home, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        env.pop("NO_COLOR", None)  # colours are the dearer way
        self._process = subprocess.Popen(
            [sys.executable, console_script("wiiiiide"), "top", "-i", "1"],
            env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        self._drain = threading.Thread(target=self._take, daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        if self._process.poll() is not None:
            raise FleetError(f"top ended by itself, with code {self._process.returncode}")
        return self._process.pid

    def _take(self) -> None:
        mark, rest = SHOWN.encode(), b""
        with contextlib.suppress(OSError):  # the other side is closed: top has ended
            while data := os.read(self._ours, 1 << 16):
                self.frames += (rest + data).count(mark)
                rest = (rest + data)[1 - len(mark) :]  # a mark may come in two pieces

    def end(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._ours, b"q")
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()  # nothing to one that has ended
            self._process.wait()
            self._drain.join(WITHIN_S)


@contextlib.contextmanager
def _on_terminal(home: str) -> Iterator[Top]:
    ours, theirs = pty.openpty()
    try:
        try:
            termios.tcsetwinsize(theirs, (LINES, COLUMNS))
            top = Top(home, ours, theirs)
        finally:
            os.close(theirs)
        try:
            yield top
        finally:
            top.end()
    finally:
        os.close(ours)


@contextlib.contextmanager
def _pretended(nodes: int) -> Iterator[str]:
    """The home of a daemon that has nothing behind it."""
    home = tempfile.mkdtemp(prefix="wb")
    over = threading.Event()
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(Paths.private(home).socket))
            listener.listen()
            server = threading.Thread(target=_serve, args=(listener, nodes, over), daemon=True)
            server.start()
            try:
                yield home
            finally:
                over.set()
                listener.shutdown(socket.SHUT_RDWR)
                server.join(WITHIN_S)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _serve(listener: socket.socket, nodes: int, over: threading.Event) -> None:
    """The one caller there is: its Hello, its Watch, then pictures until it goes."""
    with contextlib.suppress(OSError):
        link, _ = listener.accept()
        with link:
            parser = Parser()
            heard: list[bytes] = []
            while len(heard) < 2 and (data := link.recv(1 << 16)):
                heard += [payload for _, payload in parser.feed(data)]
            if len(heard) < 2:
                return
            request = m.decode_request(heard[1])
            assert isinstance(request, m.WatchSnapshots), request
            _say(link, m.Hello(m.PROTOCOL, __version__))
            number, due = 0, time.monotonic()
            while not over.wait(max(0.0, due - time.monotonic())):
                _say(link, _picture(number, nodes, request.every_s))
                number, due = number + 1, due + request.every_s


def _say(link: socket.socket, answer: m.Answer | m.Hello) -> None:
    link.sendall(frame(MESSAGE, m.encode(answer)))


def _wave(index: int, number: int) -> float:
    """Between 0 and 1, and elsewhere in every picture."""
    return 0.5 + 0.5 * math.sin(1.7 * number + index)


def _samples(w: float) -> float:
    return 50 + 450 * w


def _rates(w: float) -> Rates:
    return Rates(
        steps=3 + w, samples=_samples(w), operations=50 + 10 * w, shm=1e9 + 1e9 * w,
        wire_out=5e7 + 2e7 * w, wire_in=5e7 + 1e7 * w,
        wire_out_raw=1e8 + 5e7 * w, wire_in_raw=1e8 + 6e7 * w,
        exchange=0.1 + 0.3 * w, waiting=0.05 + 0.2 * w, encode=0.1 * w, decode=0.05 * w,
    )  # fmt: skip


def _picture(number: int, nodes: int, every_s: float) -> m.Snapshot:
    names = [f"node-{index:03}" for index in range(nodes)]
    share = nodes // JOBS
    jobs = [
        _job(index, number, tuple(names[index * share : (index + 1) * share]))
        for index in range(JOBS)
    ]
    shown = [_node(index, number, name, index // share) for index, name in enumerate(names)]
    return m.Snapshot(time.time(), every_s, "lab", tuple(shown), tuple(jobs))


def _node(index: int, number: int, name: str, job: int) -> NodeNow:
    w, past = _wave(index, number), range(number - HISTORY + 1, number + 1)
    return NodeNow(
        name=name, state="ok" if index else "slow", note="" if index else "swapping",
        coordinator=index == 0, cores=8, memory=16 << 30, cpu=w, memory_used=0.3 + 0.5 * w,
        rates=_rates(w), codec="lz4", codec_why="the link is slower than the codec",
        jobs=(FIRST_JOB + job,), unit="samples/s",
        history=tuple(_samples(_wave(index, then)) for then in past),
    )  # fmt: skip


def _job(index: int, number: int, nodes: tuple[str, ...]) -> m.JobRow:
    """Has one rank a node; the first job has a straggler too."""
    w, step, now = _wave(index, number), 1000 + 3 * number + index, time.time()
    ident = FIRST_JOB + index
    view = m.JobView(
        id=ident, name=f"digits-{index}", state="running", owner="ada", priority=50,
        submitted_at=now - 4000, started_at=now - 3600 - 61 * number, ended_at=None,
        attempt=1, attempts=4, nodes=nodes, workers=len(nodes), code=None,
        why=f"runs on {len(nodes)} nodes",
    )  # fmt: skip
    late = f"rank 0 on {nodes[0]}: the others wait {10 + 50 * w:.0f} % of a step for it"
    ranks = tuple(
        RankNow(rank, name, _rates(w), step, 0.4 + w, int(1e9 + 1e8 * w), "lz4", "it is faster")
        for rank, name in enumerate(nodes)
    )
    doing = JobNow(
        id=ident, rates=_rates(w), step=step, total=23_460, loss=0.4 + w, eta_s=4000 + 500 * w,
        memory=int(3e9 + 1e9 * w), ranks=ranks,
        straggler=None if index else Straggler(0, nodes[0], 0.1 + 0.5 * w, late),
    )  # fmt: skip
    return m.JobRow(view, doing)


# ---- the daemon, and what it looks at


def _count() -> None:
    """A rank. Its source travels by itself, so that nothing else of the bench is loaded in it."""
    import os
    import time

    from wiiiiided.backend.shm import stats
    from wiiiiided.config import Config

    page = stats.StatsPage(Config.read().stats_file)
    words, rank, world = page.words, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    words[stats.RANK], words[stats.WORLD] = rank, world
    page.use_codec("lz4", "the link is slower than the codec")
    waits_ns = 1_000_000 if rank == 3 else 2_000_000  # for each peer; rank 3 is the straggler
    for step in range(10**9):
        words[stats.OPERATIONS] += 4
        words[stats.BYTES] += 2_000_000
        words[stats.EXCHANGE_NS] += 20_000_000
        words[stats.WAITING_NS] += waits_ns * (world - 1)
        for peer in range(world):
            words[stats.PEERS_AT + peer] += waits_ns if peer != rank else 0
        for word in range(stats.WIRE_OUT, stats.DECODE_NS + 1):
            words[word] += 500_000
        page.say(step, 10**9, 1 / (1 + step), 64)
        time.sleep(0.05)


def _daemon(plan: WatchPlan) -> list[Measure]:
    shares: dict[str, list[float]] = {who: [] for who in WATCHERS}
    with MeasuredDaemon() as daemon:
        source = f"{inspect.getsource(_count)}\n{_count.__name__}()"
        job = daemon.queue(["python", "-c", source], RANKS)
        until(lambda: _all_count(daemon, job), "the daemon sees all ranks count")
        time.sleep(plan.wait_s)
        for _ in range(plan.parts):
            for who, every_s in WATCHERS.items():
                shares[who].append(_watched(daemon, every_s, plan.part_s))
        if not _all_count(daemon, job):
            raise FleetError("not all ranks lived to the end")
        daemon.cancel(job)
    what = f"daemon, a job of {RANKS} ranks, "
    return [Measure(what + who, SHARE, found) for who, found in shares.items()]


def _all_count(daemon: MeasuredDaemon, job: int) -> bool:
    if len(daemon.pids(job)) < RANKS:
        return False
    now = next((row.now for row in daemon.client.snapshot().jobs if row.job.id == job), None)
    return now is not None and len([one for one in now.ranks if one.rates.steps]) == RANKS


def _watched(daemon: MeasuredDaemon, every_s: float | None, seconds: float) -> float:
    if every_s is None:
        return _share(daemon.pid, lambda: time.sleep(seconds))
    came = 0
    with daemon.client.watching(every_s) as connection:

        def look() -> None:
            nonlocal came
            deadline = time.monotonic() + seconds
            with contextlib.suppress(TimedOut):
                while True:
                    connection.answer(deadline)
                    came += 1

        share = _share(daemon.pid, look)
    _enough(f"a watcher at {every_s:g} s", came, seconds / every_s)
    return share
