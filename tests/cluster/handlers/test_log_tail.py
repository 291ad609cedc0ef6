"""Logs of any size, with long lines, while they are rotated: all of it, and in order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.kit.daemons import private_daemon
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.handlers.log_tail import PIECE_BYTES, Tail
from wiiiiided.cluster.rpc.messages import LogLine


@pytest.fixture
def job_dirs(tmp_path: Path) -> JobDirs:
    made = JobDirs(tmp_path / "jobs", JobAccount.this())
    made.make(1, 1)
    return made


def write(
    job_dirs: JobDirs, rank: int, first: int, last: int, text: str = "line", old: str = ""
) -> None:
    path = job_dirs.attempt(1, 1) / f"rank-{rank}.log{old}"
    with path.open("a") as file:
        file.writelines(f"{n + rank / 10:.6f} out {text} {n}\n" for n in range(first, last))


def numbers(lines: object) -> list[int]:
    return [int(line.text.split()[-1]) for line in lines]  # type: ignore[attr-defined]


def test_everything_comes_once_and_in_order(job_dirs: JobDirs) -> None:
    tail = Tail(job_dirs, 1, 1, (), None)
    assert list(tail.more()) == []
    write(job_dirs, 0, 0, 5000, "x" * 100)
    assert numbers(tail.more()) == list(range(5000))
    assert list(tail.more()) == []
    write(job_dirs, 0, 5000, 5003)
    assert numbers(tail.more()) == [5000, 5001, 5002]


def test_a_rotation_loses_nothing(job_dirs: JobDirs) -> None:
    tail = Tail(job_dirs, 1, 1, (), None)
    write(job_dirs, 0, 0, 10)
    assert numbers(tail.more()) == list(range(10))
    write(job_dirs, 0, 10, 20)
    path = job_dirs.attempt(1, 1) / "rank-0.log"
    path.rename(path.with_name("rank-0.log.1"))
    write(job_dirs, 0, 20, 30)
    assert numbers(tail.more()) == list(range(10, 30))


def test_a_reader_that_was_overtaken_says_so(job_dirs: JobDirs) -> None:
    tail = Tail(job_dirs, 1, 1, (), None)
    write(job_dirs, 0, 0, 10)
    assert numbers(tail.more()) == list(range(10))
    path = job_dirs.attempt(1, 1) / "rank-0.log"
    for first in (10, 20):
        path.rename(path.with_name("rank-0.log.1"))
        write(job_dirs, 0, first, first + 10)
    note, *lines = tail.more()
    assert (note.stream, "missing" in note.text) == ("note", True)
    assert numbers(lines) == list(range(20, 30))


def test_a_new_reader_begins_with_the_older_file(job_dirs: JobDirs) -> None:
    write(job_dirs, 0, 0, 10, old=".1")
    write(job_dirs, 0, 10, 20)
    assert numbers(Tail(job_dirs, 1, 1, (), None).more()) == list(range(20))


@pytest.mark.parametrize("lines", [0, 1, 7, 1999, 2000, 2500, 3000, 10_000])
def test_the_last_lines_are_found_from_the_end(job_dirs: JobDirs, lines: int) -> None:
    write(job_dirs, 0, 0, 1000, old=".1")
    write(job_dirs, 0, 1000, 3000, "y" * 50)
    tail = Tail(job_dirs, 1, 1, (), lines)
    assert numbers(tail.more()) == list(range(3000))[max(0, 3000 - lines) :]
    write(job_dirs, 0, 3000, 3002)
    assert numbers(tail.more()) == [3000, 3001]


def test_ranks_are_merged_by_time_and_only_those_there_are(job_dirs: JobDirs) -> None:
    for rank in range(3):
        write(job_dirs, rank, 0, 1000, "z" * 90)
    all_of_them = list(Tail(job_dirs, 1, 1, (), None).more())
    assert [line.at for line in all_of_them] == sorted(line.at for line in all_of_them)
    assert len(all_of_them) == 3000
    some: list[LogLine] = list(Tail(job_dirs, 1, 1, (2,) * 5000 + (77,), None).more())
    assert {line.rank for line in some} == {2}
    assert len(some) == 1000


def test_a_line_without_an_end_is_given_in_pieces(job_dirs: JobDirs) -> None:
    path = job_dirs.attempt(1, 1) / "rank-0.log"
    path.write_bytes(b"q" * (3 * PIECE_BYTES) + b"\nlast\n")
    lines = list(Tail(job_dirs, 1, 1, (), None).more())
    assert sum(line.text.count("q") for line in lines) == 3 * PIECE_BYTES
    assert lines[-1].text == "last"


@pytest.mark.parametrize("lines", [None, 10])
def test_of_a_file_larger_than_a_log_only_the_end_is_read(
    job_dirs: JobDirs, lines: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TiB without a block on the disk, and lines behind it: as much is read as a log may have."""
    path = job_dirs.attempt(1, 1) / "rank-0.log"
    write(job_dirs, 0, 0, 3)
    os.truncate(path, 1 << 40)
    write(job_dirs, 0, 3, 6)
    read: list[int] = []

    def pread(fd: int, count: int, offset: int, real: Any = os.pread) -> bytes:
        data: bytes = real(fd, count, offset)
        read.append(len(data))
        assert sum(read) < 4 << 20, "more is read than is needed"
        return data

    monkeypatch.setattr(os, "pread", pread)
    tail = Tail(job_dirs, 1, 1, (), lines, log_bytes=1 << 20)
    *notes, first, second, third = tail.more()
    assert [note.stream for note in notes] == ["note", "note"]
    limit = "more than its limit (limits.log) allows: only the last 2 MiB are read"
    assert notes[0].text == f"this file has 1 TiB, {limit}"
    assert notes[1].text == "2 MiB of zeros are left out here: no rank wrote them"
    assert numbers([first, second, third]) == [3, 4, 5]
    assert list(tail.more()) == []
    os.truncate(path, 1 << 41)
    assert {line.stream for line in tail.more()} == {"note"}
    write(job_dirs, 0, 6, 7)
    assert numbers(tail.more()) == [6]


def test_holes_between_lines_are_not_read_to_find_the_last_ones(
    job_dirs: JobDirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = job_dirs.attempt(1, 1) / "rank-0.log"
    for first in (0, 2, 4):
        write(job_dirs, 0, first, first + 2)
        os.truncate(path, (first + 1) << 30)
    read: list[int] = []

    def pread(fd: int, count: int, offset: int, real: Any = os.pread) -> bytes:
        data: bytes = real(fd, count, offset)
        read.append(len(data))
        assert sum(read) < 4 << 20, "more is read than is needed"
        return data

    monkeypatch.setattr(os, "pread", pread)
    lines = list(Tail(job_dirs, 1, 1, (), 3, log_bytes=8 << 30).more())
    assert numbers(line for line in lines if line.stream != "note") == [3, 4, 5]


def test_a_larger_file_is_said_to_be_cut_and_begins_with_a_whole_line(job_dirs: JobDirs) -> None:
    """The limit of its time was another, or a job has written to its own log."""
    write(job_dirs, 0, 0, 50_000, "x" * 100)
    note, *lines = Tail(job_dirs, 1, 1, (), None, log_bytes=1 << 20).more()
    assert "only the last 2 MiB are read" in note.text
    found = numbers(lines)
    assert found == list(range(found[0], 50_000))
    assert len(found) > 10_000
    assert numbers(Tail(job_dirs, 1, 1, (), 5, log_bytes=1 << 20).more()) == list(
        range(49_995, 50_000)
    )


def test_zeros_that_a_crash_has_left_are_no_lines(job_dirs: JobDirs) -> None:
    write(job_dirs, 0, 0, 2)
    path = job_dirs.attempt(1, 1) / "rank-0.log"
    with path.open("ab") as file:
        file.write(bytes(3 * PIECE_BYTES))
    write(job_dirs, 0, 2, 4)
    first, second, note, third, fourth = Tail(job_dirs, 1, 1, (), None).more()
    assert "zeros are left out here" in note.text
    assert numbers([first, second, third, fourth]) == [0, 1, 2, 3]


def test_a_large_log_and_long_lines_reach_a_client() -> None:
    script = (
        "import sys\n"
        "for n in range(40000): print('line', n)\n"
        "for n in range(600): print('\\x01\\\\' * 4000, n)\n"
        "sys.stdout.flush(); sys.stdout.buffer.write(b'\\xff' * 9000 + b'\\n')\n"
        "print('the very last', file=sys.stderr); sys.exit(3)"
    )
    with private_daemon() as daemon:
        job_number = daemon.submit(script)
        followed = [
            item.text for item in daemon.client.follow(job_number) if isinstance(item, LogLine)
        ]
        assert len(followed) == 40000 + 600 + 2
        assert followed[-1] == "the very last" or "the very last" in followed
        read = daemon.output(job_number)
        assert sorted(read) == sorted(followed)
        assert [line for line in read if line.startswith("line")] == [
            f"line {n}" for n in range(40000)
        ]
        assert len(daemon.output(job_number, tail=10)) == 10
