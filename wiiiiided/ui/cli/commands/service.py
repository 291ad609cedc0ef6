"""`wiiiiide service`: the daemon as a service of this machine, or of one person."""

from __future__ import annotations

from typing import Annotated

import typer

from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.command_table import QuickCommand, QuickGroup, plain_app
from wiiiiided.ui.cli.service.install import install_system, install_user
from wiiiiided.ui.cli.service.system import System, run_command
from wiiiiided.ui.cli.service.uninstall import uninstall_service

app = plain_app(cls=QuickGroup, help="The daemon as a systemd service.", no_args_is_help=True)

User = Annotated[bool, typer.Option("--user", help="A daemon of your own, without root.")]
NoStart = Annotated[bool, typer.Option("--no-start", help="Enable it, but do not start it.")]
Purge = Annotated[bool, typer.Option("--purge", help="Remove all jobs and their results too.")]
Force = Annotated[bool, typer.Option("--force", help="Even while jobs run: they go on alone.")]


@app.command(cls=QuickCommand, epilog="Example: wiiiiide service install --user")
def install(user: User = False, no_start: NoStart = False) -> None:
    """Install the daemon as a service, and start it."""
    system = System(user, run_command, screen.say)
    (install_user if user else install_system)(system, start=not no_start)


@app.command(cls=QuickCommand, epilog="Example: sudo wiiiiide service uninstall")
def uninstall(user: User = False, purge: Purge = False, force: Force = False) -> None:
    """Stop the service and remove it; jobs and results stay."""
    uninstall_service(System(user, run_command, screen.say), purge=purge, force=force)
