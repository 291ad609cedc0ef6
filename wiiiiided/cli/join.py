"""`wiiiiide join`: this machine becomes a member of a cluster.

TOKEN ──► wiped from this process's arguments ──► Join ──► the daemon's new role, and heard
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from wiiiiided.cli import screen
from wiiiiided.cli.argv import wipe
from wiiiiided.cli.machines import TOKEN, become, connect_here, door_of, port, standing, whose
from wiiiiided.cli.progress import waiting
from wiiiiided.wire.messages import Join

MOST_CHARACTERS = 1024  # of what is read as a token


def command(
    host: Annotated[
        str, typer.Argument(metavar="HOST[:PORT]", help="The coordinator: a name or an address.")
    ],
    token: Annotated[
        str,
        typer.Argument(metavar="TOKEN", help='From init or token create; "-" reads it from stdin.'),
    ] = "-",
    name: Annotated[
        str, typer.Option(metavar="NODE", help="What this machine is called there; else its host.")
    ] = "",
    address: Annotated[
        str,
        typer.Option(metavar="IP", help="Where others reach this machine; else by its route."),
    ] = "",
    own_port: Annotated[
        str | None, typer.Option("--port", metavar="N", help="Its one TCP port; 9461 without it.")
    ] = None,
) -> None:
    """Make this machine a member of a cluster; it returns when the coordinator hears it.

    The coordinator is verified by what the token says of it before anything secret is sent. For
    root, and the daemon's own user, on a machine without jobs of its own under way.
    """
    if token != "-" and not wipe(token):
        screen.say('note: others on this machine can see the token while this runs; "-" hides it')
    at, its_port = door_of(host)
    own = 0 if own_port is None else port(own_port, "--port")
    secret = check(read_token() if token == "-" else token)
    client = connect_here()
    try:
        with waiting(f"joining the cluster at {host}"):
            view = client.join(Join(at, its_port, secret, name, address, own))
        become(client, "member")
    except KeyboardInterrupt:
        screen.say("wiiiiide: stopped waiting; the daemon may still join: wiiiiide nodes says so")
        raise
    screen.say(standing(view) + whose(client))


def read_token() -> str:
    """From a person without showing it, or the first line of a pipe."""
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass("token: ")
    return sys.stdin.readline(MOST_CHARACTERS)


def check(text: str) -> str:
    """What is no token at all is told here; it is not repeated, for it may be a secret."""
    words = text.split()
    if not words:
        raise typer.BadParameter("there is no token; wiiiiide token create makes one, on any node")
    if len(words) > 1 or not words[0].startswith(TOKEN) or len(words[0]) >= MOST_CHARACTERS:
        raise typer.BadParameter(f"that is no token: one begins with {TOKEN} and is one word")
    return words[0]
