"""The outside world of `wiiiiide service`: commands that are run, and what must be so before.

Everything that touches the machine goes through `System`, so that a test can have another one.
"""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wiiiiided.domain.exit_codes import FAILED, NOT_ALLOWED
from wiiiiided.ui.cli.command_failed import CommandFailed

COMMAND_S = 120.0  # a start waits for READY, which waits for the adoption of all jobs
CANNOT = 7


@dataclass(frozen=True)
class System:
    """The outside world of this command; tests have another."""

    user: bool  # the service of a person, not of the machine
    run: Callable[[Sequence[str]], tuple[int, str]]
    say: Callable[[str], None]
    root: Path = Path("/")

    def do(self, *argv: str) -> str:
        """Run a command that must succeed."""
        code, words = self.run(argv)
        if code != 0:
            raise CommandFailed(
                FAILED, f"`{' '.join(argv)}` failed: {words.strip() or f'code {code}'}"
            )
        return words

    def systemctl(self, *argv: str) -> str:
        return self.do(*self._systemctl(), *argv)

    def ask(self, *argv: str) -> str:
        """A systemctl command whose failure is an answer too."""
        return self.run([*self._systemctl(), *argv])[1].strip()

    def _systemctl(self) -> list[str]:
        return ["systemctl", "--user"] if self.user else ["systemctl"]


def check_systemd(system: System, what: str = "install") -> None:
    if not (system.root / "run/systemd/system").is_dir():
        raise CommandFailed(
            CANNOT,
            f"this machine was not booted with systemd, so there is no service to {what}",
            "Run `wiiiiided` in the foreground, or from the supervisor you have",
        )


def check_root(what: str) -> None:
    if os.geteuid() != 0:
        raise CommandFailed(
            NOT_ALLOWED,
            f"the machine's service is root's to {what}",
            f"sudo {Path(sys.argv[0]).absolute()} service {what}; "
            f"or, for a daemon of your own: wiiiiide service {what} --user",
        )


def check_session(system: System) -> None:
    code, words = system.run(["systemctl", "--user", "show", "--value", "-p", "Version"])
    if code != 0:
        raise CommandFailed(
            CANNOT,
            f"systemd has no session for you here: {words.strip()}",
            "su and sudo start none: log in with ssh or on the console, "
            "or let root run: loginctl enable-linger " + getpass.getuser(),
        )


def lingering(system: System, name: str) -> str:
    """The daemon's fate when this person logs out."""
    if is_lingering(system, name):
        return "lingering is on: it goes on when you log out"
    return (
        "lingering is off: the daemon and all jobs end when you log out. "
        f"To let them go on: loginctl enable-linger {name}"
    )


def is_lingering(system: System, name: str) -> bool:
    return (
        system.run(["loginctl", "show-user", name, "--value", "-p", "Linger"])[1].strip() == "yes"
    )


def run_command(argv: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S,
        )
    except FileNotFoundError:
        return 127, f"there is no {argv[0]} on this machine"
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {COMMAND_S:g} s"
    return done.returncode, done.stdout.decode(errors="replace")
