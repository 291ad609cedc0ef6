"""An allocation is made ready: versions of an interpreter, archives that must be fetched."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from wiiiiided.cluster.allocation import prepare
from wiiiiided.cluster.allocation import spawn as spawning
from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.allocation.prepare import CoordinatorAway, Preparer, Unprepared
from wiiiiided.cluster.allocation.shim_order import HostContext
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.control.job import Job, Owner, Queued
from wiiiiided.cluster.membership.dial import Unreachable
from wiiiiided.cluster.system import file_looks
from wiiiiided.domain.spec import JobSpec, Run
from wiiiiided.errors import HostError, UsageError

ARCHIVE = "ab" * 32


def job(python: str | None = None, archive: str = "") -> Job:
    spec = JobSpec("test", Run(("python", "-c", "pass"), python=python))
    return Job(1, spec, Owner("a", 0, "root"), archive, 0.0, Queued(0.0))


def preparer(tmp_path: Path, fetch: prepare.Fetch | None = None) -> Preparer:
    (tmp_path / "state").mkdir()
    here = HostContext("a", JobAccount.this(), sys.executable, {}, os.getuid())
    return Preparer(Archives(tmp_path / "state" / "archives"), here, fetch)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_says_its_versions_without_importing_torch(tmp_path: Path) -> None:
    import importlib.metadata

    found = asyncio.run(preparer(tmp_path).prepare(job()))
    assert found.python == platform.python_version()
    assert found.torch == importlib.metadata.version("torch")
    assert found.wiiiiided == importlib.metadata.version("wiiiiided")


def test_an_answer_is_kept_until_the_interpreter_changes(tmp_path: Path) -> None:
    count = tmp_path / "count"
    said = '{"python": "3.11.7", "torch": "2.13.0"}'
    python = script(tmp_path / "python", f"echo x >> {count}; echo '{said}'")
    made = preparer(tmp_path)

    async def work() -> None:
        for _ in range(3):
            assert (await made.prepare(job(python))).torch == "2.13.0"
        assert count.read_text() == "x\n"
        os.utime(python, ns=(1, 1))
        await made.prepare(job(python))
        assert count.read_text() == "x\nx\n"

    asyncio.run(work())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 3", r"does not work \(code 3\)"),
        ("echo hello", "is it a Python"),
        ("head -c 200000 /dev/zero", "is it a Python"),
    ],
)
def test_what_is_no_python_is_named(tmp_path: Path, text: str, why: str) -> None:
    python = script(tmp_path / "python", text)
    with pytest.raises(Unprepared, match=why) as problem:
        asyncio.run(preparer(tmp_path).prepare(job(python)))
    assert python in str(problem.value)
    assert problem.value.code == 126


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unprepared, match="/nowhere/python cannot be run: No such file"):
        asyncio.run(preparer(tmp_path).prepare(job("/nowhere/python")))


def test_an_interpreter_that_never_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "LOOK_WITHIN_S", 0.2)
    real, started = prepare.spawn_named, []

    def spawn(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*given, **options))
        return started[-1]

    monkeypatch.setattr(prepare, "spawn_named", spawn)
    python = script(tmp_path / "python", "exec sleep 1000")
    with pytest.raises(Unprepared, match="did not say its version"):
        asyncio.run(preparer(tmp_path).prepare(job(python)))
    (process,) = started
    assert not Path(f"/proc/{process.pid}").exists()


def test_packages_on_a_file_system_that_does_not_answer_are_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(file_looks, "WITHIN_S", 0.05)
    monkeypatch.setattr(prepare, "_marks", lambda *given: answered.wait(60))
    python = script(tmp_path / "python", """echo '{"python": "3.11.7", "torch": "2.13.0"}'""")
    try:
        with pytest.raises(Unprepared, match="python is on a file system that does not answer"):
            asyncio.run(preparer(tmp_path).prepare(job(python)))
    finally:
        answered.set()


def test_a_program_that_a_job_names_is_not_executed_by_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of a process waits until the program's file has been read."""
    real, started = spawning.spawn, []

    def spawn(argv: list[str], *given: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(argv[0])
        return real(argv, *given, **options)

    monkeypatch.setattr(spawning, "spawn", spawn)
    python = script(tmp_path / "python", """echo '{"python": "3.11.7", "torch": "2.13.0"}'""")
    assert asyncio.run(preparer(tmp_path).prepare(job(python))).torch == "2.13.0"
    assert started == [sys.executable]


def test_a_file_that_cannot_be_executed_is_named_with_the_reason(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "exit 0")
    os.chmod(python, 0o644)
    with pytest.raises(Unprepared, match="python cannot be run: Permission denied"):
        asyncio.run(preparer(tmp_path).prepare(job(python)))


def test_an_archive_that_is_missing_is_fetched_once_for_two_jobs(tmp_path: Path) -> None:
    fetched = []

    async def fetch(digest: str) -> None:
        fetched.append(digest)
        await asyncio.sleep(0.01)
        (tmp_path / "state" / "archives" / digest).write_bytes(b"")

    made = preparer(tmp_path, fetch)

    async def work() -> None:
        one = job(archive=ARCHIVE)
        await asyncio.gather(made.prepare(one), made.prepare(replace(one, id=2)))

    asyncio.run(work())
    assert fetched == [ARCHIVE]


def test_a_fetch_is_tried_three_times_and_then_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "AGAIN_S", 0.001)
    tries = []

    async def fetch(digest: str) -> None:
        tries.append(digest)
        raise HostError("the wire is cut")

    with pytest.raises(Unprepared, match="cannot be fetched: the wire is cut"):
        asyncio.run(preparer(tmp_path, fetch).prepare(job(archive=ARCHIVE)))
    assert len(tries) == 3


@pytest.mark.parametrize(
    ("problem", "passes"),
    [
        (Unreachable("nobody"), True),
        (ConnectionResetError(), True),
        (EOFError(), True),
        (TimeoutError(), True),
        (OSError(28, "no space"), False),
        (HostError("it is not there"), False),
        (UsageError("not the one that was announced"), False),
    ],
)
def test_a_coordinator_that_is_away_is_not_the_jobs_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception, passes: bool
) -> None:
    monkeypatch.setattr(prepare, "AGAIN_S", 0.001)

    async def fetch(digest: str) -> None:
        raise problem

    with pytest.raises(Unprepared) as found:
        asyncio.run(preparer(tmp_path, fetch).prepare(job(archive=ARCHIVE)))
    assert isinstance(found.value, CoordinatorAway) == passes


def test_without_a_coordinator_a_missing_archive_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(Unprepared, match="is not on this machine any more"):
        asyncio.run(preparer(tmp_path).prepare(job(archive=ARCHIVE)))
