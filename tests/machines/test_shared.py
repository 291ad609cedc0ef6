"""What several tests share: a failure of one is not the cause of another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.machines.shared import TRIES, Shared


class Things:
    """Numbers that are made, put in order and thrown away; some of it fails when told so."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.made = 0
        self.cannot = ""

    @contextmanager
    def make(self) -> Iterator[int]:
        self._do("make")
        self.made += 1
        number = self.made
        yield number
        self.story.append(f"close {number}")

    def reset(self, number: int) -> None:
        self._do(f"reset {number}")

    def _do(self, what: str) -> None:
        self.story.append(what)
        if self.cannot and what.startswith(self.cannot):
            raise AssertionError(f"cannot {what}")


def test_one_thing_serves_many_tests_and_goes_at_the_end() -> None:
    things = Things()
    shared = Shared(things.make, things.reset)
    for _ in range(2):
        with shared.lent() as thing:
            assert thing == 1
    shared.close()
    assert things.story == ["make", "reset 1", "reset 1", "close 1"]


def test_a_test_that_fails_leaves_it_in_order() -> None:
    things = Things()
    shared = Shared(things.make, things.reset)
    with pytest.raises(ZeroDivisionError), shared.lent():
        raise ZeroDivisionError
    with shared.lent() as thing:
        assert thing == 1


def test_what_cannot_be_put_in_order_is_replaced_for_the_next_test() -> None:
    things = Things()
    shared = Shared(things.make, things.reset)
    things.cannot = "reset"
    with pytest.raises(AssertionError, match="cannot reset 1"), shared.lent():
        pass
    things.cannot = ""
    with shared.lent() as thing:
        assert thing == 2
    assert things.story == ["make", "reset 1", "close 1", "make", "reset 2"]


def test_what_cannot_be_made_is_tried_again_but_not_for_every_test() -> None:
    things = Things()
    shared = Shared(things.make, things.reset)
    things.cannot = "make"
    for _ in range(TRIES):
        with pytest.raises(AssertionError, match="cannot make"):
            shared.get()
    with pytest.raises(AssertionError, match="could not be made for tests before"):
        shared.get()
    assert things.story == ["make"] * TRIES
