"""What the backend offers beyond torch's functions, and what a user can turn."""

from __future__ import annotations

import math
import mmap
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.kit.conditions import wait_until
from tests.kit.data import assert_same, random_of, reduced
from tests.kit.ranks import Rank, run_ranks
from wiiiiided.backend.engine.process import stats_page
from wiiiiided.backend.shm import stats as counters
from wiiiiided.errors import UsageError
from wiiiiided.torch import monitored_barrier, progress, stats


def _counts(me: Rank) -> None:
    before = stats()
    assert (before.rank, before.world_size) == (me.rank, me.size)
    other = 1 - me.rank
    for later in (False, True):
        work = dist.all_reduce(torch.ones(1000), async_op=later)
        if work is not None:
            work.wait()
    works = [dist.isend(torch.ones(10), other), dist.irecv(torch.ones(10), other)]
    for work in works:
        work.wait()
    after = stats()
    assert after.operations - before.operations == 4
    assert after.sent - before.sent == 1
    assert after.received - before.received == 1
    assert after.failed == before.failed
    assert after.bytes_shm - before.bytes_shm >= 8000
    assert after.exchange_s >= before.exchange_s
    side = dist.new_group([0, 1])
    assert stats().rank == me.rank
    dist.destroy_process_group(side)


def test_the_counters_count() -> None:
    run_ranks(_counts, 2)


# For the one that is late: more than a busy machine makes a rank wait for the others.
HELD_S = 3.0


def _tell_when_waited(me: Rank, so_long_s: float) -> None:
    """In the background: let the late one know that this rank has waited for so long."""
    already = stats().waiting_s
    told = Path(me.folder, f"waited {me.rank}")

    def watch() -> None:
        wait_until(lambda: stats().waiting_s - already > so_long_s, 50, "it has waited")
        told.touch()

    threading.Thread(target=watch, daemon=True).start()


def _await_waiters(me: Rank) -> None:
    others = [Path(me.folder, f"waited {rank}") for rank in range(me.size) if rank != me.rank]
    wait_until(lambda: all(map(Path.exists, others)), 50, "the others have waited")


def _waits_for_the_last(me: Rank) -> tuple[dict[int, float], float, float, float]:
    dist.barrier()
    before, begun = stats(), time.monotonic()
    if me.rank == me.size - 1:
        _await_waiters(me)
    else:
        _tell_when_waited(me, HELD_S)
    works = [dist.all_reduce(torch.ones(300_000), async_op=True) for _ in range(4)]
    for work in works:
        work.wait()
    after, took = stats(), time.monotonic() - begun
    waited = {
        peer: spent - before.waited_for.get(peer, 0.0) for peer, spent in after.waited_for.items()
    }
    return waited, after.waiting_s - before.waiting_s, after.exchange_s - before.exchange_s, took


@pytest.mark.parametrize("ranks", [3, "aab", "abb"])
def test_waiting_is_counted_against_the_one_that_is_late(ranks: int | str) -> None:
    *early, late = run_ranks(_waits_for_the_last, ranks)
    for me, (waited, waiting, exchange, took) in enumerate(early):
        blamed = max(waited, key=lambda peer: waited[peer])
        assert blamed == (2 if ranks != "abb" or me else 1)  # 1 speaks for its host to 0
        assert waited[blamed] > 0.7 * HELD_S
        assert HELD_S < waiting <= exchange <= took
    assert late[1] < 0.7 * HELD_S


def _receives(me: Rank) -> dict[int, float]:
    if me.rank == 0:
        _await_waiters(me)
        dist.send(torch.ones(3), 1)
    else:
        _tell_when_waited(me, 0.3)
        dist.recv(torch.ones(3))
    return stats().waited_for


def test_a_receive_waits_for_its_sender() -> None:
    assert run_ranks(_receives, 2)[1][0] > 0.2


def _watched(me: Rank) -> None:
    for _ in range(5):
        dist.all_reduce(torch.ones(3))


def test_a_stats_file_shows_the_counters_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    path.touch()
    run_ranks(_watched, 1, env={"WIIIIIDE_STATS": str(path)})
    with open(path, "rb") as file:
        page = mmap.mmap(file.fileno(), counters.PAGE_BYTES, prot=mmap.PROT_READ)
    words = memoryview(page).cast("q")
    assert words[0] == counters.MAGIC
    assert (words[counters.RANK], words[counters.WORLD]) == (0, 1)
    assert words[counters.OPERATIONS] >= 5


def _reports(me: Rank) -> None:
    progress(0)
    progress(step=41)
    live = torch.ones(1, requires_grad=True) * 2
    with pytest.raises(UsageError, match=r"step=-1 is not from 0"):
        progress(-1)
    with pytest.raises(UsageError, match=r"step=3\.5 is not a whole number"):
        progress(3.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"total='ten' is not a whole number"):
        progress(3, total="ten")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"loss is not a number: shape \(2,\)"):
        progress(3, loss=torch.ones(2))
    progress(41, metrics={"accuracy": 0.5, "lr": torch.tensor(0.1), "nan": math.nan})
    for wrong, said in (
        ({"ok": 1.0, "a b": 1.0}, r"metrics: 'a b' is not a name of a metric: a letter or _"),
        ({3: 1.0}, "metrics: 3 is not a name"),
        ({"ok": "0.5"}, r"metrics\['ok'\] is not a number: '0.5'"),
        ({"ok": None}, r"metrics\['ok'\] is not a number: None"),
        ({"ok": torch.ones(2)}, r"metrics\['ok'\] is not a number: shape \(2,\)"),
        ([0.5], "metrics is not a dict of names and numbers: list"),
        ({f"m{n}": 1.0 for n in range(6)}, "metrics: a rank reports at most 8 metrics, these are"),
    ):
        with pytest.raises(UsageError, match=said):
            progress(77, metrics=wrong)  # type: ignore[arg-type]
    words = stats_page().words
    assert list(stats_page().metrics) == ["accuracy", "lr", "nan"]
    assert words[counters.STEP] == 42  # what was refused has changed nothing
    assert words[counters.SAID_GUARD] % 2 == 0
    progress(41, loss=live)  # of a tensor with a gradient torch would warn


def test_progress_is_seen_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    path.touch()
    run_ranks(_reports, 1, env={"WIIIIIDE_STATS": str(path)})
    words = memoryview(path.read_bytes()).cast("q")
    assert words[counters.STEP] == 42


def _monitored(me: Rank) -> None:
    for _ in range(5):
        monitored_barrier()
        monitored_barrier(timeout=timedelta(seconds=20))
        dist.group.WORLD.monitored_barrier(timedelta(seconds=20))
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [me.size] * 2


@pytest.mark.parametrize("size", [1, 3])
def test_a_monitored_barrier_that_all_enter_is_a_barrier(size: int) -> None:
    run_ranks(_monitored, size)


def _waits(me: Rank) -> None:
    for count in (3, 30_000, 300_000):
        inputs = [random_of(r, count) for r in range(me.size)]
        for later in (False, True):
            x = inputs[me.rank].clone()
            work = dist.all_reduce(x, async_op=later)
            if work is not None:
                work.wait()
            assert_same(x, reduced("SUM", inputs), f"{count}")
    if me.rank:
        dist.send(torch.ones(50_000), 0)
    else:
        for _ in range(me.size - 1):
            dist.recv(torch.empty(50_000))
    dist.barrier()


@pytest.mark.parametrize("spin", ["auto", "always", "never"])
def test_every_way_of_waiting_works(spin: str) -> None:
    run_ranks(_waits, 3, env={"WIIIIIDE_SPIN": spin})


def _names(me: Rank) -> None:
    group = dist.group.WORLD
    assert dist.get_backend() == "wiiiiide"
    assert dist.get_rank() == group.rank() == me.rank
    assert dist.get_world_size() == group.size() == me.size
    assert group.name() == "wiiiiide"
    described = dist.new_group([0, 1], group_desc="my groups")
    assert described.group_desc == "my groups"
    assert described.group_name != group.group_name


def test_a_group_knows_its_names() -> None:
    run_ranks(_names, 2)


def _wait_with_timeout(me: Rank) -> None:
    if me.rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        with pytest.raises(TimeoutError, match="goes on"):
            work.wait(timedelta(seconds=0.05))
        assert not work.is_completed()
        dist.FileStore(f"{me.folder}/s", 2).set("now", "yes")
        work.wait(timedelta(seconds=50))
    else:
        dist.FileStore(f"{me.folder}/s", 2).wait(["now"])
        dist.all_reduce(torch.ones(3))


def test_a_wait_that_gives_up_leaves_the_operation_going_on() -> None:
    run_ranks(_wait_with_timeout, 2)
