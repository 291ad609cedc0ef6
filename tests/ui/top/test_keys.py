"""Bytes as keys, however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.ui.top.keys import HELD_CHARS, PASTE_CHARS, KeyDecoder


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q?", ["q", "?"]),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[H", ["up", "down", "pageup", "home"]),
        (b"\t\r\x7f\x15", ["tab", "enter", "backspace", "clear"]),
        ("漢é".encode(), ["漢", "é"]),
        (b"\x1b[1;5Aq", ["q"]),  # Ctrl-Up is none of ours
        (b"\x1bxq", ["q"]),  # Alt-x must not be x
        (b"\x1b[200~xy\nq\x1b[201~z", ["paste xyq", "z"]),
        (b"\xff\xfe\x00q", ["q"]),
        (b"\x1b\x1b[A", ["esc", "up"]),
    ],
)
def test_keys_are_known_in_one_piece_and_byte_by_byte(data: bytes, keys: list[str]) -> None:
    assert KeyDecoder().feed(data) == keys
    slowly = KeyDecoder()
    assert [key for byte in data for key in slowly.feed(bytes([byte]))] == keys


def test_an_escape_is_the_key_when_nothing_follows() -> None:
    keys = KeyDecoder()
    assert keys.feed(b"\x1b") == []
    assert keys.unfinished
    assert keys.flush() == ["esc"]
    assert not keys.unfinished
    assert keys.feed(b"[A") == ["[", "A"]


def test_a_paste_is_bounded_and_an_endless_sequence_given_up() -> None:
    keys = KeyDecoder()
    assert keys.feed(b"\x1b[200~" + b"x" * 100_000) == []
    assert keys.feed(b"\x1b[201~") == ["paste " + "x" * PASTE_CHARS]
    assert "esc" in KeyDecoder().feed(b"\x1b[" + b"1" * HELD_CHARS)


@given(st.binary(max_size=200))
def test_no_bytes_break_it(data: bytes) -> None:
    keys = KeyDecoder()
    for key in keys.feed(data) + keys.flush():
        assert key.isprintable()
