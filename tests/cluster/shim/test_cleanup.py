"""After a shim was killed: nothing of its job runs, and its end is written down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.shims import PATIENCE_S, Attempt, helper, is_running, kill
from wiiiiided.cluster.shim import processes, protocol

# Children that outlive their rank: one as it is, one that hides its environment behind a title, two
# without the job's environment (below the first, and beside it), one with nothing else of the job.
FAMILY = """
import os, subprocess, sys, time
below = '''
import subprocess, time
subprocess.Popen(["env", "-i", "sleep", "1000"])
time.sleep(1000)
'''
subprocess.Popen([sys.executable, "-c", below], start_new_session=True)
titled = '''
import ctypes, os, time
# What setproctitle does: the memory that held the environment is written over.
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
begin, end = int(fields[47]), int(fields[48])
ctypes.memset(begin, 0, end - begin)
os.write(1, b"titled\\\\n")  # print would write text and newline one by one
time.sleep(1000)
'''
subprocess.Popen([sys.executable, "-c", titled], start_new_session=True)
subprocess.Popen(["env", "-i", "sleep", "1000"], start_new_session=True)
nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
subprocess.Popen(["sleep", "1000"], start_new_session=True, **nowhere)
os.write(1, b"family complete\\n")
time.sleep(1000)
"""


def test_a_killed_shim_is_cleaned_up(tmp_path: Path) -> None:
    with Attempt(tmp_path, [sys.executable, "-c", FAMILY], workers=2) as attempt:
        shim = attempt.start()
        attempt.listen().phase("running")
        for rank in range(2):
            attempt.wait_for("family complete", rank)
            attempt.wait_for("titled", rank)
        wait_until(
            lambda: len(processes.descendants(shim.pid)) == 2 * 6, PATIENCE_S, "all grandchildren"
        )
        family = processes.descendants(shim.pid)
        shim.kill()
        shim.wait()
        cleaned = helper("--cleanup", str(attempt.path))
        assert (cleaned.returncode, cleaned.stderr) == (0, b"")
        assert not [process.pid for process in family if is_running(process.pid)]
        end = attempt.exit()
        assert (end.lost, end.code, end.codes) == (True, 137, {})
        assert end.reason == f"the job's supervisor (shim, pid {shim.pid}) was killed"


def test_a_living_shim_is_not_cleaned_up(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"]) as attempt:
        shim = attempt.start()
        (rank,) = attempt.listen().phase("running")["ranks"]
        refused = helper("--cleanup", str(attempt.path))
        assert refused.returncode == 1
        expected = f"the shim of {attempt.path} is alive: pid {shim.pid}\n"
        assert refused.stderr.decode() == expected
        assert is_running(rank["pid"])
        assert not (attempt.path / protocol.EXIT).exists()
        shim.terminate()
        assert not attempt.end().lost


def test_an_end_that_is_written_stays(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["false"]) as attempt:
        attempt.run()
        before = (attempt.path / protocol.EXIT).read_bytes()
        assert helper("--cleanup", str(attempt.path)).returncode == 0
        assert (attempt.path / protocol.EXIT).read_bytes() == before


def test_a_pid_that_is_anothers_by_now_is_not_taken_for_the_shim(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["true"]) as attempt:
        attempt.write_order()
        claim = protocol.ShimClaim(
            os.getpid(), 1, protocol.boot_id(), "ctl.1"
        )  # ours, but not its start
        (attempt.path / protocol.CLAIM).write_bytes(protocol.to_bytes(claim))
        assert helper("--cleanup", str(attempt.path)).returncode == 0
        assert attempt.exit().reason.startswith("the job's supervisor (shim, pid ")


def test_after_a_restart_of_the_machine_that_is_the_reason(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["true"]) as attempt:
        attempt.write_order()
        ticks = protocol.start_ticks(os.getpid())
        assert ticks is not None
        claim = protocol.ShimClaim(os.getpid(), ticks, "an-earlier-boot", "ctl.1")
        (attempt.path / protocol.CLAIM).write_bytes(protocol.to_bytes(claim))
        assert helper("--cleanup", str(attempt.path)).returncode == 0
        assert attempt.exit().reason.startswith("the machine was restarted while the job ran")


def test_a_shim_that_comes_after_the_cleanup_starts_nothing(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["touch", "started"]) as attempt:
        attempt.write_order()
        assert helper("--cleanup", str(attempt.path)).returncode == 0
        end = attempt.run()
        assert end.lost
        assert end.reason == "the job's supervisor (shim) was killed before it started anything"
        assert not (tmp_path / "work").exists()
        assert attempt.shims[0].returncode == 0


def test_a_claim_that_cannot_be_read_does_not_save_anything(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"]) as attempt:
        shim = attempt.start()
        (rank,) = attempt.listen().phase("running")["ranks"]
        shim.kill()
        shim.wait()
        (attempt.path / protocol.CLAIM).write_text("{")
        cleaned = helper("--cleanup", str(attempt.path))
        assert cleaned.returncode == 0
        assert b"is not what a shim writes" in cleaned.stderr
        assert not is_running(rank["pid"])
        assert attempt.exit().lost


def test_the_jobs_of_others_are_left_alone(tmp_path: Path) -> None:
    with (
        Attempt(tmp_path / "one", ["sleep", "1000"]) as one,
        Attempt(tmp_path / "one-more", ["sleep", "1000"]) as other,
    ):
        shim = one.start()
        other.start()
        one.listen().phase("running")
        listener = other.listen()
        (rank,) = listener.phase("running")["ranks"]
        shim.kill()
        shim.wait()
        assert helper("--cleanup", str(one.path)).returncode == 0
        assert is_running(rank["pid"])
        listener.send(do="stop", grace_s=1, reason="enough")
        assert not other.end().lost


def test_the_mode_of_the_end_is_the_orders(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["true"], file_mode=0o644) as attempt:
        attempt.write_order()
        helper("--cleanup", str(attempt.path))
        assert (attempt.path / protocol.EXIT).stat().st_mode & 0o777 == 0o644


def test_a_reader_of_the_stacks_is_not_a_process_of_the_job(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["true"]) as attempt:
        attempt.write_order()
        (attempt.path / "stacks-0").touch()
        with (
            open(attempt.path / "stacks-0") as file,
            subprocess.Popen(["sleep", "1000"], stdin=file) as reader,
        ):
            assert helper("--cleanup", str(attempt.path)).returncode == 0
            assert is_running(reader.pid)
            kill(reader.pid)


@pytest.mark.parametrize("flag", ["--cleanup", "--sweep"])  # the second: of earlier daemons
def test_a_missing_directory_is_a_sentence(tmp_path: Path, flag: str) -> None:
    answer = helper(flag, str(tmp_path / "none"))
    assert answer.returncode == 1
    assert answer.stderr.decode() == f"{tmp_path}/none: No such file or directory\n"


def test_an_end_of_a_cleanup_is_an_end_like_any_other(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["true"]) as attempt:
        attempt.write_order()
        helper("--cleanup", str(attempt.path))
        content = json.loads((attempt.path / protocol.EXIT).read_bytes())
        assert content["format"] == protocol.FORMAT
        assert set(content) == set(protocol.AttemptEnd.__dataclass_fields__)
