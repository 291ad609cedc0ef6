"""`wiiiiide __complete WORD...`: what could stand in place of the last word, for the shells.

One candidate a line, a tab, and what it is. Nothing is printed where files are wanted: the shells
complete those by themselves. Whatever goes wrong, nothing is printed either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from wiiiiided.cli import screen
from wiiiiided.cli.group import COMMANDS, load
from wiiiiided.cli.jobs import base_name
from wiiiiided.cli.text import cell, cut
from wiiiiided.client import Client
from wiiiiided.config import Paths
from wiiiiided.domain.states import ENDED, STATES, State

# Which jobs a command is about, by their states.
ANY = frozenset(STATES)
LIVE = ANY - ENDED
JOBS: dict[str, frozenset[State]] = {
    "show": ANY,
    "why": ANY,
    "logs": ANY,
    "pull": ANY,
    "report": ANY,
    "stacks": ANY,
    "requeue": ANY,
    "cancel": LIVE,
    "wait": LIVE,
    "hold": frozenset({"queued", "backoff"}),
    "release": frozenset({"held"}),
}
SWEEPS = ("wait", "cancel", "report", "hold", "release", "requeue")  # these take s12 too
ONE = ("show", "why", "logs", "pull", "report", "stacks")  # these take one job only
NODES = ("drain", "resume", "nodes")  # these take the name of one machine
ABOUT_COLUMNS = 50
LATEST_ENDED = 20


def command(words: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Print what could stand in place of the last word."""
    try:
        for value, about in candidates(words or [""]):
            screen.put(f"{value}\t{cut(cell(about), ABOUT_COLUMNS)}")
    except Exception:
        return  # a person pressed Tab in the middle of a line: no place for words


def candidates(words: list[str]) -> Iterator[tuple[str, str]]:
    *before, last = words
    if not before:
        found: Any = ((name, about) for name, (_, about) in COMMANDS.items())
        if last.startswith("-"):
            found = (("--help", ""), ("--version", ""))
    elif before[0] not in COMMANDS:
        return
    else:
        found = _of_command(before[0], before[1:], last)
    yield from ((value, about) for value, about in found if value.startswith(last))


def _of_command(name: str, before: list[str], last: str) -> Iterator[tuple[str, str]]:
    made = load(name, COMMANDS[name][0])
    commands = getattr(made, "commands", None)
    if commands is not None and not before and not last.startswith("-"):
        yield from ((inner, each.get_short_help_str()) for inner, each in commands.items())
        return
    if commands is not None and before and before[0] in commands:
        made, before = commands[before[0]], before[1:]
    if name == "run" and _begun(made, before):
        return  # words of another program, or files: the shell's affair
    if before and before[-1] == "--after":
        yield from _jobs(LIVE, sweeps=True)
    elif before and before[-1] == "--node":
        yield from _nodes()
    elif before and before[-1] == "--state":
        yield from STATES.items()
    elif before and _takes_value(made, before[-1]):
        return
    elif last.startswith("-"):
        yield from _options(made)
    elif name == "completion":
        yield from ((shell, "") for shell in ("bash", "zsh", "fish"))
    elif name in NODES:
        if all(word.startswith("-") for word in before):
            yield from _nodes()
    elif name == "ps":
        yield from _jobs(ANY, sweeps=True, jobs=False)
    elif name in JOBS:
        given = [word for word in before if not word.startswith("-")]
        if not (name in ONE and given):
            found = _jobs(JOBS[name], sweeps=name in SWEEPS)
            yield from ((number, about) for number, about in found if number not in given)


def _nodes() -> Iterator[tuple[str, str]]:
    """Names of the machines, and how they are; none without a daemon."""
    for one in Client(Paths.for_client()).nodes().nodes:
        yield one.node.name, one.why or one.state


def _options(made: Any) -> Iterator[tuple[str, str]]:
    for param in made.params:
        if param.param_type_name == "option":
            yield from ((name, param.help or "") for name in param.opts if name.startswith("--"))
    yield "--help", ""


def _takes_value(made: Any, word: str) -> bool:
    return any(
        word in param.opts and not param.is_flag
        for param in made.params
        if param.param_type_name == "option"
    )


def _begun(made: Any, before: list[str]) -> bool:
    """Whether the command that is to be run has begun: a word that is no option, nor its value."""
    pairs = zip(["", *before], before, strict=False)
    words = (word for last, word in pairs if not _takes_value(made, last))
    return any(word == "--" or not word.startswith("-") for word in words)


def _jobs(
    states: frozenset[State], sweeps: bool = False, jobs: bool = True
) -> Iterator[tuple[str, str]]:
    """Numbers and names of the jobs in these states, and ids of the sweeps they are of; none
    without a daemon."""
    ended = 0 if states.isdisjoint(ENDED) else LATEST_ENDED
    found = [job for job in Client(Paths.for_client()).list(ended) if job.state in states]
    if jobs:
        yield from ((str(job.id), f"{job.name}, {job.state}") for job in found)
    if sweeps:
        first = {job.sweep: job for job in reversed(found) if job.sweep}
        yield from ((sweep, f"{base_name(job)}, a sweep") for sweep, job in first.items())
