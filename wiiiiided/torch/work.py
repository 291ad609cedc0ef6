"""The handle torch holds of an operation: a Work, with a Future where a caller asks for one.

Facts of torch 2.13 that shape this file:
- a future must resolve to a list of tensors: DDP's hooks read `value()[0]`, and None crashes it;
- `Future.set_exception` stores the exception as a value, which DDP's C++ then casts to a tensor: a
  failed future is made by a `then` whose callback raises;
- callbacks run in the thread that completes the future, so it is completed with no lock held;
- a Work is two halves. When Python lets go of its half, `wait` and `get_future` go with it, and
  C++ that still has the other one waits in c10d's own `wait`, for ever. C++ that calls our group
  and `_register_work` keep both halves; DDP's reducer, which inside `join` is handed the Work of
  an all_reduce, does not. So the Python half stays while the operation is under way, and after
  that as long as C++ has the other one.
"""

from __future__ import annotations

import ctypes
import threading
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from wiiiiided.backend.engine.operation import Operation

# Where the count of references to the C++ half lies, which torch does not show: pybind11 has a
# pointer to it behind the object's head, and c10::intrusive_ptr counts behind the first pointer.
_HALF: Final = object.__basicsize__
_COUNT: Final = ctypes.sizeof(ctypes.c_void_p)

_held: set[WiiiiideWork] = set()  # Works that only C++ has


def held_by_cpp(work: dist.Work) -> bool:
    """Whether the C++ half has another owner than the Python half."""
    half = ctypes.c_void_p.from_address(id(work) + _HALF).value
    return half is not None and ctypes.c_uint32.from_address(half + _COUNT).value > 1


def let_go() -> None:
    """Give up the Works that C++ has given up."""
    for work in list(_held):
        if not held_by_cpp(work):
            _held.discard(work)


class WiiiiideWork(dist.Work):
    """One operation's Work."""

    def __init__(self, op: Operation, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._op = op
        self._tensors = tensors
        self._future: Any = None
        op.handle = self
        if op.done:  # also if by another thread, just now
            op.handle = None

    def __del__(self) -> None:
        if held_by_cpp(self):
            let_go()
            _held.add(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until done; raises what the operation failed with."""
        op = self._op
        if not op.done:
            seconds = timeout.total_seconds() if timeout else 0.0
            if not op.group.loop.wait(op, seconds if seconds > 0 else threading.TIMEOUT_MAX):
                raise TimeoutError(f"{op} was not done within {seconds:g} s; it goes on")
        if op.error is not None:
            raise op.error
        return True

    def is_completed(self) -> bool:
        """Done or failed."""
        return self._op.done

    def is_success(self) -> bool:
        """Done without an error."""
        return self._op.done and self._op.error is None

    def exception(self) -> BaseException | None:
        """Its error, if it failed."""
        return self._op.error

    def result(self) -> list[torch.Tensor]:
        """The tensors it works on."""
        return self._tensors

    def synchronize(self) -> None:
        """The same as `wait`: there is no stream to synchronise with."""
        self.wait()

    def _source_rank(self) -> int:
        """The rank that sent what a receive has got."""
        return self._op.source

    def source_rank(self) -> int:
        return self._op.source

    def get_future(self) -> Any:
        """A future that resolves to the tensors, or raises."""
        if self._future is None:
            source = torch.futures.Future()  # type: ignore[var-annotated]
            self._future = source.then(self._resolve)
            self._op.when_done(lambda: source.set_result(None))
        return self._future

    def _resolve(self, _: Any) -> list[torch.Tensor]:
        if self._op.error is not None:
            raise self._op.error
        return self._tensors
