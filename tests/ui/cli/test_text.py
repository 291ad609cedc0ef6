"""The one place where untrusted text is made harmless, and measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.ui.cli.text import cell, clean, columns, cut, pad


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("a\tb", "a\tb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),  # a CSI in one byte
        ("a\rb\nc\x00\x7f", "a\\x0db\\x0ac\\x00\\x7f"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u2028b\u2066c\u200fd\ufeff", "a\\u2028b\\u2066c\\u200fd\\ufeff"),
        ("\udcff", "\\udcff"),
        ("[red]x[/red]", "[red]x[/red]"),
        ("übergröße 漢字 🎉 ñ", "übergröße 漢字 🎉 ñ"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_a_cell_has_no_tab_either() -> None:
    assert cell("a\tb\x1b") == "a\\tb\\x1b"


@given(st.text())
def test_nothing_unprintable_is_left_but_tabs(raw: str) -> None:
    shown = clean(raw)
    shown.encode()
    assert not any(ord(char) < 32 and char != "\t" for char in shown)
    assert not any(0x7F <= ord(char) < 0xA0 for char in shown)
    assert clean(shown) == shown
    assert "\t" not in cell(raw)


@pytest.mark.parametrize(
    ("text", "width"),
    [("abc", 3), ("漢字", 4), ("e\u0301", 1), ("🎉", 2), ("a\u200db", 2), ("☎\ufe0f", 2), ("", 0)],
)
def test_widths_are_what_terminals_do(text: str, width: int) -> None:
    assert columns(text) == width


@given(st.text(), st.integers(0, 40), st.booleans())
def test_padding_gives_exactly_the_width(raw: str, width: int, right: bool) -> None:
    assert columns(pad(cell(raw), width, right)) == width


@given(st.text(), st.integers(0, 40))
def test_cutting_keeps_what_fits_and_says_when_it_did_not(raw: str, width: int) -> None:
    text = cell(raw)
    kept = cut(text, width)
    assert columns(kept) <= width
    assert kept == text if columns(text) <= width else kept == "" or kept.endswith("…")


def test_a_wide_character_is_not_cut_in_half() -> None:
    assert cut("漢字漢字", 4) == "漢…"
    assert pad("漢字漢字", 4) == "漢… "
