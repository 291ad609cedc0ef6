"""Segments: shared by the processes that map them, sealed, checked against what was announced."""

from __future__ import annotations

import mmap
import os

import pytest

from wiiiiided.backend.shm.segment import PAGE, Segment, page_up
from wiiiiided.errors import HostError


def test_two_maps_of_a_segment_are_the_same_memory() -> None:
    ours = Segment.create("test", 3 * PAGE)
    theirs = Segment.attach(os.dup(ours.fd), 3 * PAGE)
    ours.map[5000:5004] = b"here"
    assert theirs.map[5000:5004] == b"here"
    assert theirs.map[:16] == bytes(16), "new memory is zero"


def test_a_segment_cannot_be_shrunk_grown_or_unsealed() -> None:
    segment = Segment.create("test", 2 * PAGE)
    for nbytes in (0, PAGE, 3 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.fd, nbytes)
    assert os.fstat(segment.fd).st_size == 2 * PAGE


def test_a_size_other_than_announced_is_refused_and_the_descriptor_closed() -> None:
    segment = Segment.create("test", 2 * PAGE)
    for announced in (PAGE, 4 * PAGE):
        fd = os.dup(segment.fd)
        with pytest.raises(HostError, match=rf"announced.*{announced} bytes and sent {2 * PAGE}"):
            Segment.attach(fd, announced)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_the_map_outlives_its_descriptor() -> None:
    segment = Segment.create("test", PAGE)
    fd = segment.fd
    segment.forget_fd()
    segment.forget_fd()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    segment.map[:2] = b"ok"
    assert segment.map[:2] == b"ok"


def test_a_dropped_segment_closes_its_descriptor() -> None:
    segment = Segment.create("test", PAGE)
    fd = segment.fd
    del segment
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_reserved_pages_are_allocated() -> None:
    segment = Segment.create("test", 8 * PAGE)
    assert os.fstat(segment.fd).st_blocks == 0
    segment.reserve(2 * PAGE, 3 * PAGE)
    assert os.fstat(segment.fd).st_blocks * 512 == 3 * PAGE


def test_memory_that_is_not_there_is_refused_in_words() -> None:
    with pytest.raises(HostError, match="MiB of shared memory"):
        Segment.create("test", 2**62)
    segment = Segment.create("test", PAGE)
    with pytest.raises(HostError, match="MiB of shared memory"):
        segment.reserve(0, 2 * PAGE)  # beyond the seal


def test_a_label_shows_in_the_maps_and_may_be_long() -> None:
    segment = Segment.create("a-name-to-find" + "x" * 500, PAGE)
    with open("/proc/self/maps") as file:
        assert "wiiiiide-a-name-to-find" in file.read()
    assert len(segment.map) == PAGE


def test_page_up_is_the_next_multiple() -> None:
    assert [page_up(n) for n in (0, 1, PAGE, PAGE + 1)] == [0, PAGE, PAGE, 2 * PAGE]
    assert PAGE == mmap.PAGESIZE
