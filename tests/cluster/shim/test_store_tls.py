"""The Store's pipe in TLS: whatever the sockets do, and whatever is between the two."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiiiiided.cluster.shim import protocol, store_tls
from wiiiiided.cluster.shim.store_tls import StoreTls, TlsLink, Unproved, connector
from wiiiiided.cluster.trust.signing_request import self_signed

KEY, OTHER = bytes(range(32)), bytes(32)


def store(folder: Path, key: bytes = KEY) -> StoreTls:
    (folder / protocol.PEM).write_text(self_signed())
    directory = os.open(folder, os.O_RDONLY)
    try:
        return StoreTls(directory, key)
    finally:
        os.close(directory)


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        for end in (one, other):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # it is full soon
        yield one, other


def move(*links: TlsLink) -> None:
    """Until both have proved themselves."""
    waiting = list(links)
    while waiting:
        for link in list(waiting):
            with contextlib.suppress(BlockingIOError):
                link.prove()
                waiting.remove(link)


def carried(source: TlsLink, sink: TlsLink, data: bytes) -> bytes:
    """As passages and the Store move bytes: what is not taken is offered again."""
    out, got = bytearray(data), b""
    while len(got) < len(data):
        with contextlib.suppress(BlockingIOError):
            while out:
                del out[: source.send(out)]
        with contextlib.suppress(BlockingIOError):
            while piece := sink.recv(5000):
                got += piece
    assert not sink.pending
    return got


def test_bytes_arrive_whole_both_ways_through_small_buffers(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(300_000)
    with pair() as (here, there):
        ours, theirs = connector(here, KEY), store(tmp_path).wrap(there)
        move(ours, theirs)
        assert carried(ours, theirs, data) == data
        assert carried(theirs, ours, data) == data
        ours.shutdown(socket.SHUT_WR)
        assert theirs.recv(10) == b""


def test_nothing_of_it_can_be_read_on_the_way(tmp_path: Path) -> None:
    with pair() as (here, near), pair() as (far, there):
        ours, theirs = connector(here, KEY), store(tmp_path).wrap(there)
        heard = bytearray()
        waiting = [ours, theirs]
        while waiting:
            for link in list(waiting):
                with contextlib.suppress(BlockingIOError):
                    link.prove()
                    waiting.remove(link)
            heard += relayed(near, far)
        ours.send(b"the group's key lies in the Store")
        heard += relayed(near, far)
        assert theirs.recv(100) == b"the group's key lies in the Store"
        assert b"group" not in heard
        assert theirs._hmac(b"C") not in heard


def relayed(one: socket.socket, other: socket.socket) -> bytes:
    """What a man in the middle passes on, and sees."""
    seen = b""
    for source, sink in ((one, other), (other, one)):
        with contextlib.suppress(BlockingIOError):
            data = source.recv(1 << 16)
            sink.sendall(data)
            seen += data
    return seen


@pytest.mark.parametrize("who", ["connector", "store"])
def test_a_side_without_the_attempts_key_is_refused(tmp_path: Path, who: str) -> None:
    with pair() as (here, there):
        ours = connector(here, OTHER if who == "connector" else KEY)
        theirs = store(tmp_path, KEY if who == "connector" else OTHER).wrap(there)
        with pytest.raises(Unproved, match="something is between"):
            move(ours, theirs)


def test_a_man_in_the_middle_with_a_certificate_of_his_own_is_noticed_by_both(
    tmp_path: Path,
) -> None:
    """He has TLS with each of them, and passes on what they say inside."""
    (tmp_path / "his").mkdir()
    with pair() as (here, his_near), pair() as (his_far, there):
        ours, theirs = connector(here, KEY), store(tmp_path).wrap(there)
        near, far = store(tmp_path / "his", OTHER).wrap(his_near), connector(his_far, OTHER)
        for _ in range(20):  # TLS, on either side of him
            for link in (ours, near, theirs, far):
                with contextlib.suppress(BlockingIOError, Unproved):
                    link.prove() if link in (ours, theirs) else link._shake()
        proof = near._tls.read(32)
        far._tls.write(proof)
        far._flush()
        with pytest.raises(Unproved, match="something is between"):
            theirs.prove()
        near._tls.write(proof)  # nor does the connector believe its own words
        near._flush()
        with pytest.raises(Unproved, match="something is between"):
            ours.prove()


@pytest.mark.parametrize("first", [b"\0\xce\xf7\x85\x3c", b"\x16\x03\x01\xff\xff" + bytes(100)])
def test_a_client_that_does_not_encrypt_is_not_served(tmp_path: Path, first: bytes) -> None:
    with pair() as (here, there):
        here.sendall(first + bytes(65536 * (first[:1] != b"\0"))[:2000])
        link = store(tmp_path).wrap(there)
        here.shutdown(socket.SHUT_WR)
        with pytest.raises(Unproved, match="does every machine run the same wiiiiided"):
            link.recv(10)


@pytest.mark.parametrize("text", [None, "", "no certificate", "-----BEGIN CERTIFICATE-----"])
def test_a_certificate_that_is_none_is_a_sentence(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / protocol.PEM).write_text(text)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(protocol.UnreadableFile, match="the certificate for the Store"):
            store_tls.StoreTls(directory, KEY)
    finally:
        os.close(directory)
