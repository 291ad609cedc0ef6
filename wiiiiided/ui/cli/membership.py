"""Joining and leaving a cluster: endpoint, role, the command with which another machine joins."""

from __future__ import annotations

import os
import shlex

import typer

from wiiiiided.cluster.client import Client
from wiiiiided.cluster.client.machines import Role, settle
from wiiiiided.cluster.rpc.messages import ClusterView, NodeView, TokenCreated
from wiiiiided.config import Paths
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.domain.node import PORT
from wiiiiided.text import cell, format_duration, format_moment
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.progress import waiting

MOST_PORT = 65535
TOKEN = "wiiiiide1."  # how the text of every token begins


def endpoint_of(text: str) -> tuple[str, int]:
    """Host and port of HOST[:PORT]: a name, an IPv4 or an IPv6 address, the latter in brackets
    when a port follows."""
    if text.startswith(TOKEN):
        raise typer.BadParameter("that is the token; the coordinator's HOST[:PORT] comes first")
    host, colon, rest = text.partition(":")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        colon, rest = rest[:1], rest[1:]
        if not bracket or colon not in ("", ":"):
            raise typer.BadParameter(f"{text!r} is not [ADDRESS] or [ADDRESS]:PORT")
    elif ":" in rest:  # more than one colon: a bare IPv6 address
        host, colon, rest = text, "", ""
    if not host or any(char.isspace() or not char.isprintable() for char in host):
        raise typer.BadParameter(f"{text!r} is not a HOST or HOST:PORT, as in 10.0.0.1:{PORT}")
    if not colon:
        return host, PORT
    if not (rest.isascii() and rest.isdigit() and len(rest) < 6 and 0 < int(rest) <= MOST_PORT):
        raise typer.BadParameter(f"the port of HOST {rest!r} is no port: 1 to {MOST_PORT}")
    return host, int(rest)


def connect_here() -> Client:
    """A client of the daemon that is to get a new role: the service's, or a user's own. Root's own
    would be found before the service's, which is hardly meant: it is refused."""
    client = connect()
    paths, service = client.paths, Paths.system().socket
    if paths.mode == "user" and os.geteuid() == 0 and os.path.exists(service):
        raise CommandFailed(
            FAILED,
            f"root has a daemon of its own ({paths.socket}) beside this machine's service",
            f"stop that daemon (kill {client.status().pid}) and repeat the command to change the "
            "service; to change root's own daemon, set WIIIIIDE_HOME",
        )
    return client


def whose(client: Client) -> str:
    """The end of a sentence about a new role that is not the service's."""
    return " (your own daemon, not the service)" if client.paths.mode == "user" else ""


def become(client: Client, role: Role) -> None:
    """Wait until this machine's daemon has taken up its new role."""
    with waiting("the daemon takes up its new role"):
        settle(client.status, role)


def role_sentence(view: ClusterView) -> str:
    """This machine's role now: `b (10.0.0.2:9461) is a member of the cluster lab, …`."""
    if view.role == "alone":
        return f"{view.node} is a machine alone"
    where = f"{view.node} ({view.address})" if view.address else view.node
    if view.role == "coordinator":
        return f"{where} is the coordinator of the cluster {view.cluster}"
    at = f" ({view.coordinator_address})" if view.coordinator_address else ""
    its = f"whose coordinator is {view.coordinator}{at}"
    return f"{where} is a member of the cluster {view.cluster}, {its}"


def joining(token: TokenCreated) -> str:
    """The whole command for the other machine."""
    return f"wiiiiide join {shlex.quote(cell(token.address))} {shlex.quote(cell(token.token))}"


def put_joining(token: TokenCreated, now: float) -> None:
    """The line on stdout; what to do with it, and for how long, on stderr."""
    on = "another machine" if token.uses == 1 else f"up to {token.uses} other machines"
    lasts = f"{format_duration(token.expires_at - now)}, until {format_moment(token.expires_at)}"
    screen.say(f"run this as root on {on} within {lasts}; the token in it is a secret:")
    screen.put(joining(token))


def said(view: NodeView) -> str:
    """A machine in one line: `b: drained by root: fan broken`."""
    return f"{view.node.name}: {view.why or view.state}"
