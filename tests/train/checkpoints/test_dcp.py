"""torch's distributed checkpoint: it reads ours, a run starts from its, FSDP2 uses it over ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp
from torch.distributed.checkpoint.state_dict_saver import save as save_dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import wiiiiided.torch as wide
from tests.kit.ranks import Rank, run_ranks
from tests.train.checkpoints.trained import Trained
from wiiiiided.errors import HostError, UsageError

ALONE = "ignore:torch.distributed is disabled"  # torch's warning that one process alone reads


def _whole(value: Any) -> Any:
    """Plain lists, also of what is divided over ranks."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        full: Any = getattr(value, "full_tensor", lambda: value)
        return full().tolist()
    return value


class Sharded:
    """The model of `Trained`, under FSDP2."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model: Any = nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Linear(40, 3))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.5)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.model(torch.randn(5, 6)).square().sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def take(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


# -- DCP reads ours ----


def _saves(me: Rank, base: str) -> tuple[Any, Any]:
    trained = Trained(base)
    trained.run.resume()
    trained.train(5)
    trained.run.save()
    return _whole(trained.model.state_dict()), _whole(trained.optimizer.state_dict())


def _loads_sharded(me: Rank, base: str) -> tuple[Any, Any]:
    sharded = Sharded(7)
    state = sharded.state()
    load_dcp(state, storage_reader=wide.CheckpointReader(base))
    sharded.take(state)
    found = sharded.state()
    return _whole(found["model"]), _whole(found["optimizer"])


@pytest.mark.filterwarnings(ALONE)
def test_dcp_loads_ours_into_fsdp2_and_into_plain_dicts(tmp_path: Path) -> None:
    (model, optimizer), *_ = run_ranks(_saves, 2, str(tmp_path))
    for found_model, found in run_ranks(_loads_sharded, 3, str(tmp_path)):
        assert found_model == model
        names = [name for held in found["param_groups"] for name in held["params"]]
        assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
        assert [found["state"][name] for name in names] == list(optimizer["state"].values())
        assert found["param_groups"][0]["lr"] == optimizer["param_groups"][0]["lr"]
    plain = Sharded.__new__(Sharded)
    plain.model = nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Linear(40, 3))
    plain.optimizer = torch.optim.AdamW(plain.model.parameters())
    plain.train(1)
    state = {
        "model": plain.model.state_dict(),
        "optimizer": plain.optimizer.state_dict(),
        "step": 0,
    }
    load_dcp(state, storage_reader=wide.CheckpointReader(tmp_path))
    assert state["step"] == 5
    assert _whole(state["model"]) == model
    assert _whole(state["optimizer"]["state"]) == optimizer["state"]
    settings = state["optimizer"]["param_groups"][0]
    assert {**optimizer["param_groups"][0], **settings} == optimizer["param_groups"][0]


def _at_different_steps(me: Rank, base: str, saves: list[int]) -> str:
    folder = f"{base}/{me.rank}"
    path = f"{folder}/step-000000000{me.rank}.host-0.{'0' * 16}.wide"
    alone = [dist.new_group([rank]) for rank in range(me.size)][me.rank]
    for _ in range(saves[me.rank]):
        wide.save(path, model=nn.Linear(2, 2), group=alone)
    state = {"model": nn.Linear(2, 2).state_dict()}
    with pytest.raises(CheckpointException) as caught:
        load_dcp(state, storage_reader=wide.CheckpointReader(folder))
    return str(caught.value)


@pytest.mark.parametrize("saves", [[1, 2], [1, 1]])  # the same number, of other runs
def test_hosts_with_different_steps_are_not_mixed(tmp_path: Path, saves: list[int]) -> None:
    said, *_ = run_ranks(_at_different_steps, 2, str(tmp_path), saves)
    assert "name a file that all hosts have" in said


@pytest.mark.filterwarnings(ALONE)
def test_a_damaged_file_is_passed_over_and_named_where_it_is_the_last(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    good, bad = (tmp_path / f"step-{n:010}.host-0.{'a' * 16}.wide" for n in (3, 4))
    for path in (good, bad):
        wide.save(path, model=model)
    os.truncate(bad, 4000)
    state = {"model": nn.Linear(2, 2).state_dict()}
    load_dcp(state, storage_reader=wide.CheckpointReader(tmp_path))
    assert torch.equal(state["model"]["weight"], model.weight)
    good.unlink()
    with pytest.raises(CheckpointException, match=r"has no checkpoint: .* cut off or damaged"):
        load_dcp(state, storage_reader=wide.CheckpointReader(tmp_path))


# -- FSDP2 over our backend, and a run that starts from what it wrote ----


def _dcp_saves(me: Rank, base: str) -> tuple[Any, Any]:
    sharded = Sharded(3)
    torch.manual_seed(0)  # BatchNorm's averages are each rank's own, and one rank's are saved
    sharded.train(3)
    save_dcp(sharded.state(), checkpoint_id=f"{base}/dcp")
    other = Sharded(4)
    state = other.state()
    load_dcp(state, checkpoint_id=f"{base}/dcp")
    other.take(state)
    wanted, found = _whole(sharded.state()), _whole(other.state())
    assert found == wanted
    return wanted["model"], wanted["optimizer"]


def _starts(me: Rank, base: str, hosts: str) -> tuple[Any, Any, int]:
    host = hosts[me.rank]
    trained = Trained(f"{base}/ckpt-{host}")
    step = trained.run.resume(dcp=f"{base}/{'dcp' if host == 'a' else 'nothing'}")
    before = _whole(trained.model.state_dict()), _whole(trained.optimizer.state_dict())
    trained.train(step + 2)
    trained.run.save()
    return *before, step


def test_a_run_starts_from_what_fsdp2_saved_and_then_goes_on_from_its_own(tmp_path: Path) -> None:
    (model, optimizer), *_ = run_ranks(_dcp_saves, 2, str(tmp_path))
    for found_model, found, step in run_ranks(_starts, "ab", str(tmp_path), "ab"):
        assert step == 0
        assert {**found_model, **model} == found_model
        assert list(found["state"].values()) == list(optimizer["state"].values())
        assert found["param_groups"][0]["lr"] == 0.5
    assert [step for *_, step in run_ranks(_starts, "ab", str(tmp_path), "ab")] == [2, 2]
    assert not list(tmp_path.glob("ckpt-*/.taken*"))


def _refused(me: Rank, base: str) -> list[str]:
    trained, said = Trained(f"{base}/ckpt"), []
    if me.rank == 0:
        other = {"model": nn.Linear(6, 40).state_dict()}
        save_dcp(other, checkpoint_id=f"{base}/other", no_dist=True)
        Path(f"{base}/file").touch()
        model, optimizer = trained.model.state_dict(), trained.optimizer.state_dict()
        state = {"model": model, "optimizer": optimizer}
        save_dcp(state, checkpoint_id=f"{base}/half", no_dist=True)
        for part in Path(f"{base}/half").glob("*.distcp"):
            part.unlink()
    dist.barrier()
    for path in ("nothing", "other", "file", "half"):
        with pytest.raises((UsageError, HostError)) as caught:
            trained.run.resume(dcp=f"{base}/{path}")
        said.append(str(caught.value))
    return said


def test_what_is_no_checkpoint_of_this_model_is_refused_on_all_ranks(tmp_path: Path) -> None:
    for nothing, other, file, half in run_ranks(_refused, 2, str(tmp_path)):
        assert nothing == f"no host has {tmp_path}/nothing"
        assert "other is of another model: it has no 0.weight" in other
        assert "file is no checkpoint of torch.distributed" in file
        assert f"{tmp_path}/half cannot be read: " in half
        assert "No such file" in half
        assert "Traceback" not in half
