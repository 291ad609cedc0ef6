"""Frames on one stream: whatever the network does to the bytes, whichever side gives up.

Three streams stand in for TCP: the pretended network (delay, small windows, partial sends), a wire
that takes as many bytes as it is told, and a feed that gives them out in given portions. The last
two let a test try every byte at which something can happen.
"""

from __future__ import annotations

import random
import select
import ssl
import struct
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from tests.kit.frames import FrameCutter
from wiiiiided.backend.net import frames as frames_module
from wiiiiided.backend.net.frames import Frames, Then
from wiiiiided.backend.net.stream import Buffer
from wiiiiided.backend.net.virtual_network import FakeNetwork, FakeStream, LineQuality
from wiiiiided.backend.wire.header import (
    HEADER_BYTES,
    MAX_PAYLOAD,
    SUMMED,
    Header,
    pack,
    payload_sum,
)
from wiiiiided.backend.wire.local_frame import FrameKind
from wiiiiided.errors import BadFrame

SEEDS = st.integers(0, 2**32)
SIZES = st.one_of(st.integers(0, 200), st.sampled_from([4031, 4032, 4033, 4097, 5000]))
# What is sent: the group and the bytes of each frame.
MAIL = st.lists(st.tuples(st.integers(1, 3), SIZES), max_size=8)

Sent = list[tuple[int, bytes]]  # group and payload, in order


class Inbox:
    """A sink that keeps what came, and grants memory only to groups that are open."""

    def __init__(self) -> None:
        self.got: list[tuple[Header, bytes]] = []
        self.closed: set[int] = set()  # no place for these, for now
        self.memory: dict[int, bytearray] = {}  # what was granted, by the frame's number
        self.refused = 0

    def place(self, header: Header) -> memoryview | None:
        if header.group in self.closed:
            self.refused += 1
            return None
        self.memory[header.sequence] = bytearray(header.length)
        return memoryview(self.memory[header.sequence])

    def arrived(self, header: Header, payload: memoryview) -> None:
        self.got.append((header, bytes(payload)))

    @property
    def mail(self) -> Sent:
        return [(header.group, payload) for header, payload in self.got]


class End:
    """One end on the pretended network, moved as epoll would move it."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream, self.inbox, self.ended = stream, Inbox(), False
        self.frames = Frames(stream, self.inbox)

    def move(self) -> bool:
        """Do what the stream is ready for; whether there was anything."""
        events, moved = self.stream.events(), False
        if self.frames.wants_to_write and events & select.EPOLLOUT:
            self.frames.flush()
            moved = True
        if events & select.EPOLLIN and self.frames.paused is None and not self.ended:
            self.ended = self.frames.receive()
            moved = True
        return moved

    def resume(self) -> None:
        """A place was posted: try again with what was read already."""
        self.frames.resume()
        self.frames.receive()


class Wire:
    """A stream that takes the bytes it is allowed to, and keeps them."""

    def __init__(self) -> None:
        self.taken = bytearray()
        self.allowed = 0

    def send(self, buffers: Sequence[Buffer]) -> int:
        part = b"".join(buffers)[: self.allowed]
        self.allowed -= len(part)
        self.taken += part
        return len(part)

    def receive(self, buffers: Sequence[Buffer]) -> int:
        return -1

    def fileno(self) -> int:
        return -1

    def wants_write(self) -> bool:
        return False

    def pending(self) -> bool:
        return False

    def close(self) -> None:
        pass


class Feed(Wire):
    """A stream that gives out bytes in portions of these sizes, over and over."""

    def __init__(self, data: bytes, portions: Sequence[int]) -> None:
        super().__init__()
        self.data, self._portions, self._turn = data, portions, 0

    def receive(self, buffers: Sequence[Buffer]) -> int:
        if not self.data:
            return -1
        count = self._portions[self._turn % len(self._portions)]
        self._turn += 1
        left = part = self.data[: min(count, sum(len(buffer) for buffer in buffers))]
        self.data = self.data[len(part) :]
        for buffer in buffers:
            memoryview(buffer)[: len(left)] = left[: len(buffer)]
            left = left[len(buffer) :]
        return len(part)


def header_of(group: int, number: int, payload: Buffer, kind: FrameKind = FrameKind.PIECE) -> bytes:
    size = len(payload)
    header = Header(kind, 0, SUMMED, 0, group, 1, sequence=number, length=size, raw=size)
    header.sum = payload_sum(payload)
    return pack(header)


def put(frames: Frames, group: int, number: int, payload: Buffer, then: Then | None = None) -> None:
    """A frame out of a caller's array."""
    frames.put(header_of(group, number, payload), memoryview(payload), group, then, borrowed=True)


def letters(mail: Sequence[tuple[int, int]], seed: int = 0) -> Sent:
    """Groups and sizes become groups and bytes."""
    chance = random.Random(seed)
    return [(group, chance.randbytes(size)) for group, size in mail]


def as_bytes(mail: Sent) -> bytes:
    return b"".join(header_of(g, n, payload) + payload for n, (g, payload) in enumerate(mail))


def run_until_idle(network: FakeNetwork, *ends: End) -> None:
    """Step until nothing is in flight and neither side can go on."""
    while sum(end.move() for end in ends) or network.step():
        pass


def connected(seed: int, line: LineQuality | None = None) -> tuple[FakeNetwork, End, End]:
    network = FakeNetwork(seed)
    a, b = network.pair("a", "b", line)
    return network, End(a), End(b)


# -- there and back ----


@settings(deadline=None, max_examples=examples(20))
@given(seed=SEEDS, there=MAIL, back=MAIL)
def test_frames_arrive_whole_and_in_order_over_any_line_both_ways(
    seed: int, there: Sequence[tuple[int, int]], back: Sequence[tuple[int, int]]
) -> None:
    network, a, b = connected(seed)
    sent: list[str] = []
    for end, mail, name in ((a, letters(there, 1), "a"), (b, letters(back, 2), "b")):
        for number, (group, payload) in enumerate(mail):
            put(end.frames, group, number, payload, partial(sent.append, f"{name}{number}"))
    run_until_idle(network, a, b)
    assert b.inbox.mail == letters(there, 1)
    assert a.inbox.mail == letters(back, 2)
    assert [what for what in sent if what[0] == "a"] == [f"a{n}" for n in range(len(there))]
    assert len(sent) == len(there) + len(back)
    assert a.frames.sent_bytes == b.frames.received_bytes == len(as_bytes(letters(there, 1)))
    assert b.frames.sent_bytes == a.frames.received_bytes == len(as_bytes(letters(back, 2)))
    assert len(a.frames) == len(b.frames) == 0
    assert not a.frames.wants_to_write


@settings(deadline=None, max_examples=examples(30))
@given(mail=MAIL, allowed=st.lists(st.integers(50, 9000), min_size=1, max_size=8))
def test_a_callback_that_a_frame_is_out_may_send_the_next(
    mail: Sequence[tuple[int, int]], allowed: list[int]
) -> None:
    sent, told = letters(mail), []
    wire = Wire()
    frames = Frames(wire, Inbox())

    def out(number: int) -> None:
        told.append(number)
        put(frames, 1, len(sent) + number, b"answer")
        frames.flush()

    for number, (group, payload) in enumerate(sent):
        put(frames, group, number, payload, partial(out, number))
    turn = 0
    while frames.wants_to_write:
        wire.allowed = allowed[turn % len(allowed)]
        turn += 1
        frames.flush()
    feed, inbox = Feed(bytes(wire.taken), [4096]), Inbox()
    back = Frames(feed, inbox)
    while feed.data:
        back.receive()
    numbers = [header.sequence for header, _ in inbox.got]
    assert [number for number in numbers if number < len(sent)] == list(range(len(sent)))
    assert sorted(numbers) == list(range(2 * len(sent)))
    assert told == list(range(len(sent)))


@settings(deadline=None)
@given(mail=MAIL, portions=st.lists(st.integers(1, 5000), min_size=1, max_size=8))
def test_any_split_of_the_bytes_gives_the_same_frames(
    mail: Sequence[tuple[int, int]], portions: list[int]
) -> None:
    sent = letters(mail)
    feed, inbox = Feed(as_bytes(sent), portions), Inbox()
    frames = Frames(feed, inbox)
    while feed.data:
        frames.receive()
    assert inbox.mail == sent


def test_bytes_that_come_one_by_one_are_frames_too() -> None:
    sent = letters([(1, 100), (2, 0), (1, 1), (3, 63), (2, 65)])
    feed, inbox = Feed(as_bytes(sent), [1]), Inbox()
    frames = Frames(feed, inbox)
    while feed.data:
        frames.receive()
    assert inbox.mail == sent


@settings(deadline=None)
@given(
    mail=MAIL,
    portions=st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    turn=st.integers(1, 3000),
)
def test_a_turn_that_is_up_leaves_no_frame_lying(
    mail: Sequence[tuple[int, int]], portions: list[int], turn: int
) -> None:
    """What is read and not handled would wait for bytes that may never come: epoll knows only
    what the kernel has."""
    sent = letters(mail)
    feed, inbox = Feed(as_bytes(sent), portions), Inbox()
    frames = Frames(feed, inbox)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "TURN_BYTES", turn)
        while feed.data:
            frames.receive()
    assert inbox.mail == sent


def test_a_turn_ends_although_there_is_more() -> None:
    """Else one busy stream would keep all others from theirs."""
    feed = Feed(as_bytes([(1, bytes(1000))] * 20), [10**6])
    frames = Frames(feed, Inbox())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "TURN_BYTES", 5000)
        assert not frames.receive()
    assert 5000 <= frames.received_bytes < 5000 + frames_module.SCRATCH_BYTES
    assert len(feed.data) == 20 * 1064 - frames.received_bytes


def test_the_rest_of_a_payload_goes_from_the_stream_into_its_place() -> None:
    """Only what came along with its header is copied; the rest is never anywhere else."""
    asked: list[int] = []

    class Watched(Feed):
        def receive(self, buffers: Sequence[Buffer]) -> int:
            asked.append(len(buffers[0]))
            return super().receive(buffers)

    frames = Frames(Watched(as_bytes([(1, bytes(100_000))]), [10**6]), Inbox())
    frames.receive()
    first = frames_module.SCRATCH_BYTES
    assert asked[:2] == [first, 100_000 - (first - HEADER_BYTES)]


def test_one_send_takes_many_frames_and_not_too_much() -> None:
    calls: list[list[int]] = []

    class Watched(Wire):
        def send(self, buffers: Sequence[Buffer]) -> int:
            calls.append([len(buffer) for buffer in buffers])
            return super().send(buffers)

    wire = Watched()
    frames = Frames(wire, Inbox())
    for number in range(100):
        put(frames, 1, number, b"x" * 10)
    put(frames, 1, 100, bytes(frames_module.GATHERED_BYTES))
    put(frames, 1, 101, b"behind")
    wire.allowed = 1 << 30
    frames.flush()
    assert max(map(len, calls)) == frames_module.GATHERED
    assert len(calls) == 202 // frames_module.GATHERED + 2  # the large one ends its call
    assert len(FrameCutter().feed(wire.taken)) == 102


def test_a_stream_that_must_write_before_it_can_read_is_asked_to() -> None:
    class Handshaking(Wire):
        owed = 2

        def send(self, buffers: Sequence[Buffer]) -> int:
            self.owed -= 1
            return super().send(buffers)

        def wants_write(self) -> bool:
            return self.owed > 0

    wire = Handshaking()
    frames = Frames(wire, Inbox())
    assert frames.wants_to_write
    frames.flush()
    assert wire.owed == 1
    frames.flush()
    assert not frames.wants_to_write


# -- no place yet ----


@settings(deadline=None, max_examples=examples(20))
@given(seed=SEEDS, mail=MAIL, back=MAIL)
def test_a_frame_without_a_place_stops_its_direction_and_later_all_is_as_it_was_sent(
    seed: int, mail: Sequence[tuple[int, int]], back: Sequence[tuple[int, int]]
) -> None:
    network, a, b = connected(seed)
    b.inbox.closed = {2, 3}
    sent, answers = letters(mail, 1), letters(back, 2)
    for number, (group, payload) in enumerate(sent):
        put(a.frames, group, number, payload)
    for number, (group, payload) in enumerate(answers):
        put(b.frames, group, number, payload)
    run_until_idle(network, a, b)
    stops = next((n for n, (group, _) in enumerate(sent) if group != 1), len(sent))
    assert b.inbox.mail == sent[:stops]
    assert (b.frames.paused is not None) == (stops < len(sent))
    assert a.inbox.mail == answers  # the other direction goes on
    b.resume()  # a place for another group was posted: not for this one
    run_until_idle(network, a, b)
    assert b.inbox.mail == sent[:stops]
    for group in (2, 3):
        b.inbox.closed.discard(group)
        b.resume()
        run_until_idle(network, a, b)
    assert b.inbox.mail == sent
    assert b.frames.paused is None


def test_a_paused_stream_holds_its_sender_back_and_keeps_only_scratch() -> None:
    network, a, b = connected(0, LineQuality(window_bytes=10_000))
    b.inbox.closed = {1}
    for number in range(40):
        put(a.frames, 1, number, bytes(1000))
    run_until_idle(network, a, b)
    assert b.frames.paused is not None
    assert b.frames.paused.sequence == 0
    assert b.frames.received_bytes <= frames_module.SCRATCH_BYTES
    assert a.frames.sent_bytes <= 10_000 + frames_module.SCRATCH_BYTES
    assert len(a.frames) == 40 * 1064 - a.frames.sent_bytes
    assert b.inbox.memory == {}
    b.inbox.closed.clear()
    b.resume()
    run_until_idle(network, a, b)
    assert len(b.inbox.got) == 40


# -- a group that is over ----

# A frame without payload between others, one that is the whole rest, and several groups.
MIXED: Sent = [(1, b"abc"), (2, b""), (1, b""), (2, b"four"), (1, b"fives"), (3, b"x" * 70)]
TOTAL = len(as_bytes(MIXED))


def queued(mail: Sent, taken: int) -> tuple[Wire, Frames, list[bytearray], Counter[int]]:
    """Frames of which so many bytes are sent; the memory they are sent from; callbacks called."""
    wire = Wire()
    frames, told = Frames(wire, Inbox()), Counter[int]()
    memory = [bytearray(payload) for _, payload in mail]
    for number, (group, _) in enumerate(mail):
        put(frames, group, number, memory[number], partial(told.update, [number]))
    wire.allowed = taken
    frames.flush()
    return wire, frames, memory, told


def sent_by(mail: Sent, taken: int) -> int:
    """How many frames lie wholly in the first bytes."""
    ends, at = 0, 0
    for _, payload in mail:
        at += HEADER_BYTES + len(payload)
        ends += at <= taken
    return ends


@pytest.mark.parametrize("group", [1, 2, 3])
def test_a_group_that_is_over_is_sent_out_of_no_more_wherever_that_comes(group: int) -> None:
    for taken in range(TOTAL + 1):
        wire, frames, memory, told = queued(MIXED, taken)
        before = dict(told)
        frames.divert(group)
        for (theirs, _), at in zip(MIXED, memory, strict=True):
            if theirs == group:
                at[:] = b"!" * len(at)  # it is the program's again
        wire.allowed = TOTAL
        frames.flush()
        got = FrameCutter().feed(wire.taken)  # checks every sum
        assert len(as_bytes([(h.group, p) for h, p in got])) == len(wire.taken), taken
        assert [p for h, p in got if h.group != group] == [p for g, p in MIXED if g != group]
        arrived = [payload for header, payload in got if header.group == group]
        assert arrived == [payload for g, payload in MIXED if g == group][: len(arrived)]
        for number, (owner, _) in enumerate(MIXED):  # a group that is over gets no callback
            assert told[number] == (owner != group or before.get(number, 0))


def test_what_a_group_still_has_to_say_is_sent_although_it_is_over() -> None:
    """A good-bye that waits behind other groups' data must not be dropped with its group's; nor
    the last word of an operation that is done here and not yet elsewhere."""
    wire = Wire()
    frames = Frames(wire, Inbox())
    put(frames, 2, 0, bytes(1000))
    put(frames, 1, 1, b"an array of the group that ends")
    frames.put(header_of(1, 2, b"small", FrameKind.OPEN), memoryview(b"small"), 1)
    frames.put(header_of(1, 3, b"", FrameKind.LEAVE), None, 1)
    frames.divert(1)
    wire.allowed = 10_000
    frames.flush()
    got = [(header.kind, header.group) for header, _ in FrameCutter().feed(wire.taken)]
    assert got == [(FrameKind.PIECE, 2), (FrameKind.OPEN, 1), (FrameKind.LEAVE, 1)]


@pytest.mark.parametrize("group", [1, 2, 3])
def test_detached_frames_leave_as_they_were_wherever_that_comes(group: int) -> None:
    for taken in range(TOTAL + 1):
        wire, frames, memory, told = queued(MIXED, taken)
        frames.detach(group)
        for (theirs, _), at in zip(MIXED, memory, strict=True):
            if theirs == group:
                at[:] = b"!" * len(at)
        wire.allowed = TOTAL
        frames.flush()
        assert wire.taken == as_bytes(MIXED)
        assert told == Counter(range(len(MIXED)))


@pytest.mark.parametrize("group", [1, 2, 3])
def test_nothing_more_is_written_into_the_memory_of_a_group_that_is_over(group: int) -> None:
    data = as_bytes(MIXED)
    for taken in range(TOTAL + 1):
        feed, inbox = Feed(data[:taken], [taken or 1]), Inbox()
        frames = Frames(feed, inbox)
        frames.receive()
        frames.divert(group)
        theirs = {n: bytes(m) for n, m in inbox.memory.items() if MIXED[n][0] == group}
        feed.data = data[taken:]
        while feed.data:
            frames.receive()
        assert inbox.mail == MIXED, taken  # whole, and the stream in step
        for number, before in theirs.items():
            assert inbox.memory[number] == before, taken
        for number, (owner, payload) in enumerate(MIXED):
            assert owner == group or inbox.memory[number] == payload


def test_the_frame_whose_payload_is_half_here_is_known_and_can_be_let_go() -> None:
    data = as_bytes([(7, b"abcd")])
    for taken in range(len(data) + 1):
        feed, inbox = Feed(data[:taken], [1000]), Inbox()
        frames = Frames(feed, inbox)
        frames.receive()
        half = HEADER_BYTES <= taken < len(data)
        assert (frames.receiving is not None) == half
        frames.let_go()
        before = bytes(inbox.memory.get(0, b""))
        feed.data = data[taken:]
        while feed.data:
            frames.receive()
        assert inbox.mail == [(7, b"abcd")]
        assert not half or inbox.memory[0] == before


# -- what is no frame ----


@settings(deadline=None, max_examples=examples(75))
@given(seed=SEEDS, data=st.data())
def test_one_changed_byte_is_named_and_nothing_of_its_frame_arrives(
    seed: int, data: st.DataObject
) -> None:
    mail = letters([(1, 30), (2, 5000), (1, 0), (3, 300)], seed)
    at = data.draw(st.integers(0, len(as_bytes(mail)) - 1))
    network, a, b = connected(seed)
    a.stream.corrupt(at)
    for number, (group, payload) in enumerate(mail):
        put(a.frames, group, number, payload)
    with pytest.raises(BadFrame) as caught:
        run_until_idle(network, a, b)
    before = sent_by(mail, at)
    assert b.inbox.mail == mail[:before]
    begin = len(as_bytes(mail[:before]))
    if at - begin >= HEADER_BYTES:
        size = len(mail[before][1])
        assert f"{size} bytes of a frame of PIECE were damaged" in str(caught.value)
    elif at - begin >= 3:  # magic and version have sentences of their own
        assert "header was damaged" in str(caught.value)


@given(st.binary(min_size=HEADER_BYTES, max_size=300))
def test_noise_is_no_frame(noise: bytes) -> None:
    inbox = Inbox()
    with pytest.raises(BadFrame):
        Frames(Feed(noise, [300]), inbox).receive()
    assert inbox.memory == {}


def test_a_stream_that_ends_between_frames_has_ended_and_one_that_ends_inside_is_broken() -> None:
    """A process that is killed while it sends is dead: that is no damaged frame."""
    mail = letters([(1, 20), (2, 0), (1, 5)])
    data = as_bytes(mail)
    borders = {len(as_bytes(mail[:n])) for n in range(len(mail) + 1)}
    for taken in range(len(data) + 1):
        network, a, b = connected(taken)
        if taken:
            rest = data[:taken]
            while rest:
                rest = rest[a.stream.send([rest]) :]
                b.move()
                network.step()
        a.stream.close()
        if taken in borders:
            run_until_idle(network, b)
            assert b.ended
        else:
            with pytest.raises(ConnectionError, match="middle of a frame"):
                run_until_idle(network, b)
        assert b.inbox.mail == mail[: sent_by(mail, taken)]


def test_a_header_that_claims_too_much_is_refused_before_anything_is_allocated() -> None:
    checked = struct.pack(
        "<HBBBBHQIIQqiIIII", 0x4957, 1, FrameKind.PIECE, 0, 0, 0, 1, 1, 0, 0, 0, 0,
        MAX_PAYLOAD + 1, MAX_PAYLOAD + 1, 0, 0,
    )  # fmt: skip
    inbox = Inbox()
    with pytest.raises(BadFrame, match=f"the limit is {MAX_PAYLOAD} bytes"):
        Frames(Feed(checked + struct.pack("<I", zlib.crc32(checked)), [64]), inbox).receive()
    assert inbox.memory == {}


def test_the_largest_frame_takes_no_more_memory_than_its_sink_grants() -> None:
    granted = memoryview(bytearray(MAX_PAYLOAD))

    class Granting(Inbox):
        def place(self, header: Header) -> memoryview | None:
            return granted[: header.length]

        def arrived(self, header: Header, payload: memoryview) -> None:
            self.refused += 1

    data = as_bytes([(1, bytes(MAX_PAYLOAD))])

    class Chunky(Feed):
        def receive(self, buffers: Sequence[Buffer]) -> int:
            return take(buffers)

    source, at = memoryview(data), 0

    def take(buffers: Sequence[Buffer]) -> int:
        nonlocal at
        if at == len(source):
            return -1
        count = min(len(buffers[0]), len(source) - at, 65536)
        memoryview(buffers[0])[:count] = source[at : at + count]
        at += count
        return count

    inbox = Granting()
    frames = Frames(Chunky(b"", [1]), inbox)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        while at < len(source):
            frames.receive()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert inbox.refused == 1
    assert peak < 32 * 1024


def test_a_broken_stream_says_so_to_reads_and_writes() -> None:
    _, a, b = connected(0)
    put(a.frames, 1, 0, b"x")
    a.stream.reset()
    with pytest.raises(ConnectionResetError):
        a.frames.flush()
    with pytest.raises(ConnectionResetError):
        b.frames.receive()


class Tampered:
    """A stream whose TLS has found that what came is not what was sent."""

    def receive(self, buffers: Sequence[Buffer]) -> int:
        raise ssl.SSLError(1, "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC] bad mac")

    def pending(self) -> bool:
        return False


def test_bytes_that_tls_refuses_are_a_broken_frame_and_not_a_death() -> None:
    frames = Frames(Tampered(), Inbox())  # type: ignore[arg-type]
    with pytest.raises(BadFrame, match="TLS refuses the bytes"):
        frames.receive()
