"""Frames: what goes in comes out, however the socket cuts it, and nonsense is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.backend.wire.local_frame import (
    BETWEEN_HOSTS,
    HEADER_BYTES,
    Frame,
    FrameKind,
    FrameReader,
)
from wiiiiided.errors import HostError

_i64 = st.integers(-(2**63), 2**63 - 1)
frames = st.builds(
    Frame,
    kind=st.sampled_from(sorted(set(FrameKind) - BETWEEN_HOSTS)),
    group=st.integers(0, 2**64 - 1),
    a=_i64,
    b=_i64,
    c=_i64,
    tag=st.integers(-(2**31), 2**31 - 1),
    payload=st.binary(max_size=300),
    dtype=st.integers(0, 255),
)


def _bytes(*sent: Frame) -> bytes:
    return b"".join(frame.header() + frame.payload for frame in sent)


@given(st.lists(frames, max_size=8))
def test_frames_come_out_as_they_went_in(sent: list[Frame]) -> None:
    assert FrameReader().feed(_bytes(*sent)) == sent


@given(st.lists(frames, min_size=1, max_size=3), st.data())
def test_any_cut_gives_the_same_frames(sent: list[Frame], data: st.DataObject) -> None:
    raw = _bytes(*sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    reader, got = FrameReader(), []
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        got += reader.feed(raw[begin:end])
    assert got == sent


def test_a_split_at_every_byte_gives_the_same_frames() -> None:
    sent = [Frame(FrameKind.EAGER, 2**63, 1, 2, 3, -4, b"payload", 5), Frame(FrameKind.BELL)]
    raw = _bytes(*sent)
    for cut in range(len(raw) + 1):
        reader = FrameReader()
        assert reader.feed(raw[:cut]) + reader.feed(memoryview(raw)[cut:]) == sent
    reader = FrameReader()
    assert [f for i in range(len(raw)) for f in reader.feed(raw[i : i + 1])] == sent


def test_a_frame_comes_out_with_its_last_byte_and_not_before() -> None:
    raw = _bytes(Frame(FrameKind.HELLO, payload=b"xyz"))
    reader = FrameReader()
    assert reader.feed(raw[:-1]) == []
    assert len(reader.feed(raw[-1:])) == 1


def test_the_largest_payload_fits_and_a_larger_one_cannot_be_written() -> None:
    largest = Frame(FrameKind.EAGER, payload=b"\xff" * 0xFFFF)
    assert FrameReader().feed(_bytes(largest)) == [largest]
    with pytest.raises(struct.error):
        Frame(FrameKind.EAGER, payload=b"\xff" * 0x10000).header()


def test_a_header_has_the_size_the_reader_counts_on() -> None:
    assert all(len(Frame(kind).header()) == HEADER_BYTES == 40 for kind in FrameKind)


@pytest.mark.parametrize("first", [0, *sorted(BETWEEN_HOSTS), max(FrameKind) + 1, 255])
def test_bytes_that_are_no_frame_are_refused_in_words(first: int) -> None:
    reader = FrameReader()
    assert reader.feed(_bytes(Frame(FrameKind.BELL))) == [Frame(FrameKind.BELL)]
    with pytest.raises(HostError, match=f"unknown kind {first}.*same wiiiiided"):
        reader.feed(bytes([first]) * HEADER_BYTES)


@given(st.binary(max_size=500))
def test_garbage_is_refused_or_waits_for_more_but_does_nothing_else(garbage: bytes) -> None:
    try:
        got = FrameReader().feed(garbage)
    except HostError:
        return
    assert _bytes(*got) == garbage[: len(_bytes(*got))]
