"""The shell that a link uses: real codecs, a clock that only the test moves."""

from __future__ import annotations

import dataclasses
import random

import pytest

from wiiiiided.backend.codec import registry
from wiiiiided.backend.codec.chooser import LEAST_PIECE, SAMPLE_BYTES
from wiiiiided.backend.codec.encoder import RAW, Decoder, Encoder
from wiiiiided.backend.codec.interface import BadPayload, Buffer, PieceInfo
from wiiiiided.backend.codec.lz4 import Lz4
from wiiiiided.errors import UsageError

GRADIENTS = PieceInfo(dtype=0, itemsize=4)
TOKENS = PieceInfo(dtype=8, itemsize=8)
PIECE = 256 * 1024
_random = random.Random(4)
NOISE = memoryview(_random.randbytes(PIECE))
SPARSE = memoryview(bytes(PIECE - 4096) + _random.randbytes(4096))
HUNDRED_MBIT = 12e6


class Clock:
    """Every look at it takes 10 µs, so encoding a piece does: 26 GB/s."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        self.ns += 10_000
        return self.ns


class Pair:
    """Both directions of a link that ends where it begins."""

    def __init__(self, setting: str = "auto", link: float | None = HUNDRED_MBIT) -> None:
        self.encoder = Encoder(setting, Clock())
        self.decoder = Decoder(self.encoder, Clock())
        if link is not None:
            self.encoder.note_link(link, 1.0)

    def send(self, source: memoryview, info: PieceInfo = GRADIENTS) -> int:
        """Encodes and decodes a piece; returns the codec that was used."""
        number, wire = self.encoder.encode(source, info)
        into = memoryview(bytearray(source.nbytes))
        self.decoder.decode(number, memoryview(wire), into, info)
        assert into == source
        return number


@pytest.mark.parametrize("setting", ["auto", "none", "lz4"])
@pytest.mark.parametrize("source", [NOISE, SPARSE], ids=["noise", "sparse"])
def test_what_is_sent_arrives_whatever_was_chosen(setting: str, source: memoryview) -> None:
    pair = Pair(setting)
    for size in (0, 1, LEAST_PIECE, SAMPLE_BYTES, PIECE, PIECE, PIECE):
        pair.send(source[:size])


def test_auto_finds_what_shrinks_and_leaves_the_rest_alone() -> None:
    pair = Pair()
    assert [pair.send(SPARSE) for _ in range(4)] == [RAW, 1, 1, 1]
    assert pair.encoder.reason.startswith("lz4: pieces are ")
    assert pair.encoder.switches == 1
    assert {pair.send(NOISE, TOKENS) for _ in range(100)} == {RAW}
    assert pair.encoder.reason.startswith("none: lz4 would make a piece no faster")
    assert pair.encoder.switches == 1


def test_auto_does_nothing_while_the_link_is_unknown() -> None:
    pair = Pair(link=None)
    assert {pair.send(SPARSE) for _ in range(100)} == {RAW}
    assert pair.encoder.probe_ns == pair.encoder.encode_ns == 0
    assert pair.encoder.reason == "none: the rate of the link is not known yet"


def test_small_pieces_and_large_ones_are_judged_apart() -> None:
    pair = Pair(link=1e9)
    # The clock makes 4 KiB as slow to encode as 256 KiB: 0.4 GB/s, less than the link.
    assert {pair.send(SPARSE[:LEAST_PIECE]) for _ in range(100)} == {RAW}
    assert [pair.send(SPARSE) for _ in range(2)] == [RAW, 1]
    assert pair.send(SPARSE[:LEAST_PIECE]) == RAW


def test_crumbs_do_not_hide_the_reason() -> None:
    pair = Pair()
    assert pair.encoder.reason == "none: nothing has been sent yet"
    pair.send(NOISE[:100])
    assert pair.encoder.reason == "none: pieces under 4 KiB are never encoded"
    pair.send(SPARSE)
    pair.send(SPARSE)
    pair.send(NOISE[:100])
    assert pair.encoder.reason.startswith("lz4: pieces are ")


def test_a_raw_piece_is_the_source_itself_and_not_a_copy() -> None:
    for setting in ("none", "lz4"):
        number, wire = Encoder(setting).encode(NOISE, GRADIENTS)
        assert (number, wire is NOISE) == (RAW, True)


def test_the_counters_say_how_long_it_took() -> None:
    pair = Pair("lz4")
    pair.send(NOISE)
    pair.send(SPARSE)
    assert pair.encoder.encode_ns == pair.decoder.decode_ns == 20_000
    assert pair.encoder.probe_ns == 0


def test_probes_look_at_every_part_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled: list[int] = []

    class Watched(Lz4):
        def encode(self, source: memoryview, info: PieceInfo) -> Buffer | None:
            assert source.nbytes == SAMPLE_BYTES
            sampled.append(bytes(NOISE).index(source[:16]))
            return None

    monkeypatch.setattr(registry, "by_name", lambda name: Watched())
    pair = Pair()
    for _ in range(1000):
        pair.encoder.encode(NOISE, GRADIENTS)
    assert len(sampled) > 8
    assert {at // SAMPLE_BYTES for at in sampled} == {0, 1, 2, 3}
    assert all(at % 16 == 0 and at + SAMPLE_BYTES <= PIECE for at in sampled)


def test_probes_are_a_small_part_of_what_is_sent() -> None:
    pair = Pair(link=1e9)
    for _ in range(10_000):
        pair.encoder.encode(NOISE, GRADIENTS)
    assert 0 < pair.encoder.probe_ns / 1e9 < 0.01 * 10_000 * PIECE / 1e9


def test_pieces_that_are_only_counted_bring_the_same_probes() -> None:
    """Once with one PieceInfo, and once with new ones: then all of them are asked for."""
    counted, asked = Pair(link=1e9).encoder, Pair(link=1e9).encoder
    for _ in range(3000):
        counted.encode(NOISE, GRADIENTS)
        asked.encode(NOISE, dataclasses.replace(GRADIENTS))
    assert counted.probe_ns == asked.probe_ns > 0
    assert counted.reason == asked.reason


def test_data_that_begins_to_shrink_is_noticed_while_pieces_are_only_counted() -> None:
    pair = Pair()
    assert {pair.send(NOISE) for _ in range(500)} == {RAW}
    assert 1 in {pair.send(SPARSE) for _ in range(65)}


def test_a_link_that_becomes_known_or_slower_is_noticed_at_once() -> None:
    pair = Pair(link=None)
    assert {pair.send(SPARSE) for _ in range(10)} == {RAW}
    pair.encoder.note_link(1e12, 1.0)
    assert {pair.send(SPARSE) for _ in range(10)} == {RAW}
    for _ in range(100):
        pair.encoder.note_link(HUNDRED_MBIT, 1.0)
    assert pair.send(SPARSE) == 1


def test_another_kind_of_piece_is_asked_for_while_others_are_only_counted() -> None:
    pair = Pair()
    assert {pair.send(NOISE) for _ in range(200)} == {RAW}
    assert [pair.send(SPARSE, TOKENS) for _ in range(2)] == [RAW, 1]
    assert pair.send(SPARSE[:100]) == RAW
    assert pair.send(NOISE) == RAW
    assert pair.send(SPARSE, TOKENS) == 1


def test_how_long_decoding_takes_here_is_held_against_the_codec() -> None:
    pair = Pair(link=1e9)
    assert [pair.send(SPARSE) for _ in range(3)] == [RAW, 1, 1]
    slow = Decoder(pair.encoder, iter(range(0, 10**12, 10**9)).__next__)
    number, wire = pair.encoder.encode(SPARSE, GRADIENTS)
    for _ in range(3):
        slow.decode(number, memoryview(wire), memoryview(bytearray(PIECE)), GRADIENTS)
    pair.send(SPARSE)
    assert pair.send(SPARSE) == RAW


def test_a_bad_payload_is_refused_and_not_counted() -> None:
    pair = Pair()
    into = memoryview(bytearray(100))
    for number, payload in ((1, b"\xff" * 50), (0, b"x" * 99), (200, b"x" * 100)):
        with pytest.raises(BadPayload):
            pair.decoder.decode(number, memoryview(payload), into, GRADIENTS)
    assert pair.decoder.decode_ns == 0


def test_a_setting_that_is_no_codec_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no codec 'fast'; use auto or one of none, lz4"):
        Encoder("fast")
