"""Promises of the documents about themselves: short, and every file they name is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README_WORDS = 1000
CELL_CHARACTERS = 200


def test_the_readme_has_at_most_a_thousand_words() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README_WORDS


def test_no_cell_of_a_table_in_the_architecture_is_long() -> None:
    lines = (ROOT / "docs/ARCHITECTURE.md").read_text().splitlines()
    cells = [cell.strip() for line in lines if line.startswith("|") for cell in line.split("|")]
    assert not [cell for cell in cells if len(cell) > CELL_CHARACTERS]


def test_every_file_named_for_a_behaviour_is_there() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where is what")[2]
    named = re.findall(r"`([\w/<>]+(?:\.py|/))`", table)
    assert len(named) > 40
    paths = [ROOT / "wiiiiided" / name for name in named if "<" not in name]
    assert not [path for path in paths if not path.exists()]
