"""The board, with the boards of all ranks on one segment in one process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.backend.shm.board import FAULT_KINDS, Board, CallSignature, board_bytes
from wiiiiided.backend.shm.segment import Segment
from wiiiiided.errors import HostError


def _boards(size: int = 3, nonce: int = 7) -> list[Board]:
    segment = Segment.create("board", board_bytes(size))
    boards = [Board(segment, rank, size) for rank in range(size)]
    boards[0].found(nonce)
    return boards


def test_a_step_is_over_when_all_have_arrived() -> None:
    a, b, c = _boards()
    step = a.arrive()
    assert a.lagging(step) == 1
    assert a.missing(step) == [1, 2]
    b.arrive()
    assert a.missing(step) == [2]
    assert b.lagging(step) == 2
    c.arrive()
    assert [board.lagging(step) for board in (a, b, c)] == [-1, -1, -1]
    assert a.lagging(step + 1) == 1


def test_one_rank_alone_waits_for_no_other() -> None:
    (alone,) = _boards(1)
    assert alone.lagging(alone.arrive()) == -1
    assert alone.cause() is None
    assert alone.same_calls(CallSignature.of("x"), 0)


def test_a_rank_that_sleeps_until_i_arrive_is_woken_and_no_other() -> None:
    a, b, c = _boards()
    a.doze(1)
    c.doze(0)
    b.arrive()
    assert b.to_ring == [0]
    b.to_ring.clear()
    a.wake()
    b.arrive()
    assert b.to_ring == []


def test_equal_calls_have_equal_digests_and_others_do_not() -> None:
    texts = [f"all_reduce(SUM) of {n} elements of {d}" for n in range(500) for d in ("a", "b")]
    digests = [CallSignature.of(text).digest for text in texts]
    assert len(set(digests)) == len(texts)
    assert [CallSignature.of(text).digest for text in texts] == digests
    assert all(0 <= d < 2**63 and d % 2 == 0 for d in digests), "the lowest bit says: in place"
    long = "x" * 200
    assert CallSignature.of(long).digest != CallSignature.of(long + "y").digest, (
        "also where it is cut in the text"
    )


@given(st.text(max_size=300))
def test_every_text_can_be_announced_and_read(text: str) -> None:
    a, b = _boards(2)
    a.announce(CallSignature.of(text), 0)
    said = b.call_of(0, 0)
    assert text.encode().startswith(said.replace("\ufffd", "").rstrip("\0").encode()[:60])


def test_a_different_call_is_found_and_shown() -> None:
    a, b, c = _boards()
    same, other = CallSignature.of("all_reduce of 3"), CallSignature.of("broadcast of 3")
    for parity in (1, 0, 1, 0):
        for board in (a, b, c):
            board.announce(same, parity)
        assert all(board.same_calls(same, parity) for board in (a, b, c))
        assert a.dissenter(same, parity) == -1
        c.announce(other, parity)
        assert not a.same_calls(same, parity)
        assert a.dissenter(same, parity) == 2
        assert c.dissenter(other, parity) == 0
        assert a.call_of(2, parity) == "broadcast of 3"


def test_even_and_odd_calls_do_not_overwrite_each_other() -> None:
    a, b = _boards(2)
    even, odd = CallSignature.of("even"), CallSignature.of("odd")
    a.announce(even, 0)
    a.announce(odd, 1, 5, 4096)
    b.announce(even, 0)
    b.announce(odd, 1)
    assert b.same_calls(even, 0)
    assert [b.call_of(0, parity) for parity in (0, 1)] == ["even", "odd"]
    assert b.place_of(0, 0) == (0, 0)
    assert b.place_of(0, 1) == (5, 4096)


def test_a_tensor_in_shared_memory_is_the_same_call_at_another_place() -> None:
    a, b = _boards(2)
    call = CallSignature.of("all_reduce")
    a.announce(call, 0, 3, 64)
    b.announce(call, 0)
    assert not b.same_calls(call, 0), "not the usual case"
    assert b.dissenter(call, 0) == -1, "but no mismatch"
    assert b.place_of(0, 0) == (3, 64)
    a.announce(call, 0)
    assert b.same_calls(call, 0)
    assert b.place_of(0, 0) == (0, 0)


def test_the_first_fault_is_what_every_rank_reports() -> None:
    a, b, c = _boards()
    assert a.cause() is None
    b.record("late", 2, "rank 2 did not come")
    a.record("died", 1, "too late to count")
    c.record("failed", 0, "this too")
    for board in (a, b, c):
        fault = board.cause()
        assert fault is not None
        assert (fault.kind, fault.culprit, fault.text) == ("late", 2, "rank 2 did not come")
        assert fault.seen_by == 1


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_kind_of_fault_can_be_written_and_read(kind: str) -> None:
    a, b = _boards(2)
    a.record(kind, -1, "ä" * 1000)
    fault = b.cause()
    assert fault is not None
    assert fault.kind == kind
    assert fault.culprit == -1
    assert fault.text.startswith("ä" * 200)
    assert b.lagging(1) == 0, "a long text stays in its own place"
    assert a.lagging(1) == 1


def test_a_board_of_another_group_is_refused_in_words() -> None:
    a, b = _boards(2, nonce=11)
    b.check(11)
    with pytest.raises(HostError, match="not as agreed"):
        b.check(12)
    segment = Segment.create("board", board_bytes(2))
    with pytest.raises(HostError, match="not as agreed"):
        Board(segment, 1, 2).check(0)
    assert a.step == 0


def test_monitored_barriers_are_counted_apart_from_steps() -> None:
    a, b, c = _boards()
    number = a.enter_monitored_barrier()
    assert a.not_in_monitored_barrier(number) == [1, 2]
    c.enter_monitored_barrier()
    assert a.not_in_monitored_barrier(number) == [1]
    assert b.enter_monitored_barrier() == number
    assert a.not_in_monitored_barrier(number) == []
    assert a.not_in_monitored_barrier(a.enter_monitored_barrier()) == [1, 2]
    assert a.lagging(1) == 1


def test_ranks_lie_apart_up_to_many() -> None:
    boards = _boards(70)
    for board in boards[:-1]:
        board.arrive()
    assert boards[0].missing(1) == [69]
    boards[-1].arrive()
    assert all(board.lagging(1) == -1 for board in boards)
