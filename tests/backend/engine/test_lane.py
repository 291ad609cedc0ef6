"""The lane: large messages through four chunks, with two ends in one process."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import numpy as np
import pytest

from wiiiiided.backend.engine.lane import CHUNK_BYTES, CHUNKS, Lanes, Transfer
from wiiiiided.backend.wire.local_frame import Frame, FrameKind
from wiiiiided.errors import HostError


class _Wire:
    """Two ends of a link: what one sends waits until `step` hands it to the other."""

    def __init__(self) -> None:
        self.frames: deque[tuple[Frame, int]] = deque()
        self.back: deque[Frame] = deque()
        self.sender = Lanes(self._send)
        self.receiver = Lanes(lambda frame, _: self.back.append(frame))
        self.fds: list[int] = []
        self.got: dict[int, list[bytes]] = {}

    def _send(self, frame: Frame, descriptor: int) -> None:
        self.frames.append((frame, os.dup(descriptor) if descriptor >= 0 else -1))

    def take_descriptor(self) -> int:
        return self.fds.pop(0)

    def step(self, into: np.ndarray[Any, Any] | None = None) -> None:
        """The receiver handles everything that is on its way, then the sender its answers."""
        while self.frames:
            frame, fd = self.frames.popleft()
            if frame.kind is FrameKind.LANE:
                self.fds.append(fd)
                self.receiver.on_frame(self, frame)  # type: ignore[arg-type]
                continue
            target = np.zeros(CHUNK_BYTES, np.uint8) if into is None else into
            self.receiver.take(frame, target)
            self.got.setdefault(frame.b, []).append(target[: frame.c].tobytes())
        while self.back:
            self.sender.on_frame(self, self.back.popleft())  # type: ignore[arg-type]


def _message(nbytes: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def test_messages_cross_whole_one_after_the_other() -> None:
    wire, done = _Wire(), []
    sizes = [1, CHUNK_BYTES, CHUNK_BYTES + 1, 11 * CHUNK_BYTES - 3]
    data = [_message(n, i) for i, n in enumerate(sizes)]
    for i, x in enumerate(data):
        wire.sender.carry(Transfer(9, 0, i, x, lambda i=i: done.append(i)))
    while wire.frames:
        wire.step()
    assert done == [0, 1, 2, 3]
    for i, x in enumerate(data):
        assert b"".join(wire.got[i]) == x.tobytes()


def test_no_more_is_on_its_way_than_there_are_chunks() -> None:
    wire = _Wire()
    wire.sender.carry(Transfer(9, 0, 0, _message(20 * CHUNK_BYTES, 0), lambda: None))
    assert sum(frame.kind is FrameKind.CHUNK for frame, _ in wire.frames) == CHUNKS
    wire.step()
    assert sum(frame.kind is FrameKind.CHUNK for frame, _ in wire.frames) == CHUNKS


def test_a_closed_group_sends_no_more_and_leaves_the_lane_to_others() -> None:
    wire, done = _Wire(), []
    other = _message(6 * CHUNK_BYTES, 2)
    wire.sender.carry(Transfer(1, 0, 1, _message(9 * CHUNK_BYTES, 1), lambda: done.append(1)))
    wire.sender.carry(Transfer(2, 0, 2, other, lambda: done.append(2)))
    wire.sender.withdraw(1)
    while wire.frames:
        wire.step()
    assert done == [2]
    assert b"".join(wire.got[2]) == other.tobytes()
    assert len(wire.got[1]) == CHUNKS


def test_a_chunk_that_is_not_there_is_refused_in_words() -> None:
    wire = _Wire()
    with pytest.raises(HostError, match="not there"):
        wire.receiver.take(Frame(FrameKind.CHUNK, c=5, tag=0), None)
    wire.sender.carry(Transfer(9, 0, 0, _message(10, 0), lambda: None))
    wire.step()
    for tag, count in ((-1, 5), (CHUNKS, 5), (0, CHUNK_BYTES + 1), (0, -1)):
        with pytest.raises(HostError, match="not there"):
            wire.receiver.take(Frame(FrameKind.CHUNK, c=count, tag=tag), None)
