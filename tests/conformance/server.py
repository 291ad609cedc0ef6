"""The process that starts the ranks: it keeps a fork server in which the suite is loaded.

It is a process of its own, so that the suite's environment and the fork server (Python allows
one per process) are not those of the other tests. It imports no torch itself. It serves one
client over the pipe it is given: first the census, then an outcome for every name of a test; it
ends when the client does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.conformance import rank, settings, verdicts
from tests.conformance.outcome import Outcome
from tests.conformance.verdicts import Verdict

# What a rank that outlives a failed one is given to find out by itself, and to say how.
_GRACE_SECONDS = 3.0
# What it takes to write stacks to a file.
_STACK_SECONDS = 1.0

_context = multiprocessing.get_context("forkserver")


def main(client: Connection, folder: Path) -> None:
    """Serve until the client hangs up."""
    _context.set_forkserver_preload(["tests.conformance.suite"])
    census = _take_census()
    client.send(census)
    while True:
        try:
            test, hosts = client.recv()
        except EOFError:
            break
        outcome = _run(test, census[test].ranks, hosts, folder / test, client)
        with contextlib.suppress(BrokenPipeError):
            client.send(outcome)
    # The client does this too, unless it was killed.
    shutil.rmtree(folder, ignore_errors=True)


def _take_census() -> dict[str, Verdict]:
    ours, theirs = _context.Pipe(duplex=False)
    process = _context.Process(target=_send_census, args=(theirs,))
    process.start()
    theirs.close()
    census: dict[str, Verdict] = ours.recv()
    process.join()
    return census


def _send_census(to: Connection) -> None:
    to.send(verdicts.take())


def _run(test: str, ranks: int, hosts: int, folder: Path, client: Connection) -> Outcome:
    rank.prepare(folder)
    began = time.monotonic()
    processes = [
        _context.Process(target=rank.main, args=(number, ranks, hosts, test, folder))
        for number in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        problem = _join(processes, client)
        seconds = time.monotonic() - began
        if problem is None:
            return Outcome(test, seconds)
        return Outcome(test, seconds, f"{problem}\n\n{_report(processes, folder)}")
    finally:
        for process in processes:
            process.close()
        shutil.rmtree(folder, ignore_errors=True)


def _join(processes: Sequence[ForkServerProcess], client: Connection) -> str | None:
    """Wait for the ranks, end those that hang; say what went wrong, if anything did."""
    deadline = time.monotonic() + settings.TEST_SECONDS
    failed_first: str | None = None
    while alive := [process for process in processes if process.exitcode is None]:
        left = deadline - time.monotonic()
        if left <= 0:
            _end(alive)
            return failed_first or f"still running after {settings.TEST_SECONDS:.0f} s"
        ready = wait([client, *(process.sentinel for process in alive)], timeout=left)
        if client in ready:
            # Nothing is asked while a test runs: the client is gone.
            _end(alive)
            return "the client is gone"
        if failed_first is None and (failed := _failures(processes)):
            failed_first = failed
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
    return failed_first or _failures(processes)


def _failures(processes: Sequence[ForkServerProcess]) -> str | None:
    # A skip in a rank is an exit code too, and a failure: the census ought to have known.
    failed = [
        f"rank {number} exited with {process.exitcode}"
        for number, process in enumerate(processes)
        if process.exitcode
    ]
    return ", ".join(failed) or None


def _end(processes: Sequence[ForkServerProcess]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid or 0, rank.SHOW_STACKS)
    wait([process.sentinel for process in processes], timeout=_STACK_SECONDS)
    for process in processes:
        process.kill()
        process.join()


def _report(processes: Sequence[ForkServerProcess], folder: Path) -> str:
    parts = []
    for number, process in enumerate(processes):
        path = rank.output(folder, number)
        said = path.read_text(errors="replace").strip() if path.exists() else ""
        parts.append(f"--- rank {number}, exit code {process.exitcode} ---\n{said or '(silent)'}")
    return "\n\n".join(parts)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), Path(sys.argv[2]))
