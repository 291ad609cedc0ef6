"""The example of ranks of different speeds, whose slow rank takes less of each batch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.running import run, share_at_once


def test_the_slow_rank_of_the_example_takes_a_small_part(tmp_path: Path) -> None:
    for host in "ab":
        (tmp_path / host).mkdir()
    options = ("--steps", "34", "--slow", "2e-4")
    said, *others = run(tmp_path, "uneven/uneven.py", *options, before=share_at_once)
    assert others == ["", ""]
    found = re.fullmatch(r"step    34/34  loss (\S+)  parts (\d+) % (\d+) % (\d+) %\n", said)
    assert found, said
    assert 0 < float(found[1]) < 1
    parts = [int(part) for part in found.groups()[1:]]
    assert sum(parts) == pytest.approx(100, abs=2)
    assert parts[2] < 20
