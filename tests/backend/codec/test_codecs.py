"""Every codec: what goes in comes out, and unverified bytes do no harm."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc

import lz4.block  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.backend.codec import registry
from wiiiiided.backend.codec.interface import BadPayload, Codec, PieceInfo
from wiiiiided.errors import HostError, UsageError

ABOUT = PieceInfo(dtype=0, itemsize=4)
CODECS = [registry.by_name(name) for name in registry.NAMES]
GUARD = b"\xa5" * 64

# Data that shrinks, data that does not, and mixtures of both.
payloads = st.one_of(
    st.binary(max_size=3000),
    st.builds(lambda part, times: part * times, st.binary(max_size=40), st.integers(0, 400)),
    st.lists(st.sampled_from([b"\0" * 500, b"noise" * 3, b"\xff\x7f\0\0"]), max_size=30).map(
        b"".join
    ),
)
compressible = st.builds(
    lambda part, times: part * times, st.binary(min_size=1, max_size=40), st.integers(64, 400)
).filter(lambda data: len(data) >= 256)


def _encoded(codec: Codec, data: bytes) -> bytes | None:
    encoded = codec.encode(memoryview(data), ABOUT)
    return None if encoded is None else bytes(encoded)


def _decoded(codec: Codec, encoded: bytes, size: int) -> bytes:
    """Decodes into the middle of a buffer, and looks at what lies beside."""
    whole = bytearray(GUARD + b"\x77" * size + GUARD)
    into = memoryview(whole)[len(GUARD) : len(GUARD) + size]
    try:
        codec.decode(memoryview(encoded), into, ABOUT)
    finally:
        assert whole[: len(GUARD)] == whole[len(GUARD) + size :] == GUARD
    return bytes(into)


@pytest.mark.parametrize("codec", CODECS, ids=registry.NAMES)
@given(data=payloads)
def test_a_piece_comes_out_as_it_went_in(codec: Codec, data: bytes) -> None:
    encoded = _encoded(codec, data)
    if encoded is not None:
        assert _decoded(codec, encoded, len(data)) == data


@pytest.mark.parametrize("codec", CODECS, ids=registry.NAMES)
def test_every_bit_of_a_float_survives(codec: Codec) -> None:
    bits = [0x7FC00000, 0x7F800001, 0xFFC12345, 0x7F800000, 0xFF800000, 0x80000000, 1, 0x00400000]
    data = struct.pack("<8I", *bits) * 64
    encoded = _encoded(codec, data)
    assert encoded is not None
    assert _decoded(codec, encoded, len(data)) == data


@pytest.mark.parametrize("codec", CODECS, ids=registry.NAMES)
def test_a_piece_may_lie_in_read_only_memory_and_is_left_as_it_was(codec: Codec) -> None:
    data = bytearray(b"abcd" * 1000)
    kept = bytes(data)
    codec.encode(memoryview(data).toreadonly(), ABOUT)
    codec.encode(memoryview(data), ABOUT)
    assert data == kept


def test_lz4_sends_back_what_hardly_shrinks() -> None:
    codec = registry.by_name("lz4")
    noise = random.Random(4).randbytes(8192)
    assert _encoded(codec, noise) is None
    assert _encoded(codec, b"") is None
    assert _encoded(codec, noise[:8000] + bytes(192)) is None
    assert _encoded(codec, noise[:4000] + bytes(4192)) is not None


@given(data=compressible, drawn=st.data())
def test_a_truncated_payload_is_refused(data: bytes, drawn: st.DataObject) -> None:
    for codec in CODECS:
        encoded = _encoded(codec, data)
        assert encoded is not None
        cut = drawn.draw(st.integers(0, len(encoded) - 1))
        with pytest.raises(BadPayload):
            _decoded(codec, encoded[:cut], len(data))


@given(data=compressible, wrong=st.integers(-300, 300).filter(bool))
def test_a_payload_of_another_size_is_refused_with_both_sizes(data: bytes, wrong: int) -> None:
    size = max(0, len(data) + wrong)
    for codec in CODECS:
        encoded = _encoded(codec, data)
        assert encoded is not None
        with pytest.raises(BadPayload, match=rf"{codec.name if codec.number else 'raw'}.*{size}"):
            _decoded(codec, encoded, size)


@given(garbage=st.binary(max_size=500), size=st.integers(0, 3000))
def test_garbage_is_refused_or_fills_its_place_and_nothing_else(garbage: bytes, size: int) -> None:
    for codec in CODECS:
        with contextlib.suppress(BadPayload):
            assert len(_decoded(codec, garbage, size)) == size


@given(data=compressible, drawn=st.data())
def test_a_flipped_bit_never_writes_beside_its_place(data: bytes, drawn: st.DataObject) -> None:
    codec = registry.by_name("lz4")
    damaged = bytearray(_encoded(codec, data) or b"")
    at = drawn.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[at // 8] ^= 1 << at % 8
    with contextlib.suppress(BadPayload):
        _decoded(codec, bytes(damaged), len(data))


def test_a_bomb_is_refused_and_costs_no_more_than_its_place() -> None:
    bomb = lz4.block.compress(bytes(64 << 20), store_size=False)
    codec, into = registry.by_name("lz4"), memoryview(bytearray(8192))
    tracemalloc.start()
    try:
        with pytest.raises(BadPayload, match="more than the 8192 bytes expected"):
            codec.decode(memoryview(bomb), into, ABOUT)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_a_size_in_front_is_not_believed() -> None:
    data = b"abcd" * 1000
    claimed = struct.pack("<I", 1 << 31) + lz4.block.compress(data, store_size=False)
    with pytest.raises(BadPayload):
        _decoded(registry.by_name("lz4"), claimed, len(data))


def test_codecs_are_found_by_number_and_by_name() -> None:
    assert [(codec.number, codec.name) for codec in CODECS] == [(0, "none"), (1, "lz4")]
    for codec in CODECS:
        assert registry.by_number(codec.number).name == codec.name


def test_every_request_for_a_codec_makes_a_new_one() -> None:
    assert registry.by_number(1) is not registry.by_number(1)


def test_a_bad_payload_is_an_error_of_the_tree() -> None:
    assert issubclass(BadPayload, HostError)


def test_an_unknown_number_or_name_is_refused_in_words() -> None:
    with pytest.raises(BadPayload, match=r"codec 7, which is not known here.*same wiiiiided"):
        registry.by_number(7)
    with pytest.raises(UsageError, match=r"no codec 'zstd'; use auto or one of none, lz4"):
        registry.by_name("zstd")
