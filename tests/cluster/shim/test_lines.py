"""Lines: how a rank's output is cut, and how a log is read."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.cluster.shim import lines
from wiiiiided.cluster.shim.lines import LINE_BYTES, PROGRESS_S, SILENCE_S, Cutter


def cut(*chunks: bytes, apart_s: float = 0.0) -> list[bytes]:
    """All lines of chunks that come one after the other, and then the end."""
    cutter, done, now = Cutter(), [], 100.0
    for chunk in chunks:
        done += cutter.feed(chunk, now)
        now += apart_s
    return done + cutter.flush(now, now, final=True)


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ((b"a\nb\n",), [b"a", b"b"]),
        ((b"a", b"b\n", b"c"), [b"ab", b"c"]),
        ((b"\n\n",), [b"", b""]),
        ((b"a\r\nb\r", b"\nc\n"), [b"a", b"b", b"c"]),
        ((b"\xff\xfe\n",), [b"\xff\xfe"]),
        ((), []),
    ],
)
def test_a_newline_ends_a_line(chunks: tuple[bytes, ...], expected: list[bytes]) -> None:
    assert cut(*chunks) == expected


def test_of_redrawn_lines_the_first_and_the_last_are_kept() -> None:
    drawn = [b"\r%d%%" % percent for percent in range(100)]
    assert cut(*drawn, b"\r100%\ndone\n") == [b"0%", b"100%", b"done"]
    assert cut(*drawn) == [b"0%", b"99%"]


def test_redrawn_lines_are_kept_once_per_second() -> None:
    drawn = [b"%d\r" % step for step in range(100)]  # ten per second
    kept = cut(*drawn, b"\n", apart_s=PROGRESS_S / 10)
    assert 9 <= len(kept) <= 12
    assert kept[-1] == b"99"


def test_a_line_that_is_redrawn_and_then_covered_is_not_kept() -> None:
    assert cut(b"a\r", b"b\r", b"c\r", b"done\n") == [b"a", b"done"]
    assert cut(b"a\r", b"b\r", b"c\r", b"\n") == [b"a", b"c"]


def test_a_silence_shows_what_has_no_end() -> None:
    cutter = Cutter()
    assert cutter.feed(b"name? ", 10.0) == []
    assert cutter.flush_in_s(10.0, 10.0) == SILENCE_S
    assert cutter.flush(10.0 + SILENCE_S / 2, 10.0) == []
    assert cutter.flush(10.0 + SILENCE_S, 10.0) == [b"name? "]
    assert cutter.flush_in_s(11.0, 10.0) is None
    # The end of a line that was shown is no line of its own.
    assert cutter.feed(b"\nnext\n", 12.0) == [b"next"]


def test_a_held_line_is_shown_when_its_second_is_over() -> None:
    cutter = Cutter()
    assert cutter.feed(b"1\r2\r3\r4", 10.0) == [b"1"]
    assert cutter.flush(10.0 + SILENCE_S, 10.0) == []
    assert cutter.flush_in_s(10.5, 10.0) == PROGRESS_S - SILENCE_S
    assert cutter.flush(10.0 + PROGRESS_S, 10.0) == [b"4"]


def test_a_long_line_is_cut_between_characters() -> None:
    text = "é".encode() * LINE_BYTES
    pieces = cut(b"x" + text + b"\n")
    assert b"".join(pieces) == b"x" + text
    assert all(len(piece) <= LINE_BYTES for piece in pieces)
    for piece in pieces:
        piece.decode()


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_long_line_that_is_redrawn_is_cut_too(end: bytes) -> None:
    pieces = cut(b"0%\r1%\r", b"x" * 40_000 + b"\r ", end, apart_s=PROGRESS_S / 5)
    assert b"".join(pieces) == b"0%" + b"x" * 40_000
    assert all(len(piece) <= LINE_BYTES for piece in pieces)


def test_a_line_without_end_takes_no_more_memory_than_a_line() -> None:
    cutter = Cutter()
    for _ in range(100):
        cutter.feed(b"x" * 65536, 1.0)
        assert len(cutter._pending) <= LINE_BYTES


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_no_byte_of_ordinary_output_is_lost(chunks: list[bytes]) -> None:
    plain = [chunk.replace(b"\r", b"") for chunk in chunks]
    whole = b"".join(plain)
    expected = whole.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert cut(*plain) == expected


@given(st.lists(st.sampled_from([b"\r", b"\n", b"ab", b" ", b"\r\n"]), max_size=30))
def test_however_it_arrives_no_line_has_an_end_in_it(chunks: list[bytes]) -> None:
    assert not any(re.search(rb"[\r\n]", line) for line in cut(*chunks))
    # The last words on a screen are never lost, but for spaces.
    last = re.split(rb"[\r\n]", b"".join(chunks).rstrip())[-1]
    if last.strip():
        assert any(last.strip() in line for line in cut(*chunks))


def test_a_log_line_is_read_as_it_was_written() -> None:
    line = lines.head(1763270000.1234567, "err") + b"a b  c \xff\n"
    assert line.startswith(b"1763270000.123457 err a b")
    assert lines.parse(line) == (1763270000.123457, "err", "a b  c �")
    assert lines.parse(lines.head(1.0, "out")) == (1.0, "out", "")


@pytest.mark.parametrize(
    "line", [b"", b"x", b"1.0 xyz text", b"nan out text", b"1e300 out t", b"-1.0 out t", b"1.0 out"]
)
def test_what_is_no_log_line_is_shown_as_it_is(line: bytes) -> None:
    assert lines.parse(line) == (0.0, "out", line.decode())
