"""The texts given to arguments and options, as numbers, durations, moments and patterns."""

from __future__ import annotations

import re

import typer

from wiiiiided.domain.sweep import sweep_number


def job_id(text: str) -> int:
    """The number of a job, as ps shows it."""
    digits = text.removeprefix("#")
    if sweep_number(text) is not None:
        raise typer.BadParameter(
            f"{text} is a sweep, and this is about one job; wiiiiide ps {text} lists its jobs"
        )
    if not digits.isascii() or not digits.isdigit() or not 0 < len(digits) < 19 or not int(digits):
        raise typer.BadParameter(f"{text!r} is not the number of a job; wiiiiide ps lists them")
    return int(digits)


def number(text: str, option: str) -> int:
    """The whole number from 0 on that was given to an option."""
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise typer.BadParameter(f"{option} {text!r} is not a whole number from 0 on")
    return int(text)


def seconds(text: str, option: str) -> float:
    """A duration given to an option: 30s, 10m, 1h30m; a plain number is of seconds."""
    from wiiiiided.domain.quantities import guess_duration, parse_duration

    found = parse_duration(text if text[-1:].isalpha() else f"{text}s")
    if found is None:
        guess = guess_duration(text)
        raise typer.BadParameter(
            f"{option} {text!r} is not a duration such as 90s, 10m or 1h30m"
            + (f"; did you mean {guess}?" if guess else "")
        )
    return found


def pattern(text: str, option: str) -> re.Pattern[str]:
    """A regular expression given to an option."""
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as problem:
        raise typer.BadParameter(
            f"{option} {text!r} is not a regular expression: {problem}"
        ) from problem


def moment_of(text: str, option: str) -> float:
    """A moment given to an option, in this machine's own time: so long ago (10m), the last time it
    was 12:30, or a date with or without a time of day."""
    from datetime import datetime, timedelta
    from datetime import time as time_of_day

    from wiiiiided.domain.quantities import parse_duration

    now, day = datetime.now().astimezone(), timedelta(days=1)
    try:
        if (ago := parse_duration(text)) is not None:
            return now.timestamp() - ago
        if "-" in text:
            return datetime.fromisoformat(text).timestamp()
        if ":" in text:
            then = datetime.combine(now.date(), time_of_day.fromisoformat(text)).astimezone()
            return (then if then <= now else then.replace(tzinfo=None) - day).timestamp()
    except (ValueError, OverflowError, OSError):
        pass
    raise typer.BadParameter(
        f"{option} {text!r} is no time such as 10m (ago), 12:30 or 2026-11-18T12:00"
    )
