"""`wiiiiide doctor`: what this machine has and lacks, and what to do about it.

    facts (doctor_facts, all the I/O) ──► findings (doctor_checks, pure) ──► lines, or JSON

    ok    daemon       0.1.0, system, process 812, node m1
    warn  /dev/shm     64.0 MiB; wiiiiide needs none of it, DataLoader workers do
                       → in docker: --shm-size=8g, or --ipc=host

Exit code 1 when anything fails: for scripts that set machines up.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict

from wiiiiided.cli import screen
from wiiiiided.cli.doctor_checks import Finding, examine
from wiiiiided.cli.doctor_facts import gather
from wiiiiided.cli.options import Json
from wiiiiided.cli.service_files import user_unit
from wiiiiided.cli.text import clean
from wiiiiided.client import Client
from wiiiiided.config import Paths
from wiiiiided.errors import WiiiiideError
from wiiiiided.wire.messages import DaemonStatus

COLOURS = {"ok": screen.GREEN, "warn": screen.YELLOW, "fail": screen.RED}
TITLE_COLUMNS = 13
DAEMON_S = 5.0  # a daemon that says nothing for so long is a finding; the rest is still told
INDENT = " " * (6 + TITLE_COLUMNS)


def command(as_json: Json = False) -> int:
    """Check this machine and say what to mend."""
    paths = whose()
    daemon, problem = ask(paths)
    findings = examine(gather(paths, daemon, problem))
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        screen.put_json({"ok": not failed, "findings": [asdict(one) for one in findings]})
    else:
        for finding in findings:
            show(finding)
    return 1 if failed else 0


def whose() -> Paths:
    """The daemon a command would talk to; one's own that is installed and does not run, too."""
    found, own = Paths.for_client(), Paths.user()
    has_unit = os.path.exists(user_unit(own))
    return own if has_unit and not os.path.exists(found.socket) else found


def ask(paths: Paths) -> tuple[DaemonStatus | None, str]:
    """What the daemon says of itself; or None, and why."""
    try:
        return Client(paths).status(DAEMON_S), ""
    except WiiiiideError as problem:
        return None, str(problem)


def show(finding: Finding) -> None:
    level = screen.paint(f"{finding.level:<4}", COLOURS[finding.level], sys.stdout)
    screen.put(f"{level}  {finding.title:<{TITLE_COLUMNS}}{clean(finding.sentence)}")
    if finding.do:
        screen.put(f"{INDENT}→ {clean(finding.do)}")
