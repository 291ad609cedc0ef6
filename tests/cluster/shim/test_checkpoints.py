"""Another machine's checkpoints in a job's working directory: the whole set, nothing lost."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import asdict
from json import dumps, loads
from pathlib import Path
from typing import Any

import pytest

from wiiiiided.cluster.allocation.shim_process import shim_command
from wiiiiided.cluster.shim import checkpoints
from wiiiiided.cluster.shim.checkpoints import Placing

MTIME = 1_700_000_000
Files = Mapping[str, str]


def tar(folder: Path, content: Files, *more: tarfile.TarInfo) -> int:
    """A descriptor of one."""
    path = folder / "set.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, text in content.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(text), MTIME
            archive.addfile(entry, io.BytesIO(text.encode()))
        for entry in more:
            archive.addfile(entry)
    return os.open(path, os.O_RDONLY)


def link(name: str, target: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = tarfile.SYMTYPE, target
    return made


class Site:
    """A job's files on one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "files" / "work"
        self.work.mkdir(parents=True)
        self.archive = os.open(os.devnull, os.O_RDONLY)

    def write(self, content: Files) -> None:
        for name, text in content.items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def place(
        self, content: Files, *more: tarfile.TarInfo, attempt: int = 2, **given: Any
    ) -> tuple[int, int]:
        source = tar(self.folder, content, *more)
        try:
            return checkpoints.place(self.given(attempt, **given), source, self.archive)
        finally:
            os.close(source)

    def given(self, attempt: int = 2, **given: Any) -> Placing:
        limits = (1 << 20, 100, 1 << 20, 100, 0o600)
        return Placing(str(self.work), attempt, ["ckpt/**"], *limits, **given)

    def files(self, below: str = "work") -> dict[str, str]:
        root = self.work.with_name(below)
        found = (path for path in sorted(root.rglob("*")) if path.is_symlink() or not path.is_dir())
        return {
            str(path.relative_to(root)): f"-> {os.readlink(path)}"
            if path.is_symlink()
            else path.read_text()
            for path in found
        }


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_set_is_there_as_a_whole_and_what_differs_is_moved_aside(site: Site) -> None:
    site.write({"ckpt/model": "old", "ckpt/same": "same", "ckpt/deep/own": "own", "train.py": "x"})
    new = {"ckpt/model": "new", "ckpt/same": "same", "ckpt/a/b/c": "c"}
    assert site.place(new) == (2, 2)
    assert site.files() == {**new, "train.py": "x"}
    assert site.files("aside-2") == {"ckpt/model": "old", "ckpt/deep/own": "own"}
    # Scripts that look for the newest find the same one everywhere.
    assert {(site.work / name).stat().st_mtime for name in new} == {MTIME}
    assert sorted(os.listdir(site.work.parent)) == ["aside-2", "work"]
    assert site.place(new) == (0, 0)  # again, as after a crash
    assert site.files("aside-2") == {"ckpt/model": "old", "ckpt/deep/own": "own"}
    assert site.place({}, attempt=3) == (0, 3)  # of the ones before, one set is kept
    assert sorted(os.listdir(site.work.parent)) == ["aside-3", "work"]
    assert site.files() == {"train.py": "x"}


def test_links_and_folders_that_stand_in_the_way_are_moved_aside_and_not_followed(
    site: Site, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model").write_text("of somebody else")
    (site.work / "ckpt").symlink_to(outside)
    assert site.place({"ckpt/model": "new"}) == (1, 1)
    assert site.files() == {"ckpt/model": "new"}
    assert site.files("aside-2") == {"ckpt": f"-> {outside}"}
    assert (outside / "model").read_text() == "of somebody else"

    site.write({"ckpt/state/x": "x"})
    (site.work / "ckpt" / "latest").symlink_to(outside / "model")
    os.mkfifo(site.work / "ckpt" / "pipe")
    new = {"ckpt/model": "new", "ckpt/state": "a file", "ckpt/latest": "a file too"}
    assert site.place(new, attempt=3) == (2, 4)  # the folder too, which is empty by then
    assert site.files() == new
    assert (outside / "model").read_text() == "of somebody else"


def test_of_the_set_plain_files_alone_are_placed(site: Site) -> None:
    inside, away = link("ckpt/latest", "model"), link("ckpt/passwd", "/etc/passwd")
    assert site.place({"ckpt/model": "new"}, inside, away) == (1, 0)
    assert site.files() == {"ckpt/model": "new"}


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "ckpt/../../out"])
def test_a_set_that_leads_out_changes_nothing(site: Site, name: str) -> None:
    site.write({"ckpt/model": "old"})
    with pytest.raises(Exception, match="outside"):
        site.place({"ckpt/model": "new", name: "x"})
    assert site.files() == {"ckpt/model": "old"}
    assert os.listdir(site.work.parent) == ["work"]


def test_too_much_changes_nothing(site: Site) -> None:
    site.write({"ckpt/model": "old"})
    with pytest.raises(Exception, match="more than"):
        site.place({"ckpt/model": "x" * (1 << 21)})
    assert site.files() == {"ckpt/model": "old"}


def test_a_machine_that_is_new_gets_the_working_directory_first(site: Site) -> None:
    site.work.rmdir()
    archive = tar(site.folder, {"train.py": "x", "ckpt/shipped": "long ago"})
    os.close(site.archive)
    site.archive = archive
    os.rename(site.folder / "set.tar", site.folder / "archive.tar")
    assert site.place({"ckpt/model": "new"}) == (1, 1)
    assert site.files() == {"train.py": "x", "ckpt/model": "new"}
    assert site.files("aside-2") == {"ckpt/shipped": "long ago"}


def wide(step: int, host: int = 0, folder: str = "ckpt") -> str:
    return f"{folder}/step-{step:010}.host-{host}.90afb240d9bf7c50.wide"


def test_of_wide_parallel_newer_files_never_give_way_to_older_ones(site: Site) -> None:
    own = {wide(490): "a's", wide(500): "a's", "ckpt/note": "a's"}
    site.write(own)
    assert site.place({wide(10): "b's", wide(20): "b's", "ckpt/note": "b's"}) == (0, 0)
    assert site.place({}) == (0, 0)  # no machine answered
    assert site.files() == own
    tuned = {wide(500): "a's", wide(30, folder="ckpt/tuned"): "a's"}
    site.write(tuned)
    assert site.place({wide(500): "b's", wide(20, folder="ckpt/tuned"): "b's"}) == (0, 0)
    assert site.files() == {**own, **tuned}
    assert sorted(os.listdir(site.work.parent)) == ["work"]


def test_of_wide_parallel_files_as_new_stay_each_hosts_own(site: Site) -> None:
    site.write({wide(500, 1): "b's", wide(480, 1): "b's", "ckpt/note": "b's"})
    assert site.place({wide(500): "a's", wide(490): "a's", "ckpt/note": "a's"}) == (1, 1)
    assert site.files() == {wide(500, 1): "b's", wide(480, 1): "b's", "ckpt/note": "a's"}


def test_of_wide_parallel_older_files_give_way_and_a_newest_one_is_always_there(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write({wide(490): "old", wide(480): "old"})
    new = {wide(500): "new", wide(490): "new"}
    real, seen = os.rename, []

    def rename(source: str, target: str) -> None:
        real(source, target)
        seen.append(checkpoints.newest_steps(site.files()))

    monkeypatch.setattr(os, "rename", rename)
    assert site.place(new) == (2, 2)
    assert set(seen) == {(500,)}  # wherever it is cut short
    assert site.files() == new
    assert site.files("aside-2") == {wide(490): "old", wide(480): "old"}


def test_another_jobs_set_replaces_what_is_here(site: Site) -> None:
    site.write({wide(900): "of the submitted folder"})
    assert site.place({wide(500): "of job 17"}, is_other=True) == (1, 1)
    assert site.files() == {wide(500): "of job 17"}


def test_of_another_job_each_machine_takes_its_own_files_where_they_are_as_new(
    site: Site, tmp_path: Path
) -> None:
    other = tmp_path / "17"
    there = Site(other)
    there.write({wide(500, 1): "b's own", wide(490, 1): "b's own", "log": "x", "ckpt/note": "b's"})
    os.utime(there.work / wide(500, 1), (MTIME, MTIME))
    given = {"is_other": True, "other": str(there.work)}
    set_of_a = {wide(500): "a's", "ckpt/note": "a's"}
    assert site.place(set_of_a, **given) == (2, 0)
    own = {wide(500, 1): "b's own", "ckpt/note": "a's"}
    assert site.files() == own
    assert (site.work / wide(500, 1)).stat().st_mtime == MTIME
    assert site.place(set_of_a, **given) == (0, 0)  # again, as after a crash
    (site.work / wide(500, 1)).write_text("changed in place")
    assert there.files()[wide(500, 1)] == "b's own"  # stays as it is

    there.write({wide(510, 1): "b's own"})  # not what all are to have
    assert site.place(set_of_a, attempt=3, **given) == (1, 1)
    assert site.files() == set_of_a
    (there.work / wide(510, 1)).unlink()
    (there.work / wide(500, 1)).unlink()
    (there.work / wide(500, 1)).symlink_to("/etc/passwd")
    assert site.place(set_of_a, attempt=4, **given) == (0, 0)


def test_the_helper_says_what_it_did_or_why_not(site: Site) -> None:
    site.write({"ckpt/model": "old"})
    source = tar(site.folder, {"ckpt/model": "new"})
    command = [*shim_command("--place", dumps(asdict(site.given())), str(source), str(source))]
    assert command[0] == sys.executable
    done = subprocess.run(command, pass_fds=(source,), capture_output=True, check=False)
    assert (done.returncode, loads(done.stdout)) == (0, {"placed": 1, "moved": 1})
    os.truncate(site.folder / "set.tar", 513)
    again = subprocess.run(command, pass_fds=(source,), capture_output=True, check=False)
    assert again.returncode == 1
    assert again.stdout.strip()  # a sentence
    assert site.files() == {"ckpt/model": "new"}
