"""One file: whole or not at all, and on the disk before it has its name."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from wiiiiided.train.checkpoints import exchange, file, safetensors, saving, writer
from wiiiiided.train.checkpoints.owner import FileOwner
from wiiiiided.train.checkpoints.writer import prune


def _image(step: int = 7) -> file.FileImage:
    head = file.FileHead(step, 0, 1, 1, "0123456789abcdef")
    return file.FileImage.of(head, {"model": {"w": torch.arange(5000.0)}, "step": step})


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    image = _image()
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    saving.writer.write(str(path), image.chunks(), 0, 1)
    assert path.stat().st_size == image.nbytes
    assert file.check(path, "0123456789abcdef").step == 7
    found = file.load(path)
    assert found["step"] == 7
    assert torch.equal(found["model"]["w"], torch.arange(5000.0))


def test_what_a_killed_writer_leaves_is_no_checkpoint_and_goes_with_the_next(
    tmp_path: Path,
) -> None:
    image, model = _image(8), "0123456789abcdef"
    mine = tmp_path / f"step-0000000007.host-0.{model}.wide.123.tmp"
    theirs = tmp_path / f"step-0000000007.host-1.{model}.wide.123.tmp"
    for left in (mine, theirs):
        left.write_bytes(image.front)
    found = file.newest(tmp_path, FileOwner(model), 0)
    assert found == file.NewestFile()
    path = tmp_path / f"step-0000000008.host-0.{model}.wide"
    saving.writer.write(str(path), image.chunks(), 0, 1)
    assert file.newest(tmp_path, FileOwner(model), 0).step == 8
    assert not mine.exists()
    assert theirs.exists()  # that host's writer may be at work


def _age(path: Path, seconds: float) -> None:
    at = path.stat().st_mtime - seconds
    os.utime(path, (at, at))


def test_half_files_of_other_hosts_go_once_nothing_is_written_to_them(tmp_path: Path) -> None:
    model, other = "0123456789abcdef", "f" * 16
    random = "0" * 16
    live, dead = (f"step-0000000007.host-{n}.{model}.wide.1-{random}.tmp" for n in (1, 2))
    received = f"step-0000000007.host-3.{model}.wide.0-{random}.tmp"  # host 3's, sent to this one
    taken = f".taken.{model}.wide.0-{random}.tmp"
    foreign = f"step-0000000007.host-0.{other}.wide.0-{random}.tmp"
    for name in (live, dead, received, taken, foreign, "notes.tmp"):
        (tmp_path / name).touch()
    for name in (dead, foreign, "notes.tmp"):
        _age(tmp_path / name, 4000)
    path = tmp_path / f"step-0000000008.host-0.{model}.wide"
    writer.write(str(path), _image(8).chunks(), 0, 1)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, live, foreign, "notes.tmp"])


def test_of_damaged_files_the_newest_stays(tmp_path: Path) -> None:
    names = [f"step-{step:010}.host-0.{'0123456789abcdef'}.wide.damaged" for step in (3, 9, 5)]
    other = f"step-0000000001.host-0.{'f' * 16}.wide.damaged"
    for name in (*names, other):
        (tmp_path / name).touch()
    path = tmp_path / f"step-0000000008.host-0.{'0123456789abcdef'}.wide"
    writer.write(str(path), _image(8).chunks(), 0, 1)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, names[1], other])


def test_two_writers_of_one_number_do_not_touch_each_others_bytes(tmp_path: Path) -> None:
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    image = _image()
    both = [writer._writing(str(path), image.chunks(), host, None) for host in (0, 0)]
    for pieces in both:
        next(pieces)
    assert len(list(tmp_path.glob("*.tmp"))) == 2
    for pieces in both:
        deque(pieces, maxlen=0)
        assert file.check(path, None).step == 7
    assert os.listdir(tmp_path) == [path.name]


def test_a_rename_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        writer.write(str(path), _image().chunks(), 0, 1)
    assert os.listdir(tmp_path) == [path.name]


def test_an_export_that_fails_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        safetensors.export({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    assert not os.listdir(tmp_path)


def _keeps_received(path: Path) -> None:
    half = Path(f"{path}.tmp")
    writer.write(str(half), _image().chunks(), 0, None)
    assert exchange._keep(half, path, None) == ""


@pytest.mark.parametrize(
    "make",
    [
        lambda path: writer.write(str(path), _image().chunks(), 0, None),
        lambda path: safetensors.export({"w": torch.ones(3)}, path),
        _keeps_received,
    ],
    ids=["written", "exported", "received"],
)
def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_all_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    path, made = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide", list[str]()
    fsync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        made.append("folder" if os.readlink(f"/proc/self/fd/{fd}") == str(tmp_path) else "file")
        fsync(fd)

    def renamed(source: Any, target: Any) -> None:
        made.append("rename" if Path(target) == path else "other")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    make(path)
    assert made[made.index("rename") - 1 :] in (
        ["file", "rename", "folder"],
        ["folder", "rename", "folder"],  # received: the folder knows the half file too
    )


def test_the_parent_of_a_new_folder_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(writer, "sync_folder", synced.append)
    writer.make_folder(tmp_path / "a" / "b")
    writer.make_folder(tmp_path / "a" / "b")
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    assert (tmp_path / "a" / "b").is_dir()


def test_a_head_that_makes_no_sense_is_a_damaged_file(tmp_path: Path) -> None:
    head = b"[" * 100_000
    raw = struct.pack("<QQQ", len(head), 0, 64 + len(head)) + head
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    path.write_bytes(writer.MAGIC + hashlib.sha256(raw).digest() + raw)
    found = file.newest(tmp_path, FileOwner("0123456789abcdef"), 0)
    assert found.path is None
    assert "its head makes no sense" in found.passed_over[0]


def test_a_step_that_is_no_number_is_a_damaged_file(tmp_path: Path) -> None:
    image = _image()
    front = image.front.replace(b'"step": 7', b'"step":[]')
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    writer.write(str(path), [front, *list(image.chunks())[1:]], 0, 1)
    assert (
        "its head makes no sense"
        in file.newest(tmp_path, FileOwner("0123456789abcdef"), 0).passed_over[0]
    )


def test_a_newer_format_is_passed_over_and_left_alone(tmp_path: Path) -> None:
    image = _image()
    newer = image.front.replace(b'"format": 1', b'"format": 2')
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    saving.writer.write(str(path), [newer, *list(image.chunks())[1:]], 0, 1)
    found = file.newest(tmp_path, FileOwner("0123456789abcdef"), 0)
    assert found.path is None
    assert "a newer wiiiiided wrote it" in found.passed_over[0]
    assert path.exists()


def test_pruning_leaves_newer_and_other_models_files(tmp_path: Path) -> None:
    names = [f"step-{step:010}.host-{host}.{'a' * 16}.wide" for step in range(5) for host in (0, 1)]
    other = f"step-0000000000.host-0.{'b' * 16}.wide"
    for name in (*names, other, "notes.txt"):
        (tmp_path / name).touch()
    prune(tmp_path / names[6], 0, 2)  # step 3
    assert sorted(os.listdir(tmp_path)) == sorted([*names[4:], other, "notes.txt"])
