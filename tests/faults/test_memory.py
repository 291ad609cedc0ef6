"""Too little memory is a sentence on every rank; and how much memory groups take is known."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.faults import failure_of, make_group, together
from tests.kit.leaks import Footprint, shared_maps
from tests.kit.ranks import Rank, run_ranks, watch_ranks
from wiiiiided.backend.engine.host_team import base_bytes
from wiiiiided.backend.shm.segment import Segment

DEADLINE_S = 5.0
LARGE = 1024 * 1024
MIB = 2**20


def no_room(fd: int, offset: int, length: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def join_without_memory(me: Rank, poor: int) -> Any:
    before = Footprint.before()
    if me.rank == poor:
        os.posix_fallocate = no_room
    failure = failure_of(make_group, me, 30.0)
    return failure, Footprint.now().leaked_since(before)


@pytest.mark.parametrize("poor", [0, 1])
def test_a_rank_without_memory_for_a_group_fails_all_with_that_cause(poor: int) -> None:
    outcomes = watch_ranks(join_without_memory, 3, poor, backend=None)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.error
        failure, leaks = outcome.value
        assert failure is not None
        assert "No space left" in failure.text, failure
        assert "shared memory" in failure.text, failure
        assert failure.took_s < DEADLINE_S
        assert leaks == []
    assert outcomes[poor].value[0].kind == "HostError"


def grow_without_memory(me: Rank, poor: int, what: str) -> Any:
    from wiiiiided.torch import shared_empty

    before = Footprint.before()
    make_group(me, 30.0)
    dist.barrier()
    together(me)
    if me.rank == poor:
        os.posix_fallocate = no_room
    x = torch.ones(LARGE)
    if what == "staging":
        failure = failure_of(dist.all_reduce, x)
    elif what == "async":
        failure = failure_of(dist.all_reduce(x, async_op=True).wait)
    elif what == "shared_empty":
        failure = failure_of(shared_empty, LARGE)
    elif me.rank == poor:
        failure = failure_of(dist.send, x, (poor + 1) % me.size)
    elif me.rank == (poor + 1) % me.size:
        failure = failure_of(dist.recv, x, poor)
    else:
        failure = failure_of(dist.barrier)
    later = failure_of(dist.barrier)
    dist.destroy_process_group()
    return failure, later, Footprint.now().leaked_since(before)


@pytest.mark.parametrize("poor", [0, 2])
@pytest.mark.parametrize("what", ["staging", "async", "shared_empty", "message"])
def test_a_rank_without_memory_for_more_fails_all_with_that_cause(what: str, poor: int) -> None:
    outcomes = watch_ranks(grow_without_memory, 3, poor, what, backend=None)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.error
        failure, later, leaks = outcome.value
        assert failure is not None
        assert "No space left" in failure.text, failure
        assert failure.took_s < DEADLINE_S
        if outcome.rank == poor:
            assert failure.kind == "HostError", failure
        else:
            assert f"rank {poor} (pid {outcomes[poor].pid})" in failure.text, failure
        assert later is not None, "the group went on"
        assert later.took_s < DEADLINE_S
        assert leaks == []


def join_without_descriptors(me: Rank, poor: int, room: int) -> Any:
    before = Footprint.before()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if me.rank == poor:
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + room, hard))
    failure = failure_of(make_group, me, 2.0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return failure, Footprint.now().leaked_since(before)


@pytest.mark.parametrize("room", [1, 3, 5])
@pytest.mark.parametrize("poor", [0, 1])
def test_a_rank_at_its_limit_of_open_files_fails_all_in_time(poor: int, room: int) -> None:
    outcomes = watch_ranks(join_without_descriptors, 2, poor, room, backend=None)
    for outcome in outcomes:
        assert outcome.exit_code == 0, outcome.error
        assert not outcome.error, outcome.trace
        failure, leaks = outcome.value
        assert failure is not None, "there was room enough"
        assert failure.took_s < 2.0 + DEADLINE_S, failure
        assert leaks == []


def test_memory_that_cannot_be_mapped_gives_its_descriptor_back_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closed twice, a descriptor may by then be another file's."""
    closed: list[int] = []
    close = os.close

    def no_map(fd: int, nbytes: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def count(fd: int) -> None:
        closed.append(fd)
        if closed.count(fd) == 1:
            close(fd)

    mine = os.memfd_create("test")
    os.ftruncate(mine, 4096)
    with monkeypatch.context() as patch:
        patch.setattr(mmap, "mmap", no_map)
        patch.setattr(os, "close", count)
        for action, *args in ((Segment.create, "test", 4096), (Segment.attach, mine, 4096)):
            failure = failure_of(action, *args)
            assert failure is not None
            assert "Too many open files" in failure.text
            gc.collect()
            assert len(closed) == 1, "closed twice"
            closed.clear()


def idle_in_groups(me: Rank, groups: int) -> list[int]:
    for _ in range(groups):
        dist.new_group(list(range(me.size)))
    dist.barrier()
    return shared_maps()


def test_fifty_idle_groups_of_eight_ranks_take_less_than_256_mib() -> None:
    assert 50 * base_bytes(8) < 256 * MIB
    for sizes in run_ranks(idle_in_groups, 4, 9):  # ten groups with the world
        assert sizes == [base_bytes(4)] * 10


def work_in_groups(me: Rank) -> list[int]:
    groups = [dist.group.WORLD] + [dist.new_group([0, 1]) for _ in range(9)]
    for group in groups:
        x = torch.ones(4 * LARGE)
        dist.all_reduce(x, group=group)
        assert x[-1] == 2
        work = dist.isend(x, 1 - me.rank, group=group)
        dist.recv(torch.empty_like(x), 1 - me.rank, group=group)
        work.wait()
    return shared_maps()


def test_two_ranks_and_ten_groups_work_in_64_mib() -> None:
    for sizes in run_ranks(work_in_groups, 2):
        assert len(sizes) >= 20
        assert sum(sizes) < 64 * MIB


def use_everything(me: Rank) -> list[float]:
    from wiiiiided.torch import shared_empty

    assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 64 * 1024
    x = torch.ones(4 * LARGE)
    dist.all_reduce(x)
    y = shared_empty(LARGE)
    y.fill_(1.0)
    dist.all_reduce(y)
    work = dist.isend(x, (me.rank + 1) % me.size)
    z = torch.empty_like(x)
    dist.recv(z, (me.rank - 1) % me.size)
    work.wait()
    return [float(x[-1]), float(y[-1]), float(z[-1])]


@pytest.mark.needs("root", "unshare", "mount")
def test_a_tiny_dev_shm_does_not_matter() -> None:
    code = (
        "from tests.faults.test_memory import use_everything\n"
        "from tests.kit.ranks import run_ranks\n"
        "if __name__ == '__main__': print(run_ranks(use_everything, 2))\n"
    )
    root = Path(__file__).parents[2]
    mount = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" "$@"', sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=root,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]"
