"""`wiiiiide nodes`: the machines of the cluster, and what only an operator can say about one.

nodes                the list
nodes remove NAME    its certificate is refused from then on
nodes lost NAME      nothing runs on it any more: its allocations may be started elsewhere
"""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.cluster.client import Client
from wiiiiided.cluster.rpc.messages import NodeView
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.text import format_size
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.command_table import QuickCommand, QuickGroup, plain_app
from wiiiiided.ui.cli.daemon import connect, fields
from wiiiiided.ui.cli.job_lines import put_table
from wiiiiided.ui.cli.membership import said
from wiiiiided.ui.cli.options import Json, NodeName
from wiiiiided.ui.cli.progress import waiting
from wiiiiided.ui.cli.table import TableColumn

COLUMNS = (
    TableColumn("NAME", least=8, readable=16, style="bold"),
    TableColumn("STATE", painted=True),
    TableColumn("ADDRESS", leaves=3),
    TableColumn("CORES", right=True, leaves=5),
    TableColumn("MEMORY", right=True, leaves=6),
    TableColumn("GPUS", right=True, leaves=7),
    TableColumn("JOBS", leaves=2, least=4, readable=8),
    TableColumn("VERSION", leaves=4),
    TableColumn("WHY", leaves=1, least=20, readable=28),
)

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, on a terminal either.")]

app = plain_app(cls=QuickGroup, invoke_without_command=True)


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
    put_table(COLUMNS, [_row(one) for one in found.nodes])
    if not found.cluster:
        screen.say("this machine is alone; wiiiiide init makes it the first of a cluster")


@app.command(
    cls=QuickCommand,
    short_help="Take a machine out; its certificate is refused then.",
    epilog="Example: sudo wiiiiide nodes remove b",
)
def remove(
    node: NodeName,
    force: Annotated[
        bool, typer.Option("--force", help="Also while jobs are on it: they end there.")
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
    with waiting(f"taking {node} out of the cluster"):
        client.remove_node(node, force)
    screen.say(f"{node} is no longer of the cluster; every node refuses it from now on")
    return 0


@app.command(
    cls=QuickCommand,
    short_help="Vouch that a machine is off: its jobs may start elsewhere.",
    epilog="Example: sudo wiiiiide nodes lost b",
)
def lost(node: NodeName, yes: Yes = False) -> int:
    """Vouch that nothing runs on a machine any more: it is off, or broken for good.

    Its allocation of a job counts as ended then, and the job may be started elsewhere. Said of
    a machine that only cannot be reached, the job would run twice. On a terminal it says which jobs
    those are, and asks first.
    """
    client = connect()
    if not yes and not _sure(client, node, "is it off for good?"):
        return FAILED
    with waiting(f"declaring {node} lost"):
        view = client.declare_lost(node)
    screen.say(said(view))
    return 0


def _sure(client: Client, node: str, question: str) -> bool:
    """Whether a person who sees which jobs are at stake still wants it. Without such jobs, or
    without a terminal to ask on, nothing is asked: the daemon refuses what is impossible."""
    if not screen.can_ask():
        return True
    found = next((one for one in client.nodes().nodes if one.node.name == node), None)
    if found is None or not found.jobs:
        return True
    jobs = f"job{'' if len(found.jobs) == 1 else 's'} {', '.join(map(str, found.jobs))}"
    if found.state == "lost":
        screen.say(f"{node} runs a part of {jobs}: it counts as ended and may start elsewhere")
        screen.say(f"if {node} still runs, the same runs twice then")
    else:
        screen.say(f"{node} runs a part of {jobs}: it is ended there")
    return screen.agreed(f"{question} y/n")


def _row(one: NodeView) -> list[str]:
    node = one.node
    name = f"{node.name} *" if one.coordinator else node.name
    has = [str(node.cores), format_size(node.memory), str(node.gpus)]
    jobs = ",".join(map(str, one.jobs)) or "-"
    return [name, one.state, node.endpoint or "-", *has, jobs, node.version or "-", one.why]
