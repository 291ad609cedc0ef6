"""What people give to arguments and options, and its refusals."""

from __future__ import annotations

import time

import pytest
import typer

from wiiiiided.ui.cli.option_values import job_id, moment_of, number, seconds


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
