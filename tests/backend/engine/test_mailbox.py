"""What a member that has gone mad may send, and what it gets for it: a sentence that names it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wiiiiided.backend.engine import mailbox as module
from wiiiiided.backend.engine.lane import CHUNK_BYTES, Lanes
from wiiiiided.backend.engine.mailbox import EAGER_WINDOW, Mailbox
from wiiiiided.backend.shm.kernels import DTYPE_NAMES
from wiiiiided.backend.wire.local_frame import Frame, FrameKind
from wiiiiided.errors import BadFrame, HostError

LINK, OTHER = object(), object()  # of ranks 1 and 2; we are 0
NUMBERS = itertools.count(1)


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    monkeypatch.setattr(module, "WAITING", 100)
    process = SimpleNamespace(dtype_names=DTYPE_NAMES, send=lambda *_, **__: None)
    group: Any = SimpleNamespace(
        size=3,
        rank=0,
        gone={},
        links={1: LINK, 2: OTHER},
        process=process,
        membership=SimpleNamespace(nonce=7, name="world"),
        driver=SimpleNamespace(page=SimpleNamespace(words=[0] * 4096), finish=lambda _: None),
    )
    return Mailbox(group)


def come(
    box: Mailbox, kind: FrameKind, payload: bytes, said: int, source: int = 1, dtype: int = 0
) -> None:
    frame = Frame(kind, 7, source, next(NUMBERS), said, 0, payload, dtype)
    box.on_frame(LINK, frame)  # type: ignore[arg-type]


def receive(box: Mailbox, nbytes: int) -> np.ndarray[Any, Any]:
    op: Any = SimpleNamespace(peers=[], source=None, late=None)
    into = np.zeros(nbytes, np.uint8)
    box.receive(op, 1, 0, 0, into)
    return into


@pytest.mark.parametrize("said", [0, 10, 1 << 40])
def test_a_message_of_another_size_than_it_says_is_refused_by_name(box: Mailbox, said: int) -> None:
    receive(box, 10)  # the one that would have fit what was said
    with pytest.raises(BadFrame, match=f"rank 1 sent 65536 bytes as a message of {said}"):
        come(box, FrameKind.EAGER, bytes(65536), said)


def test_what_came_counts_in_the_window(box: Mailbox) -> None:
    for _ in range(EAGER_WINDOW >> 16):
        come(box, FrameKind.EAGER, bytes(1 << 16), 1 << 16)
    with pytest.raises(BadFrame, match=r"rank 1 sent .* bytes that were not received yet"):
        come(box, FrameKind.EAGER, b"x", 1)


@pytest.mark.parametrize(("kind", "said"), [(FrameKind.EAGER, 0), (FrameKind.OFFER, 1 << 30)])
def test_messages_that_cost_no_window_are_counted_too(
    box: Mailbox, kind: FrameKind, said: int
) -> None:
    for _ in range(100):
        come(box, kind, b"", said)
    with pytest.raises(BadFrame, match="rank 1 sent 101 messages that were not received yet"):
        come(box, kind, b"", said)


def test_what_is_received_makes_room_for_more(box: Mailbox) -> None:
    for _ in range(250):
        come(box, FrameKind.EAGER, b"ab", 2)
        assert receive(box, 2).tobytes() == b"ab"
    for _ in range(100):
        come(box, FrameKind.EAGER, b"ab", 2)
    assert receive(box, 2).tobytes() == b"ab"
    come(box, FrameKind.EAGER, b"ab", 2)


def test_an_offer_brings_no_bytes(box: Mailbox) -> None:
    with pytest.raises(BadFrame, match="rank 1"):
        come(box, FrameKind.OFFER, b"x", 1)


@pytest.mark.parametrize("source", [2, 0, -1, 99])
def test_no_rank_sends_in_anothers_name(box: Mailbox, source: int) -> None:
    with pytest.raises(BadFrame, match=f"in the name of rank {source}"):
        come(box, FrameKind.EAGER, b"x", 1, source=source)


def test_a_dtype_that_there_is_not_is_refused(box: Mailbox) -> None:
    with pytest.raises(BadFrame, match=f"dtype {len(DTYPE_NAMES)}"):
        come(box, FrameKind.OFFER, b"", 1, dtype=len(DTYPE_NAMES))


def test_a_chunk_that_is_longer_than_what_is_left_is_no_defect_of_ours() -> None:
    lanes = Lanes(lambda *_: None)
    lanes._in = np.zeros(4 * CHUNK_BYTES, np.uint8)
    with pytest.raises(HostError, match="8 bytes where 3 of a message are left"):
        lanes.take(Frame(FrameKind.CHUNK, 7, 1, 1, 8, 0), np.zeros(3, np.uint8))
