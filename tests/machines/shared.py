"""What takes long to make and is shared by many tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Generic, TypeVar

Thing = TypeVar("Thing")
TRIES = 2  # to make one, in a row: where that cannot work, not every test need wait for it


class Shared(Generic[Thing]):
    """One thing for many tests, made when the first asks for it.

    After each test it is put in order. Where that fails the test has an error, the thing goes, and
    the next test gets a new one: no failure is the cause of another.
    """

    def __init__(
        self, make: Callable[[], AbstractContextManager[Thing]], reset: Callable[[Thing], None]
    ) -> None:
        self._make, self._reset = make, reset
        self._things: list[Thing] = []  # one or none
        self._stack = ExitStack()
        self._failures: list[BaseException] = []  # of making it, since it worked last

    def get(self) -> Thing:
        if not self._things:
            if len(self._failures) >= TRIES:
                raise AssertionError("it could not be made for tests before") from self._failures[0]
            try:
                self._things.append(self._stack.enter_context(self._make()))
            except BaseException as problem:
                self._failures.append(problem)
                raise
            self._failures.clear()
        return self._things[0]

    @contextmanager
    def lent(self) -> Iterator[Thing]:
        """For one test; in order again after it, however it ends."""
        thing = self.get()
        try:
            yield thing
        finally:
            try:
                self._reset(thing)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        self._things.clear()
        self._stack.close()
