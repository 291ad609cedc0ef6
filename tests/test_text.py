"""Untrusted text is made harmless and measured; durations, sizes and lists are written one way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.text import (
    NAME_CHARS,
    cell,
    clean,
    columns,
    count,
    cut,
    format_duration,
    format_duration_words,
    format_link_rate,
    format_size,
    format_size_compact,
    format_size_decimal,
    format_step_time,
    listed,
    pad,
    plain,
    three_digits,
)


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-3, "0s"), (0.9, "0s"), (59, "59s"), (61, "1m01s"), (3599, "59m59s"), (3600, "1h00m")),
        *((90_000, "1d01h"), (40 * 86400, "40d00h")),
    ],
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s"), (0.04, "40ms"), (0.9996, "999ms"), (8.29, "8.2s"), (59.7, "59s")),
        *((250, "4m10s"), (7500, "2h05m"), (273600, "3d04h")),
    ],
)
def test_a_short_duration_is_told_more_finely_where_wanted(seconds: float, text: str) -> None:
    assert format_duration(seconds, fine=True) == text


@pytest.mark.parametrize("tenth", range(11, 100))
def test_a_tenth_is_not_lost_in_arithmetic(tenth: int) -> None:
    assert format_duration(tenth * 0.1, fine=True) == f"{tenth / 10:g}s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3.0, "0 s"), (40.9, "40 s"), (300.0, "5 min"), (86400.0, "24 h"), (2.6e5, "3 days")],
)
def test_a_duration_in_a_sentence_is_as_exact_as_one_wants_to_know_it(
    seconds: float, text: str
) -> None:
    assert format_duration_words(seconds) == text


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (format_step_time(0.0841), "84.1 ms"),
        (format_step_time(0.9996), "1 s"),
        (format_step_time(2.213), "2.21 s"),
        (format_step_time(123.4), "123 s"),
        (format_step_time(1234.0), "1234 s"),
        (format_size_decimal(26_117_632), "26.1 MB"),
        (format_size_decimal(5e9), "5000 MB"),
        (format_size_decimal(41_000), "41 kB"),
        (format_link_rate(94.1e6), "94.1 Mbit/s"),
        (format_link_rate(941.2e6), "941 Mbit/s"),
        (three_digits(61.04), "61"),
    ],
)
def test_what_a_plan_measures_has_three_digits(said: str, meant: str) -> None:
    assert said == meant


@pytest.mark.parametrize(
    ("size", "text", "compact"),
    [
        *((0, "0 B", "0K"), (1023, "1023 B", "1.0K"), (1536, "1.5 KiB", "1.5K")),
        (20 << 30, "20 GiB", "20G"),
        *((200 << 20, "200 MiB", "200M"), (1000 << 20, "1000 MiB", "1.0G")),
        *((3 << 40, "3 TiB", "3.0T"), (5 << 60, "5 EiB", "5120P")),
    ],
)
def test_a_size_is_in_the_binary_unit_that_fits(size: int, text: str, compact: str) -> None:
    assert (format_size(size), format_size_compact(size)) == (text, compact)


def test_a_sentence_that_is_kept_has_no_colours() -> None:
    assert plain("\x1b[1;31mValueError\x1b[0m: \x1b[2Jbad") == "ValueError: ?[2Jbad"


def test_one_and_many() -> None:
    many = ["0 files", "1 file", "2 files", "12,345 files"]
    assert [count(n, "file") for n in (0, 1, 2, 12345)] == many


def test_many_names_are_counted_and_long_ones_cut() -> None:
    assert [listed(names) for names in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
    assert listed(tuple("abcdef"), most=2) == "a, b and 4 more"
    assert len(listed(("n" * 1000,))) == NAME_CHARS
