"""The files of the service: what is installed where, and with which text. No I/O but reading.

    shipped as                installed as
    wiiiiided.service         /etc/systemd/system/wiiiiided.service
    wiiiiide.sysusers.conf    /etc/sysusers.d/wiiiiide.conf
    wiiiiide.tmpfiles.conf    /etc/tmpfiles.d/wiiiiide.conf
    user/wiiiiided.service    ~/.config/systemd/user/wiiiiided.service     (--user: only this one)

The shipped units name the daemon as a distribution would install it; here that is replaced by the
daemon that belongs to the interpreter running this command.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wiiiiided.config import Paths
from wiiiiided.errors import HostError

UNIT = "wiiiiided.service"
SHIPPED_PROGRAM = "ExecStart=/usr/bin/wiiiiided"
SYSUSERS = Path("etc/sysusers.d/wiiiiide.conf")
TMPFILES = Path("etc/tmpfiles.d/wiiiiide.conf")
SYSTEM_UNIT = Path("etc/systemd/system") / UNIT

UNQUOTABLE = "\\\"'"  # "Executable name contains special characters", systemd says


@dataclass(frozen=True)
class ServiceFile:
    """A file of the service, as it must be."""

    path: Path
    text: str


def templates() -> Path:
    """The directory of the shipped files: in the installed package, or in a checkout."""
    here = Path(__file__).resolve()
    for place in (here.parent / "units", here.parents[4] / "systemd"):
        if (place / UNIT).is_file():
            return place
    raise HostError(
        f"the files of the service are missing from this installation ({here.parent / 'units'}); "
        "install wiiiiided again"
    )


def program(interpreter: str, command: str) -> Path:
    """The daemon that belongs to this command: beside the interpreter, or beside the command."""
    places = [
        Path(interpreter).parent,
        Path(command).absolute().parent,
        Path(sysconfig.get_path("scripts")),
    ]
    for place in places:
        if (place / "wiiiiided").is_file():
            return place / "wiiiiided"
    looked = ", ".join(map(str, dict.fromkeys(places)))
    raise HostError(f"there is no wiiiiided beside this command (looked in {looked})")


def system_files(shipped: Path, daemon: Path, root: Path) -> list[ServiceFile]:
    """The files of `service install`, users first."""
    return [
        ServiceFile(root / SYSUSERS, (shipped / "wiiiiide.sysusers.conf").read_text()),
        ServiceFile(root / TMPFILES, (shipped / "wiiiiide.tmpfiles.conf").read_text()),
        ServiceFile(root / SYSTEM_UNIT, with_program((shipped / UNIT).read_text(), daemon)),
    ]


def user_files(shipped: Path, daemon: Path, paths: Paths) -> list[ServiceFile]:
    """The files of `service install --user` in a person's configuration."""
    text = with_program((shipped / "user" / UNIT).read_text(), daemon)
    return [ServiceFile(user_unit(paths), text)]


def user_unit(paths: Paths) -> Path:
    """Where a person's units lie: beside our own configuration."""
    return paths.config.parents[1] / "systemd/user" / UNIT


def with_program(unit: str, daemon: Path) -> str:
    """The unit, starting this daemon."""
    assert unit.count(SHIPPED_PROGRAM) == 1
    return unit.replace(SHIPPED_PROGRAM, f"ExecStart={quoted(daemon)}")


def quoted(path: Path) -> str:
    """A path as the program of a unit: % means something there, quotes cannot be written at all."""
    text = str(path)
    if any(not char.isprintable() or char in UNQUOTABLE for char in text):
        raise HostError(f"systemd cannot start a program with the path {text!r}; move it")
    plain = text.replace("%", "%%")
    return f'"{plain}"' if " " in text else plain


def changed(files: Iterable[ServiceFile]) -> list[ServiceFile]:
    """The files that are not there yet as they must be."""
    return [file for file in files if not _is_there(file)]


def _is_there(file: ServiceFile) -> bool:
    try:
        return file.path.read_text() == file.text
    except (OSError, UnicodeDecodeError):
        return False
