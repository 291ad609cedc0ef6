"""An operation and the threads that wait for it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.conditions import wait_until
from wiiiiided.backend.engine import operation
from wiiiiided.backend.engine.operation import Operation, Until


def _group() -> Any:
    team = SimpleNamespace(missing=lambda step: [step])
    return SimpleNamespace(timeout_s=30.0, number=lambda: 7, team=team)


def test_a_finished_operation_is_done_and_keeps_its_error() -> None:
    op = Operation(_group(), "all_reduce", 12)
    assert str(op) == "all_reduce #7 (12 bytes)"
    assert not op.done
    assert not op.sleep_until_done(0.01)
    error = ValueError("x")
    op.finish(error)
    assert op.done
    assert op.error is error
    assert op.sleep_until_done(0.0)


def test_every_waiting_thread_is_woken() -> None:
    op = Operation(_group(), "barrier", 0)
    woken: list[bool] = []
    threads = [
        threading.Thread(target=lambda: woken.append(op.sleep_until_done(60))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: op.waiter is not None, 30, "a thread sleeps")
    op.finish()
    for thread in threads:
        thread.join(30)
    assert woken == [True] * 8


def test_two_threads_that_begin_to_wait_at_the_same_moment_are_both_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    op = Operation(_group(), "barrier", 0)
    woken: list[str] = []

    def waiter(name: str) -> threading.Thread:
        def body() -> None:
            op.sleep_until_done(60)
            woken.append(name)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        return thread

    threads: list[threading.Thread] = []
    made: list[Any] = []

    def lock() -> Any:
        # While the first thread makes the lock, the second begins to wait; it gets as far as the
        # guard lets it. Without the guard it would make a lock of its own, and one would be lost.
        if not threads:
            threads.append(waiter("second"))
            threads[0].join(0.2)
        made.append(threading.Lock())
        return made[-1]

    monkeypatch.setattr(
        operation, "threading", SimpleNamespace(Lock=lock, TIMEOUT_MAX=threading.TIMEOUT_MAX)
    )
    waiter("first")
    wait_until(lambda: op.waiter is not None, 30, "the first thread waits")
    op.finish()
    wait_until(lambda: sorted(woken) == ["first", "second"], 30, "both threads are woken")
    assert len(made) == 1


def test_what_it_waits_for_names_the_missing_ranks() -> None:
    op = Operation(_group(), "all_gather", 0)
    op.wait = 3
    assert op.missing() == [3]
    op.wait = Until(lambda: False, lambda: [1, 2], "memory")
    assert op.missing() == [1, 2]
    message = Operation(_group(), "recv", 0, begin=lambda _: None)
    message.peers = [4]
    assert message.missing() == [4]
    assert message.harmless
    assert not message.collective


def test_the_clock_starts_with_the_operation() -> None:
    op = Operation(_group(), "all_gather", 0, timeout_s=2.0)
    op.start_clock(1.0)
    assert op.deadline_ns - op.begun_ns == 2 * 10**9
    assert op.warn_ns - op.begun_ns == 10**9
    assert Operation(_group(), "all_gather", 0).timeout_s == 30.0
