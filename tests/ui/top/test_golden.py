"""How the screen looks: every golden file, drawn again."""

from __future__ import annotations

import pytest
from rich.style import Style

from tests.ui.top.kit import drawn, whole
from tests.ui.top.screens import GOLDEN, SCENES, SCREENS
from wiiiiided.text import columns
from wiiiiided.ui.top.paint import lines
from wiiiiided.ui.top.view import view


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_looks_as_it_did(name: str) -> None:
    """If it should look different now: python -m tests.top.screens, and look at the change."""
    assert SCREENS[name]() == (GOLDEN / name).read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(SCREENS)


@pytest.mark.parametrize("name", [name for name in SCENES if "ascii" in name])
def test_ascii_screens_are_ascii(name: str) -> None:
    assert "".join(drawn(*SCENES[name])).isascii()


@pytest.mark.parametrize("name", SCENES)
def test_without_colours_the_words_are_the_same(name: str) -> None:
    scene, width, height = SCENES[name]
    size = None if scene.ui.once else height
    bare, coloured = (lines(view(scene, width, height), width, size, p) for p in ("none", "any"))
    texts = [
        ["".join(segment.text for segment in row) for row in each] for each in (bare, coloured)
    ]
    assert texts[0] == texts[1]
    styles = {segment.style or Style.null() for row in bare for segment in row}
    assert not [style for style in styles if style.color or style.bgcolor]


@pytest.mark.parametrize("name", SCENES)
def test_a_screen_fits(name: str) -> None:
    scene, width, height = SCENES[name]
    rows = whole(scene, width, height)
    assert scene.ui.once or len(rows) == height
    assert max(columns(row) for row in rows) <= width
