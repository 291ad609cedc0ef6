"""The suite, imported so that the backend under test is treated as the CPU backend it is.

The suite knows gloo, nccl, mpi and ucc by name, and its decorators ask for the name while the
module is imported. It is imported as gloo, the CPU backend among them, so that what is open to
gloo is open to this backend; afterwards the name is set to the true one, which is what every
group is made with. The ranks are forked from a process that has done this once.
"""

from __future__ import annotations

import importlib
import os
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import torch.distributed as dist

from tests.conformance import decorators, settings

if settings.BACKEND == settings.OURS:
    # `import torch` has done this where the package is installed; a checkout needs it here.
    importlib.import_module("wiiiiided.autoload").register()

with decorators.noted():
    from torch.testing._internal.distributed import distributed_test

distributed_test.BACKEND = settings.BACKEND
os.environ["BACKEND"] = settings.BACKEND

_POLL_SECONDS = 0.005


def _patient() -> Any:
    """While this lasts, the suite's timeouts are no shorter than five seconds."""
    patient = mock.Mock(side_effect=lambda seconds: timedelta(seconds=max(seconds, 5)))
    return mock.patch.object(distributed_test, "timedelta", patient)


class Conformance(
    distributed_test.TestDistBackend,
    distributed_test.DistributedTest._DistTestBase,
):
    """The suite's tests for one backend, with what cannot be said from outside."""

    _barriers = 0

    def _barrier(self, wait_for: int | None = None, timeout: float = 10) -> None:
        """The suite's barrier through files, with a finer sleep than its tenth of a second.

        Every test passes two of these. A file per barrier and rank needs no lock, either.
        """
        Conformance._barriers += 1
        expected = dist.get_world_size() if wait_for is None else wait_for
        folder = Path(os.environ["TEMP_DIR"]) / "barrier"
        (folder / f"{self._barriers}.{os.getpid()}").touch()
        # Ten seconds are short for ranks that share a core with other work.
        deadline = time.monotonic() + 3 * timeout
        while sum(1 for _ in folder.glob(f"{self._barriers}.*")) < expected:
            if time.monotonic() > deadline:
                raise RuntimeError("barrier timeout")
            time.sleep(_POLL_SECONDS)

    def test_barrier_timeout_global(self) -> None:
        # Their second is also all the time there is to join.
        with _patient():
            super().test_barrier_timeout_global()  # type: ignore[no-untyped-call]

    def test_barrier_timeout_full_group(self) -> None:
        with _patient():
            super().test_barrier_timeout_full_group()  # type: ignore[no-untyped-call]

    def _test_accumulate_gradients_no_sync(self, *args: Any, **kwargs: Any) -> None:
        # This helper builds its model only for backends it knows by name.
        with mock.patch.object(distributed_test, "BACKEND", "gloo"):
            super()._test_accumulate_gradients_no_sync(*args, **kwargs)  # type: ignore[no-untyped-call]


def run(rank: int, test: str, folder: Path, pipe: Connection) -> NoReturn:
    """Be `rank` in `test`, meet the others in `folder`, and exit as the suite exits."""
    distributed_test.INIT_METHOD = f"file://{folder}/init_dir/shared_init_file"
    Conformance._run(rank, test, str(folder / "store"), pipe)  # type: ignore[no-untyped-call]
    raise AssertionError("the suite exits when a test is over")
