"""`wiiiiide renew`: a new certificate for this machine, before its daemon would ask for one."""

from __future__ import annotations

from wiiiiided.text import format_moment
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.progress import waiting


def command() -> None:
    """Get a new certificate for this machine.

    By itself its daemon does so months before the old one ends. Links and jobs go on. For root,
    and the daemon's own user.
    """
    with waiting("asking the coordinator for a new certificate"):
        view = connect().renew()
    screen.say(
        f"the certificate of {view.node} is good until {format_moment(view.certificate_until)}"
    )
