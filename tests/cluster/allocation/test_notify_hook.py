"""The job's own command: what is not run, and that it is said."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from wiiiiided.cluster.allocation import notify_hook
from wiiiiided.cluster.allocation.notify_hook import NotifyHook
from wiiiiided.cluster.control.actions import RunNotify
from wiiiiided.cluster.control.job import Ended, Job, Owner
from wiiiiided.domain.spec import JobSpec, Notify, Run

_FAILED = Ended(0.0, "failed", 1, "x")


def test_a_command_that_is_too_long_with_all_filled_in_is_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notify_hook, "spawn_named", lambda *args, **rest: pytest.fail("it is run"))
    spec = JobSpec("test", Run(("python",)), notify=Notify(("echo", "{reason}" * 16000)))
    job = Job(7, spec, Owner("a", 0, "root"), "", 0.0, _FAILED)
    here: Any = None

    async def work() -> None:
        await NotifyHook(here).run(job, RunNotify(7, "failed", 1, "r" * 1000))

    asyncio.run(work())
    text = "its notify command is not run: filled in, it would have more than 131072 characters"
    assert f"job 7: {text}" in caplog.text


def test_slow_commands_of_one_user_leave_room_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here: Any = SimpleNamespace(python="")
    begun: list[int] = []

    async def work() -> None:
        end = asyncio.Event()

        async def runs(self: NotifyHook, number: int, *args: object) -> None:
            begun.append(number)
            if number < 100:
                await end.wait()

        monkeypatch.setattr(NotifyHook, "_run", runs)
        monkeypatch.setattr(notify_hook, "environment", lambda *args: {})
        hook = NotifyHook(here)
        spec = JobSpec("test", Run(("python",)), notify=Notify(("sleep", "60")))
        jobs = [Job(n, spec, Owner("a", 1000, "ada"), "", 0.0, _FAILED) for n in range(40)]
        tasks = [asyncio.create_task(hook.run(j, RunNotify(j.id, "failed", 1, ""))) for j in jobs]
        await asyncio.sleep(0)
        other = Job(100, spec, Owner("a", 1001, "eve"), "", 0.0, _FAILED)
        async with asyncio.timeout(30.0):
            await hook.run(other, RunNotify(100, "failed", 1, ""))
        assert begun == [*range(notify_hook.OF_ONE_USER), 100]
        end.set()
        await asyncio.gather(*tasks)
        assert sorted(begun) == [*range(40), 100]
        assert not hook._users  # nothing is kept of users without a command

    asyncio.run(work())
