"""`wiiiiide logs`: what the workers of a job wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.cli import screen
from wiiiiided.cli.daemon import connect, fields
from wiiiiided.cli.follow import follow
from wiiiiided.cli.jobs import line
from wiiiiided.cli.lines import Lines, check_attempt, check_node, check_ranks, is_of
from wiiiiided.cli.options import Id, Json
from wiiiiided.cli.words import job_id, number
from wiiiiided.client import Client


def command(
    job: Id,
    following: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on showing it until the job is over.")
    ] = False,
    rank: Annotated[
        list[str] | None,
        typer.Option("--rank", metavar="N", help="Only this rank; may be given several times."),
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NAME", help="Only ranks on this machine.")
    ] = None,
    all_ranks: Annotated[
        bool, typer.Option("--all", help="All ranks: what it does anyway.")
    ] = False,
    tail: Annotated[
        str | None,
        typer.Option("-n", "--tail", metavar="N", help="Only the last N lines of each rank."),
    ] = None,
    attempt: Annotated[
        str | None,
        typer.Option(metavar="N", help="Of this attempt; the latest without it."),
    ] = None,
    times: Annotated[
        bool, typer.Option("-t", "--time", help="Each line with when it was written.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Print what the workers of a job wrote, each line with its rank; "b:4" is rank 4, on node b.

    "0 │" is rank 0's stdout. "0 !" is its stderr, or a traceback. "0 ·" is a note about its log.
    Control characters are shown as \\x1b and the like.
    """
    chosen = [number(text, "--rank") for texts in rank or () for text in texts.split(",")]
    if chosen and all_ranks:
        raise typer.BadParameter("--rank and --all exclude each other")
    if following and attempt is not None:
        raise typer.BadParameter("--follow shows the latest attempt; leave --attempt out")
    last = None if tail is None else number(tail, "--tail")
    client, of = connect(), job_id(job)
    if following:
        return _follow(client, of, chosen, last, node, times, as_json)
    one = None if attempt is None else number(attempt, "--attempt")
    _print(client, of, chosen, last, one, node, times, as_json)
    return 0


def _follow(
    client: Client,
    job: int,
    ranks: list[int],
    tail: int | None,
    node: str | None,
    times: bool,
    as_json: bool,
) -> int:
    try:
        return follow(client, job, ranks=ranks, tail=tail, node=node, times=times, as_json=as_json)
    except KeyboardInterrupt:
        screen.say(f"wiiiiide: detached; job {job} goes on")
        raise


def _print(
    client: Client,
    job: int,
    ranks: list[int],
    tail: int | None,
    attempt: int | None,
    node: str | None,
    times: bool,
    as_json: bool,
) -> None:
    view = client.show(job).job
    check_ranks(view, ranks)
    check_attempt(view, attempt)
    if attempt in (None, view.attempt):  # of an earlier one, where it ran is not told
        check_node(view, node)
    if tail == 0:
        return
    lines = Lines(view, times)
    nothing = True
    for item in client.logs(job, ranks, tail, attempt, () if node is None else (node,)):
        if not is_of(item, view, node):
            continue
        nothing = False
        if as_json:
            screen.put_json(fields(item))
        else:
            lines.put(item)
    if nothing and not as_json:
        screen.say(f"nothing was written; {line(view)}")
