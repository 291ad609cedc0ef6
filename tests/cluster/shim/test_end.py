"""The end of an attempt: which rank failed and why, and that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.shims import PATIENCE_S, Attempt, is_running, kill
from wiiiiided.cluster.shim import exit_reason, processes, protocol, supervisor


def test_when_all_ranks_end_well_so_does_the_attempt(tmp_path: Path) -> None:
    before = time.time()
    with Attempt(tmp_path, ["true"], workers=3, first_rank=2, world_size=5) as attempt:
        end = attempt.run()
        assert before <= end.ended_at <= time.time()
        expected = protocol.AttemptEnd(end.ended_at, {"2": 0, "3": 0, "4": 0}, 0)
        assert end == expected
        assert attempt.shims[0].returncode == 0
        assert not list(attempt.path.glob("ctl.*"))


def test_a_rank_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    program = """
[ $RANK = 1 ] || { : > up-$RANK; exec sleep 1000; }
while [ ! -e up-0 ] || [ ! -e up-2 ]; do sleep 0.01; done
for i in $(seq 30); do echo "e$i" >&2; done; exit 3
"""
    with Attempt(tmp_path, ["sh", "-c", program], workers=3, grace_s=30.0) as attempt:
        end = attempt.run()
        assert (end.code, end.failed_rank) == (3, 1)
        assert end.reason == "rank 1 ended with exit code 3"
        assert end.error.split() == [f"e{n}" for n in range(11, 31)]
        assert end.codes == {"0": 143, "1": 3, "2": 143}
        assert (end.stopped, end.lost) == ("", False)


def traceback(*calls: str) -> str:
    frames = "".join(f'  File "x.py", line 1, in f\n    {call}\n    ^^^^\n' for call in calls)
    return f"Traceback (most recent call last):\n{frames}"


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (traceback("f()") + "ValueError: shapes do not match", "ValueError: shapes do not match"),
        (traceback("f()") + "AssertionError", "AssertionError"),
        (traceback("f()") + "E: two\nlines\nof: it", "E: two"),
        (traceback("a()") + "KeyError: 1\n\nDuring …:\n\n" + traceback("b()") + "b.E: 2", "b.E: 2"),
        # Only so many of the last lines are kept: the first of a deep traceback is not there.
        (traceback("f()").partition("\n")[2] + "x.y.<locals>.Z: no", "x.y.<locals>.Z: no"),
        ('  File "x.py", line 1\n    a b\n    ^\nSyntaxError: bad', "SyntaxError: bad"),
        ("ValueError: first\n" + traceback("f()") + "ValueError: first\nbye", "ValueError: first"),
        (traceback("f()") + "not an exception: at all", ""),
        ("INFO: began\n  deeper\nERROR: it failed", ""),
        ("", ""),
    ],
)
def test_what_was_raised_is_found_in_the_last_words(error: str, found: str) -> None:
    assert exit_reason.exception(error) == found
    as_torch = "\n".join(f"[rank1]: {line}" for line in error.splitlines())
    assert exit_reason.exception(as_torch) == found


def test_a_killed_rank_is_named_with_its_signal(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sleep", "1000"], workers=2) as attempt:
        attempt.start()
        ranks = attempt.listen().phase("running")["ranks"]
        kill(ranks[1]["pid"])
        end = attempt.end()
        assert (end.code, end.failed_rank) == (137, 1)
        assert end.reason.startswith("rank 1 was killed by SIGKILL (the kernel's out-of-memory")


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 2, 0), (0, 1, 2)])
def test_of_ranks_that_are_found_dead_together_the_first_is_the_cause(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    program = "while [ ! -e go-$RANK ]; do sleep 0.01; done; exit 1$RANK"
    with Attempt(tmp_path, ["sh", "-c", program], workers=3) as attempt:
        shim = attempt.start()
        ranks = attempt.listen().phase("running")["ranks"]
        shim.send_signal(signal.SIGSTOP)
        for rank in order:
            (tmp_path / "work" / f"go-{rank}").touch()
            pid = ranks[rank]["pid"]
            wait_until(lambda pid=pid: not is_running(pid), PATIENCE_S, "the end of a rank")
        shim.send_signal(signal.SIGCONT)
        end = attempt.end()
        assert (end.failed_rank, end.code) == (order[0], 10 + order[0])
        assert end.codes == {"0": 10, "1": 11, "2": 12}


def test_the_others_may_end_by_themselves_before_they_are_terminated(tmp_path: Path) -> None:
    # Rank 0 notices that the other's process is gone, as a backend would, and has its own word.
    program = """
if [ $RANK = 1 ]; then echo $$ > .pid; mv .pid pid; exit 9; fi
trap 'echo terminated; exit 1' TERM
while [ ! -e pid ] || kill -0 $(cat pid) 2> /dev/null; do sleep 0.01; done
echo "rank 1 is lost" >&2
exit 4
"""
    with Attempt(tmp_path, ["sh", "-c", program], workers=2) as attempt:
        start_changed(attempt, "supervisor.MOMENT_S = 60.0")
        end = attempt.end()
        assert (end.failed_rank, end.codes) == (1, {"1": 9, "0": 4})
        assert attempt.texts() == []
        assert attempt.texts(stream="err") == ["rank 1 is lost"]


RECORDED = """
import os
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("the loss is not a number")
    import time
    time.sleep(1000)
main()
"""


def test_an_error_file_says_more_than_the_last_lines(tmp_path: Path) -> None:
    with Attempt(tmp_path, [sys.executable, "-c", RECORDED], workers=2) as attempt:
        end = attempt.run()
        assert (end.code, end.failed_rank) == (1, 1)
        assert end.error.startswith("ValueError: the loss is not a number\nTraceback")


@pytest.mark.parametrize(
    "content",
    ['{"message": 7}', "[]", "{", '{"message": {"extraInfo": []}}', '{"message": ""}', "[" * 10**5],
)
def test_a_strange_error_file_is_ignored(tmp_path: Path, content: str) -> None:
    program = 'cp content "$TORCHELASTIC_ERROR_FILE"; echo last words >&2; exit 1'
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "content").write_text(content)
    with Attempt(tmp_path, ["sh", "-c", program]) as attempt:
        assert attempt.run().error == "last words"


@pytest.mark.parametrize("trap", ["mkfifo", "mkdir", "ln -s /dev/zero"])
def test_a_trap_in_the_place_of_an_error_file_is_not_stepped_into(
    tmp_path: Path, trap: str
) -> None:
    program = f'{trap} "$TORCHELASTIC_ERROR_FILE"; echo last words >&2; exit 1'
    with Attempt(tmp_path, ["sh", "-c", program]) as attempt:
        assert attempt.run().error == "last words"


def test_a_long_error_is_cut_at_its_beginning(tmp_path: Path) -> None:
    program = (
        "import json, os; text = 'é' * 20000 + 'the end'\n"
        "json.dump({'message': text}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w')); exit(1)"
    )
    with Attempt(tmp_path, [sys.executable, "-c", program]) as attempt:
        error = attempt.run().error
        assert len(error.encode()) <= 16 << 10
        assert error.startswith("... é")
        assert error.endswith("éthe end")


def test_a_stop_gives_time_to_end(tmp_path: Path) -> None:
    program = "trap 'echo saving; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    with Attempt(tmp_path, ["sh", "-c", program], workers=2) as attempt:
        attempt.start()
        listener = attempt.listen()
        for rank in range(2):
            attempt.wait_for("ready", rank)
        listener.send(do="stop", grace_s=60, reason="cancelled by ada")
        end = attempt.end()
        assert (end.code, end.codes) == (0, {"0": 0, "1": 0})
        assert (end.stopped, end.failed_rank) == ("cancelled by ada", None)
        assert end.reason == "stopped: cancelled by ada"
        assert attempt.texts() == ["ready", "saving"]


IGNORES = "trap '' TERM; echo ready; while :; do sleep 0.01; done"


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sh", "-c", IGNORES], workers=2) as attempt:
        attempt.start()
        listener = attempt.listen()
        for rank in range(2):
            attempt.wait_for("ready", rank)
        listener.send(do="stop", grace_s=0.3, reason="enough")
        end = attempt.end()
        assert end.codes == {"0": 137, "1": 137}
        assert (end.code, end.stopped) == (137, "enough")


def test_a_second_stop_can_only_be_quicker(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sh", "-c", IGNORES]) as attempt:
        attempt.start()
        listener = attempt.listen()
        attempt.wait_for("ready")
        listener.send(do="stop", grace_s=0.5, reason="please")
        listener.send(do="stop", grace_s=10_000, reason="slowly")
        end = attempt.end()
        assert (end.code, end.stopped) == (137, "please")
    with Attempt(tmp_path, ["sh", "-c", IGNORES], attempt=2) as attempt:
        attempt.start()
        listener = attempt.listen()
        attempt.wait_for("ready")
        listener.send(do="stop", grace_s=10_000, reason="please")
        listener.send(do="stop", grace_s=0, reason="now")
        end = attempt.end()
        assert (end.code, end.stopped) == (137, "please")


def test_a_stopped_process_is_asked_to_end_too(tmp_path: Path) -> None:
    program = "trap 'echo saving; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    with Attempt(tmp_path, ["sh", "-c", program]) as attempt:
        attempt.start()
        listener = attempt.listen()
        (rank,) = listener.phase("running")["ranks"]
        attempt.wait_for("ready")
        os.kill(rank["pid"], signal.SIGSTOP)
        listener.send(do="stop", grace_s=1000, reason="enough")
        assert attempt.end().codes == {"0": 0}
        assert attempt.texts() == ["ready", "saving"]


def test_sigterm_to_the_shim_is_a_stop(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sh", "-c", IGNORES], grace_s=0.2) as attempt:
        shim = attempt.start()
        attempt.wait_for("ready")
        shim.terminate()
        end = attempt.end()
        assert end.code == 137
        assert end.stopped.startswith("the shim was asked to end (SIGTERM)")


def test_a_rank_that_dies_of_a_shutdown_before_its_shim_hears_of_it_has_not_failed(
    tmp_path: Path,
) -> None:
    with Attempt(tmp_path, ["sh", "-c", "echo ready; sleep 600"], workers=2) as attempt:
        shim = start_changed(attempt, "supervisor.MOMENT_S = 60.0")
        listener = attempt.listen()
        pids = [rank["pid"] for rank in listener.phase("running")["ranks"]]
        listener.close()
        attempt.wait_for("ready")
        os.kill(pids[0], signal.SIGTERM)
        wait_until(
            lambda: not os.path.exists(f"/proc/{pids[0]}"), PATIENCE_S, "the shim has reaped it"
        )
        shim.terminate()
        end = attempt.end()
        assert end.stopped
        assert end.failed_rank is None


@pytest.mark.parametrize("code", [129, 130, 137, 255])
def test_an_exit_code_above_128_is_not_told_as_a_signal(tmp_path: Path, code: int) -> None:
    with Attempt(tmp_path, ["sh", "-c", f"exit {code}"]) as attempt:
        attempt.start()
        end = attempt.end()
        assert (end.code, end.reason) == (code, f"rank 0 ended with exit code {code}")


def test_a_folder_in_the_place_of_the_end_is_no_obstacle(tmp_path: Path) -> None:
    script = 'mkdir -p "$WIIIIIDE_ATTEMPT_DIR/exit.json/x"; exit 4'
    with Attempt(tmp_path, ["sh", "-c", script]) as attempt:
        attempt.start()
        wait_until(lambda: (attempt.path / "exit.json").is_file(), PATIENCE_S, "a real record")
        assert attempt.end().code == 4


FAMILY = """
import os, subprocess, sys, time
# As a DataLoader's workers, and in a session of their own.
sleeper = [sys.executable, "-c", "import time; time.sleep(1000)"]
for _ in range(2):
    subprocess.Popen(sleeper, start_new_session=True)
# Daemonised twice over, deaf, and without any of the job's variables.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        deaf = "trap '' TERM HUP; echo deaf; while :; do sleep 1; done"
        os.execve("/bin/sh", ["sh", "-c", deaf], {})
    os._exit(0)
os.wait()
os.write(1, b"family complete\\n")  # print would write text and newline one by one
"""


@pytest.mark.parametrize("how", ["stop", "kill", "failure"])
def test_grandchildren_in_their_own_sessions_are_ended(tmp_path: Path, how: str) -> None:
    rest = "while not os.path.exists('fail'): time.sleep(0.01)\nexit(5)"
    argv = [sys.executable, "-c", FAMILY + rest]
    with Attempt(tmp_path, argv, workers=2, grace_s=0.3) as attempt:
        shim = attempt.start()
        listener = attempt.listen()
        for rank in range(2):
            attempt.wait_for("family complete", rank)
            attempt.wait_for("deaf", rank)
        family = processes.descendants(shim.pid)
        if how == "stop":
            listener.send(do="stop", grace_s=0.3, reason="enough")
        elif how == "kill":
            kill(next(p.pid for p in family if p.parent == shim.pid))
        else:
            (tmp_path / "work" / "fail").touch()
        attempt.end()
        # The moment exit.json is there nothing runs any more.
        assert not [process.pid for process in family if is_running(process.pid)]


def test_nothing_runs_when_the_end_is_written(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", FAMILY + "time.sleep(1000)"]
    with Attempt(tmp_path, argv, grace_s=0.1) as attempt:
        shim = attempt.start()
        listener = attempt.listen()
        attempt.wait_for("deaf")
        family = processes.descendants(shim.pid)
        listener.send(do="stop", grace_s=0.1, reason="enough")
        wait_until((attempt.path / protocol.EXIT).exists, PATIENCE_S, "exit.json")
        assert not [process.pid for process in family if is_running(process.pid)]
        attempt.end()


def test_what_a_rank_leaves_behind_is_killed_with_a_note(tmp_path: Path) -> None:
    with Attempt(tmp_path, [sys.executable, "-c", FAMILY]) as attempt:
        end = attempt.run()
        assert (end.code, end.codes, end.reason) == (0, {"0": 0}, "")
        notes = attempt.texts(stream="note")
        assert len(notes) >= 3
        assert all(n.startswith("killed, as the ranks left it behind: pid ") for n in notes)


def test_what_a_rank_leaves_behind_may_finish_by_itself(tmp_path: Path) -> None:
    program = "(sleep 0.3; echo late) & echo early"
    with Attempt(tmp_path, ["sh", "-c", program]) as attempt:
        start_changed(attempt, "supervisor.STRAY_S = 60.0")
        assert attempt.end().code == 0
        assert [line[1:] for line in attempt.lines()] == [("out", "early"), ("out", "late")]


def test_a_family_that_never_stops_growing_is_outrun(tmp_path: Path) -> None:
    program = "echo up; while :; do sh -c 'sleep 5' & sleep 0.002; done"
    with Attempt(tmp_path, ["sh", "-c", program], workers=2) as attempt:
        attempt.start()
        listener = attempt.listen()
        attempt.wait_for("up")
        listener.send(do="stop", grace_s=0, reason="enough")
        assert attempt.end().code == 137


def test_orphans_do_not_stay_as_zombies(tmp_path: Path) -> None:
    program = "for i in 1 2 3 4 5; do (sleep 0.01 &) ; done; echo done; exec sleep 1000"
    with Attempt(tmp_path, ["sh", "-c", program]) as attempt:
        shim = attempt.start()
        listener = attempt.listen()
        attempt.wait_for("done")

        def children() -> list[str]:
            return Path(f"/proc/{shim.pid}/task/{shim.pid}/children").read_text().split()

        wait_until(lambda: len(children()) == 1, PATIENCE_S, "orphans to be reaped")
        listener.send(do="stop", grace_s=0, reason="enough")
        attempt.end()


def start_changed(attempt: Attempt, change: str) -> subprocess.Popen[bytes]:
    """Start a shim in which something is different, or broken."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import os\n"
        "from wiiiiided.cluster.shim import main, supervisor\n"
        f"{change}\n"
        "sys.exit(main.main(sys.argv[2:]))"
    )
    root = str(Path(supervisor.__file__).parents[3])
    attempt.write_order()
    command = [sys.executable, "-I", "-S", "-c", program, root, str(attempt.path)]
    shim = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    attempt.shims.append(shim)
    return shim


def test_an_error_inside_the_shim_is_written_down_and_leaves_nothing(tmp_path: Path) -> None:
    change = "def broken(self): raise ValueError('a bug')\nsupervisor.Supervisor._tell = broken"
    with Attempt(tmp_path, ["sleep", "1000"], workers=2) as attempt:
        shim = start_changed(attempt, change)
        end = attempt.end()
        assert shim.returncode == 0
        assert (end.code, end.reason) == (70, "internal error: ValueError: a bug")
        assert not attempt.running()
        assert not list(attempt.path.glob("ctl.*"))


def test_without_room_for_all_ranks_none_is_left(tmp_path: Path) -> None:
    change = """
fork, made = os.fork, []
def limited():
    made.append(1)
    if len(made) > 3:  # the first one makes the working directory
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()
os.fork = limited
"""
    with Attempt(tmp_path, ["sleep", "1000"], workers=4) as attempt:
        shim = start_changed(attempt, change)
        end = attempt.end()
        assert shim.returncode == 0
        assert (end.code, end.codes, end.failed_rank) == (125, {}, 2)
        assert end.reason == "rank 2 cannot be started: Resource temporarily unavailable"
        assert not attempt.running()
