"""Candidates for a word: jobs, sweeps and machines that the daemon knows, for typer's completion.

Tab was pressed in the middle of a line, which is no place for messages: without a daemon, or after
any other error, nothing is completed.

Names of jobs are written by other people, and a shell may evaluate what describes a candidate: zsh
does. So a description has letters, digits and harmless signs only, and a name with anything else in
it is no candidate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING

import typer

from wiiiiided.domain.states import ENDED, STATES
from wiiiiided.text import cut

if TYPE_CHECKING:
    from wiiiiided.cluster.client import Client

Candidates = list[tuple[str, str]]  # each with what it is

LIVE = frozenset(STATES) - ENDED
ABOUT_COLUMNS = 50
LATEST_ENDED = 20
HARMFUL = re.compile(r"[^\w .,=+/@-]")


def jobs(
    states: Container[str] = STATES, *, alone: bool = True, sweeps: bool = True
) -> Callable[[typer.Context], Candidates]:
    """Numbers of the jobs in these states, ids of the sweeps they are of, or both; without those
    that are in the line already."""

    def complete(ctx: typer.Context) -> Candidates:
        given = ctx.params.get("jobs") or ()
        return [one for one in _quietly(find) if one[0] not in given]

    def find() -> Iterable[tuple[str, str]]:
        from wiiiiided.ui.cli.job_lines import base_name

        ended = LATEST_ENDED if any(state in states for state in ENDED) else 0
        found = [job for job in _client().jobs(ended).jobs if job.state in states]
        if alone:
            yield from ((str(job.id), f"{job.name}, {job.state}") for job in found)
        if sweeps:
            first = {job.sweep: job for job in reversed(found) if job.sweep}
            yield from ((sweep, f"{base_name(job)}, a sweep") for sweep, job in first.items())

    return complete


def nodes() -> Candidates:
    """Names of the machines, and how they are."""
    return _quietly(
        lambda: ((one.node.name, one.why or one.state) for one in _client().nodes().nodes)
    )


def states() -> Candidates:
    return list(STATES.items())


def _client() -> Client:
    from wiiiiided.cluster.client import Client
    from wiiiiided.config import Paths

    return Client(Paths.for_client())


def _quietly(find: Callable[[], Iterable[tuple[str, str]]]) -> Candidates:
    try:
        return [
            (value, HARMFUL.sub("?", cut(about, ABOUT_COLUMNS)))
            for value, about in find()
            if not HARMFUL.search(value)
        ]
    except Exception:
        return []
