"""The picture: well-formed, complete, and with nothing from outside."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.top import snapshots as s
from wiiiiided.top.render import render
from wiiiiided.top.spans import lines
from wiiiiided.top.svg import picture
from wiiiiided.top.ui import Scene
from wiiiiided.wire.messages import Snapshot


def _words(snapshot: Snapshot) -> tuple[str, str]:
    """What the screen says, and what the picture says, without blanks: those are places there."""
    frame = render(Scene(snapshot), 110, 20)
    root = ElementTree.fromstring(picture(frame, 110))
    said = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    return "".join("".join(lines(frame)).split()), "".join("".join(said).split())


def test_a_picture_says_what_the_screen_says() -> None:
    screen, drawn = _words(s.three())
    assert drawn == screen


def test_hostile_names_stay_text() -> None:
    name = '</text><script>alert("x")</script>&'
    screen, drawn = _words(s.snapshot(s.node(name), jobs=(s.job(name=name),)))
    assert drawn == screen


def test_a_picture_loads_nothing() -> None:
    text = picture(render(Scene(s.three()), 110, 20), 110)
    assert "href" not in text
    assert "url(" not in text
    assert text.count("http") == 1  # the name of its format
