"""When and where a run saves and exports, and what it does when it cannot."""

from __future__ import annotations

import errno
import json
import os
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.kit.ranks import Rank, run_ranks
from tests.train.checkpoints.trained import (
    Trained,
    files_in,
    resume_found,
)
from wiiiiided.errors import HostError, UsageError
from wiiiiided.torch import parallel
from wiiiiided.train.checkpoints import saving
from wiiiiided.train.checkpoints.policy import SavePolicy
from wiiiiided.train.checkpoints.writer import NAME


def _saves_by_time(me: Rank, base: str) -> list[str]:
    saving.time.monotonic = lambda: 60.0 * len(made)  # type: ignore[attr-defined]
    made: list[int] = []
    trained = Trained(base, save_every="2m", keep=2)
    trained.run.resume()
    for x, y, _ in trained.data:
        made.append(1)
        nn.functional.mse_loss(trained.model(torch.cat([x, x + 1])), torch.cat([y, y])).backward()
        trained.run.clip_grad_norm_(1.0)
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        if trained.run._saver is not None:
            trained.run._saver._end_writer()
    dist.barrier()
    return sorted(os.listdir(base))


def test_time_is_that_of_rank_0_and_old_files_go(tmp_path: Path) -> None:
    first, *_ = run_ranks(_saves_by_time, 2, str(tmp_path))
    assert [int(NAME.fullmatch(name)[1]) for name in first] == [2, 4]  # type: ignore[index]


def _without_a_batch(me: Rank, base: str) -> list[str]:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer, save=base, save_every=1)
    run.resume()
    for step in range(4):
        has_batch = me.rank == 0 or step == 0
        run.samples(2.0 * has_batch)
        if has_batch:
            model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    run.save()
    return os.listdir(base)


def test_a_rank_without_a_batch_saves_with_the_others(tmp_path: Path) -> None:
    names, *_ = run_ranks(_without_a_batch, 2, str(tmp_path))
    assert any(name.startswith("step-0000000004") for name in names)


def _full_disk(me: Rank, base: str, synchronous: bool) -> tuple[int, list[str]]:
    said: list[str] = []
    saving.log.warn = lambda who, text: said.append(text)  # type: ignore[assignment]
    if synchronous:
        saving.available_bytes = lambda: 0  # type: ignore[assignment]
    trained = Trained(base)
    trained.run.resume()
    trained.train(3)
    trained.run.save()
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    made = trained.train(5)
    trained.run.save()
    return made[-1][0], said


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_full_disk_is_a_warning_and_the_last_good_one_stays(
    tmp_path: Path, synchronous: bool
) -> None:
    ((step, said),) = run_ranks(_full_disk, 1, str(tmp_path), synchronous)
    assert step == 5
    assert any("could not be saved: File too large" in line for line in said), said
    assert any("while the ranks wait" in line for line in said) == synchronous
    assert [path.name[:15] for path in files_in(tmp_path)] == ["step-0000000003"]
    assert not list(tmp_path.glob("*.tmp"))
    ((step, _),) = run_ranks(resume_found, 1, str(tmp_path))
    assert step == 3


def _little_room(me: Rank, base: str) -> list[tuple[int, str]]:
    """Steps and what was said after them, as the disk has less and less room."""
    said: list[str] = []
    saving.log.warn = lambda who, text: said.append(text)  # type: ignore[assignment]
    trained = Trained(f"{base}/ckpt")
    trained.run.resume()
    disk, told = os.statvfs(base), list[tuple[int, str]]()
    for step, free in ((2, 600 << 20), (3, 500 << 20)):
        blocks = free // disk.f_frsize
        now = os.statvfs_result([*disk[:3], blocks, blocks, *disk[5:]])
        saving.os.statvfs = lambda path, now=now: now  # type: ignore[misc]
        trained.train(step)
        trained.run.save()
        told.append((trained.run.state_dict()["step"], "".join(said)))
    return told


def test_a_job_leaves_the_room_on_its_disk_that_the_daemon_leaves(tmp_path: Path) -> None:
    for work, lacks in ((tmp_path, True), (Path("/proc"), False)):  # the latter: another disk
        folder = tmp_path / str(lacks)
        folder.mkdir()
        job = {"WIIIIIDE_JOB": "9-1", "WIIIIIDE_WORK": str(work)}
        ((first, second),) = run_ranks(_little_room, 1, str(folder), env=job)
        assert first == (2, "")
        step, said = second
        assert step == 3
        assert len(files_in(folder / "ckpt")) == (1 if lacks else 2)
        if lacks:
            assert f"could not be saved: the disk of {folder}/ckpt lacks 13 MiB" in said
            assert "it takes 1 MiB, and 512 MiB stay free there. Training goes on" in said


def _cannot_fork(me: Rank, base: str) -> tuple[int, list[str]]:
    said: list[str] = []
    saving.log.warn = lambda who, text: said.append(text)  # type: ignore[assignment]

    def refused(*args: Any, **options: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    saving.subprocess.Popen = refused  # type: ignore[assignment,misc]
    trained = Trained(base)
    made = trained.train(5)
    trained.run.save()
    return made[-1][0], said


def test_a_writer_that_cannot_start_is_a_warning(tmp_path: Path) -> None:
    for step, said in run_ranks(_cannot_fork, 2, str(tmp_path)):
        assert step == 5
        assert not said or "could not be saved: Resource temporarily unavailable" in said[0]


def _no_folder(me: Rank, base: str) -> list[str]:
    said = []
    for call in (lambda made: made.run.resume(), lambda made: made.train(1)):
        with pytest.raises((UsageError, HostError)) as caught:
            call(Trained(base))
        said.append(str(caught.value))
    return said


def test_a_folder_that_cannot_be_read_is_one_sentence_on_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    path.touch()
    why = f"{path} cannot be read: Not a directory"
    for said in run_ranks(_no_folder, 2, str(path)):
        assert said == [f"rank 0 cannot look for checkpoints: {why}", why]


def _exports(me: Rank, base: str) -> None:
    trained = Trained(f"{base}/ckpt")
    if me.rank == 0:
        trained.run.export(f"{base}/model.safetensors")
        raw = Path(f"{base}/model.safetensors").read_bytes()
        (size,) = struct.unpack_from("<Q", raw)
        head = json.loads(raw[8 : 8 + size])
        for name, value in trained.model.state_dict().items():
            begin, end = head[name]["data_offsets"]
            found = raw[8 + size + begin : 8 + size + end]
            assert head[name]["shape"] == list(value.shape)
            assert found == value.contiguous().numpy().tobytes()
    dist.barrier()


def test_the_model_is_exported_as_safetensors(tmp_path: Path) -> None:
    run_ranks(_exports, 2, str(tmp_path))


def _exports_in_a_trial(me: Rank, base: str) -> None:
    trained = Trained(f"{base}/ckpt")
    trained.run.export(f"{base}/model.safetensors")
    trained.model.register_buffer("odd", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UsageError, match=r"odd is torch\.complex64"):
        trained.run.export(f"{base}/model.safetensors")


def test_a_trial_exports_nothing(tmp_path: Path) -> None:
    run_ranks(_exports_in_a_trial, 1, str(tmp_path), env={"WIIIIIDE_PROBE": "1"})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "given", [{"every": "soon"}, {"every": 0}, {"every": True}, {"keep": 0}, {"folder": 3}]
)
def test_what_cannot_be_a_policy_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SavePolicy(**{"folder": "ckpt", **given})
