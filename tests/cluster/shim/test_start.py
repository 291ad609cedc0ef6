"""The start of an attempt: one shim has it, its working directory is whole, all ranks or none."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.disks import fill, small_disk
from tests.kit.shims import PATIENCE_S, PROGRAM, Attempt, is_running, kill
from wiiiiided.cluster.shim import protocol


def archive(folder: Path, content: dict[str, bytes]) -> Path:
    path = folder / "archive.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def test_a_rank_runs_in_a_session_of_its_own_with_nothing_of_the_shim(tmp_path: Path) -> None:
    program = r"""
import os, signal
def say(*words):  # print would write them one by one: a line may be shown before its end
    os.write(1, " ".join(map(str, words)).encode() + b"\n")
say("leader", os.getsid(0) == os.getpid() == os.getpgrp())
say("directory", os.getcwd())
say("umask", oct(os.umask(0)))
say("stdin", os.readlink("/proc/self/fd/0"))
say("descriptors", sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")))
status = dict(line.split(":\t") for line in open("/proc/self/status") if ":\t" in line)
python_and_libc = 1 << 12 | 1 << 24 | 3 << 31
say("masks", int(status["SigBlk"], 16), int(status["SigIgn"], 16) & ~python_and_libc)
say("oom", open("/proc/self/oom_score_adj").read().strip())
"""
    with Attempt(tmp_path, [sys.executable, "-S", "-c", program]) as attempt:
        assert attempt.run() == dataclasses.replace(attempt.exit(), code=0, codes={"0": 0})
        # Python itself ignores SIGPIPE and SIGXFSZ, 32 and 33 are the C library's own and cannot
        # be set; 4 is the listing of the descriptors.
        assert attempt.texts() == [
            "leader True",
            f"directory {tmp_path}/work",
            "umask 0o22",
            "stdin /dev/null",
            "descriptors ['0', '1', '2'] 4",
            "masks 0 0",
            "oom 200",
        ]


def test_limits_of_descriptors_are_those_of_the_daemon(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Attempt(tmp_path, ["sh", "-c", "ulimit -Sn; ulimit -Hn"]) as attempt:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        try:
            attempt.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        attempt.end()
        assert attempt.texts() == ["300", str(hard)]


def test_of_two_shims_started_at_once_one_runs(tmp_path: Path) -> None:
    program = "echo $$ >> started; sleep 0.2"
    for number in range(5):
        with Attempt(tmp_path / str(number), ["sh", "-c", program], workers=2) as attempt:
            attempt.write_order()
            for _ in range(4):
                attempt.start()
            end = attempt.end()
            assert (end.code, end.codes) == (0, {"0": 0, "1": 0})
            assert [shim.returncode for shim in attempt.shims] == [0] * 4
            started = (tmp_path / str(number) / "work" / "started").read_text().split()
            assert len(started) == 2
            assert not [name for name in os.listdir(attempt.path) if name.startswith(("ctl", "."))]


def test_a_shim_that_comes_later_leaves_the_attempt_alone(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sh", "-c", "echo once"]) as attempt:
        attempt.run()
        before = (attempt.path / protocol.EXIT).read_bytes()
        attempt.run()
        assert attempt.texts() == ["once"]
        assert (attempt.path / protocol.EXIT).read_bytes() == before


def test_the_claim_names_the_shim_for_ever(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"]) as attempt:
        shim = attempt.start()
        claim = attempt.claim()
        assert claim == protocol.ShimClaim(
            shim.pid, protocol.start_ticks(shim.pid) or 0, protocol.boot_id(), f"ctl.{shim.pid}"
        )
        shim.terminate()
        attempt.end()


def test_the_working_directory_is_made_from_the_archive(tmp_path: Path) -> None:
    packed = archive(tmp_path, {"train.py": b"print(f'hello from {__file__}')\n", "a/b": b"1"})
    with Attempt(tmp_path / "job", [sys.executable, "train.py"]) as attempt:
        assert attempt.run(archive=packed).code == 0
        assert attempt.texts() == [f"hello from {tmp_path}/job/work/train.py"]
        assert sorted(os.listdir(tmp_path / "job")) == ["1", "work"]


def test_a_working_directory_that_exists_is_kept(tmp_path: Path) -> None:
    packed = archive(tmp_path, {"kept": b"new"})
    (tmp_path / "job" / "work").mkdir(parents=True)
    (tmp_path / "job" / "work" / "kept").write_text("old")
    with Attempt(tmp_path / "job", ["cat", "kept"]) as attempt:
        attempt.run(archive=packed)
        assert attempt.texts() == ["old"]


def test_without_an_archive_it_is_empty(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["ls", "-A"]) as attempt:
        assert attempt.run().code == 0
        assert attempt.lines() == []


def test_what_a_killed_attempt_had_unpacked_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "job" / "work.unpacking.123" / "deep"
    left.mkdir(parents=True)
    (left / "file").write_text("half")
    packed = archive(tmp_path, {"whole": b"1"})
    with Attempt(tmp_path / "job", ["ls"]) as attempt:
        attempt.run(archive=packed)
        assert attempt.texts() == ["whole"]
        assert sorted(os.listdir(tmp_path / "job")) == ["1", "work"]


@pytest.mark.parametrize(
    ("content", "fields", "sentence"),
    [
        (b"this is no archive" * 100, {}, "the working directory cannot be made: "),
        (None, {"archive_bytes": 3}, "the working directory cannot be made: "),
        (None, {"work": "/proc/nowhere/work"}, "No such file or directory"),
    ],
)
def test_an_archive_that_cannot_be_unpacked_ends_the_attempt_with_a_sentence(
    tmp_path: Path, content: bytes | None, fields: dict[str, object], sentence: str
) -> None:
    packed = archive(tmp_path, {"file": b"12345"})
    if content is not None:
        packed.write_bytes(content)
    with Attempt(tmp_path / "job", ["true"], **fields) as attempt:
        end = attempt.run(archive=packed)
        assert (end.code, end.codes, end.failed_rank) == (125, {}, None)
        assert sentence in end.reason
        assert "Traceback" not in end.reason
        assert not (tmp_path / "job" / "work").exists()


def test_a_stop_while_it_unpacks_is_obeyed(tmp_path: Path) -> None:
    read, write = os.pipe()  # an archive that never ends
    with Attempt(tmp_path / "job", ["true"]) as attempt:
        attempt.start(archive=Path(f"/proc/self/fd/{read}"))
        listener = attempt.listen()
        listener.phase("preparing")
        listener.send(do="stop", grace_s=5, reason="changed my mind")
        end = attempt.end()
        os.close(read)
        os.close(write)
        assert (end.code, end.codes, end.stopped) == (143, {}, "changed my mind")
        assert not (tmp_path / "job" / "work").exists()


@pytest.mark.parametrize(
    ("argv", "code", "sentence"),
    [
        (
            ["no-such-program"],
            127,
            "'no-such-program' was not found on this machine; is it in PATH",
        ),
        (["./no-such-script"], 127, "'./no-such-script' was not found in "),
        (["/no/such/program"], 127, "'/no/such/program' was not found on this machine"),
        (["./no-interpreter"], 127, "interpreter that './no-interpreter' names"),
        (["./not-executable"], 126, "'./not-executable' is not executable: chmod +x"),
        (["./no-program"], 126, "'./no-program' is no program"),
        (["true", "nul\0"], 125, "'true' cannot be started: embedded null byte"),
    ],
)
def test_a_command_that_cannot_be_started_ends_the_attempt_with_a_sentence(
    tmp_path: Path, argv: list[str], code: int, sentence: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    for name, text, mode in (
        ("no-interpreter", "#!/no/such/interpreter\n", 0o755),
        ("not-executable", "#!/bin/sh\n", 0o644),
        ("no-program", "\0\1\2\3", 0o755),
    ):
        (work / name).write_text(text)
        (work / name).chmod(mode)
    with Attempt(tmp_path, argv, workers=3) as attempt:
        end = attempt.run()
        assert end.code == code
        assert sentence in end.reason
        assert end.failed_rank in (0, 1, 2)
        assert (end.codes, end.error) == ({}, "")


def test_one_rank_that_cannot_start_is_the_end_of_all(tmp_path: Path) -> None:
    # The program disappears while the ranks are started: rank 0 removes it.
    work = tmp_path / "work"
    work.mkdir()
    (work / "once").write_text("#!/bin/sh\nmv once gone || exit 2\nexec sleep 1000\n")
    (work / "once").chmod(0o755)
    with Attempt(tmp_path, ["./once"], workers=50) as attempt:
        end = attempt.run()
        assert end.code in (127, 2)  # 2: the shell had begun, and found no script to read or move


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda order: order | {"format": 99}, "format 99"),
        (lambda order: order | {"argv": []}, "has no command"),
        (lambda order: order | {"workers": 0}, "wants 0 workers"),
        (lambda order: order | {"work": "relative"}, "not absolute: 'relative'"),
        (lambda order: {"format": 1}, "order.json cannot be obeyed"),
        (lambda order: [], "order.json cannot be obeyed"),
    ],
)
def test_an_order_that_cannot_be_obeyed_ends_the_attempt_with_a_sentence(
    tmp_path: Path, change: object, sentence: str
) -> None:
    assert callable(change)
    with Attempt(tmp_path, ["touch", "started"]) as attempt:
        order = change(json.loads(protocol.to_bytes(attempt.order)))
        (attempt.path / protocol.ORDER).write_text(json.dumps(order))
        end = attempt.run()
        assert end.code == 125
        assert sentence in end.reason
        assert not (tmp_path / "work").exists()


def test_an_order_behind_a_link_is_not_read(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["true"]) as attempt:
        attempt.write_order()
        (attempt.path / protocol.ORDER).rename(tmp_path / "elsewhere")
        (attempt.path / protocol.ORDER).symlink_to(tmp_path / "elsewhere")
        end = attempt.run()
        assert end.reason.startswith("order.json cannot be obeyed: order.json cannot be opened")


def test_a_directory_with_a_long_path_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["folder-with-a-long-name"] * 10)
    with Attempt(deep, ["sleep", "1000"]) as attempt:
        attempt.start()
        listener = attempt.listen()
        listener.phase("running")
        listener.send(do="stop", grace_s=1, reason="enough")
        assert attempt.end().stopped == "enough"


def test_what_the_shim_writes_has_the_mode_that_was_ordered(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sh", "-c", "echo; sleep 1000"], file_mode=0o640) as attempt:
        shim = attempt.start()
        attempt.listen().phase("running")
        attempt.wait_for("")
        modes = {path.name: path.stat().st_mode & 0o777 for path in attempt.path.iterdir()}
        assert modes.pop("order.json")
        assert modes.pop(f"ctl.{shim.pid}") == 0o660
        assert modes.pop("pipes") == 0o600
        assert set(modes) == {"shim.json", "rank-0.log", "stats-0", "stacks-0", protocol.ROOM}
        assert set(modes.values()) == {0o640}
        assert (attempt.path / "stats-0").stat().st_size == 4096
        shim.terminate()
        attempt.end()
        assert (attempt.path / protocol.EXIT).stat().st_mode & 0o777 == 0o640


def test_a_rank_dies_with_its_shim(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"], workers=2) as attempt:
        attempt.start()
        ranks = [rank["pid"] for rank in attempt.listen().phase("running")["ranks"]]
        kill(attempt.claim().pid)
        for pid in ranks:
            wait_until(lambda pid=pid: not is_running(pid), PATIENCE_S, "the end of a rank")


def test_hangups_and_interrupts_do_not_reach_the_shim(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"]) as attempt:
        shim = attempt.start()
        listener = attempt.listen()
        listener.phase("running")
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            os.kill(shim.pid, number)
        listener.send(do="stop", grace_s=1, reason="enough")
        assert attempt.end().stopped == "enough"


@pytest.mark.parametrize(
    "arguments", [[], ["--what"], ["--cleanup"], ["x", "--archive"], ["x", "--secrets", "y"]]
)
def test_a_wrong_command_line_is_answered_with_the_right_ones(arguments: list[str]) -> None:
    command = [sys.executable, "-I", "-S", PROGRAM, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr.startswith("usage:\n    run.py ATTEMPT_DIR")


def test_an_attempt_whose_directory_is_removed_ends_without_a_word(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"]) as attempt:
        shim = attempt.start()
        listener = attempt.listen()
        (rank,) = listener.phase("running")["ranks"]
        shutil.rmtree(attempt.path)
        listener.send(do="stop", grace_s=1, reason="enough")
        assert shim.wait(PATIENCE_S) == 0
        assert not is_running(rank["pid"])


def test_closed_standard_streams_do_no_harm(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sh", "-c", "cat; echo out; echo err >&2"]) as attempt:
        attempt.write_order()
        command = f"{sys.executable} -I -S {PROGRAM} {attempt.path} <&- >&- 2>&-"
        assert subprocess.run(command, shell=True, check=False).returncode == 0
        assert attempt.exit().code == 0
        assert [line[1:] for line in attempt.lines()] == [("out", "out"), ("err", "err")]


@pytest.mark.needs("root", "mount")
def test_on_a_disk_that_is_full_from_the_beginning_nothing_is_started(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "small", 64) as place,
        Attempt(place, ["true"], work=str(tmp_path / "work")) as attempt,
    ):
        attempt.write_order()
        filler = fill(place)
        shim = attempt.start()
        _, said = shim.communicate(timeout=PATIENCE_S)
        assert (shim.returncode, said.decode()) == (1, f"{attempt.path}: No space left on device\n")
        assert not (tmp_path / "work").exists()
        filler.unlink()
        attempt.shims.clear()
        assert attempt.run().code == 0


def test_a_rank_can_do_without_its_stats(tmp_path: Path) -> None:
    program = "echo ${WIIIIIDE_STATS-none} ${WIIIIIDE_STACKS-none}"
    with Attempt(tmp_path, ["sh", "-c", program]) as attempt:
        (attempt.path / "stats-0").mkdir()  # as good as a full disk
        assert attempt.run().code == 0
        assert [line[1:] for line in attempt.lines()] == [
            ("note", "no stats and no stacks of this rank: Is a directory"),
            ("out", "none none"),
        ]


def test_a_missing_directory_is_said_on_stderr() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-I", "-S", PROGRAM, f"{folder}/none"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (1, f"{folder}/none: No such file or directory\n")


def test_the_shim_loads_nothing_heavy() -> None:
    program = f"import sys; sys.path.insert(0, {str(Path(PROGRAM).parents[3])!r})\n"
    program += "import wiiiiided.cluster.shim.main; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", program]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    heavy = {"typing", "tarfile", "pathlib", "subprocess", "logging", "asyncio", "argparse"}
    assert not heavy & set(loaded)


@pytest.mark.needs("root")
def test_a_quiet_shim_sleeps_without_a_deadline(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"], workers=2) as attempt:
        shim = attempt.start()
        attempt.listen().phase("running")

        def waits_for_ever() -> bool:
            call = Path(f"/proc/{shim.pid}/syscall").read_text().split()
            return len(call) > 4 and int(call[4], 16) & 0xFFFFFFFF == 0xFFFFFFFF

        wait_until(waits_for_ever, PATIENCE_S, "epoll without a timeout")
        shim.terminate()
        attempt.end()
