"""A rank on a host of its own or with others, for whichever backend it is told to open.

Started by lib/hosts.py; waits for messages from two_hosts.py and measures what they name. It
has one backend only, as its default group: settings are environment variables, so sides that differ
in them are different processes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from lib import link, proc
from lib.link import Message
from lib.two_hosts.buffers import TaskJob
from lib.two_hosts.task import Task

# Shorter than the measuring program's own patience, so that the rank says what went wrong.
_TIMEOUT = timedelta(seconds=120)
_WARM = 512


class NetRank:
    """This rank's group and buffers."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.rank, self._ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._jobs: dict[Task, TaskJob] = {}
        self._backend = ""
        # torch's setup on first use is not memory for exchange.
        torch.randn(_WARM, _WARM) @ torch.randn(_WARM, _WARM)

    def open(self, message: Message) -> Message:
        """Joins the others as a user's script does, and exchanges something once."""
        self._backend = message["backend"]
        dist.init_process_group(self._backend, timeout=_TIMEOUT)
        dist.all_reduce(torch.ones(1))
        return {}

    def prepare(self, message: Message) -> Message:
        """Makes the buffers of these tasks and drops all others."""
        wanted = [Task(**one) for one in message["tasks"]]
        self._jobs = {task: job for task, job in self._jobs.items() if task in wanted}
        for task in wanted:
            if task not in self._jobs:
                self._jobs[task] = TaskJob(task, self.rank, self._ranks)
        return {}

    def measure(self, message: Message) -> Message:
        job = self._jobs[Task(**message["task"])]
        before = self._own_counters()
        times = _time(job, message["warmup"], message["calls"])
        after = self._own_counters()
        own = [late - early for late, early in zip(after, before, strict=True)]
        return {"ns": times, "calls": message["warmup"] + message["calls"], "own": own}

    def check(self, message: Message) -> Message:
        """Of large data the last timed call's result is looked at; small ones are called anew."""
        job = self._jobs[Task(**message["task"])]
        if job.task.in_a_row > 1:
            job.reset()
            dist.barrier()
            job.call()
        return {"digest": job.check()}

    def memory(self, message: Message) -> Message:
        """The memory of this process now, after it has given back what it does not use."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return {"bytes": proc.own_bytes(os.getpid())}

    def stop(self, message: Message) -> Message:
        self._jobs.clear()
        if dist.is_initialized():
            dist.destroy_process_group()
        return {}

    def _own_counters(self) -> list[int]:
        """The backend's own word on what it sent and received, where it has one."""
        if self._backend != "wiiiiide":
            return []
        import wiiiiided.torch as wide  # gloo's ranks have nothing of it in their memory

        said = wide.stats()
        return [said.wire_out, said.wire_in]


def _time(job: TaskJob, warmup: int, calls: int) -> list[int]:
    """Nanoseconds of each call as this rank saw it, without those to warm up."""
    clock = time.perf_counter_ns
    taken: list[int] = []
    gc.collect()
    gc.disable()
    try:
        while len(taken) < warmup + calls:
            job.reset()
            # Ranks are done with that at different times.
            dist.barrier()
            for _ in range(min(job.task.in_a_row, warmup + calls - len(taken))):
                begin = clock()
                job.call()
                taken.append(clock() - begin)
    finally:
        gc.enable()
    return taken[warmup:]


if __name__ == "__main__":
    link.run(NetRank)
