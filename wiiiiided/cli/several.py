"""The same for several jobs: what fails for one does not keep it from the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wiiiiided.cli.jobs import line
from wiiiiided.cli.screen import say
from wiiiiided.cli.words import job_id
from wiiiiided.client import ClientError, DaemonRefused
from wiiiiided.wire.messages import JobView


def ids_of(texts: Sequence[str]) -> list[int]:
    """The numbers, each once, in the order given. All are checked before anything is done."""
    return list(dict.fromkeys(job_id(text) for text in texts))


def refused(problem: ClientError) -> int:
    """Say why not; the code to end with."""
    say(f"wiiiiide: {problem}")
    if problem.hint:
        say(problem.hint)
    return problem.code


def each(texts: Sequence[str], change: Callable[[int], JobView]) -> int:
    """Change each job and say what it is now; the first code that is not 0."""
    codes = []
    for number in ids_of(texts):
        try:
            say(line(change(number)))
        except DaemonRefused as problem:  # anything else will not be better for the next
            codes.append(refused(problem))
    return codes[0] if codes else 0
