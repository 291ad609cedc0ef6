"""How a torch rank joins the others: gloo as the default group, every contender as a further one.

With all of them in the same processes, alternating between contenders costs nothing.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

# Shorter than the measuring program's own patience, so that the rank says what went wrong.
_TIMEOUT = timedelta(seconds=120)


def compute_alike() -> None:
    """One thread, and a step takes as long after a thousand steps as at first.

    A network that has learnt its few samples by heart has gradients, and moments of Adam, that are
    too small for a normal float32: sums of these take three times as long on x86 (docs/lab-log.md).
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def join() -> int:
    """Joins the default group as torchrun's ranks do, and returns this rank's number."""
    compute_alike()
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    return int(os.environ["RANK"])


def open_group(backend: str) -> dist.ProcessGroup:
    """A further group over all ranks that has been used once, so that it is fully set up."""
    group = dist.new_group(backend=backend, timeout=_TIMEOUT)
    if not isinstance(group, dist.ProcessGroup):
        raise RuntimeError(f"the backend {backend} gave no group")
    dist.all_reduce(torch.ones(1), group=group)
    return group


def open_host_group(backend: str) -> dist.ProcessGroup:
    """A group of the ranks of this host, which are numbered in a row."""
    first = int(os.environ["RANK"]) - int(os.environ["LOCAL_RANK"])
    ranks = list(range(first, first + int(os.environ["LOCAL_WORLD_SIZE"])))
    group = dist.new_group(ranks, _TIMEOUT, backend, use_local_synchronization=True)
    assert isinstance(group, dist.ProcessGroup)
    return group


def leave() -> None:
    dist.destroy_process_group()
