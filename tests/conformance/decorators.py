"""Turns the suite's skip decorators into notes on the test.

As they are, half of them act only inside a rank (by an exit code), so a test would be started
three times to learn that it does not run; and of several the last one hides the others. Replaced
before the suite is imported, they decide nothing and write down every reason; census.py decides.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar
from unittest import mock

from torch.testing._internal import common_distributed, common_utils

Test = TypeVar("Test", bound=Callable[..., Any])
Decorator = Callable[[Test], Test]

_NOTES = "_conformance_reasons"


def reasons(test: Callable[..., Any]) -> tuple[str, ...]:
    """Why the suite would skip `test`; empty when it would run it."""
    noted: tuple[str, ...] = getattr(test, _NOTES, ())
    # unittest's own skip and skipIf are left alone: they mark the test by themselves.
    if getattr(test, "__unittest_skip__", False):
        noted += (test.__unittest_skip_why__,)  # type: ignore[attr-defined]
    return noted


def _note(reason: str) -> Decorator[Any]:
    def decorate(test: Any) -> Any:
        # functools.wraps hands the note on to whatever is wrapped around the test.
        setattr(test, _NOTES, (*getattr(test, _NOTES, ()), reason))
        return test

    return decorate


def _nothing(test: Any) -> Any:
    return test


def _note_if(condition: object, reason: str) -> Decorator[Any]:
    return _note(reason) if condition else _nothing


def _needs_gpus(count: int, *, allow_cpu: bool = False) -> Decorator[Any]:
    return _note_if(not allow_cpu, f"needs {count} GPUs")


def _ranks() -> int:
    return int(os.environ["WORLD_SIZE"])


def _small_world(test: Any) -> Any:
    # The suite's bound is eight ranks, by its own comment a stopgap for GPU machines. The bound
    # it had before is what the tests need: groups of ranks 1 and 2, beside a rank 0.
    return _note_if(_ranks() < 3, "needs 3 ranks")(test)


def _odd_world(test: Any) -> Any:
    return _note_if(_ranks() % 2, "needs an even world size")(test)


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """While this lasts, importing the suite decorates its tests with notes."""
    with (
        mock.patch.multiple(
            common_distributed,
            skip_if_no_gpu=_note("needs a GPU per rank"),
            skip_if_lt_x_gpu=_needs_gpus,
            skip_if_small_worldsize=_small_world,
            skip_if_odd_worldsize=_odd_world,
        ),
        mock.patch.multiple(
            common_utils,
            skip_but_pass_in_sandcastle=_note,
            skip_but_pass_in_sandcastle_if=_note_if,
        ),
    ):
        yield
