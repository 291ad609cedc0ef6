"""How long a person waits for the daemon: from a command to its effect.

Contenders take turns, so that both see the same machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lib.fleet import FleetError
from lib.measure import RATIO, SECONDS, Chapter, Measure
from lib.measured_daemon import WITHIN_S, MeasuredDaemon, console_script, timed, until

FIRST_LINE_S, PS_MORE_S, SUBMIT_S, RESTART_S = 0.5, 0.3, 0.05, 1.0
PLAIN_RATIO, DRAWN_RATIO = 1.0, 1.3  # without Rich; with it
# Each command as the table has it, its words, and whether it is drawn on a terminal.
COMMANDS = (
    ("`wiiiiide --version`", ("--version",), False),
    ("`wiiiiide why 1`", ("why", "1"), False),
    ("`wiiiiide history -n 5`", ("history", "-n", "5"), False),
    ("`wiiiiide ps -a` on a terminal", ("ps", "-a"), True),
    ("`wiiiiide --help` on a terminal", ("--help",), True),
    ("`wiiiiide submit --help` on a terminal", ("submit", "--help"), True),
)
KNOWN_S = 0.2
PRINTS = ("python", "-c", "print(1)")
JOB_FILE = 'name = "bench"\n[run]\ncommand = ["python", "-c", "print(1)"]\n'
# The least a typer program can be: what any command line made with it costs.
EMPTY_TYPER = """\
import typer

app = typer.Typer()


@app.command()
def main() -> None:
    pass


if __name__ == "__main__":
    app()
"""


def _job_folder(daemon: MeasuredDaemon) -> Path:
    folder = daemon.home / "job"
    folder.mkdir()
    (folder / "job.toml").write_text(JOB_FILE)
    return folder


# ---- from submit to the first line


def first_line(rounds: int) -> Chapter:
    """Until the line is in the rank's log, by the command and by the client's call."""
    with MeasuredDaemon() as daemon:
        folder = _job_folder(daemon)
        by_command, by_call, alone = [], [], []
        _line_after(daemon, lambda: _submit_command(daemon, folder))  # once to warm the page cache
        for _ in range(rounds):
            by_command.append(_line_after(daemon, lambda: _submit_command(daemon, folder)))
            by_call.append(_line_after(daemon, lambda: _submit_call(daemon)))
            alone.append(timed([sys.executable, *PRINTS[1:]], daemon.env))
    return Chapter(
        "From submit to the first line of `python -c print(1)` in its log",
        [
            Measure("from the start of `wiiiiide submit`", SECONDS, by_command, FIRST_LINE_S),
            Measure("from the client's call", SECONDS, by_call, FIRST_LINE_S),
            Measure("`python -c print(1)` alone", SECONDS, alone),
        ],
    )


def _line_after(
    daemon: MeasuredDaemon, submit: Callable[[], subprocess.Popen[bytes] | None]
) -> float:
    """Seconds from the submitting to the line; `submit` returns the process that does it."""
    job = daemon.last_id + 1
    log = daemon.attempt(job) / "rank-0.log"

    def written() -> bool:
        try:
            return b" out 1\n" in log.read_bytes()
        except FileNotFoundError:
            return False

    begin = time.perf_counter()
    process = submit()
    try:
        until(written, "the first line is in the log")
        seconds = time.perf_counter() - begin
    finally:
        if process is not None and process.wait(WITHIN_S):
            raise FleetError(f"wiiiiide submit ended with code {process.returncode}")
    daemon.last_id = job
    if daemon.end_of(job).state != "done":
        raise FleetError("a job that only prints was not done")
    return seconds


def _submit_command(daemon: MeasuredDaemon, folder: Path) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    argv = [sys.executable, console_script("wiiiiide"), "submit", str(folder / "job.toml")]
    return subprocess.Popen(argv, env=daemon.env, stdin=nothing, stdout=nothing, stderr=nothing)


def _submit_call(daemon: MeasuredDaemon) -> None:
    daemon.queue(PRINTS)


# ---- a long queue


def fill(daemon: MeasuredDaemon, jobs: int) -> Chapter:
    """Queue jobs behind one that runs."""
    daemon.sleeping(1)
    seconds = []
    for _ in range(jobs):
        begin = time.perf_counter()
        daemon.queue(PRINTS)
        seconds.append(time.perf_counter() - begin)
    last = seconds[-max(1, jobs // 10) :]
    return Chapter(
        f"Queueing {jobs:,} jobs, the client's call",
        [
            Measure("each submit", SECONDS, seconds, SUBMIT_S),
            Measure("the last tenth of them", SECONDS, last, SUBMIT_S),
        ],
    )


def long_queue(daemon: MeasuredDaemon, jobs: int, rounds: int) -> Chapter:
    """`ps` next to that of an empty daemon, and restarts."""
    full, more, submits = [], [], []
    folder = _job_folder(daemon)
    with MeasuredDaemon() as empty:
        for _ in range(rounds):
            nothing = empty.command("ps")
            full.append(daemon.command("ps"))
            more.append(full[-1] - nothing)
            submits.append(daemon.command("submit", str(folder / "job.toml")))
    restarts, starts = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        daemon.stop()
        starts.append(daemon.start_timed())
        restarts.append(time.perf_counter() - begin)
    return Chapter(
        f"With {jobs:,} jobs queued",
        [
            Measure("`wiiiiide ps`, more than with none", SECONDS, more, PS_MORE_S),
            Measure("`wiiiiide ps`", SECONDS, full),
            Measure("`wiiiiide submit`, the whole process", SECONDS, submits),
            Measure("restart of the daemon, until it answers", SECONDS, restarts, RESTART_S),
            Measure("of that, from its start", SECONDS, starts),
        ],
    )


# ---- the command line


def command_line(rounds: int) -> Chapter:
    """Commands next to a typer program that does nothing."""
    with MeasuredDaemon() as daemon:
        daemon.end_of(daemon.queue(PRINTS))
        empty = daemon.home / "empty_typer.py"
        empty.write_text(EMPTY_TYPER)
        ratios: dict[str, list[float]] = {what: [] for what, *_ in COMMANDS}
        times: list[float] = []
        for turn in range(rounds + 1):
            base = timed([sys.executable, str(empty)], daemon.env)
            found = {
                what: daemon.command(*words, terminal=drawn) / base
                for what, words, drawn in COMMANDS
            }
            if turn:  # the first fills the page cache
                times.append(base)
                for what, ratio in found.items():
                    ratios[what].append(ratio)
    measures = [
        Measure(what, RATIO, ratios[what], DRAWN_RATIO if drawn else PLAIN_RATIO)
        for what, _, drawn in COMMANDS
    ]
    measures += [Measure("an empty typer program", SECONDS, times)]
    return Chapter("Commands against an empty typer program, in turns", measures)


# ---- a killed rank


def killed_rank(rounds: int) -> Chapter:
    """From the SIGKILL of one of two ranks."""
    known, over = [], []
    with MeasuredDaemon() as daemon:
        for _ in range(rounds):
            job = daemon.sleeping(2)
            victim = daemon.pids(job)[1]
            begin = time.perf_counter()
            os.kill(victim, signal.SIGKILL)
            until(lambda job=job: _ended_rank(daemon, job), "the daemon knows")  # type: ignore[misc]
            known.append(time.perf_counter() - begin)
            view = daemon.end_of(job)
            over.append(time.perf_counter() - begin)
            if view.state != "failed":
                raise FleetError(f"a rank was killed, and its job is {view.state}")
    return Chapter(
        "A rank is killed",
        [
            Measure("until the daemon shows that it ended", SECONDS, known, KNOWN_S),
            Measure("until its job is over: the other rank had 2 s", SECONDS, over),
        ],
    )


def _ended_rank(daemon: MeasuredDaemon, job: int) -> bool:
    return any(rank.code is not None for rank in daemon.client.show(job).ranks)
