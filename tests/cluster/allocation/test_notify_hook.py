"""The job's own command: what is not run, and that it is said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from wiiiiided.cluster.allocation import notify_hook
from wiiiiided.cluster.allocation.notify_hook import NotifyHook
from wiiiiided.cluster.control.actions import RunNotify
from wiiiiided.cluster.control.job import Ended, Job, Owner
from wiiiiided.domain.spec import JobSpec, Notify, Run


def test_a_command_that_is_too_long_with_all_filled_in_is_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notify_hook, "spawn_named", lambda *args, **rest: pytest.fail("it is run"))
    spec = JobSpec("test", Run(("python",)), notify=Notify(("echo", "{reason}" * 16000)))
    job = Job(7, spec, Owner("a", 0, "root"), "", 0.0, Ended(0.0, "failed", 1, "x"))
    here: Any = None

    async def work() -> None:
        await NotifyHook(here).run(job, RunNotify(7, "failed", 1, "r" * 1000))

    asyncio.run(work())
    text = "its notify command is not run: filled in, it would have more than 131072 characters"
    assert f"job 7: {text}" in caplog.text
