"""Jobs that save to one folder leave each other's files alone."""

from __future__ import annotations

import os
from pathlib import Path

from tests.kit.ranks import run_ranks
from tests.train.checkpoints.trained import (
    files_in,
    state_of,
    train_until,
)
from wiiiiided.config import JobHere
from wiiiiided.train.checkpoints import file, writer
from wiiiiided.train.checkpoints.owner import FileOwner

MODEL = "0123456789abcdef"


def _job(number: int, work: Path, resumes: str = "") -> JobHere:
    return JobHere(f"{number}-19a2b3c4d5e", str(work), resumes)


def _put(folder: Path, step: int, job: JobHere | None, keep: int | None = None) -> Path:
    owner = FileOwner.of(MODEL, folder, job)
    head = file.FileHead(step, 0, 1, 1, MODEL, job=owner.job_name)
    path = folder / head.name(owner.series)
    writer.write(str(path), file.FileImage.of(head, {"step": step}).chunks(), 0, keep)
    return path


def _found(folder: Path, job: JobHere | None) -> tuple[int, tuple[str, ...]]:
    found = file.newest(folder, FileOwner.of(MODEL, folder, job), 0)
    return found.step, found.passed_over


def test_jobs_in_one_folder_go_on_from_their_own_files_alone(tmp_path: Path) -> None:
    folder, work = tmp_path / "all", tmp_path / "work"
    folder.mkdir()
    first, second, third = (_job(number, work) for number in (9, 17, 18))
    kept = [_put(folder, step, first, keep=2) for step in (100, 200, 300)][1:]
    assert _put(folder, 200, second, keep=1).exists()
    assert all(path.exists() for path in kept)
    assert _found(folder, first)[0] == 300
    assert _found(folder, second)[0] == 200
    step, (said,) = _found(folder, third)
    assert step == 0
    assert said.startswith(f"{folder} has checkpoints of jobs 9, 17, which this job leaves alone.")
    assert "wiiiiide submit --resume 17" in said
    assert _found(folder, _job(18, work, resumes="9"))[0] == 300
    assert _found(folder, None)[0] == 300  # a run by hand
    _put(folder, 50, None)
    assert _found(folder, third)[0] == 50


def test_a_jobs_half_and_damaged_files_are_left_to_it(tmp_path: Path) -> None:
    folder, work = tmp_path / "all", tmp_path / "work"
    folder.mkdir()
    theirs = _put(folder, 300, _job(9, work))
    os.truncate(theirs, 100)
    half = folder / f"{theirs.name}.0-{'0' * 16}.tmp"
    half.touch()
    mine = _put(folder, 100, _job(17, work), keep=1)
    assert _found(folder, _job(17, work))[0] == 100
    assert sorted(folder.iterdir()) == sorted([mine, theirs, half])


def test_a_jobs_file_that_was_copied_is_known_by_its_head(tmp_path: Path) -> None:
    folder, work = tmp_path / "all", tmp_path / "work"
    for path in (folder, work):
        path.mkdir()
    path = _put(work, 100, _job(9, work))
    assert path.name == f"step-0000000100.host-0.{MODEL}.wide"
    path.replace(folder / path.name)
    assert _found(folder, _job(17, work))[0] == 0
    assert _found(folder, _job(9, work))[0] == 100


def test_all_that_lies_in_a_jobs_directory_is_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "work" / "ckpt"
    folder.mkdir(parents=True)
    _put(folder, 100, _job(9, tmp_path / "work"))
    assert _found(folder, _job(17, tmp_path / "work")) == (100, ())
    _put(folder, 200, _job(17, tmp_path / "work"), keep=1)
    assert [path.name[:15] for path in files_in(folder)] == ["step-0000000200"]


def test_jobs_with_one_folder_begin_each_for_itself(tmp_path: Path) -> None:
    base, work = str(tmp_path / "all"), str(tmp_path / "work")
    os.mkdir(work)
    jobs = [{"WIIIIIDE_JOB": f"{n}-1", "WIIIIIDE_WORK": work} for n in (9, 17)]
    for job in jobs:
        run_ranks(train_until, "ab", base, "ss", 5, {"keep": 1}, env=job)
    names = [path.name for path in files_in(tmp_path / "all" / "s")]
    assert len(names) == 4  # of two jobs on two hosts
    for job in jobs:
        found = run_ranks(state_of, "ab", base, "ss", {}, env=job)
        assert [step for step, _ in found] == [5, 5]
        assert found[0][1] == found[1][1]
    assert [path.name for path in files_in(tmp_path / "all" / "s")] == names
