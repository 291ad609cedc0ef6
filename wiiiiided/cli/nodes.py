"""`wiiiiide nodes`: the machines of the cluster, and what only an operator can say about one.

nodes                the list
nodes remove NAME    its certificate is refused from then on
nodes lost NAME      nothing runs on it any more: its shares may be started elsewhere
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from wiiiiided.cli import screen
from wiiiiided.cli.daemon import connect, fields
from wiiiiided.cli.group import Command, Group, plain_app
from wiiiiided.cli.jobs import put_table
from wiiiiided.cli.machines import said
from wiiiiided.cli.options import Json, NodeName
from wiiiiided.cli.table import Column
from wiiiiided.client import Client
from wiiiiided.domain.codes import FAILED
from wiiiiided.wire.messages import NodeView

COLUMNS = (
    Column("NAME", least=8, readable=16),
    Column("STATE", painted=True),
    Column("ADDRESS", leaves=3),
    Column("CORES", right=True, leaves=5),
    Column("MEMORY", right=True, leaves=6),
    Column("GPUS", right=True, leaves=7),
    Column("JOBS", leaves=2, least=4, readable=8),
    Column("VERSION", leaves=4),
    Column("WHY", leaves=1, least=20, readable=28),
)

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, on a terminal either.")]

app = plain_app(cls=Group, invoke_without_command=True)


@app.callback()
def list_nodes(context: typer.Context, as_json: Json = False) -> None:
    """List the machines of the cluster; "*" is the coordinator.

    A machine is ok (it runs jobs), idle, drained or lost (not heard of). A narrow screen shows
    fewer columns; --json has everything.
    """
    if context.invoked_subcommand is not None:
        return
    found = connect().nodes()
    if as_json:
        screen.put_json({"cluster": found.cluster, "nodes": [fields(one) for one in found.nodes]})
        return
    states = [one.state for one in found.nodes]
    put_table(COLUMNS, states, [_row(one) for one in found.nodes])
    if not found.cluster:
        screen.say("this machine is alone; wiiiiide init makes it the first of a cluster")


@app.command(cls=Command, short_help="Take a machine out; its certificate is refused then.")
def remove(
    node: NodeName,
    force: Annotated[
        bool, typer.Option("--force", help="Also while jobs are on it: their shares end.")
    ] = False,
    yes: Yes = False,
) -> int:
    """Take a machine out of the cluster: every daemon refuses it from then on.

    It may be off, or gone for ever. Where it still runs, wiiiiide leave is the friendlier way.
    With --force, while jobs are on it, it asks first on a terminal.
    """
    client = connect()
    if force and not yes and not _sure(client, node, "remove it?"):
        return FAILED
    client.remove_node(node, force)
    screen.say(f"{node} is no longer of the cluster; every node refuses it from now on")
    return 0


@app.command(cls=Command, short_help="Vouch that a machine is off: its jobs may start elsewhere.")
def lost(node: NodeName, yes: Yes = False) -> int:
    """Vouch that nothing runs on a machine any more: it is off, or broken for good.

    Its share of a job counts as ended then, and the job may be started elsewhere. Said of a
    machine that only cannot be reached, the job would run twice. On a terminal it says which jobs
    those are, and asks first.
    """
    client = connect()
    if not yes and not _sure(client, node, "is it off for good?"):
        return FAILED
    screen.say(said(client.declare_lost(node)))
    return 0


def _sure(client: Client, node: str, question: str) -> bool:
    """Whether a person who sees which jobs are at stake still wants it. Where there are none, or
    nobody to ask, it is what was said. What else is wrong, the daemon says better."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    found = next((one for one in client.nodes().nodes if one.node.name == node), None)
    if found is None or not found.jobs:
        return True
    jobs = f"job{'' if len(found.jobs) == 1 else 's'} {', '.join(map(str, found.jobs))}"
    if found.state == "lost":
        screen.say(f"{node} has a share of {jobs}: it counts as ended and may be started elsewhere")
        screen.say(f"if {node} still runs, the same runs twice then")
    else:
        screen.say(f"{node} has a share of {jobs}: it is ended there")
    print(f"{question} y/n ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() in ("y", "Y"):
        return True
    screen.say("nothing was changed")
    return False


def _row(one: NodeView) -> list[str]:
    node = one.node
    name = f"{node.name} *" if one.coordinator else node.name
    has = [str(node.cores), f"{node.memory / 2**30:.1f} GiB", str(node.gpus)]
    jobs = ",".join(map(str, one.jobs)) or "-"
    return [name, one.state, node.door or "-", *has, jobs, node.version or "-", one.why]
