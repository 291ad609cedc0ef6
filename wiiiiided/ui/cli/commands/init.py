"""`wiiiiide init`: this machine becomes the first of a cluster, and its coordinator.

    Init ──► ClusterView ──► the daemon's new role ──► CreateToken ──► the line for the others

The line that lets other machines join is all there is on stdout, so that it can be piped to them.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.membership import become, connect_here, put_joining, role_sentence, whose
from wiiiiided.ui.cli.options import Port

TTL_S, USES = 3600.0, 10  # of the first token: an hour, enough for the machines of a small lab


def command(
    address: Annotated[
        str,
        typer.Option(metavar="IP", help="Where others reach this machine; else by its route."),
    ] = "",
    own_port: Port = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME", help="The cluster's name; else this node's.")
    ] = "",
) -> None:
    """Make this machine the first of a cluster: it keeps the queue for all that join.

    Prints the command that lets other machines join: good for an hour and ten machines. wiiiiide
    token create makes another. Jobs that run go on. For root, and the daemon's own user.
    """
    client = connect_here()
    view = client.init(cluster, address, own_port or 0)
    screen.say(role_sentence(view) + whose(client))
    become(client, "coordinator")
    put_joining(client.create_token(TTL_S, USES), time.time())
