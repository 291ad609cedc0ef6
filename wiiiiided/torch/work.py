"""The handle torch holds of an operation: a Work, with a Future where somebody asks for one.

Facts of torch 2.13 that shape this file:
- a future must resolve to a list of tensors: DDP's hooks read `value()[0]`, and None crashes it;
- `Future.set_exception` stores the exception as a value, which DDP's C++ then casts to a tensor: a
  failed future is made by a `then` whose callback raises;
- callbacks run in the thread that completes the future, so it is completed with no lock held.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from wiiiiided.engine.operation import Operation


class WiiiiideWork(dist.Work):
    """One operation's Work."""

    def __init__(self, op: Operation, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._op = op
        self._tensors = tensors
        self._future: Any = None

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
        """What it failed with, if it did."""
        return self._op.error

    def result(self) -> list[torch.Tensor]:
        """The tensors it works on."""
        return self._tensors

    def synchronize(self) -> None:
        """The same as `wait`: there is no stream to synchronise with."""
        self.wait()

    def _source_rank(self) -> int:
        """Of a receive: who sent."""
        return self._op.source

    def source_rank(self) -> int:
        return self._op.source

    def get_future(self) -> Any:
        """A future that resolves to the tensors, or raises."""
        if self._future is None:
            source = torch.futures.Future()  # type: ignore[var-annotated]
            self._future = source.then(self._resolve)
            unresolved = [source]  # taken once: by the loop, or here if it was done before

            def resolve(_: Operation) -> None:
                try:
                    unresolved.pop().set_result(None)
                except IndexError:
                    pass

            self._op.on_done = resolve
            if self._op.done:
                resolve(self._op)
        return self._future

    def _resolve(self, _: Any) -> list[torch.Tensor]:
        if self._op.error is not None:
            raise self._op.error
        return self._tensors
