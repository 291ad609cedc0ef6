"""`make bench`: every benchmark has its turn, whichever of them cannot run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEED_ROOT = ["sockets.py", "two_hosts.py", "slow_links.py", "plan_accuracy.py", "cluster.py"]


def make_bench(tmp_path: Path, body: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """With a pretended interpreter; and the benchmarks it was given, in their order."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/ran\n{body}\n')
    python.chmod(0o755)
    for stamp in (".installed", ".bench"):
        (tmp_path / stamp).touch()
    argv = ["make", "--no-print-directory", "bench", f"VENV={tmp_path}"]
    env = {"PATH": os.environ["PATH"]}  # not what a `make test` around this would add
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True)
    return done, [Path(line).name for line in (tmp_path / "ran").read_text().splitlines()]


@pytest.mark.needs("make")
def test_one_that_cannot_run_says_why_and_the_rest_go_on(tmp_path: Path) -> None:
    done, ran = make_bench(
        tmp_path, 'case "$1" in *codec.py|*sockets.py) echo "no root" >&2; exit 1;; esac'
    )
    there = {path.name for path in (ROOT / "bench").glob("[!_]*.py")}
    assert set(ran) == there
    assert ran[-5:] == NEED_ROOT
    assert done.returncode == 2
    assert done.stdout == "without a result, for the reason given above: codec.py sockets.py\n"
    assert done.stderr.count("no root\n") == 2


@pytest.mark.needs("make")
def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    done, ran = make_bench(tmp_path, "exit 130")
    assert (done.returncode, len(ran)) == (2, 1)


@pytest.mark.needs("make")
def test_all_have_run(tmp_path: Path) -> None:
    done, _ = make_bench(tmp_path, "exit 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
