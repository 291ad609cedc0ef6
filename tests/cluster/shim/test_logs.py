"""A rank's log: bounded, whole lines only, and never in a rank's way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.disks import fill, small_disk
from tests.kit.shims import PATIENCE_S, Attempt
from wiiiiided.cluster.shim import lines, protocol
from wiiiiided.cluster.shim.logs import RankLogWriter


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", 256) as place:
        yield place


def read(path: Path) -> list[tuple[str, str]]:
    return [lines.parse(line)[1:] for line in path.read_bytes().splitlines(keepends=True)]


def test_a_full_log_is_moved_aside_once(tmp_path: Path, folder: int) -> None:
    log = RankLogWriter(folder, "rank-0.log", 0o600, limit=1000)
    for number in range(100):
        log.write("out", [b"line %d" % number])
    log.close()
    assert sorted(os.listdir(tmp_path)) == ["rank-0.log", "rank-0.log.1"]
    for name in os.listdir(tmp_path):
        assert (tmp_path / name).stat().st_size <= 1000
    kept = read(tmp_path / "rank-0.log.1") + read(tmp_path / "rank-0.log")
    lines = [entry for entry in kept if entry[0] == "out"]
    first = 100 - len(lines)
    assert lines == [("out", f"line {n}") for n in range(first, 100)]
    words = "a new file of this log, after {} lines; only the last two are kept"
    assert kept[0] == ("note", words.format(first))
    assert len(kept) > 30


NAMELESS = (
    b"[W1118 01:05:32.880514583 socket.cpp:207] [c10d] "
    b"The hostname of the client socket cannot be retrieved. err=-3"
)


def test_torchs_line_about_a_name_is_left_out_and_no_other(tmp_path: Path, folder: int) -> None:
    log = RankLogWriter(folder, "rank-0.log", 0o600, limit=10_000)
    others = [
        NAMELESS.replace(b"hostname", b"remote address"),
        NAMELESS.replace(b"[W", b"[E"),
        b"x " + NAMELESS,
        NAMELESS + b" x",
    ]
    log.write("err", [NAMELESS])
    log.write("err", [others[0], NAMELESS, *others[1:]])
    log.write("out", [NAMELESS])
    log.close()
    kept = [(stream, text.encode()) for stream, text in read(tmp_path / "rank-0.log")]
    assert kept == [*(("err", other) for other in others), ("out", NAMELESS)]
    assert list(log.last_errors) == others


def test_a_burst_larger_than_a_file_is_cut_between_lines(tmp_path: Path, folder: int) -> None:
    log = RankLogWriter(folder, "rank-0.log", 0o600, limit=1000)
    log.write("out", [b"line %d" % number for number in range(100)])
    log.close()
    kept = read(tmp_path / "rank-0.log.1") + read(tmp_path / "rank-0.log")
    lines = [entry for entry in kept if entry[0] == "out"]
    first = 100 - len(lines)
    assert lines == [("out", f"line {n}") for n in range(first, 100)]
    words = "a new file of this log, after {} lines; only the last two are kept"
    assert kept[0] == ("note", words.format(first))
    assert (tmp_path / "rank-0.log").stat().st_size <= 1000


def test_a_log_has_the_mode_that_was_ordered(tmp_path: Path, folder: int) -> None:
    log = RankLogWriter(folder, "rank-0.log", 0o640, limit=1000)
    log.note("hello")
    log.close()
    assert (tmp_path / "rank-0.log").stat().st_mode & 0o777 == 0o640
    assert read(tmp_path / "rank-0.log") == [("note", "hello")]


@pytest.mark.parametrize("trap", ["link", "fifo", "folder"])
def test_a_trap_in_the_place_of_a_log_is_not_stepped_into(
    tmp_path: Path, folder: int, trap: str
) -> None:
    place = tmp_path / "rank-0.log"
    if trap == "link":
        place.symlink_to(tmp_path / "elsewhere")
    elif trap == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
    log = RankLogWriter(folder, "rank-0.log", 0o600, limit=1000)
    log.write("out", [b"1", b"2"])
    assert not (tmp_path / "elsewhere").exists()
    place.rmdir() if trap == "folder" else place.unlink()
    log.write("out", [b"3"])
    log.close()
    (kind, note), line = read(place)
    assert kind == "note"
    assert note.startswith("2 lines were dropped: ")
    assert line == ("out", "3")


@pytest.mark.needs("root", "mount")
def test_a_full_disk_drops_whole_lines_and_says_how_many(disk: Path) -> None:
    fd = os.open(disk, os.O_RDONLY)
    log = RankLogWriter(fd, "rank-0.log", 0o600, limit=1 << 20)
    log.write("out", [b"before"])
    filler = fill(disk)
    # What is left of the log's last page takes some of these.
    log.write("out", [b"line %d " % number + b"x" * 100 for number in range(100)])
    log.write("err", [b"lost"])
    written = read(disk / "rank-0.log")
    assert (disk / "rank-0.log").read_bytes().endswith(b"\n")
    assert 1 < len(written) < 101
    filler.unlink()
    log.write("out", [b"after"])
    log.close()
    os.close(fd)
    count = 102 - len(written)
    assert read(disk / "rank-0.log")[len(written) :] == [
        ("note", f"{count} lines were dropped: No space left on device"),
        ("out", "after"),
    ]


@pytest.mark.needs("root", "mount")
def test_lines_dropped_until_the_end_are_counted_at_the_end(disk: Path) -> None:
    fd = os.open(disk, os.O_RDONLY)
    log = RankLogWriter(fd, "rank-0.log", 0o600, limit=1 << 20)
    filler = fill(disk)
    log.write("out", [b"lost"])
    log.write("out", [b"lost too"])
    filler.unlink()
    log.close()
    os.close(fd)
    assert read(disk / "rank-0.log") == [("note", "2 lines were dropped: No space left on device")]


WRITER = """
import os, sys
for number in range(20000):
    print("line", number, "x" * 100)
open(sys.argv[1], "w").close()
sys.stdin.read()
while not os.path.exists(sys.argv[2]):
    pass
print("after")
"""


@pytest.mark.needs("root", "mount")
def test_a_rank_goes_on_while_the_disk_is_full(disk: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    written, go_on = tmp_path / "written", tmp_path / "go-on"
    argv = [sys.executable, "-c", WRITER, str(written), str(go_on)]
    with Attempt(disk, argv, work=str(work)) as attempt:
        attempt.write_order()
        attempt.start()
        attempt.listen().phase("running")
        wait_until(written.exists, PATIENCE_S, "two megabytes written to a disk of a quarter")
        # It is the shim's turn to be full: nothing of it may have ended.
        assert attempt.shims[0].poll() is None
        (attempt.path / protocol.ROOM).unlink()  # as a job may
        filler = fill(disk)
        go_on.touch()
        listener = attempt.listen()
        status = listener.phase("ended")  # no room for exit.json: it is said all the same
        assert [rank["code"] for rank in status["ranks"]] == [0]
        assert not (attempt.path / "exit.json").exists()
        filler.unlink()
        (attempt.path / "rank-0.log").unlink()
        end = attempt.end()
        assert (end.code, end.codes) == (0, {"0": 0})


def test_sixty_four_ranks_that_print_as_fast_as_they_can_lose_nothing(tmp_path: Path) -> None:
    program = "i=0; while [ $i -lt 1000 ]; do echo line $i; i=$((i+1)); done; echo to stderr >&2"
    with Attempt(tmp_path, ["sh", "-c", program], workers=64) as attempt:
        assert attempt.run().code == 0
        for rank in range(64):
            assert attempt.texts(rank) == [f"line {n}" for n in range(1000)]
            assert attempt.texts(rank, "err") == ["to stderr"]


def test_a_prompt_and_a_progress_bar_are_seen_while_they_stand(tmp_path: Path) -> None:
    program = 'printf "name? "; read x < one; printf "\\r1 %%\\r2 %%\\r3 %%"; read x < two'
    (tmp_path / "work").mkdir()
    for name in ("one", "two"):
        os.mkfifo(tmp_path / "work" / name)
    with Attempt(tmp_path, ["sh", "-c", program]) as attempt:
        attempt.start()
        attempt.wait_for("name? ")
        (tmp_path / "work" / "one").write_text("\n")
        attempt.wait_for("3 %")
        (tmp_path / "work" / "two").write_text("\n")
        assert attempt.end().code == 0
        assert attempt.texts() == ["name? ", "1 %", "3 %"]


def test_bytes_that_are_no_text_and_long_lines_arrive_as_they_are(tmp_path: Path) -> None:
    program = r"import sys; sys.stdout.buffer.write(b'\xff\x00\xfe\n' + b'y' * 100000 + b'\n')"
    with Attempt(tmp_path, [sys.executable, "-c", program]) as attempt:
        attempt.run()
        data = (attempt.path / "rank-0.log").read_bytes()
        assert b" out \xff\x00\xfe\n" in data
        assert "".join(attempt.texts()[1:]) == "y" * 100000


def test_the_log_of_a_rank_is_bounded(tmp_path: Path) -> None:
    program = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done"
    with Attempt(tmp_path, ["sh", "-c", program], log_bytes=10_000) as attempt:
        attempt.run()
        assert attempt.texts()[-1] == "line 2999"
        for name in ("rank-0.log", "rank-0.log.1"):
            assert (attempt.path / name).stat().st_size <= 10_000
        assert not (attempt.path / "rank-0.log.2").exists()
