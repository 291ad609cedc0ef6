"""The threads of the progress loop, from the first to the last."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.kit.conditions import wait_until
from wiiiiided.backend.engine.driver import Driver
from wiiiiided.backend.engine.loop import ProgressLoop
from wiiiiided.backend.engine.poller import EpollPoller
from wiiiiided.backend.shm.stats import StatsPage
from wiiiiided.config import Config


def test_closing_joins_a_thread_that_is_just_being_started(monkeypatch: Any) -> None:
    driver = Driver(Config(), StatsPage(), EpollPoller())
    loop = ProgressLoop(driver)
    starting, go_on = threading.Event(), threading.Event()
    real_start = threading.Thread.start

    def slow_start(thread: threading.Thread) -> None:
        if thread.name == "wiiiiide":
            starting.set()
            assert go_on.wait(60)
        real_start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    problems: list[BaseException] = []

    def close() -> None:
        try:
            loop.close()
        except BaseException as problem:
            problems.append(problem)

    loop._parked = 0  # as when the one background thread is about to run callbacks
    follower = threading.Thread(target=loop._have_a_follower)
    follower.start()
    assert starting.wait(60)
    closer = threading.Thread(target=close)
    closer.start()
    # It waits for the one that starts a thread; or has ended, with what the test is about.
    wait_until(lambda: loop._pool.locked() or not closer.is_alive(), 60, "the loop is closed")
    go_on.set()
    follower.join(60)
    closer.join(60)
    assert not problems
    assert driver.poller._epoll.closed
    assert not any(thread.name == "wiiiiide" for thread in threading.enumerate())


def test_descriptors_are_given_back_even_if_a_thread_cannot_be_joined(monkeypatch: Any) -> None:
    driver = Driver(Config(), StatsPage(), EpollPoller())
    loop = ProgressLoop(driver)

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.close()
    assert driver.poller._epoll.closed
