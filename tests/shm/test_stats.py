"""The page of counters: private, or in a file that others may watch."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import pytest

from wiiiiided.errors import HostError
from wiiiiided.shm import stats
from wiiiiided.shm.stats import PAGE_BYTES, StatsPage


def test_a_new_page_says_who_and_counts_nothing() -> None:
    page = StatsPage()
    assert page.words[0] == stats.MAGIC
    assert page.words[1] == stats.VERSION
    assert page.words[2] == os.getpid()
    read = page.read()
    assert read.rank == -1
    assert (read.operations, read.failed, read.sent, read.received, read.bytes_shm) == (0,) * 5
    assert (read.exchange_s, read.waiting_s) == (0.0, 0.0)


def test_the_counters_are_read_from_their_words() -> None:
    page = StatsPage()
    for word in range(4, 13):
        page.words[word] = word * 10**9
    read = page.read()
    billion = 10**9
    assert (read.rank, read.world_size) == (4 * billion, 5 * billion)
    assert (read.operations, read.bytes_shm) == (6 * billion, 7 * billion)
    assert (read.exchange_s, read.waiting_s) == (8.0, 9.0)
    assert (read.failed, read.sent, read.received) == (10 * billion, 11 * billion, 12 * billion)


def test_a_file_shows_the_counters_live(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    path.touch()
    page = StatsPage(str(path))
    with open(path, "rb") as file:
        watched = mmap.mmap(file.fileno(), PAGE_BYTES, prot=mmap.PROT_READ)
    words = memoryview(watched).cast("q")
    assert words[0] == stats.MAGIC
    page.words[stats.OPERATIONS] += 3
    assert words[stats.OPERATIONS] == 3


def test_a_file_that_cannot_be_mapped_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(HostError, match=rf"WIIIIIDE_STATS='{path}'"):
            StatsPage(str(path))


def test_what_the_script_says_is_whole_when_the_guard_is_even() -> None:
    page = StatsPage()
    page.say(7, 100, 0.25, 32)
    page.say(8, None, None, 32)
    words = page.words
    assert words[stats.SAID_GUARD] == 4
    assert (words[stats.STEP], words[stats.TOTAL], words[stats.SAMPLES]) == (9, 101, 64)
    assert struct.unpack("=d", struct.pack("=q", words[stats.LOSS]))[0] == 0.25
    assert words[stats.GIVEN] == stats.GAVE_SAMPLES | stats.GAVE_LOSS


def test_the_codec_and_its_reason_stay_inside_their_place() -> None:
    page = StatsPage()
    page.words[stats.PEERS_AT] = 77
    page.use_codec("lz4", "für " * 200)
    begin = stats.CODEC_TEXT * 8
    text = bytes(memoryview(page.words).cast("B")[begin : begin + stats.CODEC_BYTES])
    assert text.startswith("lz4\nfür ".encode())
    assert text.endswith(b"\0")
    assert page.words[stats.PEERS_AT] == 77
    page.use_codec("none", "short")
    text = bytes(memoryview(page.words).cast("B")[begin : begin + stats.CODEC_BYTES])
    assert text.rstrip(b"\0") == b"none\nshort"
    assert page.words[stats.CODEC_GUARD] == 4


def test_a_page_taken_over_from_one_who_died_in_the_middle_is_whole_again(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    path.touch()
    StatsPage(str(path)).words[stats.SAID_GUARD] = 7
    page = StatsPage(str(path))
    page.say(1, None, None, None)
    assert page.words[stats.SAID_GUARD] == 10
