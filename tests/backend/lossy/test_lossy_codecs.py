"""Lossy gradient codecs: what arrives, what is left, and that nothing is lost for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from wiiiiided.backend.codec.interface import BadPayload
from wiiiiided.backend.lossy.interface import STEP, Floats, GradientCodec
from wiiiiided.backend.lossy.registry import by_name
from wiiiiided.backend.lossy.scaled import BLOCK
from wiiiiided.backend.lossy.topk import CHUNK
from wiiiiided.errors import UsageError

CODECS = ["bf16", "int8", "int4", "topk:0.01"]
SCALED = {"int8": 127, "int4": 7}
SIZES = [0, 1, 255, 256, 257, CHUNK - 1, CHUNK + 1, STEP, STEP + 300]

finite = st.floats(-(2.0**120), 2.0**120, width=32)
numbers = arrays.arrays(np.float32, st.integers(0, 1300), elements=finite)


def _codec(name: str) -> GradientCodec:
    codec = by_name(name)
    assert codec is not None
    return codec


def _sent(name: str, values: Floats, residual: Floats) -> tuple[Floats, Floats, Floats]:
    """What arrives, what the sender has for it, and what is left."""
    codec, mine, left = _codec(name), values.copy(), residual.copy()
    coded = np.full(codec.coded_bytes(values.size), 0xA5, np.uint8)
    codec.encode(mine, left, coded)
    arrived = np.full(values.size, 7, np.float32)
    _codec(name).decode(coded, arrived)
    return arrived, mine, left


def _random(count: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(count, np.float32)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=60, deadline=None)
@given(values=numbers, scale=st.floats(0, 1, width=32))
def test_the_sender_has_what_arrives_and_exactly_what_is_left(
    name: str, values: Floats, scale: float
) -> None:
    residual = values[::-1].copy() * np.float32(scale)
    arrived, mine, left = _sent(name, values, residual)
    assert arrived.tobytes() == mine.tobytes()
    meant = values + residual
    assert np.array_equal(left, meant - arrived)
    # No rounding in that difference either: in twice the precision it is the same number.
    assert np.array_equal(left.astype(np.float64), meant.astype(np.float64) - arrived)


@pytest.mark.parametrize("name", SCALED)
@settings(max_examples=60, deadline=None)
@given(values=numbers)
def test_an_element_is_wrong_by_half_a_scale_of_its_block(name: str, values: Floats) -> None:
    arrived, _, _ = _sent(name, values, np.zeros_like(values))
    for at in range(0, values.size, BLOCK):
        meant, got = values[at : at + BLOCK].astype(np.float64), arrived[at : at + BLOCK]
        bound = max(np.abs(meant).max() / SCALED[name] / 2, 2.0**-100)
        assert np.abs(meant - got).max() <= bound * (1 + 1e-5)


@settings(max_examples=60, deadline=None)
@given(values=numbers)
def test_bf16_is_wrong_by_its_last_bit_at_most(values: Floats) -> None:
    arrived, _, _ = _sent("bf16", values, np.zeros_like(values))
    assert not (arrived.view(np.uint32) & 0xFFFF).any()
    meant = values.astype(np.float64)
    assert (np.abs(meant - arrived) <= np.maximum(np.abs(meant) * 2.0**-8, 2.0**-133)).all()


def test_top_k_sends_the_largest_of_every_chunk_as_they_are() -> None:
    values = _random(3 * CHUNK - 500)
    arrived, _, left = _sent("topk:0.01", values, np.zeros_like(values))
    for at in range(0, values.size, CHUNK):
        meant, got = values[at : at + CHUNK], arrived[at : at + CHUNK]
        chosen = np.flatnonzero(got)
        assert len(chosen) == round(0.01 * CHUNK)
        assert np.array_equal(got[chosen], meant[chosen])
        assert np.abs(meant[chosen]).min() >= np.abs(left[at : at + CHUNK]).max()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("count", SIZES)
def test_every_size_fills_its_bytes_and_nothing_beyond(name: str, count: int) -> None:
    values = _random(count)
    arrived, mine, left = _sent(name, values, np.zeros_like(values))
    assert arrived.tobytes() == mine.tobytes()
    assert np.array_equal(left, values - arrived)
    sizes = [_codec(name).coded_bytes(n) for n in range(count, count + 600, 7)]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=40, deadline=None)
@given(
    places=st.dictionaries(
        st.integers(0, CHUNK + 99), st.sampled_from([np.nan, np.inf, -np.inf]), max_size=20
    ),
    in_residual=st.booleans(),
)
def test_nan_and_infinities_arrive_as_what_they_are_and_leave_nothing(
    name: str, places: dict[int, float], in_residual: bool
) -> None:
    count = CHUNK + 100
    values, residual = _random(count), np.zeros(count, np.float32)
    for place, what in places.items():
        (residual if in_residual else values)[place] = what
    arrived, mine, left = _sent(name, values, residual)
    assert arrived.tobytes() == mine.tobytes()
    assert np.isfinite(left).all()
    for place, what in places.items():
        assert np.array_equal(arrived[place], np.float32(what), equal_nan=True)
        assert left[place] == 0
    untouched = np.ones(count, bool)
    for place in places:
        untouched[place // BLOCK * BLOCK : (place // BLOCK + 1) * BLOCK] = False
    assert np.isfinite(arrived[untouched]).all()
    assert np.array_equal(values[untouched] - arrived[untouched], left[untouched])


@pytest.mark.parametrize("name", ["bf16", "int8", "int4"])
def test_the_largest_number_there_is_leaves_a_residual_that_is_a_number(name: str) -> None:
    values = np.full(300, np.finfo(np.float32).max, np.float32)
    values[1::3] *= -1
    residual, coder = np.zeros_like(values), _codec(name)
    coder.encode(values, residual, np.empty(coder.coded_bytes(300), np.uint8))
    assert np.isfinite(residual).all()
    assert name == "bf16" or np.isfinite(values).all()


def test_a_chunk_with_more_nans_than_top_k_sends_arrives_as_nan() -> None:
    values = _random(2 * CHUNK)
    values[:100] = np.inf
    arrived, mine, left = _sent("topk:0.01", values, np.zeros_like(values))
    assert np.isnan(arrived[:CHUNK]).all()
    assert np.isfinite(arrived[CHUNK:]).all()
    assert arrived.tobytes() == mine.tobytes()
    assert not left[:CHUNK].any()


@pytest.mark.parametrize("name", CODECS)
def test_over_many_rounds_only_one_residual_is_missing(name: str) -> None:
    count, codec = 2 * CHUNK, _codec(name)
    coded = np.empty(codec.coded_bytes(count), np.uint8)
    residual, given, arrived = np.zeros(count, np.float32), np.zeros(count), np.zeros(count)
    for seed in range(200):
        values = _random(count, seed) + np.float32(0.1)
        given += values
        codec.encode(values, residual, coded)
        arrived += values
    assert np.allclose(given, arrived + residual, rtol=0, atol=1e-4)
    assert np.abs(residual).max() < 25  # top-k sends an element once in so many rounds


def test_tiny_and_zero_blocks_arrive_as_zeros_and_are_not_forgotten() -> None:
    values = np.zeros(2 * BLOCK, np.float32)
    values[3] = 1e-38
    arrived, _, left = _sent("int8", values, np.zeros_like(values))
    assert not arrived.any()
    assert left[3] == values[3]


def test_numbers_that_no_encoder_writes_are_refused() -> None:
    codec = _codec("topk:0.01")
    coded = np.zeros(codec.coded_bytes(CHUNK + 10), np.uint8)
    values = np.empty(CHUNK + 10, np.float32)
    numbers = coded[len(coded) * 4 // 6 :].view(np.uint16)
    numbers[1] = CHUNK
    with pytest.raises(BadPayload, match="elements that are not there"):
        codec.decode(coded, values)
    numbers[1], numbers[-1] = 0, 10  # behind the end of the last chunk, with a value
    coded[: len(coded) * 4 // 6].view(np.float32)[:] = 1
    with pytest.raises(BadPayload, match="elements that are not there"):
        codec.decode(coded, values)


@pytest.mark.parametrize("name", ["int7", "", "topk", "topk:", "topk:0", "topk:0.6", "topk:nan"])
def test_an_unknown_codec_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UsageError, match=r"topk:0\.01"):
        by_name(name)


def test_exact_is_no_codec() -> None:
    assert by_name("exact") is None
