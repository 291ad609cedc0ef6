"""HTML and SVG as text that cannot be forgotten to be escaped.

    tag("p", name, class_="who")  →  <p class="who">&lt;script&gt;…</p>

A plain string is text of a stranger: it is bounded and escaped. Only what `tag` itself made is a
`Markup` and goes in as it is. So a forgotten escape shows tags as text, never the other way round.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from wiiiiided.text import clean

TEXT = 1000  # characters of one piece of text; a story line is shorter, a hostile name is not
EMPTY = frozenset({"meta", "br", "rect", "line", "circle", "path", "polyline"})  # no end tag


class Markup(str):
    """Text that is HTML already: what `tag`, `escaped`, `joined` made, or of numbers alone."""

    __slots__ = ()


def plain(text: str, most: int = TEXT) -> str:
    """The text, bounded, and as on a terminal: what would turn or hide text is made visible."""
    return clean(text if len(text) <= most else text[: most - 1] + "…")


def escaped(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(plain(text)))


def joined(parts: Iterable[str]) -> Markup:
    return Markup("".join(map(escaped, parts)))


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """An element. `class_` is class, `stroke_width` is stroke-width; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in EMPTY and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")


def _value(value: str | float) -> str:
    """Coordinates get two decimals: finer than any screen, and a chart stays small."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
