"""Whether another user can run what is installed here, and if not, which directory is in the way.

A virtual environment below /root or a closed home works for its owner alone: the
service would fail with "permission denied" and no word of why. So before anything is installed a
process of that user tries it: the kernel's answer counts, with its groups, ACLs and mounts. Only
the explanation is worked out from the mode bits.
"""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wiiiiided.cluster.shim.access import closed, modes

TRY_S = 60.0  # a first import from a slow disk, without any compiled files
NOBODY = 65534
# Needs of the daemon and a job: the daemon's own modules, and torch where the interpreter looks.
TRIAL = (
    "import sys, importlib.util as u, os; import wiiiiided.cluster.daemon.main; "
    "sys.exit(0 if os.access(sys.argv[1], os.X_OK) and u.find_spec('torch') else 1)"
)

ELSEWHERE = (
    "Install wiiiiided into a virtual environment that every user can read, its Python included "
    "(such as one that /usr/bin/python3 makes in /opt/wiiiiide), and run the `wiiiiide service "
    "install` of that one; or have a daemon of your own: wiiiiide service install --user"
)


@dataclass(frozen=True)
class Account:
    """A user whose rights are tried."""

    name: str
    uid: int
    gid: int


def accounts(names: Sequence[str]) -> list[Account]:
    """The users that are there; for those that are not yet, an account without rights."""
    found = []
    for name in names:
        try:
            entry = pwd.getpwnam(name)
            found.append(Account(name, entry.pw_uid, entry.pw_gid))
        except KeyError:
            found.append(Account(name, NOBODY, NOBODY))
    return found


def can_run(account: Account, interpreter: str, daemon: Path) -> str:
    """Empty, or the last line of the trial as this user. Needs root."""
    try:
        done = subprocess.run(
            [interpreter, "-I", "-c", TRIAL, str(daemon)],
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRY_S,
        )
    except (OSError, subprocess.SubprocessError) as problem:
        return str(problem)
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else (words[-1] if words else "a file is not readable")


def refusal(account: Account, words: str, needed: Sequence[Path]) -> tuple[str, str]:
    """A sentence saying what is in the way, and one saying what to do."""
    walls = list(dict.fromkeys(wall for path in needed for wall in closed(str(path))))
    why = modes(walls) if walls else words
    problem = f"the user {account.name} cannot run the wiiiiided installed here: {why}"
    return f"{problem}. Nothing was installed", ELSEWHERE
