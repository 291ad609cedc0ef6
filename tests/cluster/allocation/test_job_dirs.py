"""The jobs' directories: what a hostile job puts there harms no other."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.shim import protocol
from wiiiiided.errors import HostError


@pytest.fixture
def job_dirs(tmp_path: Path) -> JobDirs:
    made = JobDirs(tmp_path / "jobs", JobAccount.this())
    made.make(1, 1)
    return made


def test_what_is_written_is_read_and_private(job_dirs: JobDirs) -> None:
    job_dirs.write(1, 1, protocol.ORDER, b"{}")
    assert job_dirs.read(1, 1, protocol.ORDER) == b"{}"
    for path in (job_dirs.root, job_dirs.job(1), job_dirs.attempt(1, 1), job_dirs.job(1) / "files"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((job_dirs.attempt(1, 1) / protocol.ORDER).stat().st_mode) == 0o600
    job_dirs.make(1, 1)  # again changes nothing
    assert job_dirs.read(1, 1, protocol.ORDER) == b"{}"


def test_what_is_not_there_is_none(job_dirs: JobDirs) -> None:
    assert job_dirs.read(1, 1, "exit.json") is None
    assert job_dirs.read(1, 2, "exit.json") is None
    assert job_dirs.read(9, 1, "exit.json") is None


def test_a_link_to_a_secret_is_not_followed(job_dirs: JobDirs, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("the key")
    (job_dirs.attempt(1, 1) / "rank-0.log").symlink_to(secret)
    with pytest.raises(HostError, match="not a plain file"):
        job_dirs.open(1, 1, "rank-0.log")


def test_a_fifo_does_not_block(job_dirs: JobDirs) -> None:
    os.mkfifo(job_dirs.attempt(1, 1) / "exit.json")
    with pytest.raises(HostError, match="not a plain file"):
        job_dirs.read(1, 1, "exit.json")


def test_a_socket_and_a_folder_are_not_files(job_dirs: JobDirs) -> None:
    (job_dirs.attempt(1, 1) / "exit.json").mkdir()
    with pytest.raises(HostError, match="not a plain file"):
        job_dirs.read(1, 1, "exit.json")


def test_a_gigabyte_is_not_read(job_dirs: JobDirs) -> None:
    with (job_dirs.attempt(1, 1) / "exit.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(HostError, match="larger than"):
        job_dirs.read(1, 1, "exit.json")


@pytest.mark.needs("root")
def test_a_file_of_another_user_is_not_read(job_dirs: JobDirs) -> None:
    path = job_dirs.attempt(1, 1) / "rank-0.log"
    path.write_text("x")
    os.chown(path, 12345, 12345)
    with pytest.raises(HostError, match="of the job's"):
        job_dirs.open(1, 1, "rank-0.log")


def test_a_planted_link_is_not_written_through(job_dirs: JobDirs, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (job_dirs.attempt(1, 1) / f".{protocol.ORDER}.{os.getpid()}").symlink_to(victim)
    job_dirs.write(1, 1, protocol.ORDER, b"{}")
    assert victim.read_text() == "precious"
    assert job_dirs.read(1, 1, protocol.ORDER) == b"{}"
