"""The page of counters: private, or in a file that others may watch."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import pytest

from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.stats import PAGE_BYTES, StatsPage
from wiiiiided.domain.metrics import METRICS
from wiiiiided.errors import HostError


def test_a_new_page_says_its_process_and_counts_nothing() -> None:
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


def test_a_page_of_a_process_that_died_while_writing_is_whole_again(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    path.touch()
    StatsPage(str(path)).words[stats.SAID_GUARD] = 7
    page = StatsPage(str(path))
    page.say(1, None, None, None)
    assert page.words[stats.SAID_GUARD] == 10


def test_metrics_have_places_by_name_and_keep_what_was_said_last() -> None:
    page = StatsPage()
    page.admit(["accuracy", "lr"])
    page.say(1, None, None, None, {"accuracy": 0.5, "lr": 0.1})
    page.say(2, None, None, None, {"lr": 0.05})
    values = [
        struct.unpack("=d", struct.pack("=q", page.words[stats.METRICS_AT + n]))[0] for n in (0, 1)
    ]
    assert values == [0.5, 0.05]
    begin = stats.NAMES_AT * 8
    names = bytes(memoryview(page.words).cast("B")[begin : begin + 2 * stats.NAME_BYTES])
    assert names.split(b"\0")[0] == b"accuracy"
    assert names[stats.NAME_BYTES :].rstrip(b"\0") == b"lr"
    assert page.words[stats.SAID_GUARD] % 2 == 0


def test_a_ninth_metric_or_a_bad_name_is_refused_and_changes_nothing() -> None:
    page = StatsPage()
    page.admit([f"m{n}" for n in range(7)])
    with pytest.raises(ValueError, match=r"at most 8 metrics, these are more: m0, .*, x, y"):
        page.admit(["x", "y"])
    for name in ("", "a b", "1st", "a" * 32, "ä", 'a"'):
        with pytest.raises(ValueError, match="is not a name of a metric: a letter or _"):
            page.admit(["fine", name])
    assert len(page.metrics) == 7
    page.admit(["a" * 31])


def test_metrics_of_a_process_that_had_the_page_before_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    path.touch()
    StatsPage(str(path)).admit(["accuracy"])
    page = StatsPage(str(path))
    assert not any(page.words[stats.METRICS_AT : stats.WORDS])


def test_everything_is_on_the_page() -> None:
    assert stats.WORDS * 8 <= PAGE_BYTES
    assert stats.METRICS == METRICS


def test_what_a_run_measures_stays_when_the_script_begins_to_say_how_far_it_is() -> None:
    page = StatsPage()
    page.tell(noise_scale=1900.0, own_steps=1.0)
    page.leave_to_script()
    figures = page.words[stats.TRAINING_AT : stats.WORDS].tolist()
    assert [bool(word) for word in figures] == [True, *(False,) * 7, True]
    page.tell(noise_scale=0.0)
    assert page.words[stats.TRAINING_AT] == 0
