"""Files that cannot be read get one clear sentence, and none makes the reader wait."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.kit.jobfiles import read_file
from tests.ui.jobfile.corpus import RUN
from wiiiiided.ui.jobfile.problem import Invalid
from wiiiiided.ui.jobfile.source import FILE_BYTES


def says(path: str | Path) -> str:
    with pytest.raises(Invalid) as caught:
        read_file(path)
    (problem,) = caught.value.problems
    return str(problem)


def test_a_file_is_read_and_named_after_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "job.toml").write_text(RUN)
    assert read_file(folder / "job.toml", ["policy.priority=7"]).name == "mnist"


def test_a_relative_path_is_named_after_its_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.toml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    assert read_file("job.toml").name == tmp_path.name


def test_windows_line_ends_and_a_byte_order_mark_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_bytes(b"\xef\xbb\xbf" + RUN.replace("\n", "\r\n").encode())
    assert read_file(file).run.command == ("python", "train.py")


def test_problems_have_the_name_the_user_gave(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text(RUN + "a = 1\n")
    assert says(file).startswith(f"{file}:3: run.a: unknown key")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    assert says(file) == f"{file}: no such file; give the path of a job file"
    assert says("") == ": no such file; give the path of a job file"


def test_a_folder_is_told_with_the_job_file_inside(tmp_path: Path) -> None:
    assert says(tmp_path) == f"{tmp_path}: a folder, not a file; give the path of a job file"
    (tmp_path / "job.toml").write_text(RUN)
    assert says(tmp_path) == f"{tmp_path}: a folder, not a file; did you mean {tmp_path}/job.toml?"


def test_a_path_through_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(RUN)
    file = tmp_path / "job.toml" / "x"
    assert says(file) == f"{file}: cannot be read: Not a directory"


@pytest.mark.needs("root")
def test_a_file_of_someone_else_is_told(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(RUN)
    file.chmod(0)
    os.seteuid(65534)
    try:
        said = says(file)
    finally:
        os.seteuid(0)
    assert said == f"{file}: may not be read by this user; chmod or chown it"


def test_a_file_over_the_limit_is_told(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(RUN.ljust(FILE_BYTES))
    assert read_file(file).run.command
    file.write_text(RUN.ljust(FILE_BYTES + 1))
    assert says(file) == f"{file}: larger than 1 MiB; a job file is a short text; is it this one?"


def test_a_file_that_is_not_utf_8_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_bytes(RUN.encode() + "# größe".encode("latin-1"))
    assert says(file) == f"{file}:3: not UTF-8 text; save it as UTF-8"
    file.write_bytes(RUN.encode("utf-16"))
    assert says(file) == f"{file}:1: not UTF-8 text; save it as UTF-8"


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert says(tmp_path / "pipe").endswith(": not a regular file; give the path of a job file")


def test_devices_and_sockets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert says("/dev/zero") == "/dev/zero: not a regular file; give the path of a job file"
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("s")
        assert says("s") == "s: cannot be read: No such device or address"


def test_a_path_that_no_file_can_have_is_told() -> None:
    assert says("a\0b") == "a\\x00b: not a regular file; give the path of a job file"
    assert "cannot be read: File name too long" in says("x" * 5000)
