"""Under the launchers people use: torchrun and mp.spawn."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os
import torch
import torch.distributed as dist


def main(rank=None, folder=None):
    if rank is None:
        dist.init_process_group("wiiiiide")
    else:
        dist.init_process_group(
            "wiiiiide", init_method=f"file://{folder}/store", rank=rank, world_size=2
        )
    assert dist.get_backend() == "wiiiiide"
    x = torch.full((50_000,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    assert bool((x == 3).all())
    other = dist.new_group([0, 1])
    dist.barrier(group=other)
    with open(f"{os.environ['RESULTS']}/{dist.get_rank()}", "w") as file:
        file.write(str(x[0].item()))
    dist.destroy_process_group()
"""
TORCHRUN = PROGRAM + "\n\nmain()\n"
SPAWN = (
    PROGRAM
    + """

if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (os.environ["RESULTS"],), nprocs=2)
"""
)


def _run(tmp_path: Path, program: str, *launcher: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)
    ran = subprocess.run(
        [sys.executable, *launcher, str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        env={
            **os.environ,
            "RESULTS": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "WIIIIIDE_STALL_WARNING_S": "600",  # a busy machine may stall
        },
    )
    assert ran.returncode == 0, ran.stderr
    for rank in range(2):
        assert (tmp_path / str(rank)).read_text() == "3.0"
    assert "wiiiiide" not in ran.stderr, "there is nothing to warn of"


def test_it_works_under_torchrun(tmp_path: Path) -> None:
    options = ("--standalone", "--nproc-per-node", "2")
    _run(tmp_path, TORCHRUN, "-m", "torch.distributed.run", *options)


def test_it_works_under_spawn(tmp_path: Path) -> None:
    _run(tmp_path, SPAWN)
