"""An allocation that ends itself without word of its coordinator for as long as its job allows."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.cluster.shim.test_end import start_changed
from tests.kit.conditions import wait_until
from tests.kit.shims import PATIENCE_S, Attempt
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.shim_process import Shim
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.shim import orphan_timeout, protocol

# How long an allocation may be alone: longer than it takes to begin and to be told everything.
ALONE_S = 4.0
REASON = "alone for 4 s (policy.stop_alone)"
# A shim that is patient until it has heard something, and then no more.
SHORT = """
from wiiiiided.cluster.shim.orphan_timeout import OrphanTimeout
heard = OrphanTimeout.heard
def then_short(self, at=None):
    self._alone_s = 0.5
    heard(self, at)
OrphanTimeout.heard = then_short
"""


def test_an_allocation_without_word_of_its_coordinator_ends_itself_as_lost(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"], alone_s=ALONE_S, grace_s=30.0) as attempt:
        end = attempt.run()
        assert (end.stopped, end.lost, end.codes) == (REASON, True, {"0": 143})
        assert end.reason == f"stopped: {REASON}"


def test_an_allocation_that_is_started_late_has_been_alone_since_the_coordinator_was_heard(
    tmp_path: Path,
) -> None:
    # The clock begins with the machine: one that was booted a minute ago has no hour behind it.
    alone_s = orphan_timeout.now() // 2
    with Attempt(
        tmp_path, ["sleep", "1000"], alone_s=alone_s, heard_at=1.0, grace_s=30.0
    ) as attempt:
        end = attempt.run()
        assert (end.lost, end.stopped) == (True, f"alone for {alone_s:g} s (policy.stop_alone)")


def test_an_allocation_may_be_alone_as_long_as_it_likes_where_the_job_says_nothing(
    tmp_path: Path,
) -> None:
    with Attempt(tmp_path, ["sleep", "0.7"], grace_s=30.0) as attempt:
        end = attempt.run()
        assert (end.code, end.stopped, end.lost) == (0, "", False)


def test_an_allocation_with_word_of_its_coordinator_goes_on(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"], alone_s=ALONE_S) as attempt:
        attempt.start()
        listener = attempt.listen()
        listener.phase("running")
        over = threading.Event()

        def ask() -> None:
            while not over.wait(0.1):
                listener.send(do="heard", at=orphan_timeout.now())

        asking = threading.Thread(target=ask)
        asking.start()
        until = orphan_timeout.now() + 1.5 * ALONE_S
        wait_until(lambda: orphan_timeout.now() > until, PATIENCE_S, "time to pass")
        assert attempt.shims[0].poll() is None
        over.set()
        asking.join()
        assert attempt.end().lost


@pytest.mark.parametrize("at", [None, "soon", float("nan"), float("inf"), 1e30, [1]])
def test_a_time_that_is_none_of_the_past_is_now(tmp_path: Path, at: object) -> None:
    with Attempt(tmp_path, ["sleep", "1000"], alone_s=600.0) as attempt:
        start_changed(attempt, SHORT)
        listener = attempt.listen()
        listener.send(do="heard", at=at)
        end = attempt.end()  # it did not count for ever
        assert (end.lost, end.stopped) == (True, "alone for 600 s (policy.stop_alone)")


def test_the_daemon_keeps_an_allocation_going(tmp_path: Path) -> None:
    job_dirs = JobDirs(tmp_path, JobAccount.this())
    with Attempt(job_dirs.job(7), ["sleep", "1000"], alone_s=ALONE_S) as attempt:
        attempt.start()
        attempt.claim()
        shim = Shim(job_dirs, 7, 1, lambda: None, lambda: 0.0)

        async def follow() -> tuple[protocol.AttemptEnd, float]:
            following = asyncio.ensure_future(shim.follow(None, lambda: nullcontext({})))
            until = orphan_timeout.now() + 1.5 * ALONE_S
            while orphan_timeout.now() < until:
                shim.heard(orphan_timeout.now())
                await asyncio.sleep(0.1)
            assert not following.done()
            end = await asyncio.wait_for(following, PATIENCE_S)
            return end, orphan_timeout.now() - until

        end, after_s = asyncio.run(follow())
        assert after_s > 1.0
        shim.heard(orphan_timeout.now())  # no connection is left: nothing happens
        assert (end.lost, end.stopped) == (True, REASON)
        attempt.end()


def test_old_news_do_not_count(tmp_path: Path) -> None:
    """As when the shim was stopped, and its socket is full of what the daemon said before."""
    with Attempt(tmp_path, ["sleep", "1000"], alone_s=ALONE_S, grace_s=30.0) as attempt:
        attempt.start()
        listener = attempt.listen()
        listener.phase("running")
        attempt.shims[0].send_signal(signal.SIGSTOP)
        said = orphan_timeout.now()
        listener.send(do="heard", at=said)
        wait_until(lambda: orphan_timeout.now() > said + ALONE_S, PATIENCE_S, "time to pass")
        began = time.monotonic()
        attempt.shims[0].send_signal(signal.SIGCONT)
        assert attempt.end().lost
        assert time.monotonic() - began < 3.9  # not another time alone


def test_news_that_are_younger_than_the_alarm_count(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"], alone_s=ALONE_S) as attempt:
        attempt.start()
        listener = attempt.listen()
        listener.phase("running")
        attempt.shims[0].send_signal(signal.SIGSTOP)
        began = orphan_timeout.now()
        wait_until(lambda: orphan_timeout.now() > began + ALONE_S, PATIENCE_S, "time to pass")
        listener.send(do="heard", at=orphan_timeout.now())
        attempt.shims[0].send_signal(signal.SIGCONT)
        listener.send(do="stop", grace_s=0, reason="seen")
        assert attempt.end().stopped == "seen"


# It notices a TERM, and goes on.
STUBBORN = """
trap 'echo termed' TERM
echo ready
while true; do sleep 0.05; done
"""


def test_what_was_slept_through_comes_off_the_grace(tmp_path: Path) -> None:
    """As when a machine wakes up long after: the allocation may run elsewhere by now."""
    grace_s = 1.0
    with Attempt(tmp_path, ["sh", "-c", STUBBORN], alone_s=ALONE_S, grace_s=grace_s) as attempt:
        attempt.start()
        listener = attempt.listen()
        attempt.wait_for("ready")
        attempt.shims[0].send_signal(signal.SIGSTOP)
        until = orphan_timeout.now() + ALONE_S + grace_s
        wait_until(lambda: orphan_timeout.now() > until, PATIENCE_S, "time to pass")
        listener.close()
        attempt.shims[0].send_signal(signal.SIGCONT)
        end = attempt.end()
        assert (end.lost, end.stopped, end.codes) == (True, REASON, {"0": 137})
        assert attempt.texts() == ["ready"]


def test_a_sleep_does_not_lengthen_the_grace(tmp_path: Path) -> None:
    asleep = "supervisor.Supervisor._do_in = lambda *_: None"  # its timers stand still
    with Attempt(tmp_path, ["sh", "-c", STUBBORN], alone_s=ALONE_S, grace_s=1.0) as attempt:
        start_changed(attempt, asleep)
        end = attempt.end()
        assert (end.lost, end.stopped, end.codes) == (True, REASON, {"0": 137})
        assert attempt.texts() == ["ready", "termed"]


def test_an_allocation_that_was_stopped_before_is_not_lost(tmp_path: Path) -> None:
    trap = ["sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.05; done"]
    with Attempt(tmp_path, trap, alone_s=ALONE_S, grace_s=30.0) as attempt:
        attempt.start()
        listener = attempt.listen()
        attempt.wait_for("ready")
        listener.send(do="stop", grace_s=ALONE_S + 0.5, reason="cancelled")  # alone meanwhile
        end = attempt.end()
        assert (end.stopped, end.lost) == ("cancelled", False)
