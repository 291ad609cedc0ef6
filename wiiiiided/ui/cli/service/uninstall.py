"""Removing the service: stop ─► disable ─► files ─► daemon-reload (─► directories, with --purge).

Jobs do not end with the daemon. So it is not removed while jobs run, unless that is what is wanted
(--force), and what goes on is said. State, results and users stay: they are not the service's.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from wiiiiided.config import Paths
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.service import files
from wiiiiided.ui.cli.service.install import USERS
from wiiiiided.ui.cli.service.system import System, check_root, check_session, check_systemd


def uninstall_service(system: System, *, purge: bool, force: bool) -> None:
    check_systemd(system, "uninstall")
    if system.user:
        check_session(system)
    else:
        check_root("uninstall")
    running = job_processes(system)
    if running and purge:
        raise CommandFailed(
            FAILED, _going_on(len(running)), "Cancel them first: --purge removes their files"
        )
    if running and not force:
        raise CommandFailed(
            FAILED, _going_on(len(running)), "Cancel them, or use --force: they go on alone"
        )
    stop(system)
    if left := job_processes(system):
        system.say(f"{_going_on(len(left))}: no daemon restarts or reports them until it is back")
    remove(system)
    _keep_or_purge(system, purge)


def stop(system: System) -> None:
    if system.ask("show", "--value", "-p", "LoadState", files.UNIT) == "loaded":
        system.systemctl("disable", "--quiet", "--now", files.UNIT)
        system.say(f"stopped and disabled {files.UNIT}")
    else:
        system.say(f"{files.UNIT} was not installed here")


def remove(system: System) -> None:
    """Take its files away."""
    for path in _paths(system):
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as problem:
            raise CommandFailed(FAILED, f"cannot remove {path}: {problem.strerror}") from problem
        system.say(f"removed {path}")
    system.systemctl("daemon-reload")


def _paths(system: System) -> list[Path]:
    if system.user:
        return [files.user_unit(Paths.user())]
    return [system.root / path for path in (files.SYSTEM_UNIT, files.TMPFILES, files.SYSUSERS)]


def _keep_or_purge(system: System, purge: bool) -> None:
    paths = Paths.user() if system.user else Paths.system()
    kept = [system.root / path.relative_to("/") for path in (paths.state, paths.jobs)]
    there = [path for path in kept if path.exists()]
    for path in there if purge else []:
        shutil.rmtree(path)
        system.say(f"removed {path}")
        if system.user:
            with contextlib.suppress(OSError):  # something else is in it
                path.parent.rmdir()
    if there and not purge:
        system.say(f"kept {' and '.join(map(str, there))}; --purge removes them")
    if not system.user:
        system.say(f"kept the users {' and '.join(USERS)}: files may still be theirs")


def job_processes(system: System) -> list[int]:
    """Processes of jobs: those in the unit's cgroup that are not the daemon itself."""
    group = system.ask("show", "--value", "-p", "ControlGroup", files.UNIT)
    main = system.ask("show", "--value", "-p", "MainPID", files.UNIT)
    if not group:
        return []
    for hierarchy in ("sys/fs/cgroup", "sys/fs/cgroup/systemd"):  # unified; old or mixed
        try:
            text = (system.root / hierarchy / group.lstrip("/") / "cgroup.procs").read_text()
        except OSError:
            continue
        return [int(pid) for pid in text.split() if pid != main]
    return []


def _going_on(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'} of jobs run under {files.UNIT}"
