"""`wide.save` and `wide.load`: whole or not at all, and brought to the hosts that have it not."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wiiiiided.torch as wide
from tests.kit.ranks import Rank, run_ranks
from wiiiiided import log
from wiiiiided.errors import HostError, UsageError, WiiiiideError
from wiiiiided.train.checkpoints import file, one_file


def _trained(steps: int, seed: int = 1) -> tuple[Any, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def _bits(model: Any, optimizer: torch.optim.Optimizer) -> list[Any]:
    tensors = [*model.state_dict().values()]
    for kept in optimizer.state_dict()["state"].values():
        tensors += kept.values()
    return [tensor.tolist() for tensor in tensors]


def _saves(me: Rank, base: str, hosts: str) -> list[Any]:
    model, optimizer = _trained(2)
    path = f"{base}/{hosts[me.rank]}/last.wide"
    for epoch in (1, 2):
        wide.save(
            path, model=model, optimizer=optimizer, extra={"epoch": epoch, "best": (0.5, "x")}
        )
    return _bits(model, optimizer)


def _loads(me: Rank, base: str, hosts: str) -> tuple[Any, list[Any]]:
    model, optimizer = _trained(0, seed=2)
    extra = wide.load(f"{base}/{hosts[me.rank]}/last.wide", model=model, optimizer=optimizer)
    return extra, _bits(model, optimizer)


def test_ddp_is_saved_and_loaded_at_any_number_of_hosts(tmp_path: Path) -> None:
    wanted, *_ = run_ranks(_saves, "aab", str(tmp_path), "aab")
    assert os.listdir(tmp_path / "b") == ["last.wide"]
    for hosts in ("cb", "a"):  # host c has nothing of its own
        for extra, bits in run_ranks(_loads, hosts, str(tmp_path), hosts):
            assert extra == {"epoch": 2, "best": (0.5, "x")}
            assert bits == wanted
    assert (tmp_path / "c" / "last.wide").exists()


def _one_host_is_newer(me: Rank, base: str) -> Any:
    path = f"{base}/{'ab'[me.rank]}/x.wide"
    wide.save(path, extra={"n": 1})
    before = Path(path).read_bytes()
    wide.save(path, extra={"n": 2})
    if me.rank == 0:  # as if a kill had come before this host's rename
        Path(path).write_bytes(before)
    found = [wide.load(path)]
    if me.rank == 1:
        os.truncate(path, 5000)
    said: list[str] = []
    log.warn = lambda who, text: said.append(text)
    return [*found, wide.load(path), said]


def test_the_newest_whole_file_wins_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    first, second = run_ranks(_one_host_is_newer, "ab", str(tmp_path))
    assert first == [{"n": 2}, {"n": 2}, []]
    assert second[:2] == [{"n": 2}, {"n": 2}]
    assert "b/x.wide is cut off or damaged" in second[2][0]


def _loads_apart(me: Rank, base: str) -> tuple[Any, list[str]]:
    said: list[str] = []
    log.warn = lambda who, text: said.append(text)
    return wide.load(f"{base}/{'ab'[me.rank]}/x.wide"), said


def test_files_of_one_number_that_were_saved_apart_are_not_mixed(tmp_path: Path) -> None:
    for host in "ab":
        wide.save(tmp_path / host / "x.wide", extra={"of": host})
    (first, _), (second, said) = run_ranks(_loads_apart, "ab", str(tmp_path))
    assert first == second == {"of": "a"}
    assert "b/x.wide is of a run that went on apart from rank 0's host" in said[0]


def _counts_writes(me: Rank, base: str, folders: str) -> tuple[int, Any]:
    written: list[str] = []
    plain = one_file.write

    def counted(path: str, *args: Any) -> None:
        written.append(path)
        plain(path, *args)

    one_file.write = counted
    path = Path(base) / folders[me.rank] / "x.wide"
    for n in range(4):
        wide.save(path, extra={"n": n})
    return len(written), wide.load(path)


def test_of_hosts_that_see_one_path_the_first_writes(tmp_path: Path) -> None:
    left = tmp_path / "s" / f"x.wide.1-{'0' * 16}.tmp"  # another host's, which may be at work
    left.parent.mkdir()
    left.touch()
    found = run_ranks(_counts_writes, "abcc", str(tmp_path), "ssdd")
    assert found == [(count, {"n": 3}) for count in (4, 0, 4, 0)]
    assert sorted(os.listdir(tmp_path / "s")) == ["x.wide", left.name]
    assert os.listdir(tmp_path / "d") == ["x.wide"]


def _cannot_write(me: Rank, base: str) -> str:
    folder = Path(base) / "ab"[me.rank]
    wide.save(folder / "x.wide", extra={"n": 1})
    if me.rank == 1:
        os.fsync = _full  # type: ignore[assignment]
    with pytest.raises(HostError) as caught:
        wide.save(folder / "x.wide", extra={"n": 2})
    return str(caught.value)


def _full(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_host_that_cannot_write_is_named_on_all_ranks(tmp_path: Path) -> None:
    for said in run_ranks(_cannot_write, "ab", str(tmp_path)):
        assert said.startswith("rank 1 cannot save (earlier files are kept): ")
        assert said.endswith("x.wide: No space left on device")
    assert wide.load(tmp_path / "b" / "x.wide") == {"n": 1}


def _different(me: Rank, base: str) -> str:
    try:
        wide.save(f"{base}/x.wide", extra={"f": print} if me.rank else {"f": 1})
    except UsageError as problem:
        return str(problem)
    return ""


def test_what_one_rank_cannot_save_is_raised_on_all(tmp_path: Path) -> None:
    for said in run_ranks(_different, 2, str(tmp_path)):
        assert "x.wide is not saved: " in said
        assert "builtin_function_or_method" in said
    assert not os.listdir(tmp_path)


def _in_a_trial(me: Rank, base: str) -> str:
    path = f"{base}/{'ab'[me.rank]}/x.wide"
    wide.save(path, extra={"n": 2})
    try:
        wide.save(path, extra={"f": print} if me.rank else {})
    except UsageError as problem:
        return str(problem)
    return ""


def test_a_trial_checks_and_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "a" / "x.wide"
    wide.save(kept, extra={"n": 1})
    for said in run_ranks(_in_a_trial, "ab", str(tmp_path), env={"WIIIIIDE_PROBE": "1"}):
        assert "x.wide is not saved: " in said
    monkeypatch.setenv("WIIIIIDE_PROBE", "1")
    wide.save(kept, extra={"n": 2})
    assert wide.load(kept) == {"n": 1}
    assert [str(path) for path in tmp_path.rglob("*.*")] == [str(kept)]


# -- without a group ----


def test_a_process_alone_saves_and_loads(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.wide"
    assert wide.load(path) is None
    model, optimizer = _trained(3)
    wide.save(path, model=model, optimizer=optimizer, extra={"lr": 0.1})
    wide.save(path, model=model, optimizer=optimizer, extra={"lr": 0.2})
    assert file.check(path, None).step == 2
    other = _trained(0, seed=5)
    assert wide.load(path, model=other[0], optimizer=other[1]) == {"lr": 0.2}
    assert _bits(*other) == _bits(model, optimizer)
    os.truncate(path, 4096)
    with pytest.raises(HostError, match=r"cut off or damaged.* no host has a good one"):
        wide.load(path)


@pytest.mark.parametrize(
    ("saved", "into", "says"),
    [
        (
            {"model": nn.Linear(2, 2)},
            {"model": nn.Linear(2, 3)},
            r"weight is of shape \[2, 2\], not",
        ),
        ({"model": nn.Linear(2, 2)}, {"model": nn.Linear(2, 2, bias=False)}, "bias is of shape"),
        ({"extra": {}}, {"model": nn.Linear(2, 2)}, "has no model"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_changed(
    tmp_path: Path, saved: dict[str, Any], into: dict[str, Any], says: str
) -> None:
    wide.save(tmp_path / "x.wide", **saved)
    before = [p.tolist() for p in into["model"].parameters()]
    with pytest.raises(UsageError, match=says):
        wide.load(tmp_path / "x.wide", **into)
    assert [p.tolist() for p in into["model"].parameters()] == before


@pytest.mark.parametrize("given", [{}, {"extra": [1]}, {"extra": {"f": print}}])
def test_what_cannot_be_saved_is_refused_and_leaves_nothing(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        wide.save(tmp_path / "x.wide", **given)
    assert not os.listdir(tmp_path)


def test_an_optimizer_of_other_groups_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    wide.save(tmp_path / "x.wide", optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    groups: list[dict[str, Any]] = [{"params": [model.weight]}, {"params": [model.bias]}]
    other = torch.optim.SGD(groups, lr=0.1)
    with pytest.raises(UsageError, match=r"groups of \[2\] parameters, and not \[1, 1\]"):
        wide.load(tmp_path / "x.wide", optimizer=other)


def test_a_write_that_fails_leaves_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "x.wide"
    wide.save(path, extra={"n": 1})
    with contextlib.suppress(WiiiiideError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        wide.save(path, extra={"n": 2})
    assert wide.load(path) == {"n": 1}
    assert os.listdir(tmp_path) == ["x.wide"]
