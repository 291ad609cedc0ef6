"""The folder in which run and new are called: it is shipped, so a home directory is refused."""

from __future__ import annotations

import os
import pwd

from wiiiiided.domain.exit_codes import INVALID
from wiiiiided.ui.cli.command_failed import CommandFailed

HINT = "cd to a folder of its own, with the script and what it needs"


def refuse_home(directory: str, otherwise: str = "") -> None:
    """Refuse a home, with its keys and mail, and any directory that has one inside."""
    place = os.path.realpath(directory)
    for home in _homes(place):
        if os.path.commonpath([place, home]) == place:
            what = "a home directory" if place == home else f"above the home directory {home}"
            what = "the root of the file system" if place == "/" else what
            raise CommandFailed(
                INVALID, f"{place} is {what}: it is not shipped as a whole", HINT + otherwise
            )


def _homes(place: str) -> list[str]:
    """The homes of this user, and of the folder's owner: root may stand in another's."""
    found = [os.path.expanduser("~")]
    for uid in (os.getuid(), os.stat(place).st_uid):
        try:
            found.append(pwd.getpwuid(uid).pw_dir)
        except KeyError:  # containers have users without a name
            continue
    homes = [os.path.realpath(home) for home in found if os.path.isabs(home)]
    return ["/", *(home for home in homes if home != "/")]
