"""`wiiiiide join`: this machine becomes a member of a cluster.

    join HOST TOKEN ──exec──► join HOST - ──► Join ──► the daemon's new role, and heard
                TOKEN ──pipe──┘

Every user of a machine can see the arguments of its processes. So with a token among them, the
program begins again without it, and reads it from a pipe. Until then, some tenths of a second, the
token can be seen; and the shell may keep it in its history. "-" from the start avoids both.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from wiiiiided.cluster.rpc.messages import Join
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.membership import (
    TOKEN,
    become,
    connect_here,
    endpoint_of,
    role_sentence,
    whose,
)
from wiiiiided.ui.cli.options import Port
from wiiiiided.ui.cli.progress import waiting

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
        str, typer.Option(metavar="NODE", help="This machine's name there; else its host's.")
    ] = "",
    address: Annotated[
        str,
        typer.Option(metavar="IP", help="Where others reach this machine; else by its route."),
    ] = "",
    own_port: Port = None,
) -> None:
    """Make this machine a member of a cluster; it returns when the coordinator hears it.

    The coordinator is verified by what the token says of it before anything secret is sent. For
    root, and the daemon's own user, on a machine without jobs of its own under way.
    """
    if token in sys.orig_argv and token != "-":
        begin_again(token)
    at, its_port = endpoint_of(host)
    secret = check(read_token() if token == "-" else token)
    client = connect_here()
    try:
        with waiting(f"joining the cluster at {host}"):
            view = client.join(Join(at, its_port, secret, name, address, own_port or 0))
        become(client, "member")
    except KeyboardInterrupt:
        screen.say("wiiiiide: stopped waiting; the daemon may still join: wiiiiide nodes says so")
        raise
    screen.say(role_sentence(view) + whose(client))


def begin_again(token: str) -> None:
    """Begin this command again in this process, with the token on stdin instead."""
    reader, writer = os.pipe()
    os.write(writer, os.fsencode(token)[:MOST_CHARACTERS] + b"\n")
    os.close(writer)
    os.dup2(reader, 0)
    os.close(reader)
    os.execv(sys.executable, ["-" if word == token else word for word in sys.orig_argv])


def read_token() -> str:
    """The token: typed without being shown, or the first line of a pipe."""
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass("token: ")
    return sys.stdin.readline(MOST_CHARACTERS)


def check(text: str) -> str:
    """The token in the text. Another text is refused, and not repeated: it may be a secret."""
    words = text.split()
    if not words:
        raise typer.BadParameter("there is no token; wiiiiide token create makes one, on any node")
    if len(words) > 1 or not words[0].startswith(TOKEN) or len(words[0]) >= MOST_CHARACTERS:
        raise typer.BadParameter(f"that is no token: one begins with {TOKEN} and is one word")
    return words[0]
