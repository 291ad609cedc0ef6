"""Runs an example's file as it is on two machines, each of them a working directory here.

Ranks `aab` are two on one machine and one on the other, with the variables that torchrun and the
daemon set.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from tests.kit.ranks import Rank, run_ranks
from wiiiiided.train import balance

EXAMPLES = Path(__file__).parents[2] / "examples"
HOSTS = "aab"


def run(
    machines: Path, script: str, *options: str, before: Callable[[], None] | None = None
) -> list[str]:
    """A whole job in `machines`/a and `machines`/b; what each rank printed. `before`: in each."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = (script, options, str(machines), store.port, before)
    return run_ranks(_rank, HOSTS, *place, backend=None)


def share_at_once() -> None:
    """Shares follow speeds when they are told first, and not after some seconds."""
    balance.Balance.__init__.__defaults__ = (0.0, 0.0)


def _rank(
    me: Rank,
    script: str,
    options: tuple[str, ...],
    machines: str,
    port: int,
    before: Callable[[], None] | None,
) -> str:
    if before is not None:
        before()
    os.chdir(Path(machines) / HOSTS[me.rank])
    os.environ.update(
        RANK=str(me.rank),
        LOCAL_RANK=str(HOSTS[: me.rank].count(HOSTS[me.rank])),
        WORLD_SIZE=str(me.size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",  # the store is there already
        TORCHELASTIC_RESTART_COUNT="0",
    )
    sys.argv = [script, *options]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    return said.getvalue()
