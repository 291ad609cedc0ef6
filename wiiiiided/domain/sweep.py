"""A sweep: one job file, queued once for each combination of some values, under one id.

    s12 ── job 12 (digits LR=0.1 SEED=1), job 13 (digits LR=0.1 SEED=2), …

The number of a sweep is that of its first job, and its jobs have the numbers behind it: numbers are
given out once, so an id is never used again, and nothing else has to be kept. The letter tells a
sweep from a job everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

MOST_JOBS: Final = 1000  # of one sweep: all are stored in one transaction
MOST_KEYS: Final = 16
LABEL: Final = 64  # characters of a setting behind a job's name
SETTING: Final = 4096  # characters of one job's keys and values; a spec itself may have more


def sweep_id(number: int) -> str:
    """The id as people write it: s12; empty for 0, no sweep."""
    return f"s{number}" if number else ""


def sweep_number(text: str) -> int | None:
    """The number in s12, from 1 on; None when it is no sweep's id."""
    digits = text[1:]
    if text[:1] != "s" or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        return None
    return int(digits) or None


def short_names(keys: Iterable[str]) -> list[str]:
    """The last part of each key, where that tells it from the others; else the whole key."""
    keys = list(keys)
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for name, key in zip(last, keys, strict=True)]


def label(setting: Mapping[str, str]) -> str:
    """`LR=0.1 SEED=2`: a part of the job's name, and so of lines of a log."""
    text = " ".join(
        f"{name}={value}"
        for name, value in zip(short_names(setting), setting.values(), strict=True)
    )
    shown = "".join(char if char.isprintable() else "?" for char in text[: LABEL + 1])
    return shown if len(shown) <= LABEL else shown[: LABEL - 1] + "…"


def setting_chars(setting: Mapping[str, str]) -> int:
    """Count the characters of a job's setting."""
    return sum(map(len, (*setting, *setting.values())))


def problems_of_sweep(settings: list[Mapping[str, str]]) -> list[str]:
    """Problems of a sweep, in sentences; empty is good."""
    checks = (
        (0 < len(settings) <= MOST_JOBS, f"a sweep has 1 to {MOST_JOBS:,} jobs"),
        (all(0 < len(one) <= MOST_KEYS for one in settings), f"1 to {MOST_KEYS} keys can be swept"),
        (
            all(setting_chars(one) <= SETTING for one in settings),
            f"the values of one job of a sweep have at most {SETTING:,} characters, keys included",
        ),
    )
    return [sentence for good, sentence in checks if not good]
