"""The shim's own side of the knock, against the daemon's: two programs, one protocol."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.errors import Refused as PorterRefused
from wiiiiided.shim import knocking
from wiiiiided.shim.knocking import Knock, Refused
from wiiiiided.wire import knock as wire

KEY = bytes(range(32))


def deliver(data: bytes, side: Knock | wire.Porter, pieces: list[int] | None = None) -> None:
    """In pieces of any size."""
    pieces = list(pieces or [])
    while data:
        size = pieces.pop() if pieces else len(data)
        side.receive_data(data[:size])
        data = data[size:]


def proved(key: bytes = KEY, pieces: list[int] | None = None) -> tuple[Knock, wire.Porter]:
    """A knock whose proof is on its way to the porter."""
    knock, porter = Knock(KEY, 17, 3, 4), wire.Porter()
    deliver(knock.data_to_send(), porter, pieces)
    porter.challenge(key)
    assert knock.wanted == wire.ANSWER_BYTES
    deliver(porter.data_to_send(), knock, pieces)
    return knock, porter


@given(st.lists(st.integers(1, 40)))
def test_the_daemon_opens_to_a_shim_of_the_attempt(pieces: list[int]) -> None:
    knock, porter = proved(pieces=pieces)
    deliver(knock.data_to_send(), porter, pieces)
    porter.open()
    deliver(porter.data_to_send(), knock, pieces)
    assert knock.done
    assert knock.wanted == 0
    assert porter.knock == wire.Knock(17, 3, "store", 4, 0)


def test_another_key_is_refused() -> None:
    knock, porter = proved(key=bytes(32))
    with pytest.raises(PorterRefused):
        deliver(knock.data_to_send(), porter)
    with pytest.raises(Refused) as refused:
        deliver(porter.data_to_send(), knock)
    assert refused.value.args[0] == knocking.BY_PROOF


def test_a_daemon_without_the_key_is_not_believed() -> None:
    knock, porter = proved(key=bytes(32))
    assert knock.data_to_send()
    porter.state = wire.State.PROVED  # it lets everybody in
    porter.open()
    with pytest.raises(Refused, match="prove"):
        deliver(porter.data_to_send(), knock)
    assert not knock.done


def test_a_proof_is_not_taken_for_an_answer() -> None:
    knock, _ = proved()
    with pytest.raises(Refused):
        deliver(knock.data_to_send(), knock)
    assert not knock.done


@pytest.mark.parametrize("reason", list(wire.Reason))
def test_every_reason_of_the_daemon_has_words_here(reason: wire.Reason) -> None:
    knock, porter = proved()
    porter.refuse(reason)
    with pytest.raises(Refused) as refused:
        deliver(porter.data_to_send(), knock)
    assert refused.value.args[0] == reason
    assert "reason" not in refused.value.args[1]


@given(st.binary(min_size=36, max_size=36))
def test_whatever_else_answers_is_sent_away(answer: bytes) -> None:
    knock = Knock(KEY, 17, 3, 4)
    if answer[:3] == b"WK\2":
        return
    with pytest.raises(Refused):
        knock.receive_data(answer)
    assert not knock.done


def test_two_knocks_are_never_the_same() -> None:
    assert Knock(KEY, 1, 1, 1).data_to_send() != Knock(KEY, 1, 1, 1).data_to_send()
