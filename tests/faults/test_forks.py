"""Children of a rank: they keep no link alive, cannot use its groups, and may make their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from tests.kit.conditions import wait_until
from tests.kit.faults import FaultPlan, failure_of, make_group, reach
from tests.kit.leaks import children_of, open_descriptors
from tests.kit.ranks import Rank, note, run_ranks, watch_ranks

DEADLINE_S = 5.0
PATIENCE_S = 50.0


class Numbers(Dataset[int]):
    """0, 1, 2, …; slow, so that its workers are alive when their rank is killed."""

    def __init__(self, slow_s: float) -> None:
        self.slow_s = slow_s

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> int:
        time.sleep(self.slow_s)
        return index


def loader(data: Dataset[Any], batch_size: int | None) -> DataLoader[Any]:
    """Two workers that are forks of the rank, as is the default of a program on Linux."""
    return DataLoader(data, batch_size, num_workers=2, multiprocessing_context="fork")


def train_with_workers(me: Rank) -> Any:
    batches: Iterator[Any] = iter(loader(Numbers(0.001), batch_size=4))
    next(batches)  # before the exchange, and again after it: the first loader's workers are old
    dist.all_reduce(torch.ones(100_000))
    more: Iterator[Any] = iter(loader(Numbers(0.001), batch_size=4))
    next(more)
    note(["workers", children_of()])
    step = 0
    while True:
        step += 1
        reach(step)
        next(batches), next(more)
        failure = failure_of(dist.all_reduce, torch.ones(100_000))
        if failure is not None:
            return failure


def test_a_killed_rank_is_noticed_though_its_data_loader_workers_live_on() -> None:
    plan = FaultPlan().kill(rank=1, step=5)
    outcomes = watch_ranks(train_with_workers, 3, during=plan)
    workers = next(what[1] for _, what in outcomes[1].notes if isinstance(what, list))
    assert len(workers) == 4
    try:
        for rank in (0, 2):
            failure = outcomes[rank].value
            assert failure is not None, outcomes[rank].trace
            assert failure.kind == "PeerLost", failure
            assert f"rank 1 (pid {outcomes[1].pid}) died" in failure.text
            assert failure.at - plan.when(1) < DEADLINE_S
    finally:
        wait_until(
            lambda: not any(_alive(pid) for pid in workers), PATIENCE_S, "the orphaned workers' end"
        )


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _ours_of(pid: int) -> list[str]:
    return [d for d in open_descriptors(pid) if re.search("socket|eventpoll|eventfd|pidfd", d)]


def outlived_by_a_child(me: Rank) -> Any:
    """Rank 1's forked child lives on, quietly, when rank 1 is killed."""
    dist.all_reduce(torch.ones(100_000))
    if me.rank == 1:
        child = os.fork()
        if child == 0:
            time.sleep(2 * PATIENCE_S)
            os._exit(0)
        note(["child", child])
    reach(1)
    while True:
        failure = failure_of(dist.all_reduce, torch.ones(8))
        if failure is not None:
            return failure


def test_a_killed_rank_is_noticed_though_a_forked_child_of_it_lives() -> None:
    plan = FaultPlan().kill(rank=1, step=1, after_s=0.05)
    outcomes = watch_ranks(outlived_by_a_child, 2, during=plan)
    child = next(what[1] for _, what in outcomes[1].notes if isinstance(what, list))
    try:
        failure = outcomes[0].value
        assert failure.kind == "PeerLost", failure
        assert failure.at - plan.when(1) < DEADLINE_S
        assert _alive(child)
        wait_until(lambda: not _ours_of(child), PATIENCE_S, "the child has closed its copies")
        assert _alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def in_a_child(action: Callable[[], Any], folder: str) -> str:
    """What `action` returned in a forked child, or how it failed."""
    answer = Path(folder, f"answer-{os.getpid()}")
    child = os.fork()
    if child == 0:
        try:
            answer.write_text(str(action()))
        except BaseException as error:
            answer.write_text(f"raised {error!r}")
        finally:
            os._exit(0)
    wait_until(lambda: os.waitpid(child, os.WNOHANG)[0] == child, PATIENCE_S, "the child's end")
    return answer.read_text()


CALLS: dict[str, Callable[[], Any]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(8)),
    "async all_reduce": lambda: dist.all_reduce(torch.ones(8), async_op=True).wait(),
    "barrier": dist.barrier,
    "send": lambda: dist.send(torch.ones(8), 1),
    "recv": lambda: dist.recv(torch.ones(8)),
}


def use_the_group_in_a_child(me: Rank) -> dict[str, Any]:
    from wiiiiided.torch import monitored_barrier, shared_empty

    dist.all_reduce(torch.ones(100_000))
    under_way = dist.all_reduce(torch.ones(8), async_op=True) if me.rank == 0 else None
    calls = {**CALLS, "monitored": monitored_barrier, "shared": lambda: shared_empty(8)}
    told = {}
    if me.rank == 0:
        for name, call in calls.items():

            def attempt(call: Callable[[], Any] = call) -> Any:
                failure = failure_of(call)
                return (
                    (failure.kind, failure.took_s < DEADLINE_S, failure.text) if failure else None
                )

            told[name] = in_a_child(attempt, me.folder)
        told["destroy"] = in_a_child(lambda: dist.destroy_process_group() or "fine", me.folder)
    else:
        under_way = dist.all_reduce(torch.ones(8), async_op=True)
    under_way.wait()
    x = torch.ones(8)
    dist.all_reduce(x)  # the parent goes on as if nothing had been
    assert x[0] == me.size
    return told


def test_a_forked_child_cannot_use_its_parents_group_and_is_told_so() -> None:
    told = run_ranks(use_the_group_in_a_child, 2)[0]
    assert told.pop("destroy") == "fine"
    assert len(told) == 7
    for name, answer in told.items():
        assert answer.startswith("('GroupClosed', True,"), (name, answer)
        assert "forked" in answer, (name, answer)


class Collecting(Dataset[Any]):
    """A collective inside a DataLoader worker."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        failure = failure_of(dist.all_reduce, torch.ones(8))
        return (failure.kind, failure.text, failure.took_s) if failure else None


def collect_in_a_worker(me: Rank) -> Any:
    found = list(loader(Collecting(), batch_size=None))
    dist.barrier()
    return found


def test_a_collective_in_a_data_loader_worker_is_refused_at_once() -> None:
    for found in run_ranks(collect_in_a_worker, 2):
        for kind, text, took_s in found:
            assert kind == "GroupClosed"
            assert "DataLoader worker" in text
            assert took_s < DEADLINE_S


def make_a_group_in_a_child(me: Rank) -> Any:
    dist.all_reduce(torch.ones(100_000))

    def action() -> float:
        dist.destroy_process_group()
        make_group(me, PATIENCE_S, "store of the children")
        x = torch.ones(100_000)
        dist.all_reduce(x)
        dist.destroy_process_group()
        return float(x[-1])

    told = in_a_child(action, me.folder)
    x = torch.ones(100_000)
    dist.all_reduce(x)
    return told, float(x[-1])


def test_forked_children_may_make_a_group_of_their_own() -> None:
    assert run_ranks(make_a_group_in_a_child, 2) == [("2.0", 2.0)] * 2


LISTING = """
import os
names = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd") if int(n) > 2]
print([os.readlink(name) for name in names if os.path.lexists(name)])
"""


def run_a_program(me: Rank) -> Any:
    dist.all_reduce(torch.ones(100_000))
    inherited = [
        subprocess.run(
            [sys.executable, "-c", LISTING],
            capture_output=True,
            text=True,
            close_fds=closes,
            check=True,
        ).stdout
        for closes in (True, False)
    ]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        os.execv(sys.executable, [sys.executable, "-c", LISTING])
    os.close(writer)
    os.waitpid(child, 0)
    inherited.append(os.read(reader, 100_000).decode())
    os.close(reader)
    dist.barrier()
    return inherited


def test_a_program_run_from_a_rank_inherits_no_descriptor_of_ours() -> None:
    for told in run_ranks(run_a_program, 2):
        for listing in told:
            assert listing.startswith("[")
            assert not re.search("memfd|eventpoll|eventfd|socket|pidfd", listing), listing
