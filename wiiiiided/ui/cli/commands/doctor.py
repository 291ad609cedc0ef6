"""`wiiiiide doctor`: what this machine has and lacks, and what to do about it.

    facts (doctor_facts, all the I/O) ──► findings (doctor_checks, pure) ──► lines, or JSON
    of other machines: doctor_peers          and doctor_cluster

    ok    daemon       0.1.0, system, process 812, node m1
    warn  /dev/shm     64 MiB; wiiiiide needs none of it, DataLoader workers do
                       → in docker: --shm-size=8g, or --ipc=host

On a terminal the findings are in a frame, and the remedies below it.

Exit code 1 when anything fails: for scripts that set machines up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from wiiiiided.cluster.client import Client, NotAllowed
from wiiiiided.cluster.rpc.messages import DaemonStatus
from wiiiiided.config import Paths
from wiiiiided.errors import WiiiiideError
from wiiiiided.text import clean
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.doctor.checks import examine
from wiiiiided.ui.cli.doctor.cluster import examine_peers
from wiiiiided.ui.cli.doctor.facts import gather
from wiiiiided.ui.cli.doctor.model import Finding
from wiiiiided.ui.cli.doctor.peers import peers
from wiiiiided.ui.cli.options import Json
from wiiiiided.ui.cli.progress import waiting
from wiiiiided.ui.cli.sections import FactSection, Row, put
from wiiiiided.ui.cli.service.files import user_unit

TITLE_COLUMNS = 13
NODES_S = 8.0  # a member gives its coordinator 5 s before it says that there is none
DAEMON_S = 5.0  # a daemon that says nothing for so long is a finding; the rest is still told


def command(
    with_peers: Annotated[
        bool, typer.Option("--peers", help="Also whether each other machine is reached from here.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Check this machine and say what to mend.

    With --peers a TCP connection to every other machine of the cluster is tried; each direction
    counts, so run it on all of them when one seems cut off.
    """
    paths = whose()
    daemon, problem = ask(paths)
    denied = isinstance(problem, NotAllowed)
    with waiting("looking at this machine and its torch"):
        findings = examine(gather(paths, daemon, str(problem or ""), denied))
    if with_peers and daemon is not None:
        with waiting("connecting to the other machines"):
            findings += look_around(paths, daemon)
    failed = any(finding.level == "fail" for finding in findings)
    if as_json:
        screen.put_json({"ok": not failed, "findings": [asdict(one) for one in findings]})
    else:
        show(findings)
    return 1 if failed else 0


def whose() -> Paths:
    """The daemon that a command would use; also a user's own that is installed and does not run."""
    found, own = Paths.for_client(), Paths.user()
    has_unit = os.path.exists(user_unit(own))
    return own if has_unit and not os.path.exists(found.socket) else found


def ask(paths: Paths) -> tuple[DaemonStatus | None, WiiiiideError | None]:
    """The daemon's own status; or None, and why."""
    try:
        return Client(paths).status(DAEMON_S), None
    except WiiiiideError as problem:
        return None, problem


def look_around(paths: Paths, daemon: DaemonStatus) -> list[Finding]:
    """Findings about the other machines as seen from here."""
    try:
        views = Client(paths).nodes(NODES_S).nodes
    except WiiiiideError as problem:
        return [Finding("fail", "nodes", f"not known: {problem}", getattr(problem, "hint", ""))]
    return examine_peers(daemon, peers(views, daemon.node.name))


def show(findings: Sequence[Finding]) -> None:
    if sys.stdout.isatty():
        put([FactSection("this machine", [_row(finding) for finding in findings])])
        _put_remedies(findings)
        return
    for finding in findings:
        level, title, sentence = _row(finding)
        screen.put(f"{level:<4}  {title:<{TITLE_COLUMNS - 1}} {sentence}")
        if finding.do:
            screen.put(f"{'':<{TITLE_COLUMNS + 6}}→ {clean(finding.do)}")


def _row(finding: Finding) -> Row:
    return finding.level, clean(finding.title), clean(finding.sentence)


def _put_remedies(findings: Sequence[Finding]) -> None:
    """The remedies, each on lines of its own: a command in one can be copied whole."""
    for finding in findings:
        if finding.do:
            screen.put(f"→ {clean(finding.title)}:\n{clean(finding.do)}")
