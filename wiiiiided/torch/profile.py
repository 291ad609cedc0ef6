"""The backend in torch.profiler: "wiiiiide:all_reduce", as gloo's is "gloo:all_reduce".

torch records collectives where it dispatches them to a backend in C++, which it does not do for a
group written in Python. So we record them ourselves, while a profiler is on:

    blocking   wiiiiide:all_reduce            the whole call
    async      wiiiiide:all_reduce (begun)    a moment
               wiiiiide:all_reduce            from there until it is done

with the tensors' shapes, and in traces with record_shapes=True `bytes` and `group` beside them. Two
records for an async call, because only one kind can have these and only the other one can be ended
by another thread than the profiled one. `profiled` costs 0.1 µs a call without a profiler.
"""

# torch's stubs for its C modules do not have what is used here.
# mypy: disable-error-code="attr-defined, no-untyped-call"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import _profiler_enabled as profiled
from torch.autograd.profiler import record_function

from wiiiiided.autoload import BACKEND
from wiiiiided.torch.work import WiiiiideWork

__all__ = ["profiled", "record", "record_until_done"]


def record(name: str, nbytes: int, group: str, tensors: Any) -> Any:
    """A context that is recorded as an operation, in this thread."""
    details = {"bytes": nbytes, "group": group}
    return _RecordFunctionFast(f"{BACKEND}:{name}", list(_flat(tensors)), details)


def record_until_done(work: WiiiiideWork, name: str, nbytes: int, group: str, tensors: Any) -> None:
    """Record an operation that has just begun."""
    with record(f"{name} (begun)", nbytes, group, tensors):
        pass
    whole = record_function(f"{BACKEND}:{name}")
    whole.__enter__()
    whole._call_end_callbacks_on_future(work.get_future())


def _flat(tensors: Any) -> Iterator[torch.Tensor]:
    for item in tensors:
        if isinstance(item, torch.Tensor):
            yield item
        else:
            yield from _flat(item)
