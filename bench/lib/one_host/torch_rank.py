"""A rank for every contender that lives in torch: gloo, wiiiiide, shared_empty; and memcpy.

Started by lib/fleet.py; waits for messages from one_host.py and measures what they name.
"""

import ctypes

import torch
import torch.distributed as dist

import wiiiiided.torch as wide
from lib import groups, link
from lib.link import Message
from lib.one_host import buffers
from lib.one_host.cells import ALL_GATHER, ALL_REDUCE, GLOO, MEMCPY, OURS, REDUCE_SCATTER, SHARED


class TorchRank:
    """This rank's groups and buffers."""

    def __init__(self) -> None:
        self.rank = groups.join()
        self._groups: dict[str, dist.ProcessGroup] = {}
        self._jobs = buffers.Jobs(self.rank, dist.get_world_size())
        self._copies = buffers.Jobs(rank=0, ranks=1)

    def open(self, message: Message) -> Message:
        """Makes a contender usable, or fails with the reason why it is not."""
        contender = message["contender"]
        if contender == GLOO:
            self._groups[GLOO] = groups.open_group("gloo")
        elif contender == OURS:
            self._groups[OURS] = groups.open_group("wiiiiide")
        elif contender == SHARED:
            self._groups[SHARED] = self._groups.get(OURS) or groups.open_group("wiiiiide")
        return {}

    def measure(self, message: Message) -> Message:
        contender, op, nbytes = message["contender"], message["op"], message["nbytes"]
        if contender == MEMCPY:
            return self._memcpy(message)
        group = self._groups[contender]
        if contender == SHARED:

            def allocate(count: int) -> torch.Tensor:
                return wide.shared_empty(count, torch.float32, group)

            job = self._jobs.get("shared", op, nbytes, allocate)
        else:
            job = self._jobs.get("ordinary", op, nbytes, buffers.ordinary)
        return dict(buffers.run(job, _call(job, group), message))

    def _memcpy(self, message: Message) -> Message:
        """One core copying the same bytes: about what a single pass over them costs."""
        # To gather from one rank only is to copy, so the same buffers, loop and check serve.
        job = self._copies.get("memcpy", ALL_GATHER, message["nbytes"], buffers.ordinary)
        target, source = job.target.data_ptr(), job.source.data_ptr()
        nbytes = job.source.nbytes
        return dict(buffers.run(job, lambda: ctypes.memmove(target, source, nbytes), message))

    def stop(self, message: Message) -> Message:
        # Buffers before groups: shared ones lie in a segment of their group.
        self._jobs.clear()
        self._groups.clear()
        groups.leave()
        return {}


def _call(job: buffers.OperationJob, group: dist.ProcessGroup) -> buffers.Call:
    source, target = job.source, job.target
    if job.op == ALL_REDUCE:
        return lambda: dist.all_reduce(target, group=group)
    if job.op == REDUCE_SCATTER:
        return lambda: dist.reduce_scatter_tensor(target, source, group=group)
    return lambda: dist.all_gather_into_tensor(target, source, group=group)


if __name__ == "__main__":
    link.run(TorchRank)
