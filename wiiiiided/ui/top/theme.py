"""The colour of each part of the screen: names here, colours where a terminal is known.

Panes say "good", "compute" or "heat.7"; a console is made with one of four palettes:

    none   NO_COLOR: attributes alone (bold, dim, reverse)
    ansi   the 16 colours of the terminal's own palette
    any    256 colours or more: hues that can be read on a white and on a black ground
    dark   for pictures, whose ground is ours

A colour is never the only sign: signs and words are the same without any.
"""

from __future__ import annotations

from typing import Final, Literal

from rich.color import Color, blend_rgb
from rich.terminal_theme import TerminalTheme
from rich.theme import Theme

Palette = Literal["none", "ansi", "any", "dark"]

HEATS: Final = 10  # colours of a meter, from green to red
# green, yellow, red, blue, magenta, cyan
_HUES: Final[dict[Palette, tuple[str, ...]]] = {
    "ansi": ("green", "yellow", "red", "blue", "magenta", "cyan"),
    "any": ("#2f9e57", "#b58900", "#dc4a44", "#3b82d6", "#b06ad0", "#1f9aa8"),
    "dark": ("#8ccf7e", "#e5c76b", "#f47a74", "#6cb0f2", "#c792ea", "#5ccfe6"),
}
GROUND: Final = TerminalTheme(
    (22, 24, 29), (216, 219, 226), [(22, 24, 29)] * 8, [(134, 140, 152)] * 8
)


def theme(palette: Palette) -> Theme:
    """The styles that panes name."""
    return Theme(_coloured(palette) if palette != "none" else _plain(), inherit=False)


def _coloured(palette: Palette) -> dict[str, str]:
    green, yellow, red, blue, magenta, cyan = _HUES[palette]
    faint, frame = ("#868c98", "#454c59") if palette == "dark" else ("dim", "dim")
    text = "#d8dbe2" if palette == "dark" else "default"
    made = {
        "bold": "bold", "italic": "italic", "reverse": "reverse",
        "dim": faint, "head": faint, "frame": frame, "rest": frame, "focus": cyan,
        "text": f"not dim {text}", "title": f"not dim bold {cyan}", "point": f"not dim bold {text}",
        "logo": f"bold reverse {cyan}", "select": f"bold reverse {cyan}", "chip": "reverse",
        "total": "bold", "alarm": f"bold reverse {red}",
        "good": green, "warn": f"bold {magenta}", "bad": f"bold {red}", "wait": yellow,
        "run": green, "spark": cyan, "slow": magenta, "loss": yellow,
        "compute": blue, "exchange": yellow, "waiting": magenta,
    }  # fmt: skip
    return made | {f"heat.{place}": _heat(palette, place) for place in range(HEATS)}


def _plain() -> dict[str, str]:
    names = _coloured("ansi")
    kept = {"bold", "dim", "not", "reverse", "italic"}
    return {name: " ".join(w for w in style.split() if w in kept) for name, style in names.items()}


def _heat(palette: Palette, place: int) -> str:
    """The colour of one of HEATS parts: green up to the middle, then yellow, then red."""
    green, yellow, red = _HUES[palette][:3]
    if palette == "ansi":
        return green if place < 6 else yellow if place < 8 else red
    at = place / (HEATS - 1)
    first, last, part = (green, yellow, at * 2) if at < 0.5 else (yellow, red, at * 2 - 1)
    ends = (Color.parse(first).get_truecolor(), Color.parse(last).get_truecolor())
    return Color.from_triplet(blend_rgb(*ends, part)).name
