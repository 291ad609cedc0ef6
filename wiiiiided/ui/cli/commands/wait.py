"""`wiiiiide wait`: returns when jobs are over, with the code they ended with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from wiiiiided.cluster.client import Client, TimedOut
from wiiiiided.cluster.rpc.messages import JobView
from wiiiiided.domain.exit_codes import TIMED_OUT
from wiiiiided.domain.states import STATES, tally
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.bulk import ids_of, split
from wiiiiided.ui.cli.daemon import connect, fields
from wiiiiided.ui.cli.job_lines import ending, exit_code
from wiiiiided.ui.cli.option_values import seconds
from wiiiiided.ui.cli.options import Json, LiveIds
from wiiiiided.ui.cli.progress import waiting

NAMED = 20  # jobs that are not over when the time is up; more are counted


def command(
    jobs: LiveIds,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Give up after this long (90s, 10m, 1h30m): code 124."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Wait until jobs are over, and end with their exit code.

    With several jobs, the code is the first one that is not 0, in the order of their numbers; with
    a sweep, the worst: the largest of all.
    """
    client = connect()
    given = [split(text) for text in jobs]
    sweeps = any(sweep for _, _, sweep in given)
    ids = sorted(ids_of(jobs, client, STATES))
    deadline = None if timeout is None else time.monotonic() + seconds(timeout, "--timeout")
    over: list[JobView] = []
    try:
        if len(ids) > 1:  # one that does not exist is told now, not after hours of waiting
            for _, number, _ in given:
                if number:
                    client.why(number)
        jobs_text = f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs"
        with waiting(f"waiting for {jobs_text}"):
            for number in ids:
                over.append(_until_over(client, number, deadline))
                if not as_json:
                    screen.say(ending(over[-1]))
    except TimedOut:
        left = ids[len(over) :]
        more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
        named = ", ".join(map(str, left[:NAMED]))
        screen.say(f"wiiiiide: the time is up; not over: {named}{more}")
        return _end(over, TIMED_OUT, as_json)
    except KeyboardInterrupt:
        screen.say("wiiiiide: stopped waiting; the jobs go on")
        raise
    codes = [code for code in map(exit_code, over) if code]
    if not sweeps:
        return _end(over, codes[0] if codes else 0, as_json)
    if not as_json:
        screen.say(tally(job.state for job in over))
    return _end(over, max(codes, default=0), as_json)


def _until_over(client: Client, number: int, deadline: float | None) -> JobView:
    left = None if deadline is None else deadline - time.monotonic()
    *_, last = client.wait(number, left)
    return last


def _end(over: Sequence[JobView], code: int, as_json: bool) -> int:
    if as_json:
        screen.put_json({"code": code, "jobs": [fields(job) for job in over]})
    return code
