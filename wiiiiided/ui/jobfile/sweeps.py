"""`--sweep key=values`: one job file, many jobs, one for each combination of the values.

    --sweep run.env.LR=0.1,0.01                 two values
    --sweep run.env.SEED=1..3                   1, 2 and 3;  0..100..50 is 0, 50 and 100
    --sweep 'run.env.DATA="a,b",c'              a comma in quotes is part of a value
    --sweep 'run.command=["a", "b"],["c"]'      and so is one in brackets

Each value is what `--set key=value` would make of it, and is put over it. The last option given
changes fastest, as in nested loops. Everything that is wrong is told at once, as of a job file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Final, NamedTuple, TypeVar

from wiiiiided.domain.sweep import MOST_JOBS, MOST_KEYS
from wiiiiided.ui.jobfile.describe import printable, spell
from wiiiiided.ui.jobfile.findings import MOST
from wiiiiided.ui.jobfile.locate import split_key
from wiiiiided.ui.jobfile.problem import Invalid, Problem

EXAMPLE: Final = "for example --sweep run.env.LR=0.1,0.01"
# Keys that a sweep cannot change, and why.
FIXED: Final = {
    ("name",): "each job's name gets its values by itself",
    ("run", "workdir"): "one folder is sent for all jobs",
}
_ENV: Final = ("run", "env")
_RANGE: Final = re.compile(r"(-?[0-9]{1,15})\.\.(-?[0-9]{1,15})(?:\.\.([0-9]{1,15}))?")


Read = TypeVar("Read")


class _Axis(NamedTuple):
    key: str
    path: tuple[str, ...]
    values: list[str]  # each as a --set has it

    def shown(self, value: str) -> str:
        return value if self.path[:-1] == _ENV else _unquoted(value)


class _SweepError(Exception):
    """An option that makes no sense: what is wrong, and what to do."""

    def __init__(self, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.suggestion = suggestion


def combine(
    sweeps: Sequence[str], read: Callable[[Sequence[str]], Read]
) -> list[tuple[dict[str, str], Read]]:
    """Every combination: its setting, key → value as text, and what `read` makes of its options.
    Invalid with all problems."""
    axes, problems = _axes(sweeps)
    if problems:
        try:
            read(())
        except Invalid as invalid:
            problems = [*invalid.problems, *problems]
        raise Invalid(problems)
    jobs: list[tuple[dict[str, str], Read]] = []
    found: dict[Problem, None] = {}  # the same one of many jobs is told once
    for values in product(*(axis.values for axis in axes)):
        pairs = list(zip(axes, values, strict=True))
        try:
            job = read([f"{axis.key}={value}" for axis, value in pairs])
        except Invalid as invalid:
            found |= dict.fromkeys(invalid.problems)
            continue
        jobs.append(({axis.key: axis.shown(value) for axis, value in pairs}, job))
    if found:
        raise Invalid(list(found)[:MOST])
    return jobs


def _axes(sweeps: Sequence[str]) -> tuple[list[_Axis], list[Problem]]:
    axes: list[_Axis] = []
    problems: list[Problem] = []
    for text in sweeps:
        try:
            axes.append(_axis(text, axes))
        except _SweepError as no:
            shown = f"--sweep {printable(text)}"
            problems.append(Problem(shown, None, "", str(no), no.suggestion))
    many = prod(len(axis.values) for axis in axes)
    if many > MOST_JOBS:
        message = f"{many:,} combinations: a sweep has at most {MOST_JOBS:,} jobs"
        problems.append(Problem("--sweep", None, "", message, "leave values out, or make several"))
    if len(axes) > MOST_KEYS:
        message = f"{len(axes)} keys: a sweep has at most {MOST_KEYS}"
        problems.append(Problem("--sweep", None, "", message))
    return axes, problems


def _axis(text: str, before: Sequence[_Axis]) -> _Axis:
    key = split_key(text)
    if key is None or not key[1].startswith("="):
        raise _SweepError("is not key=value,value", EXAMPLE)
    path, rest = key[0], key[1][1:]
    if path in FIXED:
        raise _SweepError(f"{spell(path)} cannot be swept: {FIXED[path]}")
    if path in (axis.path for axis in before):
        raise _SweepError(f"{spell(path)} is swept already", "put all its values into one --sweep")
    values = [value for part in _split(rest) for value in _expanded(part)]
    if path[:-1] == _ENV:  # a --set leaves quotes in a variable; here they are what keeps commas
        values = [_unquoted(value) for value in values]
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise _SweepError(f"{printable(value)} stands there twice")
        seen.add(value)
    return _Axis(spell(path), path, values)


def _split(text: str) -> list[str]:
    """The text split at commas that are neither in quotes nor in brackets."""
    parts, begin, depth, at = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        if char in "\"'":
            at = _after_quote(text, at) - 1
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
        at += 1
    parts.append(text[begin:].strip())
    if depth:
        raise _SweepError("a bracket is not closed")
    if "" in parts:
        raise _SweepError("a value is missing", 'write "" for an empty text')
    return parts


def _after_quote(text: str, at: int) -> int:
    """Where a quoted text ends; a quote inside of a word (don't) is a letter."""
    if at and text[at - 1] not in ",[{ =":
        return at + 1
    quote, at = text[at], at + 1
    while at < len(text):
        if text[at] == "\\" and quote == '"':
            at += 1
        elif text[at] == quote:
            return at + 1
        at += 1
    raise _SweepError(f"a {quote} is not closed")


def _expanded(part: str) -> Iterator[str]:
    """The numbers of a range; any other value as it is."""
    match = _RANGE.fullmatch(part)
    if match is None:
        yield part
        return
    first, last = int(match[1]), int(match[2])
    step = 1 if match[3] is None else int(match[3])
    if step == 0:
        raise _SweepError(f"{part} never ends", "choose a step from 1 on")
    many = abs(last - first) // step + 1
    if many > MOST_JOBS:
        raise _SweepError(f"{part} has {many:,} values: a sweep has at most {MOST_JOBS:,} jobs")
    down = -1 if last < first else 1
    yield from (str(first + down * step * place) for place in range(many))


def _unquoted(value: str) -> str:
    """The text in a TOML string; other text stays as it is."""
    if value[:1] not in ("'", '"'):
        return value
    try:
        found = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):
        return value
    text = found["value"]
    return text if isinstance(text, str) and len(found) == 1 else value
