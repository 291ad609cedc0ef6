"""How the screen looks: every golden file, drawn again."""

from __future__ import annotations

import pytest

from tests.top.screens import GOLDEN, SCENES, SCREENS
from wiiiiided.text import columns
from wiiiiided.top.render import render
from wiiiiided.top.spans import PLAIN, painted, plain


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_looks_as_it_did(name: str) -> None:
    """If it should look different now: python -m tests.top.screens, and look at the change."""
    assert SCREENS[name]() == (GOLDEN / f"{name}.txt").read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SCREENS)


@pytest.mark.parametrize("name", [name for name in SCENES if name.startswith("ascii")])
def test_ascii_screens_are_ascii(name: str) -> None:
    assert SCREENS[name]().isascii()


@pytest.mark.parametrize("name", SCENES)
def test_without_colours_the_words_are_the_same(name: str) -> None:
    scene, width, height = SCENES[name]
    for row in render(scene, width, height):
        shown = painted(row, PLAIN)
        for code in ("1", "2", "7", "0"):
            shown = shown.replace(f"\x1b[{code}m", "")
        assert "\x1b" not in shown  # no code of a colour is left
        assert shown.rstrip() == plain(row)


@pytest.mark.parametrize("name", SCENES)
def test_a_screen_fits(name: str) -> None:
    scene, width, height = SCENES[name]
    frame = render(scene, width, height)
    assert len(frame) <= height
    assert max(columns(plain(row)) for row in frame) <= width
