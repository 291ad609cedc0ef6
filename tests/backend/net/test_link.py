"""The link of two processes on different hosts, over the pretended network."""

from __future__ import annotations

import errno
import random
import select
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import lz4.block  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from tests.kit.frames import FrameCutter
from wiiiiided.backend.codec import chooser
from wiiiiided.backend.codec.encoder import Encoder
from wiiiiided.backend.codec.interface import BadPayload, PieceInfo
from wiiiiided.backend.net import link as link_module
from wiiiiided.backend.net.frames import Frames
from wiiiiided.backend.net.link import MAX_FAULT, WideLink, is_silence
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
from wiiiiided.errors import BadFrame, HostError

SEEDS = st.integers(0, 2**32)
QUICK = LineQuality(delay_s=0.001, bytes_per_s=1e9, window_bytes=1 << 20)
CODECS = ("none", "lz4")


@dataclass(frozen=True)
class PeerCard:
    uid: str
    pid: int
    host: str


class FrameReceiver:
    """The receiver of the frames: it keeps them, and the memory it granted for each."""

    def __init__(self) -> None:
        self.got: list[tuple[Header, bytes]] = []
        self.memory: dict[tuple[int, int], bytearray] = {}  # by group and number
        self.closed: set[int] = set()  # groups without a place, for now
        self.over: set[int] = set()  # groups that are no more: to nowhere with it

    def place(self, link: WideLink, header: Header) -> memoryview | None:
        if header.group in self.closed:
            return None
        memory = bytearray(header.raw)
        if header.group not in self.over:
            self.memory[header.group, header.sequence] = memory
        return memoryview(memory)

    def arrived(self, link: WideLink, header: Header, payload: memoryview) -> None:
        self.got.append((header, bytes(payload)))


class Side:
    """One end of a link, moved as the loop would move it."""

    def __init__(
        self, data: FakeStream, watch: FakeStream, codec: str = "none", summed: bool = True
    ) -> None:
        self.receiver = FrameReceiver()
        peer = PeerCard("b" * 16, 4711, "elsewhere")
        self.link = WideLink(data, watch, peer, self.receiver, Encoder(codec), summed)
        self.streams = (data, watch)
        self.ended: set[Frames] = set()

    def move(self) -> bool:
        moved = False
        for frames, stream in zip((self.link.data, self.link.watch), self.streams, strict=True):
            events = stream.events()
            if frames.wants_to_write and events & select.EPOLLOUT:
                frames.flush()
                moved = True
            if events & select.EPOLLIN and frames.paused is None and frames not in self.ended:
                if frames.receive():
                    self.ended.add(frames)
                moved = True
        return moved

    def take_in(self, data: bytes) -> None:
        """These bytes have come."""
        self.streams[0].inbox += data
        while self.streams[0].inbox:
            self.link.data.receive()

    def resume(self) -> None:
        self.link.data.resume()
        self.link.data.receive()

    @property
    def payloads(self) -> list[tuple[int, bytes]]:
        return [(header.group, payload) for header, payload in self.receiver.got]


def linked(
    seed: int, codec: str = "none", line: LineQuality | None = None, summed: bool = True
) -> tuple[FakeNetwork, Side, Side]:
    network = FakeNetwork(seed)
    data, watch = network.pair("a", "b", line), network.pair("a", "b", line)
    sides = [Side(data[n], watch[n], codec, summed) for n in range(2)]
    return network, sides[0], sides[1]


def run_until_idle(network: FakeNetwork, *sides: Side) -> None:
    while sum(side.move() for side in sides) or network.step():
        pass


def piece(
    link: WideLink, group: int, number: int, data: bytes | bytearray, told: list[int] | None = None
) -> None:
    """Send a piece; when the kernel has it, its number goes to `told`."""

    def then() -> None:
        if told is not None:
            told.append(number)

    header = Header(FrameKind.PIECE, group=group, generation=1, sequence=number, piece=number)
    link.send_data(header, memoryview(data), PieceInfo(itemsize=1), then)


@pytest.fixture
def crumbs_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser, "LEAST_PIECE", 1)


def contents(chance: random.Random, size: int) -> bytes:
    """Noise, or what lz4 makes small."""
    return chance.randbytes(size) if chance.random() < 0.5 else bytes(size)


# -- there and back ----


@settings(deadline=None, max_examples=examples(20))
@given(
    seed=SEEDS,
    codec=st.sampled_from(CODECS),
    mail=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([0, 1, 63, 4095, 4096, 5000])), max_size=6
    ),
)
def test_pieces_of_several_groups_come_as_they_were_sent_with_and_without_codec(
    seed: int, codec: str, mail: Sequence[tuple[int, int]]
) -> None:
    network, a, b = linked(seed, codec)
    chance = random.Random(seed)
    sent = {side: [(g, contents(chance, n)) for g, n in mail] for side in (a, b)}
    told: dict[Side, list[int]] = {a: [], b: []}
    for number in range(len(mail)):
        for side in (a, b):
            group, data = sent[side][number]
            if chance.random() < 0.2:
                side.link.send(Header(FrameKind.ENTER_BARRIER, group=group, sequence=1000 + number))
            piece(side.link, group, number, data, told[side])
    run_until_idle(network, a, b)
    for source, target in ((a, b), (b, a)):
        pieces = [(h, p) for h, p in target.receiver.got if h.kind == FrameKind.PIECE]
        assert [(h.group, p) for h, p in pieces] == sent[source]
        assert all(target.receiver.memory[h.group, h.sequence] == p for h, p in pieces)
        assert told[source] == list(range(len(mail)))
        assert source.link.data.sent_bytes == target.link.data.received_bytes
        assert not source.link.wants_to_write


def test_a_frame_says_its_sender_and_its_kind() -> None:
    network, a, b = linked(0, line=QUICK)
    whose = {"group": 7, "generation": 3, "source": 2, "sequence": 11}
    a.link.send(Header(FrameKind.OPEN, **whose, extra=-5, piece=6, dtype=4), b"payload")
    header = Header(FrameKind.PIECE, **whose, extra=9, piece=1, lane=5)
    a.link.send_data(header, memoryview(b"xyz"), PieceInfo(dtype=2, itemsize=1))
    run_until_idle(network, a, b)
    (said, _), (data, _) = b.receiver.got
    assert (said.kind, said.group, said.generation, said.source) == (FrameKind.OPEN, 7, 3, 2)
    assert (said.sequence, said.extra, said.piece, said.dtype) == (11, -5, 6, 4)
    assert (said.length, said.raw, said.codec, said.flags) == (7, 7, 0, SUMMED)
    assert (data.kind, data.extra, data.piece, data.lane, data.dtype) == (
        FrameKind.PIECE,
        9,
        1,
        5,
        2,
    )


def test_what_shrinks_travels_small_and_what_does_not_travels_as_it_is() -> None:
    network, a, b = linked(1, "lz4", QUICK)
    zeros, noise = bytes(100_000), random.Random(0).randbytes(50_000)
    piece(a.link, 1, 0, zeros)
    piece(a.link, 1, 1, noise)
    run_until_idle(network, a, b)
    (first, one), (second, two) = b.receiver.got
    assert (one, two) == (zeros, noise)
    assert first.codec == 1
    assert first.raw == 100_000
    assert first.length < 1000
    assert (second.codec, second.length) == (0, 50_000)


def test_the_counters_say_what_travelled() -> None:
    network, a, b = linked(2, "lz4", QUICK)
    piece(a.link, 1, 0, bytes(10_000))
    piece(a.link, 1, 1, bytes(100))  # too small to be encoded
    run_until_idle(network, a, b)
    coded = b.receiver.got[0][0].length
    assert a.link.data.sent_bytes == b.link.data.received_bytes == 2 * HEADER_BYTES + coded + 100
    assert a.link.watch.sent_bytes == b.link.data.sent_bytes == 0


def test_without_checksums_no_frame_has_a_sum() -> None:
    network, a, b = linked(3, line=QUICK, summed=False)
    a.link.send(Header(FrameKind.OPEN, group=1), b"x")
    piece(a.link, 1, 0, b"abc")
    run_until_idle(network, a, b)
    assert [(header.flags, header.sum) for header, _ in b.receiver.got] == [(0, 0)] * 2


# -- the watch connection ----


def test_a_fault_overtakes_data_that_is_not_read() -> None:
    network, a, b = linked(4, line=LineQuality(window_bytes=1000))
    b.receiver.closed = {1}
    for number in range(10):
        piece(a.link, 1, number, bytes(1000))
    run_until_idle(network, a, b)
    assert b.link.data.paused is not None
    a.link.send(Header(FrameKind.FAULT, group=1), b"rank 3 died")
    run_until_idle(network, a, b)
    assert [(h.kind, payload) for h, payload in b.receiver.got] == [
        (FrameKind.FAULT, b"rank 3 died")
    ]
    assert b.link.watch.received_bytes == HEADER_BYTES + 11


@pytest.mark.parametrize(
    "kind", [FrameKind.OPEN, FrameKind.PIECE, FrameKind.BYE, FrameKind.LEAVE, FrameKind.EAGER]
)
def test_nothing_but_faults_may_come_over_the_watch_connection(kind: FrameKind) -> None:
    network, a, b = linked(5, line=QUICK)
    a.link.watch.put(pack(Header(kind, group=1)), None)
    with pytest.raises(BadFrame, match="carries faults only"):
        run_until_idle(network, a, b)
    assert b.receiver.got == []


@pytest.mark.parametrize(("length", "codec"), [(MAX_FAULT + 1, 0), (MAX_PAYLOAD, 0), (10, 1)])
def test_a_fault_is_small_and_plain(length: int, codec: int) -> None:
    network, a, b = linked(6, line=QUICK)
    a.link.watch.put(pack(Header(FrameKind.FAULT, codec, group=1, length=length, raw=length)), None)
    with pytest.raises(BadFrame, match="faults only"):
        run_until_idle(network, a, b)


@settings(deadline=None, max_examples=examples(15))
@given(seed=SEEDS)
def test_faults_and_data_do_not_mix_up_each_other(seed: int) -> None:
    network, a, b = linked(seed)
    for number in range(10):
        piece(a.link, 1, number, bytes([number]) * 500)
        a.link.send(Header(FrameKind.FAULT, group=1, sequence=number), b"%d" % number)
    run_until_idle(network, a, b)
    for kind in (FrameKind.PIECE, FrameKind.FAULT):
        assert [h.sequence for h, _ in b.receiver.got if h.kind == kind] == list(range(10))
    assert a.link.watch.sent_bytes == 10 * (HEADER_BYTES + 1)


# -- no place yet ----


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("seed", range(5))
def test_a_piece_without_a_place_waits_on_the_wire_and_comes_later(seed: int, codec: str) -> None:
    network, a, b = linked(seed, codec)
    b.receiver.closed = {2}
    sent = [(1, bytes(5000)), (2, b"y" * 6000), (1, b"z" * 7000)]
    for number, (group, data) in enumerate(sent):
        piece(a.link, group, number, data)
    run_until_idle(network, a, b)
    assert b.payloads == sent[:1]
    assert (2, 1) not in b.receiver.memory
    b.resume()  # a place for another
    run_until_idle(network, a, b)
    assert b.payloads == sent[:1]
    b.receiver.closed.clear()
    b.resume()
    run_until_idle(network, a, b)
    assert b.payloads == sent


# -- a group that is over ----

# Repeated enough that lz4 makes them small: 200 bytes become some fifteen.
PIECES = [(1, b"a" * 200), (2, b"b" * 150), (1, b"c" * 90), (2, b"d" * 120), (1, b"e" * 60)]


def on_the_wire(codec: str) -> bytes:
    """The bytes of PIECES, as a link sends them."""
    network, a, b = linked(0, codec, QUICK)
    for number, (group, data) in enumerate(PIECES):
        piece(a.link, group, number, data)
    a.link.data.flush()
    network.deliver(until=1.0)
    wire = bytes(b.streams[0].inbox)
    assert (len(wire) < 5 * HEADER_BYTES + 100) == (codec == "lz4")
    return wire


def receivers(codec: str) -> Iterator[tuple[int, Side, bytes]]:
    """A side that has received the first bytes of PIECES and the rest, for every number of them."""
    wire = on_the_wire(codec)
    for taken in range(len(wire) + 1):
        side = linked(0, codec, QUICK)[2]
        side.take_in(wire[:taken])
        yield taken, side, wire[taken:]


@pytest.mark.usefixtures("crumbs_are_encoded")
@pytest.mark.parametrize("codec", CODECS)
def test_wherever_a_group_ends_its_memory_is_left_alone_and_the_others_go_on(codec: str) -> None:
    for taken, side, rest in receivers(codec):
        done = len(side.receiver.got)
        side.link.divert(1)
        side.receiver.over.add(1)
        before = {key: bytes(memory) for key, memory in side.receiver.memory.items() if key[0] == 1}
        side.take_in(rest)
        for key, memory in before.items():
            assert side.receiver.memory[key] == memory, f"written after byte {taken}"
        assert [p for p in side.payloads if p[0] == 2] == [p for p in PIECES if p[0] == 2]
        assert side.payloads[:done] == PIECES[:done]
        assert len(side.payloads) == len(PIECES)  # the stream is in step
        for number, (group, data) in enumerate(PIECES):
            assert group == 1 or side.receiver.memory[group, number] == data


@pytest.mark.usefixtures("crumbs_are_encoded")
@pytest.mark.parametrize("codec", CODECS)
def test_the_end_of_one_group_is_nothing_to_another(codec: str) -> None:
    for _, side, rest in receivers(codec):
        side.link.divert(3)
        side.take_in(rest)
        assert side.payloads == PIECES
        assert all(side.receiver.memory[g, n] == data for n, (g, data) in enumerate(PIECES))


def chunks(codec: str) -> bytes:
    """Two messages of one group in turns, and a piece of a collective between them."""
    network, a, b = linked(0, codec, QUICK)
    for kind, source, number in MESSAGES:
        data = memoryview(bytes([number]) * 100)
        header = Header(kind, group=1, generation=1, source=source, sequence=number)
        a.link.send_data(header, data, PieceInfo())
    a.link.data.flush()
    network.deliver(until=1.0)
    return bytes(b.streams[0].inbox)


MESSAGES = [
    (FrameKind.CHUNK, 3, 8),
    (FrameKind.CHUNK, 3, 9),
    (FrameKind.PIECE, 3, 10),
    (FrameKind.CHUNK, 4, 11),
]


@pytest.mark.usefixtures("crumbs_are_encoded")
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind_of_frame", MESSAGES, ids=str)
def test_a_receive_that_gives_up_lets_go_of_its_own_message_alone(
    codec: str, kind_of_frame: tuple[FrameKind, int, int]
) -> None:
    """A piece of a collective, or another message, may be half here at that moment."""
    wire = chunks(codec)
    kind, source, number = kind_of_frame
    for taken in range(len(wire) + 1):
        side = linked(0, codec, QUICK)[2]
        side.take_in(wire[:taken])
        half = side.link.data.receiving
        side.link.let_go_of_message(1, source, number)
        before = {n: bytes(memory) for (_, n), memory in side.receiver.memory.items()}
        side.take_in(wire[taken:])
        assert [header.sequence for header, _ in side.receiver.got] == [8, 9, 10, 11]
        lost = half is not None and half.sequence == number and kind is FrameKind.CHUNK
        for n in (8, 9, 10, 11):
            if n == number and lost:
                assert side.receiver.memory[1, n] == before[n]
            else:
                assert side.receiver.memory[1, n] == bytes([n]) * 100


@pytest.mark.usefixtures("crumbs_are_encoded")
@pytest.mark.parametrize("codec", CODECS)
def test_wherever_a_group_ends_the_peer_gets_whole_frames_and_nothing_of_its_memory(
    codec: str,
) -> None:
    total = len(on_the_wire(codec))
    for taken in range(total + 1):
        network, a, b = linked(0, codec, LineQuality(window_bytes=max(taken, 1)))
        memory, told = [bytearray(data) for _, data in PIECES], list[int]()
        for number, (group, _) in enumerate(PIECES):
            piece(a.link, group, number, memory[number], told)
        if taken:
            a.link.data.flush()
        before = list(told)
        a.link.divert(1)
        for (group, _), data in zip(PIECES, memory, strict=True):
            if group == 1:
                data[:] = bytes(len(data))  # the program's again
        a.streams[0].out.link.line = QUICK  # the rest goes at once
        run_until_idle(network, a, b)
        assert [p for p in b.payloads if p[0] == 2] == [p for p in PIECES if p[0] == 2]
        ones = [p for p in b.payloads if p[0] == 1]
        assert ones == [p for p in PIECES if p[0] == 1][: len(ones)]
        assert [n for n in told if PIECES[n][0] == 1] == [n for n in before if PIECES[n][0] == 1]
        assert [n for n in told if PIECES[n][0] == 2] == [1, 3]


# -- what is wrong ----


@settings(deadline=None, max_examples=examples(40))
@given(seed=SEEDS, codec=st.sampled_from(CODECS), data=st.data())
def test_a_changed_byte_is_named_and_its_piece_never_said_to_be_there(
    seed: int, codec: str, data: st.DataObject
) -> None:
    network, a, b = linked(seed, codec)
    sent = [(1, bytes(5000)), (2, b"noise?" * 1000), (1, random.Random(seed).randbytes(4500))]
    for number, (group, content) in enumerate(sent):
        piece(a.link, group, number, content)
    sizes = [header.length for header, _ in FrameCutter().feed(_queued(a.link))]
    ends = [sum(sizes[: n + 1]) + (n + 1) * HEADER_BYTES for n in range(3)]
    at = data.draw(st.integers(0, ends[-1] - 1))
    a.streams[0].corrupt(at)
    with pytest.raises(BadFrame) as caught:
        run_until_idle(network, a, b)
    hit = next(n for n, end in enumerate(ends) if at < end)
    assert b.payloads == sent[:hit]
    if at >= ends[hit] - sizes[hit]:
        assert f"{sizes[hit]} bytes of a frame of PIECE were damaged" in str(caught.value)


def _queued(link: WideLink) -> bytes:
    """What a link has to send, without sending it."""
    return b"".join(bytes(out.view) for out in link.data._out)


def coded_frame(coded: bytes, raw: int, codec: int = 1) -> tuple[bytes, memoryview]:
    header = Header(FrameKind.PIECE, codec, SUMMED, 0, 1, 1, length=len(coded), raw=raw)
    header.sum = payload_sum(coded)
    return pack(header), memoryview(coded)


@pytest.mark.parametrize("raw", [1, 4999, 5001, MAX_PAYLOAD])
def test_a_payload_that_decodes_to_another_size_is_refused(raw: int) -> None:
    coded = lz4.block.compress(bytes(5000), store_size=False)
    network, a, b = linked(7, line=QUICK)
    a.link.data.put(*coded_frame(coded, raw))
    with pytest.raises(BadPayload, match=f"{raw}"):
        run_until_idle(network, a, b)
    assert b.receiver.got == []


@given(coded=st.binary(min_size=1, max_size=200), raw=st.integers(1, 10_000))
def test_noise_with_a_good_sum_is_refused_by_its_codec_or_fills_its_place(
    coded: bytes, raw: int
) -> None:
    network, a, b = linked(8, line=QUICK)
    a.link.data.put(*coded_frame(coded, raw))
    try:
        run_until_idle(network, a, b)
    except HostError:
        assert b.receiver.got == []
    else:
        assert len(b.payloads[0][1]) == raw


def test_a_codec_that_is_not_known_here_is_named() -> None:
    network, a, b = linked(9, line=QUICK)
    a.link.data.put(*coded_frame(b"x", 1, codec=77))
    with pytest.raises(BadPayload, match="codec 77"):
        run_until_idle(network, a, b)


def test_a_piece_that_is_refused_has_no_memory() -> None:
    """The receiver refuses frames before anything is kept for them, encoded or not."""

    class Refusing(FrameReceiver):
        def place(self, link: WideLink, header: Header) -> memoryview | None:
            raise BadFrame(f"{header.raw} bytes are not expected")

    for codec in (0, 1):
        network, a, b = linked(10, line=QUICK)
        receiver = Refusing()
        b.link = WideLink(*b.streams, b.link.peer, receiver, Encoder("none"))
        a.link.data.put(
            pack(Header(FrameKind.PIECE, codec, length=MAX_PAYLOAD, raw=MAX_PAYLOAD)), None
        )
        with pytest.raises(BadFrame, match="not expected"):
            run_until_idle(network, a, b)
        assert len(b.link._decoding._coded) == 0


def test_a_piece_over_the_limit_is_refused_where_it_is_made() -> None:
    _, a, _ = linked(11, line=QUICK)
    with pytest.raises(BadFrame, match="limit"):
        piece(a.link, 1, 0, bytes(MAX_PAYLOAD + 1))
    assert not a.link.wants_to_write


# -- the end ----


def test_a_link_that_is_gone_takes_nothing_and_calls_no_one_back() -> None:
    _, a, _ = linked(12, line=QUICK)
    a.link.gone = "died"
    told: list[int] = []
    piece(a.link, 1, 0, b"abc", told)
    a.link.send(Header(FrameKind.OPEN, group=1), b"x")
    a.link.send(Header(FrameKind.FAULT, group=1), b"x")
    assert len(a.link.data) == len(a.link.watch) == 0
    assert told == []


def test_closing_ends_both_connections_and_once_more_does_no_harm() -> None:
    network, a, b = linked(13, line=QUICK)
    piece(a.link, 1, 0, b"last words")
    a.link.data.flush()
    a.link.close()
    a.link.close()
    while network.step():
        pass
    run_until_idle(network, b)
    assert b.payloads == [(1, b"last words")]
    assert b.ended == {b.link.data, b.link.watch}


def test_a_link_has_sent_all_when_the_peer_has_the_data_and_the_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A peer that sees us end must have found on the watch connection why."""
    network, a, b = linked(15, line=QUICK)
    streams = {stream.fileno(): stream for stream in a.streams}

    def in_flight(fd: int) -> int:
        return sum(len(part) for _, part in streams[fd].out.flight)

    monkeypatch.setattr(link_module, "outstanding", in_flight)
    assert a.link.unacknowledged() == 0
    for kind in (FrameKind.OPEN, FrameKind.FAULT):
        a.link.send(Header(kind, group=1), b"rank 3 died")
        assert a.link.unacknowledged() > 0
        run_until_idle(network, b)
        assert a.link.unacknowledged() == 0
    piece(a.link, 1, 1, bytes(1000))
    b.link.close()
    while network.step():
        pass
    assert a.link.unacknowledged() == 0  # it is not read any more


def test_silence_is_told_from_other_ends() -> None:
    silent = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
    assert all(is_silence(OSError(number, "")) for number in silent)
    ends = (errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED)
    assert not any(is_silence(OSError(number, "")) for number in ends)


def test_a_silent_host_ends_the_watch_and_a_short_silence_nothing() -> None:
    network = FakeNetwork(14)
    data, watch = (
        network.pair("a", "b", QUICK),
        network.pair("a", "b", LineQuality(keepalive_s=8.0)),
    )
    side = Side(data[0], watch[0])
    network.cut("a", "b")
    network.deliver(until=5.0)
    network.heal("a", "b")
    network.deliver(until=30.0)
    assert not side.move()
    network.silence("b")
    network.deliver(until=40.0)
    with pytest.raises(TimeoutError) as caught:
        side.move()
    assert is_silence(caught.value)
