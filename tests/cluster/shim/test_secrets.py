"""Secrets reach every process of a job that asks, and stand nowhere where others look."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.kit.shims import Attempt
from wiiiiided.cluster.shim import processes

SECRET = "correct horse 'battery' staple"

RANK = """
import multiprocessing, os, subprocess, sys, time

def child():
    assert os.environ["API_KEY"] == sys.argv[1][::-1]
    os.write(1, b"child has it\\n")  # print would write text and newline one by one
    time.sleep(1000)

if __name__ == "__main__":
    assert os.environ["API_KEY"] == sys.argv[1][::-1]
    os.write(1, b"rank has it\\n")
    multiprocessing.get_context("fork").Process(target=child, daemon=True).start()
    clean = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"],
             "WIIIIIDE_SECRETS": os.environ["WIIIIIDE_SECRETS"]}
    subprocess.run([sys.executable, "-c", '''
import os, sys, time
assert os.environ["API_KEY"] == sys.argv[1][::-1]
os.write(1, b"grandchild has it\\\\n")
time.sleep(1000)
''', sys.argv[1]], env=clean)
"""


def test_a_secret_is_in_no_command_line_environment_or_file(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "rank.py").write_text(RANK)
    argv = [sys.executable, "rank.py", SECRET[::-1]]
    with Attempt(tmp_path, argv, workers=2) as attempt:
        shim = attempt.start(secrets={"API_KEY": SECRET, "OTHER": "x"})
        for rank in range(2):
            attempt.wait_for("rank has it", rank)
            attempt.wait_for("child has it", rank)
            attempt.wait_for("grandchild has it", rank)
        family = [shim.pid, *(p.pid for p in processes.descendants(shim.pid))]
        assert len(family) == 1 + 2 * 3
        for pid in family:
            for name in ("cmdline", "environ"):
                content = Path(f"/proc/{pid}/{name}").read_bytes()
                assert content
                assert b"battery" not in content
        shim.terminate()
        attempt.end()
        for folder, _, names in os.walk(tmp_path):
            for name in names:
                assert b"battery" not in Path(folder, name).read_bytes()


def test_a_shell_can_read_secrets_too(tmp_path: Path) -> None:
    program = '. "$WIIIIIDE_SECRETS"; [ "$API_KEY" = "$1" ] && echo same; echo "$LINES_" | wc -l'
    argv = ["sh", "-c", program, "sh", SECRET]
    with Attempt(tmp_path, argv, workers=2) as attempt:
        assert attempt.run(secrets={"API_KEY": SECRET, "LINES_": "a\nb\nc"}).code == 0
        for rank in range(2):
            assert attempt.texts(rank) == ["same", "3"]


def test_a_job_without_secrets_has_no_such_variable(tmp_path: Path) -> None:
    with Attempt(tmp_path, ["sh", "-c", "echo ${WIIIIIDE_SECRETS-none}"]) as attempt:
        attempt.run()
        assert attempt.texts() == ["none"]


def test_a_rank_inherits_neither_secrets_nor_archive_as_a_descriptor(tmp_path: Path) -> None:
    packed = tmp_path / "archive.tar"
    packed.write_bytes(b"\0" * 1024)
    with Attempt(tmp_path / "job", ["ls", "/proc/self/fd"]) as attempt:
        assert attempt.run(archive=packed, secrets={"A": "b"}).code == 0
        assert attempt.texts() == ["0", "1", "2", "3"]  # 3 is the folder that ls lists
