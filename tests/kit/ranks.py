"""Run a function as N ranks, each in a process of its own, and collect what became of them.

    def body(rank: Rank) -> int: ...            # a module-level function: it is sent by name
    values = run_ranks(body, 3)                 # raises with every rank's traceback if one failed
    outcomes = watch_ranks(body, 3)             # also for ranks that are meant to fail or die
    values = run_ranks(body, "aab")             # three ranks, the last one on another host

Hosts are only pretended (WIIIIIDE_HOST_ID): ranks with different letters share no memory and talk
over TCP on loopback, as ranks on different machines do over the network.

Processes come from a fork server that has torch and the backend loaded, so a rank starts in tens of
milliseconds. Every run has a deadline; what is left of it then is killed and reported.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        *("torch", "torch.distributed", "wiiiiided.torch", "tests.kit.ranks", "tests.kit.data"),
        *("pytest", "psutil"),
        # what training imports, the last one when DDP is first made
        *("torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.checkpoint"),
        "torch._dynamo",
    ]
)


@dataclass(frozen=True)
class Rank:
    """A body's argument: its rank and a folder all ranks share."""

    rank: int
    size: int
    folder: str


@dataclass
class Outcome:
    """The outcome of one rank."""

    rank: int
    pid: int
    value: Any = None
    error: str = ""  # the exception as one line: `PeerLost: …`
    trace: str = ""
    exit_code: int | None = None  # None: killed by us at the deadline
    finished_s: float = 0.0  # after the start of the run
    notes: list[tuple[float, Any]] = field(default_factory=list)  # what it reported, and when


def run_ranks(body: Callable[..., Any], size: int | str, *args: Any, **options: Any) -> list[Any]:
    """Run and require success; returns what each rank returned."""
    outcomes = watch_ranks(body, size, *args, **options)
    bad = [o for o in outcomes if o.error or o.exit_code != 0]
    if bad:
        raise AssertionError(
            "\n".join(f"--- rank {o.rank}: exit {o.exit_code}\n{o.trace or o.error}" for o in bad)
        )
    return [o.value for o in outcomes]


def watch_ranks(
    body: Callable[..., Any],
    size: int | str,
    *args: Any,
    backend: str | None = "wiiiiide",
    timeout_s: float = 60.0,
    group_timeout_s: float = 60.0,
    env: dict[str, str] | None = None,
    during: Callable[[list[Outcome], float], None] | None = None,
) -> list[Outcome]:
    """Run and report. `during(outcomes, elapsed_s)` is called about 50 times a second meanwhile:
    the place to kill or stop ranks (`outcomes[r].pid`, `.notes`). backend None: makes no group.
    """
    with tempfile.TemporaryDirectory(prefix="wiiiiide-test-") as folder:
        hosts = size if isinstance(size, str) else "a" * size
        size = len(hosts)
        processes, pipes, outcomes = [], [], []
        for rank, host in enumerate(hosts):
            place = {"WIIIIIDE_HOST_ID": host} if len(set(hosts)) > 1 else {}
            settings = (backend, folder, group_timeout_s, {**place, **(env or {})}, hosts)
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_rank_main, args=(theirs, body, Rank(rank, size, folder), settings, args)
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
            outcomes.append(Outcome(rank, process.pid or 0))
        try:
            _collect(processes, pipes, outcomes, timeout_s, during)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()
            for pipe in pipes:
                pipe.close()
        return outcomes


def note(value: Any) -> None:
    """Inside a rank: report something to the test that watches (see Outcome.notes)."""
    assert _pipe is not None
    _pipe.send(("note", value))


_pipe: Any = None


def _collect(
    processes: list[Any],
    pipes: list[Any],
    outcomes: list[Outcome],
    timeout_s: float,
    during: Callable[[list[Outcome], float], None] | None,
) -> None:
    start = time.monotonic()
    open_pipes = dict(enumerate(pipes))
    while any(o.exit_code is None for o in outcomes):
        elapsed = time.monotonic() - start
        if elapsed > timeout_s:
            stuck = [o.rank for o in outcomes if o.exit_code is None]
            for rank in stuck:
                outcomes[rank].error = (
                    outcomes[rank].error or f"still running after {timeout_s:g} s"
                )
            return
        waited: list[Any] = [*open_pipes.values()]
        waited += [
            p.sentinel for p, o in zip(processes, outcomes, strict=True) if o.exit_code is None
        ]
        multiprocessing.connection.wait(waited, timeout=0.02)
        for rank, pipe in list(open_pipes.items()):
            _read(pipe, rank, outcomes[rank], open_pipes, time.monotonic() - start)
        for process, outcome in zip(processes, outcomes, strict=True):
            if outcome.exit_code is None and process.exitcode is not None:
                outcome.exit_code = process.exitcode
                if outcome.rank in open_pipes:  # its last words may have come since we read
                    now = time.monotonic() - start
                    _read(open_pipes[outcome.rank], outcome.rank, outcome, open_pipes, now)
                outcome.finished_s = outcome.finished_s or time.monotonic() - start
        if during is not None:
            during(outcomes, elapsed)


def _read(pipe: Any, rank: int, outcome: Outcome, open_pipes: dict[int, Any], now: float) -> None:
    try:
        while pipe.poll():
            kind, value = pipe.recv()
            if kind == "note":
                outcome.notes.append((now, value))
            elif kind == "value":
                outcome.value, outcome.finished_s = value, now
            else:
                outcome.error, outcome.trace = value
                outcome.finished_s = now
    except (EOFError, ConnectionResetError):
        del open_pipes[rank]


def _rank_main(pipe: Any, body: Callable[..., Any], me: Rank, settings: Any, args: Any) -> None:
    from tests.kit import data  # imports torch, and networks are also made without

    global _pipe
    _pipe = pipe
    backend, folder, group_timeout_s, env, data.hosts = settings
    os.environ.update(env)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        if backend is not None:
            dist.init_process_group(
                backend,
                init_method=f"file://{folder}/store",
                rank=me.rank,
                world_size=me.size,
                timeout=timedelta(seconds=group_timeout_s),
            )
        value = body(me, *args)
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send(("value", value))
    except BaseException as error:
        pipe.send(("error", (f"{type(error).__name__}: {error}", traceback.format_exc())))
        if dist.is_initialized():
            dist.destroy_process_group()
