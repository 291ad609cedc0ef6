"""Numbers as the report writes them."""

from __future__ import annotations

import pytest

from wiiiiided.ui.report import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (0.412345, "0.4123"), (2.302, "2.302"), (12.345, "12.35"), (1049.2, "1,049")),
        *((-3, "-3"), (1e-7, "1.00e-07"), (2e12, "2.00e+12"), (None, "–")),
        *((float("nan"), "–"), (float("inf"), "–")),
    ],
)
def test_a_number_has_four_digits_that_count(value: float | None, text: str) -> None:
    assert formats.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (200 << 20, "200 MiB"), (3 << 40, "3 TiB")],
)
def test_bytes_are_in_the_unit_that_fits(value: int, text: str) -> None:
    assert formats.size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s"), (0.04, "40ms"), (0.9996, "999ms"), (8.29, "8.2s"), (59.7, "59s")),
        *((250, "4m10s"), (7500, "2h05m"), (273600, "3d04h"), (None, "–")),
    ],
)
def test_a_length_of_time_has_two_units_at_most(seconds: float | None, text: str) -> None:
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("part", "text"),
    [(0, "0 %"), (0.0003, "<0.1 %"), (0.041, "4.1 %"), (0.414, "41 %"), (1, "100 %")],
)
def test_small_shares_are_not_nothing(part: float, text: str) -> None:
    assert formats.share(part) == text


@pytest.mark.parametrize("at", [None, -1.0, 1e300, float("nan"), float("-inf")])
def test_a_time_of_no_calendar_is_unknown(at: float | None) -> None:
    assert formats.moment(at) == "–"
