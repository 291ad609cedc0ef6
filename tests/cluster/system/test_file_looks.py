"""A look at a path that never answers costs its own job a while, and nobody else anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.cluster.connections import run, until
from wiiiiided.cluster.system import file_looks
from wiiiiided.cluster.system.file_looks import Unanswered, look


class Mount:
    """A file system that answers when it is told to."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: list[str] = []

    def look(self, path: str) -> str:
        self.asked.append(path)
        assert self.answers.wait(60)
        return path.upper()


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    made = Mount()
    monkeypatch.setattr(file_looks, "_under_way", {})
    monkeypatch.setattr(file_looks, "WITHIN_S", 0.05)
    yield made
    made.answers.set()
    run(until(lambda: not file_looks._under_way, "nothing is looked at any more"))


def test_what_a_look_finds_or_raises_is_the_callers(mount: Mount) -> None:
    mount.answers.set()
    assert run(look("a", mount.look, "a")) == "A"
    with pytest.raises(ZeroDivisionError):
        run(look("a", divmod, 1, 0))


def test_a_file_system_that_does_not_answer_is_a_sentence(mount: Mount) -> None:
    async def scene() -> None:
        both = (look("/nfs/a", mount.look, "/nfs/a") for _ in range(2))
        found = await asyncio.gather(*both, return_exceptions=True)
        text = "/nfs/a is on a file system that does not answer"
        assert [(type(one), str(one)) for one in found] == [(Unanswered, text)] * 2
        with pytest.raises(Unanswered):
            await look("/nfs/a", mount.look, "/nfs/a")
        assert mount.asked == ["/nfs/a"]  # by one thread, however many want to know
        mount.answers.set()
        await until(lambda: not file_looks._under_way, "it answers")
        assert await look("/nfs/a", mount.look, "/nfs/a") == "/NFS/A"

    run(scene())


def test_few_threads_hang_and_what_no_thread_is_left_for_may_pass(mount: Mount) -> None:
    async def scene() -> None:
        looks = (look(str(n), mount.look, str(n)) for n in range(200))
        found = await asyncio.gather(*looks, return_exceptions=True)
        assert len(mount.asked) == file_looks.AT_ONCE
        kinds = [type(one) for one in found]
        assert kinds.count(Unanswered) == file_looks.AT_ONCE
        assert kinds.count(BlockingIOError) == 200 - file_looks.AT_ONCE

    run(scene())
