"""`wiiiiide renew`: a new certificate for this machine, before its daemon would ask for one."""

from __future__ import annotations

from wiiiiided.cli import screen
from wiiiiided.cli.daemon import connect
from wiiiiided.cli.words import clock


def command() -> None:
    """Get a new certificate for this machine.

    By itself its daemon does so months before the old one ends. Links and jobs go on. For root,
    and the daemon's own user.
    """
    view = connect().renew()
    screen.say(f"the certificate of {view.node} is good until {clock(view.certificate_until)}")
