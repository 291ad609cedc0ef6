"""A strict reader of Prometheus' text format 0.0.4: what it does not expect is an error.

    families = parse(text)
    families["wiiiiide_job_loss"].samples[(("job_id", "17"), ("name", "digits"))] == 0.412

Stricter than Prometheus itself: HELP and TYPE are required, once each, before the samples; all of a
family stand together; no series comes twice; names keep to the conventions for counters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
NUMBER = r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf|NaN)"
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? ({NUMBER})")
HELP = re.compile(rf"# HELP ({NAME}) (.+)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge)")
RESERVED = {"job", "instance"}  # Prometheus sets them itself
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    kind: str
    help: str
    samples: dict[Labels, float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Family]:
    """The families of a page; AssertionError with the line that is wrong."""
    assert text.endswith("\n"), "the last line has no end"
    families: dict[str, Family] = {}
    current, help_of = "", ("", "")
    for line in text[:-1].split("\n"):
        if match := HELP.fullmatch(line):
            help_of = (match[1], match[2])
        elif match := TYPE.fullmatch(line):
            current = match[1]
            assert help_of[0] == current, f"TYPE without its HELP: {line}"
            assert current not in families, f"twice: {line}"
            assert current.endswith("_total") == (match[2] == "counter"), line
            families[current] = Family(match[2], help_of[1])
        else:
            _take(line, current, families)
    assert all(family.samples for family in families.values())
    return families


def _take(line: str, current: str, families: dict[str, Family]) -> None:
    match = SAMPLE.fullmatch(line)
    assert match, f"no line of this format: {line!r}"
    assert match[1] == current, f"not in its family: {line}"
    labels = tuple((name, _plain(text)) for name, text in re.findall(LABEL, match[2] or ""))
    names = [name for name, _ in labels]
    assert len(set(names)) == len(names), line
    assert not set(names) & RESERVED, line
    samples = families[current].samples
    assert labels not in samples, f"twice: {line}"
    samples[labels] = float(line.rpartition(" ")[2])


def _plain(text: str) -> str:
    return re.sub(r"\\.", lambda escape: ESCAPES[escape[0]], text)
