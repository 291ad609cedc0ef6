"""The header between hosts: every field survives, damage is found, garbage is refused."""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from tests.kit.frames import FrameCutter
from wiiiiided.backend.wire.header import (
    HEADER_BYTES,
    KINDS,
    MAX_PAYLOAD,
    SUMMED,
    VERSION,
    Header,
    pack,
    payload_sum,
    unpack,
    verify,
)
from wiiiiided.backend.wire.local_frame import FrameKind
from wiiiiided.errors import BadFrame, HostError

PAGE = (Path(__file__).parents[3] / "docs" / "wire-format.md").read_text()
WITHIN_A_HOST = {
    FrameKind.HELLO,
    FrameKind.BELL,
    FrameKind.SEGMENT,
    FrameKind.LANE,
    FrameKind.TAKEN,
}

_u8, _u16 = st.integers(0, 2**8 - 1), st.integers(0, 2**16 - 1)
_u32, _u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_i32, _i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_size = st.integers(0, MAX_PAYLOAD)


@st.composite
def headers(draw: st.DrawFn) -> Header:
    codec, length = draw(_u8), draw(_size)
    return Header(
        kind=draw(st.sampled_from(sorted(KINDS))),
        codec=codec,
        flags=draw(st.sampled_from([0, SUMMED])),
        dtype=draw(_u16),
        group=draw(_u64),
        generation=draw(_u32),
        source=draw(_u32),
        sequence=draw(_u64),
        extra=draw(_i64),
        piece=draw(_i32),
        length=length,
        raw=draw(_size) if codec else length,
        sum=draw(_u32),
        lane=draw(_u32),
    )


def _frame(header: Header, payload: bytes) -> tuple[Header, bytes]:
    size = len(payload)
    return replace(header, length=size, raw=size, sum=payload_sum(payload)), payload


frames = st.builds(_frame, headers(), st.binary(max_size=200))


def forged(offset: int, value: bytes) -> bytes:
    """A header with other bytes somewhere, and a check that is right for them."""
    usual = bytearray(pack(Header(FrameKind.PIECE, length=8, raw=8)))
    usual[offset : offset + len(value)] = value
    return bytes(usual[:60]) + zlib.crc32(usual[:60]).to_bytes(4, "little")


@given(headers())
def test_every_field_comes_out_as_it_went_in(header: Header) -> None:
    assert unpack(pack(header)) == header


@given(headers(), st.binary(max_size=9), st.binary(max_size=9))
def test_a_header_is_read_wherever_it_lies(header: Header, before: bytes, after: bytes) -> None:
    lying = before + pack(header) + after
    for buffer in (lying, bytearray(lying), memoryview(lying)):
        assert unpack(buffer, len(before)) == header


def test_the_bytes_are_those_of_the_page() -> None:
    header = Header(16, 1, 1, 6, 0x1122334455667788, 2, 3, 40, -5, 6, 700, 800, 0xAABBCCDD, 9)
    packed = pack(header)
    assert len(packed) == HEADER_BYTES == 64
    assert packed[:2] == b"WI"
    assert int.from_bytes(packed[60:], "little") == zlib.crc32(packed[:60])
    fields = re.findall(r"^\| (\d+) \| `(\w+)` \| (\w\d+) \|", PAGE, re.MULTILINE)
    said = {"magic": 0x4957, "version": VERSION, **asdict(header)}
    assert [name for _, name, _ in fields] == [*said, "check"]
    for offset, name, size in fields[:-1]:
        width, begin = int(size[1:]) // 8, int(offset)
        found = int.from_bytes(packed[begin : begin + width], "little", signed=size[0] == "i")
        assert found == said[name], name


def test_the_example_on_the_page_is_a_header() -> None:
    section = PAGE.split("## An example")[1]
    lines = re.findall(r"^[0-9a-f]{2}  ((?: ?[0-9a-f]{2}){16})$", section, re.MULTILINE)
    header = unpack(bytes.fromhex("".join(lines)))
    for name, value in asdict(header).items():
        assert f"{name}={value}" in section.replace("\n", " ").split(), name


def test_the_page_has_every_kind_with_its_number() -> None:
    section = PAGE.split("## Kinds")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", section, re.MULTILINE)
    assert {int(number): name for number, name in rows} == {k: FrameKind(k).name for k in KINDS}


@given(headers())
def test_every_single_flipped_bit_is_refused(header: Header) -> None:
    packed = bytearray(pack(header))
    for bit in range(8 * HEADER_BYTES):
        packed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame):
            unpack(packed)
        packed[bit // 8] ^= 1 << bit % 8


def test_another_magic_is_named() -> None:
    with pytest.raises(BadFrame, match=r"0x4957.*0x5448"):
        unpack(b"HTTP/1.1 200 OK\r\n".ljust(64))


@pytest.mark.parametrize("version", [0, VERSION + 1, 255])
def test_another_version_is_refused_with_both(version: int) -> None:
    with pytest.raises(BadFrame, match=rf"version {version} came.*version {VERSION}: install"):
        unpack(forged(2, bytes([version])))


@pytest.mark.parametrize("kind", [0, *sorted(WITHIN_A_HOST), max(FrameKind) + 1, 255])
def test_kinds_that_no_host_sends_to_another_are_refused(kind: int) -> None:
    with pytest.raises(BadFrame, match=f"kind {kind} came"):
        unpack(forged(3, bytes([kind])))


def test_all_other_kinds_are_allowed() -> None:
    assert {unpack(forged(3, bytes([kind]))).kind for kind in KINDS} == set(
        FrameKind
    ) - WITHIN_A_HOST


@pytest.mark.parametrize("flags", [2, 3, 0x80, 0xFF])
def test_unknown_flags_are_refused(flags: int) -> None:
    with pytest.raises(BadFrame, match=f"flags {flags:#04x}, known are 0x01"):
        unpack(forged(5, bytes([flags])))


@pytest.mark.parametrize("size", [MAX_PAYLOAD + 1, 2**32 - 1])
@pytest.mark.parametrize("codec", [0, 1])
def test_a_size_over_the_limit_is_refused_here_and_there(size: int, codec: int) -> None:
    for length, raw in ((size, size), (8, size), (size, 8)):
        words = rf"PIECE has {length} bytes, decoded {raw}: the limit is {MAX_PAYLOAD}"
        with pytest.raises(BadFrame, match=words):
            pack(Header(FrameKind.PIECE, codec=codec, length=length, raw=raw))
        usual = bytearray(forged(44, struct.pack("<II", length, raw)))
        usual[4] = codec
        usual[60:] = zlib.crc32(usual[:60]).to_bytes(4, "little")
        with pytest.raises(BadFrame, match=words):
            unpack(usual)


def test_the_largest_size_is_allowed() -> None:
    assert MAX_PAYLOAD == 4 * 1024 * 1024 + 64 * 1024
    largest = pack(Header(FrameKind.PIECE, length=MAX_PAYLOAD, raw=MAX_PAYLOAD))
    assert unpack(largest).length == unpack(largest).raw == MAX_PAYLOAD


def test_without_a_codec_both_sizes_are_the_same() -> None:
    for length, raw in ((8, 9), (9, 8), (0, 1), (1, 0)):
        with pytest.raises(BadFrame, match=f"{length} bytes, decoded {raw}, but codec 0"):
            pack(Header(FrameKind.EAGER, length=length, raw=raw))
        with pytest.raises(BadFrame, match=f"{length} bytes, decoded {raw}, but codec 0"):
            unpack(forged(44, struct.pack("<II", length, raw)))
        found = unpack(pack(Header(FrameKind.EAGER, codec=1, length=length, raw=raw)))
        assert (found.length, found.raw) == (length, raw)


@pytest.mark.parametrize("have", [0, 1, 63])
def test_too_few_bytes_are_refused(have: int) -> None:
    with pytest.raises(BadFrame, match=f"64 bytes, {have} are here"):
        unpack(bytes(100), 100 - have)


@given(st.binary(max_size=200), st.integers(0, 210))
def test_garbage_is_refused_as_a_bad_frame_and_nothing_else(garbage: bytes, at: int) -> None:
    with pytest.raises(BadFrame):
        unpack(garbage, at)


@given(st.binary(min_size=60, max_size=60))
def test_what_has_a_right_check_is_a_bad_frame_or_packs_to_the_same(fields: bytes) -> None:
    forgery = b"WI" + bytes([VERSION]) + fields[3:]
    forgery += zlib.crc32(forgery).to_bytes(4, "little")
    try:
        header = unpack(forgery)
    except BadFrame:
        return
    assert pack(header) == forgery


def test_a_bad_frame_is_an_error_of_the_host() -> None:
    assert issubclass(BadFrame, HostError)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_a_damaged_payload_is_found_by_its_sum(payload: bytes, data: st.DataObject) -> None:
    size = len(payload)
    header = Header(16, 0, SUMMED, 0, 0, 0, 0, 0, 0, 0, size, size, payload_sum(payload), 0)
    verify(header, payload)
    damaged = bytearray(payload)
    bit = data.draw(st.integers(0, 8 * size - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadFrame, match=f"{size} bytes of a frame of PIECE were damaged"):
        verify(header, damaged)
    verify(replace(header, flags=0), damaged)  # nothing was promised


def test_the_sum_is_the_low_half_of_xxh3() -> None:
    assert payload_sum(b"") == 0x38D394C2  # XXH3_64bits of nothing is 0x2d06800538d394c2
    assert payload_sum(memoryview(bytearray(b"wiiiiide"))) == payload_sum(b"wiiiiide") != 0


@given(st.lists(frames, max_size=4), st.data())
def test_any_cut_of_the_stream_gives_the_same_frames(
    sent: list[tuple[Header, bytes]], data: st.DataObject
) -> None:
    stream = b"".join(pack(header) + payload for header, payload in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    cutter, got = FrameCutter(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += cutter.feed(stream[begin:end])
    assert got == sent


def test_a_frame_comes_out_with_its_last_byte_and_not_before() -> None:
    cutter = FrameCutter()
    stream = pack(Header(FrameKind.EAGER, length=3, raw=3)) + b"xyz"
    assert [frame for at in range(66) for frame in cutter.feed(stream[at : at + 1])] == []
    assert [payload for _, payload in cutter.feed(stream[66:])] == [b"xyz"]


def test_a_size_over_the_limit_is_refused_before_its_payload_comes() -> None:
    cutter = FrameCutter()
    header = forged(44, struct.pack("<II", MAX_PAYLOAD + 1, MAX_PAYLOAD + 1))
    assert cutter.feed(header[:-1]) == []
    with pytest.raises(BadFrame, match="limit"):
        cutter.feed(header[-1:])


def test_a_damaged_payload_in_the_stream_is_refused() -> None:
    header = pack(Header(FrameKind.PIECE, flags=SUMMED, length=3, raw=3, sum=payload_sum(b"xyz")))
    with pytest.raises(BadFrame, match="damaged"):
        FrameCutter().feed(header + b"xyZ")
