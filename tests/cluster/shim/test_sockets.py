"""The process at the other end of a connection: the kernel's tables, in every way they print it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiiiiided.cluster.shim import sockets


@contextlib.contextmanager
def connected(host: str, client: socket.socket) -> Iterator[socket.socket]:
    """The accepted end."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with client, socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        mapped = client.family != family
        client.connect((f"::ffff:{host}" if mapped else host, port))
        with server.accept()[0] as accepted:
            yield accepted


@pytest.mark.parametrize("how", ["netlink", "tables"])
@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("127.0.0.1", socket.AF_INET),
        ("127.0.0.1", socket.AF_INET6),  # a socket that can speak both
        ("::1", socket.AF_INET6),
    ],
)
def test_the_other_end_is_found(
    host: str, family: socket.AddressFamily, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "tables":
        monkeypatch.setattr(sockets, "NETLINK_SOCK_DIAG", 31)  # as where there is none
    else:
        monkeypatch.setattr(sockets, "_rows", lambda table: pytest.fail("a table is read"))
    if family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    client = socket.socket(family)
    with connected(host, client) as link:
        end = sockets.other_end(link.getsockname(), link.getpeername())
        assert end == sockets.SocketEnd(os.getuid(), sockets.inode(client))
        assert end != sockets.other_end(client.getsockname(), client.getpeername())


def test_a_connection_of_this_process_is_none_of_its_familys() -> None:
    with connected("127.0.0.1", socket.socket()) as link:
        assert not sockets.is_of_the_family(link)


def test_for_an_address_of_another_machine_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five bytes of an unauthenticated peer made a daemon read all connections of its machine."""
    fail = lambda *_: pytest.fail("it is looked for")  # noqa: E731
    monkeypatch.setattr(sockets, "_rows", fail)
    monkeypatch.setattr(sockets, "_by_netlink", fail)
    for there in (("192.0.2.7", 5), ("::ffff:192.0.2.7", 5, 0, 0), ("2001:db8::7", 5, 0, 0)):
        assert sockets.other_end(("127.0.0.1", 1), there) is None
    assert sockets.is_of_this_machine(("127.0.0.77", 1))
    assert sockets.is_of_this_machine(("::ffff:127.0.0.1", 1, 0, 0))


@pytest.mark.parametrize("how", ["netlink", "tables"])
def test_a_listening_socket_is_not_the_other_end_of_anything(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "tables":
        monkeypatch.setattr(sockets, "NETLINK_SOCK_DIAG", 31)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert sockets.other_end(("127.0.0.1", 9), server.getsockname()) is None


def test_a_kernel_that_finds_nothing_is_not_believed_before_it_has_found_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says the same where the part of it that looks is missing."""
    monkeypatch.setattr(sockets, "_answered", [])
    client = socket.socket()
    with connected("127.0.0.1", client) as link:
        where = link.getsockname(), link.getpeername()
        with monkeypatch.context() as blind:
            blind.setattr(sockets, "_diagnosed", lambda *_: None)
            assert sockets.other_end(*where) == sockets.SocketEnd(
                os.getuid(), sockets.inode(client)
            )
        assert sockets.other_end(*where) is not None
        monkeypatch.setattr(sockets, "_rows", lambda table: pytest.fail("a table is read"))
        assert sockets.other_end(where[0], ("127.0.0.1", 1)) is None


@pytest.mark.parametrize("how", ["netlink", "tables"])
def test_an_end_that_has_been_closed_is_nobodys(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "tables":
        monkeypatch.setattr(sockets, "NETLINK_SOCK_DIAG", 31)
    client = socket.socket()
    with connected("127.0.0.1", client) as link:
        there = link.getpeername()
        client.close()
        assert sockets.other_end(link.getsockname(), there) is None
        assert not sockets.is_of_the_family(link)


def test_a_kernel_without_the_tables_cannot_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with connected("127.0.0.1", socket.socket()) as link:
        where = link.getsockname(), link.getpeername()
        monkeypatch.setattr(sockets, "NETLINK_SOCK_DIAG", 31)
        missing = str(tmp_path / "missing")
        monkeypatch.setattr(sockets, "TABLES", (sockets.TABLES[0], missing))
        assert sockets.other_end(*where) is not None
        assert sockets.other_end(where[0], ("127.0.0.1", 1)) is None
        monkeypatch.setattr(sockets, "TABLES", (missing, missing))
        with pytest.raises(FileNotFoundError):
            sockets.other_end(*where)


def test_what_is_not_acknowledged_counts_between_machines_and_not_within_one() -> None:
    """A rank that is stopped reads nothing, and keeps its connection."""
    level, option = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
    with connected("127.0.0.1", socket.socket()) as link:
        sockets.tune(link)
        assert link.getsockopt(level, option) == 0
        sockets.tune(link, far=True)
        assert 0 < sockets.SILENT_S * 1000 - link.getsockopt(level, option) < 1000
    given = dict(sockets.KEEPALIVE)
    probes_s = given[socket.TCP_KEEPINTVL] * given[socket.TCP_KEEPCNT]
    assert given[socket.TCP_KEEPIDLE] + probes_s == sockets.SILENT_S
