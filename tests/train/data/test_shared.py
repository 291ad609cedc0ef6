"""`wide.shared_dataset`: built once a host, seen by ranks and workers, gone with the last one."""

from __future__ import annotations

import copy
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

from tests.kit.leaks import Footprint, dev_shm, shared_maps
from tests.kit.ranks import Rank, run_ranks, watch_ranks
from wiiiiided.errors import HostError, UsageError
from wiiiiided.torch import shared_dataset
from wiiiiided.train.data import shared_memory

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


def test_too_little_memory_is_said_before_any_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "available_bytes", lambda: 3 << 20)
    monkeypatch.setattr(os, "memfd_create", None)
    with pytest.raises(HostError, match=r"takes 4\.0 MiB and 3\.0 MiB of memory are free"):
        shared_dataset(lambda: torch.zeros(1 << 20))


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
    def make() -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    shared_dataset(make)


def test_a_builder_that_is_killed_is_named_and_leaves_nothing() -> None:
    before = dev_shm()
    outcomes = watch_ranks(_killed, 3)
    for outcome in outcomes[1:]:
        assert "PeerLost" in outcome.error, outcome
        assert "rank 0" in outcome.error
    assert dev_shm() == before


def _another_backend(me: Rank) -> None:
    with pytest.raises(UsageError, match='shared_dataset needs a group of the backend "wiiiiide"'):
        shared_dataset(_value)


def test_what_is_no_function_gets_a_sentence() -> None:
    with pytest.raises(UsageError, match="takes a function that makes the data set"):
        shared_dataset(torch.ones(3))  # type: ignore[arg-type]


def test_another_backend_gets_a_sentence() -> None:
    run_ranks(_another_backend, 1, backend="gloo")
