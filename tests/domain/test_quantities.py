"""Durations, sizes and numbers of nodes, as a file has them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.domain import quantities


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8h", 28800),
        ("10m", 600),
        ("1h30m", 5400),
        ("90s", 90),
        ("1.5h", 5400),
        ("2d", 172800),
        ("1d2h3m4s5ms", 93784.005),
        ("500ms", 0.5),
        ("1m500ms", 60.5),
        ("0s", 0),
    ],
)
def test_a_duration_is_seconds(text: str, seconds: float) -> None:
    assert quantities.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8",
        "h",
        "1 h",
        "30m1h",
        "1h1h",
        "-1h",
        "1e3s",
        "8h\n",
        " 8h",
        "٣h",
        "1.h",
        "9" * 10 + "s",
    ],
)
def test_what_is_no_duration_is_none(text: str) -> None:
    assert quantities.parse_duration(text) is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (8, "8s"),
        (0.5, "0.5s"),
        ("90", "90s"),
        ("10 min", "10m"),
        ("2 Hours", "2h"),
        ("1 hour, 30 minutes", "1h30m"),
        ("1 hour and 5 sec", "1h5s"),
        ("3days", "3d"),
        ("soon", ""),
        (True, ""),
        (None, ""),
        (0, ""),
        pytest.param(10**5000, "", id="huge"),
        pytest.param("x" * 1000, "", id="long"),
    ],
)
def test_a_duration_is_guessed(written: object, meant: str) -> None:
    assert quantities.guess_duration(written) == meant


@given(st.integers(1, 10**9))
def test_a_duration_that_is_said_is_understood(milliseconds: int) -> None:
    said = quantities.write_duration(milliseconds / 1000)
    assert quantities.parse_duration(said) == pytest.approx(milliseconds / 1000)
    assert re.search(quantities.DURATION_PATTERN, said)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GiB", 8 << 30),
        ("512MB", 512_000_000),
        ("1.5KiB", 1536),
        ("100B", 100),
        ("0B", 0),
        ("2TB", 2 * 10**12),
        ("4TiB", 4 << 40),
    ],
)
def test_a_size_is_bytes(text: str, count: int) -> None:
    assert quantities.parse_size(text) == count


@pytest.mark.parametrize("text", ["", "8", "8G", "8gib", "8 GiB", "-1GiB", "GiB", "8GiB\n", "1PiB"])
def test_what_is_no_size_is_none(text: str) -> None:
    assert quantities.parse_size(text) is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (8, "8GiB"),
        (8 << 30, "8GiB"),
        (5000, "5KB"),
        (5001, "5001B"),
        (10**10, "10GB"),
        (10**15 + 1, "931322.575GiB"),
        ("8G", "8GiB"),
        ("8gb", "8GB"),
        ("8 GiB", "8GiB"),
        ("8 gib", "8GiB"),
        ("100 bytes", "100B"),
        ("512m", "512MiB"),
        ("much", ""),
        (1.5, "1.5GiB"),
        (False, ""),
        pytest.param(10**5000, "", id="huge"),
        (-1, ""),
    ],
)
def test_a_size_is_guessed(written: object, meant: str) -> None:
    assert quantities.guess_size(written) == meant
    assert not meant or quantities.parse_size(meant) is not None


@given(st.integers(0, 10**15))
def test_a_size_that_is_said_is_understood(count: int) -> None:
    understood = quantities.parse_size(quantities.write_size(count))
    assert understood == pytest.approx(count, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (3, (3, 3)),
        ("2-4", (2, 4)),
        ("all", (1, None)),
        ("3", None),
        (True, None),
        (2.0, None),
        ("2-", None),
        ("a-b", None),
        ([], None),
    ],
)
def test_nodes_are_at_least_and_at_most(value: object, wanted: object) -> None:
    assert quantities.parse_nodes(value) == wanted


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("3", "3"),
        ("4-2", '"2-4"'),
        ("2 – 4", '"2-4"'),
        ("2..4", '"2-4"'),
        ("2 to 4", '"2-4"'),
        ("ALL", '"all"'),
        ("*", '"all"'),
        ("some", ""),
        (3.5, ""),
        (2.0, ""),
    ],
)
def test_nodes_are_guessed(written: object, meant: str) -> None:
    assert quantities.guess_nodes(written) == meant
