"""Links: frames and descriptors in order over a socket that fills up and ends."""

from __future__ import annotations

import dataclasses
import gc
import os
import socket
from collections.abc import Iterator

import pytest

from wiiiiided.backend.engine.local_link import Card, Link
from wiiiiided.backend.shm.segment import PAGE, Segment
from wiiiiided.backend.wire.local_frame import Frame, FrameKind
from wiiiiided.errors import HostError

# Every field is a text, a number or numbers; which there are is the card's own business.
_VALUES = {"str": "text", "int": 7, "list[int]": [0, 1]}
CARD = Card(**{field.name: _VALUES[str(field.type)] for field in dataclasses.fields(Card)})


@pytest.fixture
def links() -> Iterator[tuple[Link, Link]]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    pair = Link(left, CARD, Link.send), Link(right, CARD, Link.send)
    yield pair
    for link in pair:
        link.close()


def _read_all(link: Link, sender: Link, count: int) -> list[Frame]:
    frames: list[Frame] = []
    while len(frames) < count:
        got, ended = link.receive()
        assert not ended
        assert got or sender.wants_to_write, "nothing is on its way"
        frames += got
        sender.flush()
    return frames


def test_frames_arrive_in_order_although_the_socket_fills_up(links: tuple[Link, Link]) -> None:
    left, right = links
    sent = [Frame(FrameKind.EAGER, a=i, payload=bytes([i % 256]) * 5000) for i in range(500)]
    for frame in sent:
        left.send(frame)
    assert left.wants_to_write, "more than the socket takes"
    assert _read_all(right, left, len(sent)) == sent
    assert not left.wants_to_write


def test_descriptors_arrive_with_their_frames_in_order(links: tuple[Link, Link]) -> None:
    left, right = links
    segments = [Segment.create("test", (i + 1) * PAGE) for i in range(12)]
    for i, segment in enumerate(segments):
        left.send(Frame(FrameKind.SEGMENT, a=i), segment.fd)
        left.send(Frame(FrameKind.BELL))
        segment.map[:1] = bytes([i])
    for i, frame in enumerate(f for f in _read_all(right, left, 24) if f.kind is FrameKind.SEGMENT):
        assert frame.a == i
        assert Segment.attach(right.take_descriptor(), (i + 1) * PAGE).map[0] == i


def test_a_missing_descriptor_is_said_in_words(links: tuple[Link, Link]) -> None:
    with pytest.raises(HostError, match=r"no descriptor came.*ulimit"):
        links[1].take_descriptor()


def test_what_was_said_before_the_end_is_read_and_then_the_end(links: tuple[Link, Link]) -> None:
    left, right = links
    left.send(Frame(FrameKind.BYE))
    left.close()
    frames, ended = right.receive()
    if not ended:
        rest, ended = right.receive()
        frames += rest
    assert frames == [Frame(FrameKind.BYE)]
    assert ended
    left.close()  # harmless


def test_sending_to_an_end_that_is_gone_is_harmless(links: tuple[Link, Link]) -> None:
    left, right = links
    right.close()
    left.send(Frame(FrameKind.BELL))
    left.ring()
    assert not left.wants_to_write
    assert left.receive()[1]


def test_a_bell_wakes_and_a_full_socket_needs_none(links: tuple[Link, Link]) -> None:
    left, right = links
    left.ring()
    assert right.receive() == ([Frame(FrameKind.BELL)], False)
    while not left.wants_to_write:
        left.send(Frame(FrameKind.EAGER, payload=b"x" * 60_000))
    left.ring()
    assert all(f.kind is FrameKind.EAGER for f in right.receive()[0])


def test_descriptors_that_were_not_sent_are_closed_with_the_link() -> None:
    left, right = (
        Link(s, CARD, Link.send) for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    )
    while not left.wants_to_write:
        left.send(Frame(FrameKind.EAGER, payload=b"x" * 60_000))
    segment = Segment.create("test", PAGE)
    gc.collect()  # what earlier tests left is not to go while we count
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        left.send(Frame(FrameKind.SEGMENT), segment.fd)
    assert len(os.listdir("/proc/self/fd")) == before + 5
    left.close()
    right.close()
    assert len(os.listdir("/proc/self/fd")) < before


def test_a_card_comes_back_as_it_was_and_another_is_refused_in_words() -> None:
    assert Card.load(CARD.dump()) == CARD
    assert CARD.address.startswith("\0"), "no file to remove"
    for raw in (b"", b"{}", b"[]", b'{"uid": 1}', b"\xff", CARD.dump()[:-1] + b', "more": 1}'):
        with pytest.raises(HostError, match="same version"):
            Card.load(raw)
