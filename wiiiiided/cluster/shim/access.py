"""Which directory keeps a user from a file, in words.

"Permission denied" of /home/ada/venv/bin/python says nothing of the home's mode 0700, which is
the cause: jobs of the service are another user than the person who submits them. The
installer asks before it installs, the daemon when an interpreter cannot be run, the shim when a
rank cannot be started or a rank's script was denied a file: all with the same explanation.
"""

from __future__ import annotations

import os
import pwd
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_DENIED = re.compile(r"PermissionError: \[Errno 13\] [^:]*: '([^']+)'")

REMEDY = "put it where every user may read it (such as /opt or /srv)"


def closed(path: str) -> list[str]:
    """The directories on the way to a file, links included, that others may not enter."""
    found: dict[str, None] = {}
    for directory in _way(path):
        try:
            mode = os.stat(directory).st_mode
        except OSError:
            continue
        if not mode & stat.S_IXOTH:
            found[directory] = None
    return list(found)


def _way(path: str, depth: int = 0) -> Iterator[str]:
    """Every directory that is entered when this path is opened, in order."""
    here, parts = "/", os.path.abspath(path).strip("/").split("/")
    for number, part in enumerate(parts):
        yield here
        step = os.path.join(here, part)
        if os.path.islink(step) and depth < 40:  # as many links as the kernel follows
            target = os.path.normpath(os.path.join(here, os.readlink(step)))
            yield from _way(os.path.join(target, *parts[number + 1 :]), depth + 1)
            return
        here = step


def modes(directories: list[str]) -> str:
    """`/home/ada is 0700`, of each."""
    return "; ".join(f"{at} is {stat.S_IMODE(os.stat(at).st_mode):04o}" for at in directories)


def closed_to(user: str, path: str) -> str:
    """`jobs run as wiiiiide-job, and /home/ada is 0700: put it …`; empty if none is closed."""
    walls = closed(path)
    return f"jobs run as {user}, and {modes(walls)}: {REMEDY}" if walls else ""


def closed_here(path: str) -> str:
    """Say the same of the user of this process, if a directory is closed to it."""
    walls = [at for at in closed(path) if not os.access(at, os.X_OK)]
    return f"jobs run as {_me()}, and {modes(walls)}: {REMEDY}" if walls else ""


def denied(exception: str) -> str:
    """The meaning of a script's PermissionError, if it met a file of another user; else empty."""
    found = _DENIED.search(exception)
    if found is None:
        return ""
    explained = closed_here(found[1])
    if explained:
        return explained
    try:
        status = os.stat(found[1])
    except OSError:
        return ""
    if status.st_uid == os.geteuid():
        return ""
    mode = f"{found[1]} is {stat.S_IMODE(status.st_mode):04o} of user {_name(status.st_uid)}"
    return f"jobs run as {_me()}, and {mode}: let every user read it, or copy it into the job"


def _me() -> str:
    return _name(os.geteuid())


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
