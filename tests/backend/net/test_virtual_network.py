"""The pretended network: what it promises to the tests that are written with it."""

from __future__ import annotations

import errno
import select

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wiiiiided.backend.net.stream import FdPoller, Stream
from wiiiiided.backend.net.virtual_network import FakeNetwork, FakePoller, FakeStream, LineQuality

SEEDS = st.integers(0, 2**32)
QUICK = LineQuality(delay_s=0.01, bytes_per_s=1e9)


def received(stream: Stream) -> bytes:
    """All that lies in the inbox."""
    got, room = bytearray(), bytearray(100_000)
    while (count := stream.receive([room])) > 0:
        got += room[:count]
    return bytes(got)


def say(stream: Stream, data: bytes) -> None:
    """Send all of it: there is room."""
    while data:
        data = data[stream.send([data]) :]


def pump(network: FakeNetwork, a: FakeStream, b: FakeStream, data: bytes) -> bytes:
    """Send all of `data` from a to b, whatever it takes."""
    watch, got, at = FakePoller(network), bytearray(), 0

    def send(events: int) -> None:
        nonlocal at
        if events & select.EPOLLOUT:
            at += a.send([data[at : at + 10], data[at + 10 :]])
            watch.writes(a.fileno(), at < len(data))

    watch.add(a.fileno(), send)
    watch.writes(a.fileno(), True)
    watch.add(b.fileno(), lambda _: got.extend(received(b)))
    while len(got) < len(data):
        assert watch.poll(timeout_s=1e6)
    return bytes(got)


@given(seed=SEEDS, data=st.binary(min_size=1, max_size=5000))
def test_bytes_arrive_in_order_over_any_line(seed: int, data: bytes) -> None:
    network = FakeNetwork(seed)
    a, b = network.pair("a", "b")
    assert pump(network, a, b, data) == data
    assert pump(network, b, a, data[::-1]) == data[::-1]


def story(seed: int) -> list[tuple[float, str, int]]:
    """Everything that happens in a small run, with its time."""
    network = FakeNetwork(seed)
    watch, told = FakePoller(network), []
    for name in ("b", "c", "d"):
        a, other = network.pair("a", name)
        say(a, b"x" * 50)

        def on(_: int, other: FakeStream = other, name: str = name) -> None:
            told.append((network.now, name, other.receive([bytearray(20)])))

        watch.add(other.fileno(), on)
    while watch.poll(1000.0):
        pass
    return told


@given(seed=SEEDS)
def test_the_same_seed_tells_the_same_story(seed: int) -> None:
    assert story(seed) == story(seed)


def test_connections_overtake_each_other_and_sizes_vary() -> None:
    stories = [story(seed) for seed in range(60)]
    assert len({tuple(dict.fromkeys(name for _, name, _ in told)) for told in stories}) == 6
    assert len({count for told in stories for _, _, count in told}) > 10


def test_bytes_take_delay_and_rate_to_arrive() -> None:
    network = FakeNetwork(0)
    a, b = network.pair("a", "b", LineQuality(delay_s=1.0, bytes_per_s=100.0, window_bytes=1000))
    say(a, b"x" * 100)
    network.deliver(until=1.0)
    before = len(received(b))
    network.deliver(until=1.999)
    assert before + len(received(b)) < 100
    network.deliver(until=2.0)
    assert network.now == 2.0
    assert not network.step()


def test_a_full_window_takes_nothing_until_the_other_side_reads() -> None:
    network = FakeNetwork(0)
    a, b = network.pair("a", "b", LineQuality(window_bytes=10))
    say(a, b"x" * 10)
    assert a.send([b"y"]) == 0
    network.deliver(until=1.0)
    assert a.send([b"y"]) == 0
    assert not a.events() & select.EPOLLOUT
    assert received(b) == b"x" * 10
    assert a.send([b"y"]) == 1


def test_a_stream_keeps_to_the_interface() -> None:
    network = FakeNetwork(0)
    a, b = network.pair("a", "b")
    stream: Stream = a
    watch: FdPoller = FakePoller(network)
    watch.remove(stream.fileno())
    assert a.fileno() < 0
    assert a.fileno() != b.fileno()
    assert not stream.wants_write()
    assert not stream.pending()
    assert stream.receive([bytearray(1)]) == -1
    assert stream.send([b""]) == 0
    with pytest.raises(ValueError, match="no room"):
        stream.receive([bytearray(0)])
    stream.close()
    stream.close()
    with pytest.raises(OSError, match="Bad file"):
        stream.send([b"x"])


def test_what_is_cut_off_waits_and_comes_when_it_heals() -> None:
    network = FakeNetwork(0)
    a, b = network.pair("a", "b", QUICK)
    c, d = network.pair("a", "c", QUICK)
    say(a, b"in flight")
    network.cut("b", "a")
    say(a, b" and later")
    say(c, b"elsewhere")
    network.deliver(until=100.0)
    assert received(b) == b""
    assert received(d) == b"elsewhere"
    network.heal("a", "b")
    assert not network.step(until=100.0 + QUICK.delay_s / 2)
    network.deliver(until=101.0)
    assert received(b) == b"in flight and later"


def test_a_silent_host_is_cut_off_from_all_and_can_wake() -> None:
    network = FakeNetwork(0)
    network.silence("a")
    a, b = network.pair("a", "b", QUICK)  # also what is made meanwhile
    c, d = network.pair("c", "b", QUICK)
    say(a, b"anyone?")
    say(c, b"here")
    network.deliver(until=5.0)
    assert received(b) == b""
    assert received(d) == b"here"
    network.wake("a")
    network.deliver(until=6.0)
    assert received(b) == b"anyone?"


def test_keepalive_gives_a_silent_host_up_and_a_short_silence_not() -> None:
    network = FakeNetwork(0)
    data, _ = network.pair("a", "b", QUICK)
    watch, other = network.pair("a", "b", LineQuality(keepalive_s=8.0))
    network.silence("b")
    network.deliver(until=7.0)
    network.wake("b")
    network.deliver(until=20.0)
    assert watch.receive([bytearray(1)]) == -1
    network.silence("b")
    network.deliver(until=27.9)
    assert watch.receive([bytearray(1)]) == -1
    network.deliver(until=28.1)
    for end in (watch, other):
        with pytest.raises(TimeoutError) as caught:
            end.receive([bytearray(1)])
        assert caught.value.errno == errno.ETIMEDOUT
    assert data.receive([bytearray(1)]) == -1  # without keepalive neither side gives up


def test_the_end_of_a_process_comes_behind_its_last_words() -> None:
    network = FakeNetwork(0)
    a, b = network.pair("a", "b")
    c, d = network.pair("b", "c")
    say(a, b"last words")
    network.end("a")
    network.deliver(until=100.0)
    assert received(b) == b"last words"
    assert [b.receive([bytearray(1)]) for _ in range(2)] == [0, 0]
    assert d.receive([bytearray(1)]) == c.receive([bytearray(1)]) == -1


def test_a_send_to_a_closed_stream_is_reset() -> None:
    network = FakeNetwork(0)
    a, b = network.pair("a", "b", QUICK)
    b.close()
    say(a, b"hello?")
    network.deliver(until=1.0)
    with pytest.raises(ConnectionResetError):
        a.send([b"hello?"])


def test_a_reset_loses_what_is_in_flight_and_not_what_has_arrived() -> None:
    network = FakeNetwork(0)
    a, b = network.pair("a", "b", QUICK)
    c, d = network.pair("b", "c", QUICK)
    say(a, b"arrived")
    network.deliver(until=1.0)
    say(a, b"lost")
    network.reset("a")
    network.deliver(until=2.0)
    assert bytes(b.inbox) == b"arrived"
    while b.inbox:
        assert b.receive([bytearray(100)]) > 0
    with pytest.raises(ConnectionResetError):
        b.receive([bytearray(100)])
    with pytest.raises(ConnectionResetError):
        a.send([b"x"])
    say(c, b"unharmed")
    network.deliver(until=3.0)
    assert received(d) == b"unharmed"


@given(seed=SEEDS, at=st.integers(0, 99))
def test_one_byte_is_changed_and_no_other(seed: int, at: int) -> None:
    network = FakeNetwork(seed)
    a, b = network.pair("a", "b")
    network.corrupt("a", "b", at)
    data = bytes(range(100))
    got = pump(network, a, b, data)
    assert [n for n in range(100) if got[n] != data[n]] == [at]
    assert pump(network, b, a, data) == data  # the other direction is not meant
    with pytest.raises(ValueError, match="has arrived"):
        network.corrupt("a", "b", at)


def test_a_watch_calls_only_what_is_registered_and_wanted() -> None:
    network = FakeNetwork(0)
    a, b = network.pair("a", "b", QUICK)
    watch = FakePoller(network)
    calls: list[int] = []
    watch.add(a.fileno(), calls.append)
    assert not watch.poll(0.5)
    assert network.now == 0.5
    watch.writes(a.fileno(), True)
    assert watch.poll()
    assert calls == [select.EPOLLOUT]
    watch.writes(a.fileno(), False)
    say(b, b"x")
    assert not watch.poll(QUICK.delay_s / 2)
    assert watch.poll(1.0)
    assert network.now < 0.6  # it does not sleep on when there is something
    assert calls[1:] == [select.EPOLLIN]
    assert watch.poll()  # level-triggered: it is still there
    watch.interest(a.fileno(), reads=False, writes=False)
    assert not watch.poll(1.0)
    watch.interest(a.fileno(), reads=True, writes=False)
    watch.remove(a.fileno())
    assert not watch.poll(1.0)
    assert len(calls) == 3


@pytest.mark.parametrize("seed", range(10))
def test_a_handler_may_remove_another_that_was_ready(seed: int) -> None:
    network = FakeNetwork(seed)
    watch = FakePoller(network)
    calls: list[int] = []
    ends = network.pair("a", "b", QUICK)

    def on(events: int) -> None:
        calls.append(events)
        for end in ends:
            watch.remove(end.fileno())

    for end in ends:
        say(end, b"x")
        watch.add(end.fileno(), on)
    network.deliver(until=1.0)
    assert watch.poll()
    assert len(calls) == 1
