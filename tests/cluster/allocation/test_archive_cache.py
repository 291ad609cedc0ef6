"""Archives by their digest: whole and true, or not there."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from pathlib import Path

import pytest

from tests.cluster.connections import pair, run
from wiiiiided.cluster.allocation.archive_cache import SEND_BYTES, Archives
from wiiiiided.domain import disk_room
from wiiiiided.errors import UsageError

DATA = b"bytes of an archive" * 1000
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def archives(tmp_path: Path) -> Archives:
    return Archives(tmp_path / "archives")


def receive(archives: Archives, data: bytes, digest: str = DIGEST, limit: int = 1 << 20) -> None:
    with archives.receive(digest, limit) as upload:
        for start in range(0, len(data), 1000):
            upload.take(data[start : start + 1000])
        upload.finish()


def test_a_received_archive_can_be_opened(archives: Archives) -> None:
    assert not archives.has(DIGEST)
    receive(archives, DATA)
    assert archives.has(DIGEST)
    fd = archives.open(DIGEST)
    assert os.read(fd, 1 << 20) == DATA
    os.close(fd)


def test_another_content_than_announced_leaves_nothing(archives: Archives) -> None:
    with pytest.raises(UsageError, match="not the one that was announced"):
        receive(archives, DATA + b"x")
    assert list(archives.directory.iterdir()) == []


def test_too_much_is_refused_while_it_arrives(archives: Archives) -> None:
    with pytest.raises(UsageError, match="larger than the limit"):
        receive(archives, DATA, limit=5000)
    assert list(archives.directory.iterdir()) == []


def test_no_archive_takes_the_room_that_the_state_needs(
    archives: Archives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_room, "ROOM_BYTES", 1 << 60)
    monkeypatch.setattr(disk_room, "ROOM_SHARE", 2.0)
    with pytest.raises(OSError, match="would be left on the disk") as caught:
        receive(archives, DATA)
    assert caught.value.errno == errno.ENOSPC
    assert list(archives.directory.iterdir()) == []


@pytest.mark.parametrize("digest", ["../../etc/passwd", "", "A" * 64, "0" * 63])
def test_a_name_that_is_no_digest_is_refused(archives: Archives, digest: str) -> None:
    with pytest.raises(UsageError, match="not the SHA-256"):
        archives.has(digest)


def test_what_a_crash_left_is_removed_at_the_next_start(archives: Archives) -> None:
    receive(archives, DATA)
    (archives.directory / ".half").write_bytes(b"half")
    again = Archives(archives.directory)
    assert [path.name for path in again.directory.iterdir()] == [DIGEST]


def test_pruning_keeps_what_is_named(archives: Archives) -> None:
    receive(archives, DATA)
    other = hashlib.sha256(b"other").hexdigest()
    receive(archives, b"other", other)
    assert archives.prune({other}) == 1
    assert archives.has(other)
    assert not archives.has(DIGEST)


def test_pruning_spares_what_is_about_to_be_used(archives: Archives) -> None:
    receive(archives, DATA)
    with archives.pinned(DIGEST):
        assert archives.prune(()) == 0
    assert archives.prune(()) == 1


def test_pruning_can_spare_what_has_just_come(archives: Archives) -> None:
    receive(archives, DATA)
    assert archives.prune((), young_s=60.0) == 0
    then = time.time() - 61.0
    os.utime(archives.path(DIGEST), (then, then))
    assert archives.prune((), young_s=60.0) == 1


def test_an_archive_is_sent_whole_in_pieces(archives: Archives) -> None:
    data = os.urandom(3 * SEND_BYTES + 17)
    digest = hashlib.sha256(data).hexdigest()
    receive(archives, data, digest)

    async def scene() -> list[bytes]:
        here, there = await pair()
        sending = asyncio.ensure_future(archives.send(digest, there))
        pieces = [piece async for piece in here.blob(30)]
        await sending
        return pieces

    pieces = run(scene())
    assert b"".join(pieces) == data
    assert len(pieces) == 4


def test_an_archive_that_is_not_here_is_not_sent(archives: Archives) -> None:
    async def scene() -> None:
        _, there = await pair()
        with pytest.raises(FileNotFoundError):
            await archives.send("0" * 64, there)

    run(scene())
