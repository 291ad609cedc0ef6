"""One connection between hosts: which address is tried when, and for how long it is again."""

from __future__ import annotations

import math

import pytest

from wiiiiided.backend.engine import connect_hosts
from wiiiiided.backend.engine.connect_hosts import _Approach
from wiiiiided.backend.net.acceptor import ConnectAttempt
from wiiiiided.backend.wire.handshake import ConnectionClaim

CLAIM = ConnectionClaim(1, 1, 0, 1, "a" * 16, "b" * 16, "data")
FIRST, SECOND = ("10.0.0.1", 9461), ("10.0.0.2", 9461)
DOOR_S = 15.0


class Tries:
    """What is connected to, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.made: list[ConnectAttempt] = []
        monkeypatch.setattr(connect_hosts.time, "monotonic", lambda: self.now)

    def connect(self, where: tuple[str, int]) -> ConnectAttempt:
        self.made.append(ConnectAttempt(*where, CLAIM, 5.0))
        return self.made[-1]

    def fail(self, why: str, again_s: float = 0.0) -> None:
        self.made[-1].fail(why)
        self.made[-1].again_s = again_s

    @property
    def where(self) -> list[str]:
        return [attempt.address for attempt in self.made]


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> Tries:
    return Tries(monkeypatch)


def test_what_is_not_worth_another_try_gives_way_to_the_next_address(tries: Tries) -> None:
    approach = _Approach([FIRST, SECOND], tries.connect)
    tries.fail("no route")
    assert approach.advance()
    assert tries.where == ["10.0.0.1", "10.0.0.2"]
    tries.fail("no route either")
    assert not approach.advance()
    assert approach.problem == "no route; no route either"


def test_without_an_address_it_fails_in_words(tries: Tries) -> None:
    approach = _Approach([], tries.connect)
    assert not approach.advance()
    assert approach.problem == "it listens nowhere"


def test_a_daemon_that_is_away_is_tried_at_every_look_for_ever(tries: Tries) -> None:
    approach = _Approach([FIRST], tries.connect)
    for _ in range(50):
        tries.fail("refused", math.inf)
        tries.now += 60.0
        assert approach.advance()
    assert len(tries.made) == 51
    assert approach.problem == "refused"
    assert approach.tried_for_s() == 49 * 60.0


def test_an_endpoint_that_is_not_there_is_tried_for_its_time(tries: Tries) -> None:
    approach = _Approach([FIRST], tries.connect)
    tries.fail("absent", DOOR_S)
    assert approach.advance()
    tries.now += DOOR_S - 0.1
    tries.fail("absent", DOOR_S)
    assert approach.advance()
    tries.now += 0.2
    tries.fail("absent", DOOR_S)
    assert not approach.advance()
    assert approach.problem == "absent"


def test_a_daemon_that_comes_back_late_has_its_time_to_find_its_jobs(tries: Tries) -> None:
    approach = _Approach([FIRST], tries.connect)
    tries.fail("refused", math.inf)
    assert approach.advance()
    tries.now += 100.0
    tries.fail("unknown", DOOR_S)
    assert approach.advance()
    tries.now += DOOR_S
    tries.fail("unknown", DOOR_S)
    assert not approach.advance()


def test_once_it_stands_there_is_no_trouble_any_more(tries: Tries) -> None:
    approach = _Approach([FIRST], tries.connect)
    tries.fail("refused", math.inf)
    assert approach.advance()
    tries.made[-1].state = "done"
    tries.now += 100.0
    assert approach.advance()
    assert (approach.problem, approach.tried_for_s()) == ("", 0.0)


def test_one_that_fails_at_once_is_tried_once_more_and_not_for_ever(tries: Tries) -> None:
    """In one look: on loopback a refusal comes before connect returns."""

    def refused(where: tuple[str, int]) -> ConnectAttempt:
        tries.connect(where)
        tries.fail("refused", math.inf)
        return tries.made[-1]

    approach = _Approach([FIRST], refused)
    made = len(tries.made)
    assert approach.advance()
    assert len(tries.made) == made + 1
