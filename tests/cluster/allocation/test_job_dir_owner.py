"""Job directories when a machine joins and leaves: no cluster's 17 is taken for another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from wiiiiided.cluster.allocation import job_dir_owner
from wiiiiided.errors import HostError


def put(path: Path, text: str) -> None:
    path.mkdir(parents=True)
    (path / "mark").write_text(text)


def mark(path: Path) -> str:
    return (path / "mark").read_text()


def test_a_machines_own_jobs_make_room_and_come_back(tmp_path: Path) -> None:
    put(tmp_path / "17", "own")
    job_dir_owner.assign_job_dirs(tmp_path, "lab")
    assert not (tmp_path / "17").exists()
    assert mark(tmp_path / "before-lab" / "17") == "own"
    put(tmp_path / "17", "lab's")
    job_dir_owner.assign_job_dirs(tmp_path, "lab")  # a restart
    assert mark(tmp_path / "17") == "lab's"
    job_dir_owner.assign_job_dirs(tmp_path, "")
    assert mark(tmp_path / "17") == "own"
    assert mark(tmp_path / "left-lab" / "17") == "lab's"
    assert not (tmp_path / "before-lab").exists()
    job_dir_owner.assign_job_dirs(tmp_path, "")
    assert mark(tmp_path / "17") == "own"


def test_two_memberships_in_clusters_of_one_name_leave_two_directories(tmp_path: Path) -> None:
    for number in (1, 2):
        job_dir_owner.assign_job_dirs(tmp_path, "lab")
        put(tmp_path / "1", f"time {number}")
        job_dir_owner.assign_job_dirs(tmp_path, "")
    assert mark(tmp_path / "left-lab" / "1") == "time 1"
    assert mark(tmp_path / "left-lab-2" / "1") == "time 2"


def test_another_cluster_without_leaving_puts_the_first_ones_jobs_away(tmp_path: Path) -> None:
    put(tmp_path / "1", "own")
    job_dir_owner.assign_job_dirs(tmp_path, "one")
    put(tmp_path / "1", "one's")
    job_dir_owner.assign_job_dirs(tmp_path, "two")
    assert mark(tmp_path / "left-one" / "1") == "one's"
    assert mark(tmp_path / "before-two" / "1") == "own"
    assert not (tmp_path / "1").exists()


@pytest.mark.parametrize("moves", range(6))
def test_a_crash_at_any_move_changes_nothing_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    for number in (1, 2):
        put(tmp_path / str(number), f"own {number}")
    left = moves
    real = job_dir_owner.os.rename

    def rename(source: object, target: object, **rest: object) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        real(source, target, **rest)  # type: ignore[arg-type]

    def assign_job_dirs(cluster: str) -> None:
        monkeypatch.setattr(job_dir_owner.os, "rename", rename)
        try:
            job_dir_owner.assign_job_dirs(tmp_path, cluster)
        except KeyboardInterrupt:
            monkeypatch.setattr(job_dir_owner.os, "rename", real)
            job_dir_owner.assign_job_dirs(tmp_path, cluster)
        finally:
            monkeypatch.setattr(job_dir_owner.os, "rename", real)

    assign_job_dirs("lab")
    for number in (2, 3):
        put(tmp_path / str(number), f"lab's {number}")
    assign_job_dirs("")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdecimal()) == ["1", "2"]
    assert [mark(tmp_path / str(number)) for number in (1, 2)] == ["own 1", "own 2"]
    found = {mark(path) for path in tmp_path.glob("left-lab*/*")}
    assert found == {"lab's 2", "lab's 3"}


def test_a_marker_that_cannot_be_read_stops_everything(tmp_path: Path) -> None:
    put(tmp_path / "1", "whose?")
    (tmp_path / job_dir_owner.MARKER).write_text("{")
    with pytest.raises(HostError, match="it names the cluster of the jobs there"):
        job_dir_owner.assign_job_dirs(tmp_path, "lab")
    assert mark(tmp_path / "1") == "whose?"
