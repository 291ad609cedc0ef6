"""Installing the service: files ─► users ─► directories ─► daemon-reload ─► enable ─► start.

Everything is checked before anything is changed. It can be run again at any time: what is so
already stays, and a running daemon is restarted only when its unit changed. Jobs go on.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from wiiiiided.config import Paths
from wiiiiided.domain.exit_codes import FAILED, NOT_ALLOWED, USAGE
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.service import access, files
from wiiiiided.ui.cli.service.system import (
    System,
    check_root,
    check_session,
    check_systemd,
    lingering,
)
from wiiiiided.ui.cli.whole_file import write_whole

USERS = ("wiiiiide", "wiiiiide-job")


def install_system(system: System, *, start: bool) -> None:
    check_systemd(system)
    check_root("install")
    daemon = files.program(sys.executable, sys.argv[0])
    wanted = files.system_files(files.templates(), daemon, system.root)
    for account in access.accounts(USERS):
        if words := access.can_run(account, sys.executable, daemon):
            needed = [daemon, Path(sys.executable), Path(files.__file__), Path(os.__file__)]
            raise CommandFailed(NOT_ALLOWED, *access.refusal(account, words, needed))
    put(system, wanted, start)
    system.say(
        "members of the group wiiiiide may submit, which is running code as wiiiiide-job: "
        "usermod --append --groups wiiiiide NAME"
    )


def install_user(system: System, *, start: bool) -> None:
    check_systemd(system)
    check_session(system)
    paths = Paths.user()
    if paths.mode == "private":
        raise CommandFailed(
            USAGE,
            "WIIIIIDE_HOME is set, and a private daemon is not a service",
            "Unset it, or run `wiiiiided` yourself",
        )
    daemon = files.program(sys.executable, sys.argv[0])
    put(system, files.user_files(files.templates(), daemon, paths), start)
    system.say(lingering(system, getpass.getuser()))


def put(system: System, wanted: list[files.ServiceFile], start: bool) -> None:
    """Write the files, make users and directories, enable and start. Correct parts stay."""
    new = files.changed(wanted)
    for file in wanted:
        if file in new:
            _write(file)
        system.say(f"{'wrote' if file in new else 'unchanged:'} {file.path}")
    if not system.user:
        system.do("systemd-sysusers", str(system.root / files.SYSUSERS))
        system.do("systemd-tmpfiles", "--create", str(system.root / files.TMPFILES))
        system.say(f"users {' and '.join(USERS)} and their directories are there")
    system.systemctl("daemon-reload")
    system.systemctl("enable", "--quiet", files.UNIT)
    when = "your first login" if system.user else "the machine"
    system.say(f"enabled {files.UNIT}: it starts with {when}")
    if start:
        _start(system, bool(new))


def _start(system: System, changed: bool) -> None:
    running = system.ask("is-active", files.UNIT) == "active"
    verb = "restart" if running and changed else "start"
    try:
        system.systemctl(verb, files.UNIT)
    except CommandFailed as stop:
        raise CommandFailed(FAILED, f"{files.UNIT} did not start", _last_words(system)) from stop
    done = "restarted, jobs went on" if verb == "restart" else "started"
    system.say(f"{files.UNIT} {'runs already' if running and not changed else done}")


def _last_words(system: System) -> str:
    """Why it did not start: what it told systemd itself, else the end of its log."""
    if told := system.ask("show", "--value", "-p", "StatusText", files.UNIT):
        return told
    scope = ["--user"] if system.user else []
    _, words = system.run(
        ["journalctl", *scope, "--no-pager", "-q", "-o", "cat", "-n", "5", "-u", files.UNIT]
    )
    return words.strip()


def _write(file: files.ServiceFile) -> None:
    """Write the file as a whole: systemd may read it at any moment."""
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(str(file.path), file.text.encode(), 0o644)
    except OSError as problem:
        raise CommandFailed(FAILED, f"cannot write {file.path}: {problem.strerror}") from problem
