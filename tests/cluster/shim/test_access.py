"""A file behind a closed directory: which directory, which user, what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from wiiiiided.cluster.shim import access, ranks

NOBODY = 65534


def as_nobody(ask: Callable[[str], str], about: str) -> str:
    """What it answers to a user without rights."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(write, ask(about).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A closed home in a directory that every user may enter."""
    at = tmp_path
    while at != Path("/") and not at.stat().st_mode & 1:
        at.chmod(at.stat().st_mode | 0o011)
        at = at.parent
    made = tmp_path / "ada"
    (made / "venv/bin").mkdir(parents=True)
    (made / "venv/bin/python").touch(0o755)
    made.chmod(0o700)
    return made


@pytest.mark.needs("root")
def test_a_closed_home_is_named_with_its_mode_and_the_user_of_the_job(home: Path) -> None:
    said = as_nobody(access.closed_here, str(home / "venv/bin/python"))
    assert said.startswith(f"jobs run as nobody, and {home} is 0700: put it where every user")
    assert access.closed_here(str(home / "venv/bin/python")) == ""  # root may enter


@pytest.mark.needs("root")
def test_a_command_behind_a_closed_home_is_not_told_to_be_made_executable(home: Path) -> None:
    def excuse(command: str) -> str:
        program = ranks.Program([command], {}, "/", (64, 64))
        return ranks._excuse(PermissionError(errno.EACCES, "denied", command), program)[1]

    said = as_nobody(excuse, str(home / "venv/bin/python"))
    assert "cannot be reached: jobs run as nobody" in said
    assert "chmod" not in said
    there = home.parent / "script"
    there.touch(0o644)
    assert "is not executable: chmod +x" in as_nobody(excuse, str(there))


@pytest.mark.needs("root")
def test_a_permission_error_says_that_jobs_are_another_user(home: Path) -> None:
    def error(path: Path) -> str:
        return f"PermissionError: [Errno 13] Permission denied: '{path}'"

    assert f"and {home} is 0700" in as_nobody(access.denied, error(home / "data.npy"))
    own = home.parent / "data.npy"
    own.touch(0o600)
    assert f"{own} is 0600 of user root: let every user read it" in as_nobody(
        access.denied, error(own)
    )
    assert as_nobody(access.denied, "ValueError: '/root/x'") == ""
    own.chmod(0)
    os.chown(own, NOBODY, NOBODY)
    assert as_nobody(access.denied, error(own)) == ""  # its own file: nothing to do with users
    assert access.closed_to("wiiiiide-jobs", str(home / "x")).startswith(
        "jobs run as wiiiiide-jobs"
    )
