"""The picture: well-formed, complete, and with nothing from outside."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.ui.top import snapshots as s
from tests.ui.top.kit import drawn
from wiiiiided.cluster.rpc.messages import Snapshot
from wiiiiided.ui.top.paint import picture
from wiiiiided.ui.top.ui import Scene
from wiiiiided.ui.top.view import view

SIZE = (110, 20)


def _picture(snapshot: Snapshot) -> str:
    return picture(view(Scene(snapshot), *SIZE), *SIZE)


def _words(snapshot: Snapshot) -> tuple[str, str]:
    """What the screen says, and what the picture says, without blanks."""
    root = ElementTree.fromstring(_picture(snapshot))
    said = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    shown = "".join(drawn(Scene(snapshot), *SIZE))
    return "".join(shown.split()), "".join("".join(said).split())


def test_a_picture_says_what_the_screen_says() -> None:
    screen, shown = _words(s.three())
    assert shown == screen


def test_hostile_names_stay_text() -> None:
    name = '</text><script>alert("x")</script>&'
    screen, shown = _words(s.snapshot(s.node(name), jobs=(s.job(name=name),)))
    assert shown == screen


def test_a_picture_loads_nothing() -> None:
    text = _picture(s.three())
    assert "href" not in text
    assert "url(" not in text
    assert text.count("http") == 1  # the name of its format
