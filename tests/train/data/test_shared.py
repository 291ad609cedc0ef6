"""`wide.shared_dataset`: built once a host, seen by ranks and workers, gone with the last one."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.kit.conditions import wait_until
from tests.kit.leaks import Footprint, holders_of, open_descriptors, shared_inodes, shared_maps
from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from wiiiiided.errors import HostError, UsageError
from wiiiiided.torch import shared_dataset
from wiiiiided.train.data import packing, shared_memory

ROWS = 50


def _value() -> dict[str, Any]:
    x = torch.arange(ROWS * 3, dtype=torch.float32).view(ROWS, 3)
    train = {"x": x, "y": (torch.arange(ROWS), [f"no {k}" for k in range(ROWS)])}
    return {"train": train, "test": x[:7] * 2, "classes": 10, "words": ["a", "b"]}


# -- in one process ----


def test_without_a_group_it_is_built_here() -> None:
    data = shared_dataset(_value)
    train = data["train"]
    assert (len(train), len(data["test"]), data["classes"]) == (ROWS, 7, 10)
    assert list(data["words"]) == ["a", "b"]
    sample = train[3]
    assert sample["x"].tolist() == [9, 10, 11]
    assert sample["y"] == (torch.tensor(3), "no 3")
    batch = train[[4, 2]]
    assert batch["x"].tolist() == [[12, 13, 14], [6, 7, 8]]
    assert batch["y"][1] == ["no 4", "no 2"]
    assert torch.equal(data.value["train"]["x"], _value()["train"]["x"])
    assert data.value["classes"] == 10


def test_a_data_set_of_one_tensor_or_a_tuple() -> None:
    x, y = torch.randn(9, 2), torch.arange(9)
    assert torch.equal(shared_dataset(lambda: x)[[8, 0]], x[[8, 0]])
    one, two = shared_dataset(lambda: (x, y))[2:5]
    assert torch.equal(one, x[2:5])
    assert torch.equal(two, y[2:5])


def test_parts_without_samples_are_named() -> None:
    data = shared_dataset(_value)
    with pytest.raises(UsageError, match=r"value\['classes'\] is one value"):
        len(data)
    with pytest.raises(UsageError, match=r"has no part 'valid'; it has the parts 'train', 'test'"):
        data["valid"]
    uneven = shared_dataset(lambda: (torch.ones(3), torch.ones(4)))
    with pytest.raises(UsageError, match=r"value\[0\] has 3 rows and value\[1\] 4"):
        uneven[0]


def test_a_copy_is_the_same_memory_and_a_file_cannot_have_it() -> None:
    data = shared_dataset(_value)
    again = copy.deepcopy(data)
    assert again.value["test"].data_ptr() == data.value["test"].data_ptr()
    with pytest.raises(UsageError, match="cannot be saved"):
        pickle.dumps(data)


def test_memory_is_returned_with_the_last_use() -> None:
    before = Footprint.before()
    data = shared_dataset(_value)
    part = data["train"]["x"]
    del data
    assert part[1].tolist() == [3, 4, 5]
    assert len(shared_maps()) == before.maps + 1
    del part
    assert Footprint.now().leaked_since(before) == []


NO_ROOM = r"needs 4\.0 MiB more and 3\.0 MiB of memory are free: 1\.0 MiB are missing"


def test_too_little_memory_is_said_before_any_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "available_bytes", lambda: 3 << 20)
    monkeypatch.setattr(os, "posix_fallocate", None)
    with pytest.raises(HostError, match=NO_ROOM):
        shared_dataset(lambda: (torch.zeros(9), torch.zeros(1 << 20)))


def test_too_little_memory_is_said_before_a_tensor_is_given_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_memory, "available_bytes", lambda: 3 << 20)
    monkeypatch.setattr(os, "posix_fallocate", None)
    built: list[torch.Tensor] = []
    with pytest.raises(HostError, match=NO_ROOM):
        shared_dataset(lambda empty: built.append(empty((1 << 10, 1 << 10))))
    assert not built


# -- built in place ----


def test_what_lies_in_shared_memory_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    for name in ("_copy", "_fill"):
        monkeypatch.setattr(packing, name, lambda raw, value: copied.append(len(raw)))

    def make(empty: Any) -> Any:
        x, y, numbers = empty((5, 3)), empty(5, torch.int64), empty(5, torch.int32).numpy()
        assert not x.any()
        x[:], y[:], numbers[:] = torch.arange(15.0).view(5, 3), torch.arange(5), 7
        return {"x": x, "y": [y, x[1:3]], "numbers": numbers, "words": ["a", "b"]}

    value = shared_dataset(make).value
    assert copied == []
    assert value["x"].tolist() == torch.arange(15.0).view(5, 3).tolist()
    assert value["y"][0].tolist() == [*range(5)]
    assert value["y"][1].tolist() == [[3, 4, 5], [6, 7, 8]]
    assert value["numbers"].tolist() == [7] * 5
    assert list(value["words"]) == ["a", "b"]


def test_what_does_not_lie_there_as_it_is_read_is_copied() -> None:
    def make(empty: Any) -> Any:
        x = empty((2, 3), torch.complex64)
        x[:] = torch.arange(6).view(2, 3) * 1j
        return x.T, x.conj(), x[:, 1], torch.ones(2)

    turned, conjugate, column, ones = shared_dataset(make).value
    assert turned.tolist() == [[0j, 3j], [1j, 4j], [2j, 5j]]
    assert conjugate[1].tolist() == [-3j, -4j, -5j]
    assert (column.tolist(), ones.tolist()) == ([1j, 4j], [1, 1])


def test_only_a_parameter_without_a_default_is_the_allocator() -> None:
    def load(folder: str, empty: Any) -> Any:
        empty(2)[:] = 1
        return torch.ones(len(folder))

    assert len(shared_dataset(lambda count=3: torch.ones(count))) == 3
    assert len(shared_dataset(functools.partial(load, "abcd"))) == 4
    assert len(shared_dataset(functools.partial(torch.ones, 5))) == 5


def test_shared_memory_is_given_out_while_make_runs_alone() -> None:
    kept: list[Any] = []

    def make(empty: Any) -> Any:
        kept.append(empty)
        return torch.ones(3)

    shared_dataset(make)
    with pytest.raises(UsageError, match="while `make` runs"):
        kept[0](1)


def test_the_tightest_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "memory.max": str(5 << 20),
        "memory.current": str(4 << 20),
        "memory.stat": f"anon 7\ninactive_file {1 << 20}\nactive_file 24\n",
    }.items():
        (tmp_path / name).write_text(value)
    assert shared_memory.available_bytes(tmp_path / "nested") == (2 << 20) + 24
    (tmp_path / "memory.max").write_text("max")
    free = psutil.virtual_memory()._replace(available=77)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert shared_memory.available_bytes(tmp_path / "nested") == 77


# -- workers ----


class Watched(torch.utils.data.Dataset[Any]):
    """Says of each sample how much memory of its own the worker has of the data set."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, which: int) -> tuple[torch.Tensor, int, int]:
        return self.data[which], sum(shared_maps()), os.getpid()


@pytest.mark.parametrize(
    "method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.soak)]
)
def test_workers_map_the_same_memory(method: str) -> None:
    data = shared_dataset(lambda: torch.arange(8 << 20))
    size = sum(shared_maps())
    loader = DataLoader(
        Watched(torch.utils.data.Subset(data, range(8))),
        batch_size=4,
        num_workers=2,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    found = list(loader)
    assert torch.cat([x for x, _, _ in found]).tolist() == [*range(8)]
    assert {int(n) for _, sizes, _ in found for n in sizes} == {size}
    assert os.getpid() not in {int(n) for _, _, pids in found for n in pids}


# -- ranks ----


def _share(me: Rank) -> Any:
    made = []

    def make() -> Any:
        made.append(me.rank)
        return {**_value(), "by": me.rank}

    data = shared_dataset(make)
    x = data.value["train"]["x"]
    x[me.rank] = -1.0  # seen here alone
    dist.barrier()
    rows = (x[:, 0] == -1).nonzero().flatten().tolist()
    maps = len(shared_maps())
    del x, data
    dist.barrier()
    return bool(made), rows, len(shared_maps()) - maps


@pytest.mark.parametrize("world", [1, 3, "ab", "aab"])
def test_one_rank_of_each_host_builds_and_a_write_stays_with_its_rank(world: int | str) -> None:
    hosts = world if isinstance(world, str) else "a" * world
    found = run_ranks(_share, world)
    firsts = [hosts.index(host) == rank for rank, host in enumerate(hosts)]
    assert [made for made, _, _ in found] == firsts
    assert [rows for _, rows, _ in found] == [[rank] for rank in range(len(hosts))]
    assert all(more == -1 for _, _, more in found)


def _own_memory(me: Rank) -> int:
    def bytes_() -> int:
        text = Path("/proc/self/status").read_text()
        return int(text.partition("RssAnon:")[2].split()[0]) * 1024

    before = bytes_()
    data = shared_dataset(lambda: [torch.ones(1 << 18) for _ in range(64)])  # 64 MiB
    assert len(data[0]) == 64
    return bytes_() - before


def test_the_builder_does_not_keep_what_make_made() -> None:
    """A rank's heap keeps what is freed for the next step (backend/shm/malloc)."""
    (kept,) = run_ranks(_own_memory, 1)
    assert kept < 32 << 20


def _peak(me: Rank, in_place: bool) -> float:
    """The most that 200 MiB took while they were built, over their size."""
    parts, part, found = 20, 10 << 20, [0]

    def taken() -> int:
        own = int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) << 10
        there = [os.stat(f"/proc/self/fd/{one.split()[0]}") for one in open_descriptors()
                 if "memfd:wiiiiide" in one]  # fmt: skip
        return own + sum({about.st_ino: about.st_blocks * 512 for about in there}.values())

    def watched(raw: Any, tensor: torch.Tensor) -> None:
        copy_(raw, tensor)
        found.append(taken())  # the source is still there

    def make() -> list[torch.Tensor]:
        return [torch.full((part,), k, dtype=torch.uint8) for k in range(parts)]

    def make_in_place(empty: Any) -> list[torch.Tensor]:
        made = [empty(part, torch.uint8).fill_(k) for k in range(parts)]
        found.append(taken())
        return made

    copy_, packing._copy = packing._copy, watched
    before = taken()
    data = shared_dataset(make_in_place if in_place else make)
    if me.rank == 0:
        assert len(found) == (2 if in_place else parts + 1)
    assert [int(tensor[-1]) for tensor in data.value] == [*range(parts)]
    return (max(*found, taken()) - before) / (parts * part)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_data_set_is_not_there_twice_while_it_is_built(in_place: bool) -> None:
    peak, _ = run_ranks(_peak, 2, in_place)
    assert peak < (1.1 if in_place else 1.3)


def _fails(me: Rank, how: str) -> str:
    def make() -> Any:
        if how == "raises":
            raise ValueError("no such corpus")
        if how == "no room":
            shared_memory.available_bytes = lambda: 1000
        return torch.ones(1000) if how == "no room" else {"a": object()}

    with pytest.raises((ValueError, UsageError, HostError)) as caught:
        shared_dataset(make)
    again = shared_dataset(lambda: torch.arange(5))  # the group goes on
    assert again[4] == 4
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("world", [3, "ab"])
@pytest.mark.parametrize(
    ("how", "text"),
    [("raises", "no such corpus"), ("no room", "wide.mapped"), ("cannot", "is a object")],
)
def test_what_make_raises_is_raised_on_all_ranks(world: int | str, how: str, text: str) -> None:
    found = run_ranks(_fails, world, how)
    assert all(text in one for one in found), found
    if how == "raises":
        assert found[0] == "ValueError: no such corpus"
        if world == 3:
            assert found[1].startswith("UsageError: rank 0 could not build the shared data set: V")


def _killed(me: Rank) -> None:
    def make(empty: Any) -> Any:
        empty(1 << 20)
        note(shared_inodes())
        os.kill(os.getpid(), signal.SIGKILL)

    shared_dataset(make)


def test_a_builder_that_is_killed_is_named_and_leaves_nothing() -> None:
    outcomes = watch_ranks(_killed, 3)
    for outcome in outcomes[1:]:
        assert "PeerLost" in outcome.error, outcome
        assert "rank 0" in outcome.error
    ((_, inodes),) = outcomes[0].notes
    assert len(inodes) == 1
    wait_until(lambda: not holders_of(inodes), 30, "the half built memory is gone")


def _holds(me: Rank) -> None:
    data = shared_dataset(lambda: torch.arange(1 << 20))
    context = multiprocessing.get_context("fork")
    loader = iter(DataLoader(data, num_workers=1, multiprocessing_context=context))
    assert next(loader) == 0
    note(shared_inodes())
    signal.pause()


def test_nothing_stays_behind_when_all_ranks_are_killed() -> None:
    inodes: set[int] = set()
    held: set[int] = set()

    def kill(outcomes: list[Outcome], _: float) -> None:
        if inodes or not all(outcome.notes for outcome in outcomes):
            return
        inodes.update(*(found for outcome in outcomes for _, found in outcome.notes))
        held.update(holders_of(inodes))
        for outcome in outcomes:
            os.kill(outcome.pid, signal.SIGKILL)

    outcomes = watch_ranks(_holds, 3, during=kill)
    assert [outcome.exit_code for outcome in outcomes] == [-signal.SIGKILL] * 3
    assert len(inodes) == 1
    assert held > {outcome.pid for outcome in outcomes}  # and their workers
    wait_until(lambda: not holders_of(inodes), 60, "ranks and workers are gone, and the memory")


def _of_two_jobs(me: Rank) -> tuple[list[int], set[int]]:
    job, rank = divmod(me.rank, 2)
    dist.init_process_group(
        "wiiiiide", init_method=f"file://{me.folder}/store-{job}", rank=rank, world_size=2
    )
    data = shared_dataset(lambda: torch.full((3,), job))
    here = Path(me.folder)
    (here / f"built-{me.rank}").touch()
    wait_until(lambda: len(list(here.glob("built-*"))) == me.size, 60, "both jobs have theirs")
    return data.value.tolist(), shared_inodes()


def test_two_jobs_side_by_side_have_memory_of_their_own() -> None:
    found = run_ranks(_of_two_jobs, 4, backend=None)
    assert [value for value, _ in found] == [[0] * 3, [0] * 3, [1] * 3, [1] * 3]
    first, second = found[0][1], found[2][1]
    assert len(first) == len(second) == 1
    assert first != second
    assert [inodes for _, inodes in found] == [first, first, second, second]


def _another_backend(me: Rank) -> None:
    with pytest.raises(UsageError, match='shared_dataset needs a group of the backend "wiiiiide"'):
        shared_dataset(_value)


def test_what_is_no_function_gets_a_sentence() -> None:
    with pytest.raises(UsageError, match="takes a function that makes the data set"):
        shared_dataset(torch.ones(3))  # type: ignore[arg-type]


def test_another_backend_gets_a_sentence() -> None:
    run_ranks(_another_backend, 1, backend="gloo")
