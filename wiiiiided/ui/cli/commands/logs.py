"""`wiiiiide logs`: what the workers of a job wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.cluster.client import Client
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.completion_candidates import nodes
from wiiiiided.ui.cli.daemon import connect, fields
from wiiiiided.ui.cli.follow import follow
from wiiiiided.ui.cli.job_lines import line
from wiiiiided.ui.cli.log_lines import Lines, Wanted, check_attempt, check_node, check_ranks
from wiiiiided.ui.cli.option_values import job_id, moment_of, number, pattern
from wiiiiided.ui.cli.options import Id, Json


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
        str | None,
        typer.Option(
            "--node", metavar="NAME", help="Only ranks on this machine.", autocompletion=nodes
        ),
    ] = None,
    all_ranks: Annotated[bool, typer.Option("--all", help="All ranks, as without it.")] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "-n", "--tail", metavar="N", min=0, help="Only the last N lines of each rank."
        ),
    ] = None,
    grep: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only lines that match this regular expression."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only lines from then on: 10m, 12:30, 2026-11-18T12:00."),
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Of this attempt; the latest without it."),
    ] = None,
    times: Annotated[
        bool, typer.Option("-t", "--time", help="Each line with when it was written.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Print what the workers of a job wrote, each line with its rank; "b:4" is rank 4, on node b.

    "0 │" is rank 0's stdout. "0 !" is its stderr, or a traceback. "0 ·" is a note about its log.
    Colours pass on a terminal, other control characters are shown as \\x1b and the like.
    """
    chosen = [number(text, "--rank") for texts in rank or () for text in texts.split(",")]
    if chosen and all_ranks:
        raise typer.BadParameter("--rank and --all exclude each other")
    if following and attempt is not None:
        raise typer.BadParameter("--follow shows the latest attempt; leave --attempt out")
    wanted = Wanted(
        node,
        None if grep is None else pattern(grep, "--grep"),
        None if since is None else moment_of(since, "--since"),
    )
    client, of = connect(), job_id(job)
    if following:
        try:
            return follow(
                client, of, ranks=chosen, tail=tail, wanted=wanted, times=times, as_json=as_json
            )
        except KeyboardInterrupt:
            screen.say(f"wiiiiide: detached; job {of} goes on")
            raise
    _print(client, of, chosen, tail, attempt, wanted, times, as_json)
    return 0


def _print(
    client: Client,
    job: int,
    ranks: list[int],
    tail: int | None,
    attempt: int | None,
    wanted: Wanted,
    times: bool,
    as_json: bool,
) -> None:
    view = client.show(job).job
    check_ranks(view, ranks)
    check_attempt(view, attempt)
    if attempt in (None, view.attempt):  # of an earlier one, where it ran is not told
        check_node(view, wanted.node)
    if tail == 0:
        return
    lines = Lines(view, times)
    nothing = True
    for item in client.logs(job, ranks, tail, attempt, wanted.nodes):
        if not wanted.takes(item, view):
            continue
        nothing = False
        if as_json:
            screen.put_json(fields(item))
        else:
            lines.put(item)
    if nothing and not as_json:
        said = "no line is as asked for" if wanted.chooses else "nothing was written"
        screen.say(f"{said}; {line(view)}")
