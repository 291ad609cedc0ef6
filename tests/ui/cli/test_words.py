"""Numbers as people read and write them."""

from __future__ import annotations

import time

import pytest
import typer

from wiiiiided.ui.cli.units_text import code_words, count, job_id, moment_of, number, seconds, span


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (-3, "0s"),
        (0.9, "0s"),
        (59, "59s"),
        (61, "1m01s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (90_000, "1d01h"),
        (40 * 86400, "40d00h"),
    ],
)
def test_a_length_of_time_has_two_units(length: float, words: str) -> None:
    assert span(length) == words


@pytest.mark.parametrize(
    ("code", "words"),
    [(None, "-"), (0, "0"), (1, "1"), (137, "137 (SIGKILL)"), (143, "143 (SIGTERM)"), (255, "255")],
)
def test_a_code_over_128_names_its_signal(code: int | None, words: str) -> None:
    assert code_words(code) == words


def test_one_and_many() -> None:
    assert [count(n, "file") for n in (0, 1, 2, 12345)] == [
        "0 files",
        "1 file",
        "2 files",
        "12,345 files",
    ]


def test_a_job_is_named_by_its_number() -> None:
    assert (job_id("17"), job_id("#17")) == (17, 17)


@pytest.mark.parametrize("text", ["90", "90.0", "90s", "1m30s", "1.5m"])
def test_a_duration_may_be_written_in_several_ways(text: str) -> None:
    assert seconds(text, "--timeout") == 90


def test_a_duration_that_is_nearly_one_is_understood() -> None:
    with pytest.raises(typer.BadParameter, match="did you mean 10m"):
        seconds("10 min", "--timeout")


@pytest.mark.parametrize("text", ["", "x", "-1", "10 min", "1e3", "nan", "²"])
def test_what_is_no_number_or_duration_names_the_option(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--timeout"):
        seconds(text, "--timeout")
    with pytest.raises(typer.BadParameter, match="--tail"):
        number(text, "--tail")


def test_a_time_of_day_is_the_last_time_it_was_that() -> None:
    now = time.time()
    for text in ("00:00", "12:30", "23:59:59"):
        at = moment_of(text, "--since")
        assert now - 26 * 3600 < at <= time.time()
        assert time.strftime("%H:%M:%S", time.localtime(at)).startswith(text)
    soon = time.strftime("%H:%M", time.localtime(now + 7200))
    assert moment_of(soon, "--since") < now - 20 * 3600
    assert abs(moment_of("1h30m", "--since") - (now - 5400)) < 60
    assert moment_of("1970-01-02T00:00Z", "--since") == 86400.0
