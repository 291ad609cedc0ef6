"""Starts the processes of a run, all in the same way, hears from them, and ends them.

They are forked from one process that has imported torch. Started one by one, ten ranks on two cores
have ten copies of the interpreter's objects, which do not fit the caches, and are half as fast
whatever they do (docs/lab-log.md): that would hide what is compared here.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_long
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, NamedTuple, Self

import psutil

from lib import proc
from lib.fleet import HERE, FleetError

NODE, SERVER = "lib.ladder.node", "lib.ladder.server"
_PRELOADED = ("__main__", "torch._dynamo", NODE, SERVER)
_LEAVE_SECONDS = 8.0


class ProcessFailure(NamedTuple):
    """A process's message when it cannot go on."""

    problem: str


def _guarded(program: str, control: Connection, args: Sequence[Any]) -> None:
    threading.Thread(target=_end_with_the_benchmark, daemon=True).start()
    try:
        import_module(program).run(*args, control)
    except Exception as problem:
        first_line = (str(problem).strip().splitlines() or ["no message"])[0]
        with suppress(OSError):
            control.send(ProcessFailure(f"{type(problem).__name__}: {first_line}"))


def _end_with_the_benchmark() -> None:
    """Even a killed benchmark must leave no ranks behind, which may be waiting for each other."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _start_fork_server() -> None:
    """Starts the process that all others are forked from, unless it is there."""
    os.environ.update(PYTHONPATH=str(HERE), OMP_NUM_THREADS="1")
    # Inherited: Ctrl-C is for the benchmark alone, which ends its processes itself.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    forkserver.ensure_running()
    signal.signal(signal.SIGINT, before)


class Processes:
    """The processes of one run."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(_PRELOADED))
        _start_fork_server()
        self._started: dict[Connection, ForkServerProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        deadline = time.monotonic() + (_LEAVE_SECONDS if kind is None else 0.0)
        for process in self._started.values():
            process.join(max(deadline - time.monotonic(), 0.0))
            process.kill()
            process.join()
        for control in self._started:
            control.close()

    def shared_word(self, value: int) -> c_long:
        return self._context.RawValue(c_long, value)

    def start(self, program: str, *args: Any) -> Connection:
        """Runs `program.run` with these arguments and its end of the connection returned here.

        By name, because importing it here would cost seconds: it imports torch.
        """
        ours, its = self._context.Pipe()
        process = self._context.Process(target=_guarded, args=(program, its, args), daemon=True)
        process.start()
        its.close()
        self._started[ours] = process
        return ours

    def hear(self, controls: Sequence[Connection], seconds: float) -> list[Any]:
        """The next message of each; raises FleetError if one fails, has died or says nothing."""
        said: dict[Connection, Any] = {}
        deadline = time.monotonic() + seconds
        while silent := [control for control in controls if control not in said]:
            ready = wait(silent, max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise FleetError(f"{len(silent)} processes gave no answer for {seconds:.0f} s")
            for control in silent:
                if control in ready:
                    said[control] = self._said(control)
        return [said[control] for control in controls]

    def memory_bytes(self) -> int:
        """Of all processes together; pages that several have are counted once."""
        processes = (psutil.Process(process.pid) for process in self._started.values())
        return sum(process.memory_full_info().pss for process in processes)

    def cpu_seconds(self, control: Connection) -> float:
        return proc.cpu_seconds(self._started[control].pid or 0)

    def _said(self, control: Connection) -> Any:
        try:
            said = control.recv()
        except (EOFError, ConnectionResetError):
            process = self._started[control]
            process.join(_LEAVE_SECONDS)
            raise FleetError(f"a process ended with code {process.exitcode}") from None
        if isinstance(said, ProcessFailure):
            raise FleetError(said.problem)
        return said
