"""`wiiiiide nodes`: the machines of the cluster, and what only an operator can say about one.

nodes                the list
nodes remove NAME    its certificate is refused from then on
nodes lost NAME      nothing runs on it any more: its shares may be started elsewhere
"""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.cli import screen
from wiiiiided.cli.daemon import connect, fields
from wiiiiided.cli.group import Command, Group, plain_app
from wiiiiided.cli.jobs import put_table
from wiiiiided.cli.machines import said
from wiiiiided.cli.options import Json, NodeName
from wiiiiided.cli.table import Column
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


@app.command(cls=Command)
def remove(
    node: NodeName,
    force: Annotated[
        bool, typer.Option("--force", help="Also while jobs are on it: they count as ended.")
    ] = False,
) -> None:
    """Take a machine out of the cluster: every daemon refuses it from then on.

    It may be off, or gone for ever. Where it still runs, wiiiiide leave is the friendlier way.
    """
    connect().remove_node(node, force)
    screen.say(f"{node} is no longer of the cluster; every node refuses it from now on")


@app.command(cls=Command)
def lost(node: NodeName) -> None:
    """Vouch that nothing runs on a machine any more: it is off, or broken for good.

    Its share of a job counts as ended then, and the job may be started elsewhere. Said of a
    machine that only cannot be reached, the job would run twice.
    """
    screen.say(said(connect().declare_lost(node)))


def _row(one: NodeView) -> list[str]:
    node = one.node
    name = f"{node.name} *" if one.coordinator else node.name
    has = [str(node.cores), f"{node.memory / 2**30:.1f} GiB", str(node.gpus)]
    jobs = ",".join(map(str, one.jobs)) or "-"
    return [name, one.state, node.door or "-", *has, jobs, node.version or "-", one.why]
