"""The same change to several jobs: a job that refuses it does not keep the others from it."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from wiiiiided.cluster.client import Client, ClientError, DaemonRefused
from wiiiiided.cluster.rpc.messages import JobView
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.domain.states import tally
from wiiiiided.domain.sweep import sweep_number
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.job_lines import line
from wiiiiided.ui.cli.option_values import job_id
from wiiiiided.ui.cli.screen import say


def ids_of(texts: Sequence[str], client: Client, states: Container[str]) -> list[int]:
    """The jobs' numbers, each once, in the order given; a sweep stands for its jobs in these
    states. All are checked before anything is done."""
    found: list[int] = []
    for text, number, sweep in [split(text) for text in texts]:
        if not sweep:
            found.append(number)
            continue
        jobs = client.sweep(sweep)
        found += (chosen := [job.id for job in jobs if job.state in states])
        if not chosen:
            raise CommandFailed(
                FAILED,
                f"{text} has no job that this would change: {tally(job.state for job in jobs)}",
            )
    return list(dict.fromkeys(found))


def split(text: str) -> tuple[str, int, int]:
    """A word, and the number of the job or of the sweep that it is."""
    sweep = sweep_number(text)
    return (text, job_id(text), 0) if sweep is None else (text, 0, sweep)


def refused(problem: ClientError) -> int:
    """Say why the daemon refused; the code to end with."""
    say(f"wiiiiide: {problem}")
    if problem.hint:
        say(problem.hint)
    return problem.code


def each(
    texts: Sequence[str], client: Client, change: Callable[[int], JobView], states: Container[str]
) -> int:
    """Change each job and say what it is now; the first code that is not 0. A sweep stands for its
    jobs in these states."""
    codes = []
    for number in ids_of(texts, client, states):
        try:
            say(line(change(number)))
        except DaemonRefused as problem:  # any other error would be the same for the next job
            codes.append(refused(problem))
    return codes[0] if codes else 0
