"""Stacks of a running job: from every process that can give them, and from no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster.shim.test_end import start_changed
from tests.kit.conditions import wait_until
from tests.kit.shims import PATIENCE_S, Attempt, Listener
from wiiiiided.cluster.shim import processes, stacks

HANGING = """
import threading, time
def wait_for_a_lock_that_never_comes():
    lock = threading.Lock()
    lock.acquire()
    print("hanging", flush=True)
    lock.acquire()
def in_the_background():
    time.sleep(1000)
threading.Thread(target=in_the_background, daemon=True).start()
wait_for_a_lock_that_never_comes()
"""


def start(attempt: Attempt, looks: int = 3000) -> subprocess.Popen[bytes]:
    """A shim with patience: a process that is to answer may not run for a second."""
    change = f"from wiiiiided.cluster.shim import stacks; stacks.MOST_LOOKS = {looks}"
    return start_changed(attempt, change)


def stop(attempt: Attempt, listener: Listener) -> None:
    listener.send(do="stop", grace_s=0, reason="seen enough")
    attempt.end()


def test_every_thread_of_every_rank_is_shown(tmp_path: Path) -> None:
    with Attempt(tmp_path, [sys.executable, "-c", HANGING], workers=3) as attempt:
        start(attempt)
        listener = attempt.listen()
        pids = {r["rank"]: r["pid"] for r in listener.phase("running")["ranks"]}
        for rank in range(3):
            attempt.wait_for("hanging", rank)
        for _ in range(2):  # a second time too: the handler stays
            texts = listener.stacks()
            for rank in range(3):
                header, *rest = texts[rank].splitlines()
                assert header.startswith(f"--- rank {rank} pid {pids[rank]}: {sys.executable} -c")
                assert "wait_for_a_lock_that_never_comes" in texts[rank]
                assert "in_the_background" in texts[rank]
                assert not any(line.startswith("---") for line in rest)
        stop(attempt, listener)


CHILDREN = """
import multiprocessing, os, time
def work_of_a_child(name):
    os.write(1, name.encode() + b"\\n")  # print would write text and newline one by one
    time.sleep(1000)
if __name__ == "__main__":
    for way in ("fork", "spawn"):
        process = multiprocessing.get_context(way).Process(target=work_of_a_child, args=(way,))
        process.start()
    process.join()
"""


def test_children_of_a_rank_are_shown_after_it(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "rank.py").write_text(CHILDREN)
    with Attempt(tmp_path, [sys.executable, "rank.py"]) as attempt:
        start(attempt)
        listener = attempt.listen()
        (rank,) = listener.phase("running")["ranks"]
        attempt.wait_for("fork")
        attempt.wait_for("spawn")
        text = listener.stacks()[0]
        assert text.startswith(f"--- rank 0 pid {rank['pid']}: ")
        assert text.count("work_of_a_child") == 2
        assert text.count("--- rank 0 pid ") >= 3
        stop(attempt, listener)


def test_a_process_without_the_handler_is_never_sent_the_signal(tmp_path: Path) -> None:
    # Any of these would die of it, or say so.
    program = f"""
trap 'echo was signalled' {stacks.SIGNAL}
{sys.executable} -I -c 'import time; print("isolated", flush=True); time.sleep(1000)' &
sleep 1000 &
echo "shell"
wait
echo "ended"
"""
    with Attempt(tmp_path, ["bash", "-c", program]) as attempt:
        shim = start(attempt)
        listener = attempt.listen()
        listener.phase("running")
        attempt.wait_for("isolated")
        attempt.wait_for("shell")  # all its children are there then
        before = {p.pid for p in processes.descendants(shim.pid)}
        text = listener.stacks()[0]
        assert stacks.NO_HANDLER in text
        assert {p.pid for p in processes.descendants(shim.pid)} == before
        # Looked at before the stop, which may end the children a moment before the shell.
        assert not {"was signalled", "ended"} & set(attempt.texts())
        stop(attempt, listener)


def test_an_isolated_python_as_rank_gets_a_sentence(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-c", "import time; print('up', flush=True); time.sleep(1000)"]
    with Attempt(tmp_path, argv) as attempt:
        start(attempt)
        listener = attempt.listen()
        (rank,) = listener.phase("running")["ranks"]
        attempt.wait_for("up")
        assert listener.stacks()[0].endswith(f"{stacks.NO_HANDLER}\n")
        assert processes.catches(rank["pid"], signal.SIGINT)
        assert not processes.catches(rank["pid"], stacks.SIGNAL)
        stop(attempt, listener)


def test_a_process_that_is_stopped_gets_a_sentence_and_the_others_their_stacks(
    tmp_path: Path,
) -> None:
    with Attempt(tmp_path, [sys.executable, "-c", HANGING], workers=2) as attempt:
        start(attempt, looks=250)  # five seconds: one that is stopped never answers
        listener = attempt.listen()
        ranks = listener.phase("running")["ranks"]
        for rank in range(2):
            attempt.wait_for("hanging", rank)
        os.kill(ranks[0]["pid"], signal.SIGSTOP)
        texts = listener.stacks()
        assert stacks.NO_ANSWER in texts[0]
        assert "wait_for_a_lock_that_never_comes" in texts[1]
        stop(attempt, listener)


def test_a_rank_that_has_ended_gets_a_sentence(tmp_path: Path) -> None:
    program = "[ $RANK = 0 ] || exec sleep 1000"
    with Attempt(tmp_path, ["sh", "-c", program], workers=2) as attempt:
        start(attempt)
        listener = attempt.listen()
        listener.until(lambda line: line["ranks"][0]["code"] == 0)
        assert listener.stacks()[0] == stacks.ENDED
        stop(attempt, listener)


def test_long_stacks_of_many_ranks_fit_into_a_line(tmp_path: Path) -> None:
    deep = "import os, threading, time\ndef f(n):\n    "
    # os.write: print would write text and newline one by one.
    deep += "f(n - 1) if n else (os.write(1, b'deep\\n'), time.sleep(99))\n"
    program = f"{deep}for _ in range(80):\n"
    program += "    threading.Thread(target=f, args=(90,), daemon=True).start()\nf(90)"
    with Attempt(tmp_path, [sys.executable, "-c", program], workers=4) as attempt:
        start(attempt)
        listener = attempt.listen()
        for rank in range(4):
            wait_until(lambda r=rank: len(attempt.texts(r)) == 81, PATIENCE_S, "all are deep")
        texts = listener.stacks()
        assert all(len(text) > 10_000 for text in texts.values())
        assert all(len(text) <= stacks.TEXT_BYTES for text in texts.values())
        stop(attempt, listener)


def test_output_is_drained_while_stacks_are_collected(tmp_path: Path) -> None:
    program = HANGING.replace(
        "time.sleep(1000)", "[print('x' * 1000, n, flush=True) for n in range(10**9)]"
    )
    # Not before it hangs: the log that is waited for says so then.
    begin = "threading.Thread(target=in_the_background, daemon=True).start()"
    program = program.replace(begin, "").replace('print("hanging", flush=True)', begin)
    with Attempt(tmp_path, [sys.executable, "-c", program], log_bytes=100_000) as attempt:
        start(attempt)
        listener = attempt.listen()
        listener.phase("running")
        wait_until((attempt.path / "rank-0.log.1").exists, PATIENCE_S, "a full log")
        assert "wait_for_a_lock_that_never_comes" in listener.stacks()[0]
        stop(attempt, listener)
