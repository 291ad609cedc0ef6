"""The options really are on real sockets, of both families, at both ends of a connection."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from wiiiiided.backend.net import tuning
from wiiiiided.backend.net.tuning import DATA, LEFT_ALONE, LISTENER, WATCH, SocketOption

FAMILIES = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
Tune = Callable[[socket.socket], None]
TABLES: dict[str, tuple[Tune, tuple[SocketOption, ...]]] = {
    "data": (tuning.tune_data, DATA),
    "watch": (tuning.tune_watch, WATCH),
    "listener": (tuning.tune_listener, LISTENER),
}


@pytest.fixture(params=FAMILIES, ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> socket.AddressFamily:
    found: socket.AddressFamily = request.param
    return found


@pytest.fixture
def connection(family: socket.AddressFamily) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server((FAMILIES[family], 0), family=family) as listener:
        near = socket.create_connection(listener.getsockname()[:2], timeout=10)
        far, _ = listener.accept()
        with closing(near), closing(far):
            yield near, far


def _value(sock: socket.socket, option: SocketOption) -> int:
    return sock.getsockopt(option.level, option.number)


@pytest.mark.parametrize("kind", ["data", "watch"])
def test_every_option_is_set_at_both_ends(
    kind: str, connection: tuple[socket.socket, socket.socket]
) -> None:
    tune, options = TABLES[kind]
    for sock in connection:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
        tune(sock)
        for option in options:
            if option.family in (0, sock.family):
                assert bool(_value(sock, option) & option.value), option.name
                if option.name not in ("TCP_NODELAY", "IPV6_ADDR_PREFERENCES"):
                    assert _value(sock, option) == option.value, option.name
        assert not sock.get_inheritable()


def test_options_can_be_set_before_connecting(family: socket.AddressFamily) -> None:
    with socket.create_server((FAMILIES[family], 0), family=family) as listener:
        for tune, options in (TABLES["data"], TABLES["watch"]):
            with socket.socket(family) as sock:
                tune(sock)
                sock.connect(listener.getsockname()[:2])
                listener.accept()[0].close()
                assert _value(sock, options[1])  # NODELAY is still there


def test_a_listener_is_of_one_family_and_shares_its_port_with_none(
    family: socket.AddressFamily,
) -> None:
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tuning.tune_listener(listener)
        listener.bind((FAMILIES[family], 0))
        listener.listen(tuning.BACKLOG)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0
        if family == socket.AF_INET6:
            assert listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
        assert not listener.get_inheritable()
        with socket.create_connection(listener.getsockname()[:2], timeout=10):
            pass


def _buffers(sock: socket.socket) -> list[int]:
    names = (socket.SO_SNDBUF, socket.SO_RCVBUF)
    return [sock.getsockopt(socket.SOL_SOCKET, name) for name in names]


def test_buffers_are_left_to_the_kernel(family: socket.AddressFamily) -> None:
    with socket.socket(family) as tuned, socket.socket(family) as plain:
        tuning.tune_data(tuned)
        assert _buffers(tuned) == _buffers(plain)


def test_data_lives_as_long_as_the_peers_kernel_answers(
    connection: tuple[socket.socket, socket.socket],
) -> None:
    for sock in connection:
        tuning.tune_data(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0


def test_the_watch_survives_a_cable_out_for_5_s_and_knows_within_10() -> None:
    # The cut may begin just before a probe; the last probe must come after it has ended.
    assert (tuning.KEEP_COUNT - 1) * tuning.KEEP_INTERVAL_S > 5
    assert tuning.SILENT_AFTER_S < 10
    # The kernel looks at the time-out when a probe is due: before the last, and not after it.
    last_ms = 1000 * (tuning.SILENT_AFTER_S - tuning.KEEP_INTERVAL_S)
    assert last_ms < tuning.UNACKNOWLEDGED_MS < 1000 * tuning.SILENT_AFTER_S


def test_a_kernel_without_a_vital_option_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = SocketOption("TCP_NOSUCH", socket.IPPROTO_TCP, 9999, 1, "to see", "never")
    monkeypatch.setattr(tuning, "DATA", (missing,))
    with socket.socket() as sock, pytest.raises(OSError, match="refused TCP_NOSUCH=1") as caught:
        tuning.tune_data(sock)
    assert caught.value.errno == errno.ENOPROTOOPT


def test_a_kernel_without_an_option_that_only_helps_is_no_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    helps = SocketOption("TCP_NOSUCH", socket.IPPROTO_TCP, 9999, 1, "to see", "never", vital=False)
    monkeypatch.setattr(tuning, "DATA", (helps, *DATA))
    with socket.socket() as sock:
        tuning.tune_data(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_every_option_says_why_and_what_chose_it() -> None:
    root = Path(__file__).parents[3]
    for one in (*DATA, *WATCH, *LISTENER, *LEFT_ALONE):
        assert len(one.why) > 5, one.name
        assert one.measured == tuning.BY_DESIGN or one.measured.startswith(tuning.SWEEP), one.name
    assert (root / tuning.SWEEP).exists()
