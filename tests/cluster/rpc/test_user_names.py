"""The name of a user: at once where it is known, and never waited for longer than a second."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster.connections import run, until
from wiiiiided.cluster.rpc import user_names
from wiiiiided.cluster.rpc.user_names import user_of


class Directory:
    """A server of names that answers when it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[int] = []

    def getpwuid(self, uid: int) -> Any:
        self.asked.append(uid)
        assert self.answers.wait(60)
        if uid == 404:
            raise KeyError(uid)
        return SimpleNamespace(pw_name=f"user{uid}")


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Directory]:
    made = Directory()
    monkeypatch.setattr(user_names, "_known", {})
    monkeypatch.setattr(user_names, "_asked", {})
    monkeypatch.setattr(user_names, "WITHIN_S", 0.05)
    monkeypatch.setattr(pwd, "getpwuid", made.getpwuid)
    yield made
    made.answers.set()
    run(until(lambda: not user_names._asked, "nothing is asked any more"))


def test_the_name_of_this_user_is_found() -> None:
    assert run(user_of(os.getuid())) == pwd.getpwuid(os.getuid()).pw_name


def test_a_directory_that_is_down_costs_a_moment_and_the_number_stands_for_the_name(
    directory: Directory,
) -> None:
    async def scene() -> None:
        assert await asyncio.gather(user_of(7), user_of(7), user_of(8)) == ["7", "7", "8"]
        assert sorted(directory.asked) == [7, 8]  # once each, however many callers want it
        assert await user_of(7) == "7"
        directory.answers.set()
        await until(lambda: not user_names._asked, "it answers")
        assert [await user_of(uid) for uid in (7, 8)] == ["user7", "user8"]
        assert len(directory.asked) == 2

    run(scene())


def test_few_threads_hang_at_once_however_many_requests_come(directory: Directory) -> None:
    async def scene() -> None:
        found = await asyncio.gather(*(user_of(uid) for uid in range(100, 200)))
        assert found == [str(uid) for uid in range(100, 200)]
        assert len(directory.asked) <= user_names.AT_ONCE

    run(scene())


def test_a_user_without_a_name_is_a_number(directory: Directory) -> None:
    directory.answers.set()
    assert run(user_of(404)) == "404"
