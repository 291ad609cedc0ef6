"""Stats pages: what a rank counts is read, what a hostile one writes harms no other."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path

import pytest

from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.stats import StatsPage
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.monitoring import stats_pages as module
from wiiiiided.cluster.monitoring.host_stats import Usage
from wiiiiided.cluster.monitoring.stats_pages import Reading, StatsPageReader
from wiiiiided.domain.metrics import RankSample, TrainingMetrics


class Attempt:
    """One attempt's directory, a page in it, and a reader with a clock of its own."""

    def __init__(self, root: Path) -> None:
        self.job_dirs = JobDirs(root, JobAccount.this())
        self.job_dirs.make(1, 1)
        self.now = 100.0
        self.pages = StatsPageReader(self.job_dirs, lambda: self.now, lambda: self.now + 1e9)

    def path(self, rank: int = 0) -> Path:
        return self.job_dirs.attempt(1, 1) / f"stats-{rank}"

    def make(self, rank: int = 0) -> StatsPage:
        self.path(rank).touch()
        page = StatsPage(str(self.path(rank)))
        page.words[3] = int((self.now + 1e9 - 5.0) * 1e9)  # born five seconds ago
        return page

    def read(self, *ranks: int) -> list[Reading]:
        self.now += 1.0
        return self.pages.read(1, 1, ranks or (0,))

    def sample(self) -> RankSample | None:
        (reading,) = self.read()
        return reading.sample


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path / "jobs")


def test_what_a_rank_counts_is_what_is_read(attempt: Attempt) -> None:
    page = attempt.make()
    w = page.words
    w[stats.OPERATIONS], w[stats.FAILED], w[stats.BYTES] = 7, 1, 4096
    w[stats.WIRE_OUT], w[stats.WIRE_IN] = 100, 200
    w[stats.WIRE_OUT_RAW], w[stats.WIRE_IN_RAW] = 150, 300
    w[stats.EXCHANGE_NS], w[stats.WAITING_NS] = 3_000_000_000, 1_500_000_000
    w[stats.ENCODE_NS], w[stats.DECODE_NS] = 250_000_000, 125_000_000
    w[stats.PEERS_AT + 3] = 1_500_000_000
    w[stats.WORLD] = 4
    page.say(4, 100, 0.25, 32)
    w[stats.SAID_NS] = 100_500_000_000
    page.use_codec("lz4", "it halves what travels")
    assert attempt.sample() == RankSample(
        *(0, 101.0, os.getpid(), 7, 1, 4096, 100, 200, 150, 300, 3.0, 1.5, 0.25, 0.125),
        waited_for={3: 1.5},
        codec="lz4",
        codec_why="it halves what travels",
        step=4,
        total=100,
        samples=32,
        loss=0.25,
        said_at=100.5,
    )


def test_without_a_group_of_ours_its_counters_say_nothing(attempt: Attempt) -> None:
    page = attempt.make()
    page.say(1, None, None, None)
    found = attempt.sample()
    assert found is not None
    assert not found.measured
    page.words[stats.WORLD] = 1
    found = attempt.sample()
    assert found is not None
    assert found.measured


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_said_to_be_none(attempt: Attempt, loss: float) -> None:
    page = attempt.make()
    page.say(1, None, loss, None)
    found = attempt.sample()
    assert found is not None
    assert (found.loss, found.diverged) == (None, True)
    page.say(2, None, 0.5, None)
    found = attempt.sample()
    assert found is not None
    assert (found.loss, found.diverged) == (0.5, False)


def test_a_moment_in_the_future_is_not_believed(attempt: Attempt) -> None:
    page = attempt.make()
    page.say(1, None, None, None)
    page.words[stats.SAID_NS] = 1 << 59
    found = attempt.sample()
    assert found is not None
    assert found.said_at is None


def test_a_script_that_says_nothing_says_nothing(attempt: Attempt) -> None:
    attempt.make()
    found = attempt.sample()
    assert found is not None
    assert (found.step, found.total, found.samples, found.loss, found.codec) == (
        *(None, None, None, None),
        "",
    )


def test_it_says_when_the_page_was_made(attempt: Attempt) -> None:
    attempt.make()
    (reading,) = attempt.read()
    assert reading.born == pytest.approx(95.0, abs=1e-3)


def test_several_ranks_and_those_that_have_no_page_yet(attempt: Attempt) -> None:
    attempt.make(0)
    attempt.make(2)
    attempt.path(1).write_bytes(bytes(stats.PAGE_BYTES))  # as the shim makes it
    assert [reading.rank for reading in attempt.read(0, 1, 2, 3)] == [0, 2]
    assert attempt.pages.read(9, 1, (0,)) == []


def test_a_truncated_page_does_not_kill_the_daemon(attempt: Attempt) -> None:
    attempt.make()
    os.truncate(attempt.path(), 100)
    assert attempt.read() == []
    os.truncate(attempt.path(), 0)
    assert attempt.read() == []


@pytest.mark.parametrize(("word", "value"), [(0, 1), (1, 2), (1, -1)])
def test_another_magic_or_version_is_no_page(attempt: Attempt, word: int, value: int) -> None:
    attempt.make().words[word] = value
    assert attempt.read() == []


def test_a_link_and_a_fifo_are_no_pages(attempt: Attempt, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(bytes(stats.PAGE_BYTES))
    attempt.path(0).symlink_to(tmp_path / "elsewhere")
    os.mkfifo(attempt.path(1))
    assert attempt.read(0, 1) == []


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (stats.OPERATIONS, -1),
        (stats.WIRE_OUT, (1 << 60) + 1),
        (stats.WAITING_NS, -(1 << 63)),
        (stats.DECODE_NS, (1 << 63) - 1),
        (2, 0),
        (2, 1 << 31),
    ],
)
def test_what_cannot_be_is_no_sample_but_still_a_sign_of_life(
    attempt: Attempt, word: int, value: int
) -> None:
    page = attempt.make()
    page.words[stats.SENT] = 5
    page.words[word] = value
    (reading,) = attempt.read()
    assert reading.sample is None
    assert reading.progress[2] == 5


def test_a_counter_that_falls_drops_the_sample_until_it_is_back(attempt: Attempt) -> None:
    page = attempt.make()
    page.words[stats.OPERATIONS] = 10
    assert attempt.sample() is not None
    page.words[stats.OPERATIONS] = 9
    assert attempt.sample() is None
    page.words[stats.OPERATIONS] = 11
    found = attempt.sample()
    assert found is not None
    assert found.operations == 11


def test_another_process_may_begin_at_nothing(attempt: Attempt) -> None:
    page = attempt.make()
    page.words[stats.OPERATIONS] = 10
    assert attempt.sample() is not None
    page.words[stats.OPERATIONS], page.words[2] = 0, 4711
    found = attempt.sample()
    assert found is not None
    assert (found.pid, found.operations) == (4711, 0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_not_known(attempt: Attempt, loss: float) -> None:
    page = attempt.make()
    page.say(1, None, loss, None)
    found = attempt.sample()
    assert found is not None
    assert (found.step, found.loss) == (1, None)


@pytest.mark.parametrize("word", [stats.STEP, stats.TOTAL, stats.SAMPLES])
@pytest.mark.parametrize("value", [-5, 1 << 60])
def test_absurd_steps_are_not_known(attempt: Attempt, word: int, value: int) -> None:
    page = attempt.make()
    page.words[stats.GIVEN] = stats.GAVE_SAMPLES
    page.words[word] = value
    found = attempt.sample()
    assert found is not None
    values = {stats.STEP: found.step, stats.TOTAL: found.total, stats.SAMPLES: found.samples}
    assert values[word] is None


def test_a_step_said_without_a_guard_is_heard_too(attempt: Attempt) -> None:
    page = attempt.make()
    assert attempt.sample() is not None
    page.words[stats.STEP] = 6  # as a version of before the guards says it
    found = attempt.sample()
    assert found is not None
    assert found.step == 5


def test_what_is_being_written_stays_what_it_was(attempt: Attempt) -> None:
    page = attempt.make()
    page.say(1, 10, 0.5, 8)
    page.use_codec("none", "it is quick enough")
    assert attempt.sample() is not None
    w = page.words
    w[stats.SAID_GUARD] += 1  # killed in the middle of it
    w[stats.CODEC_GUARD] += 1
    w[stats.STEP], w[stats.LOSS] = 99, 0
    page._map[stats.CODEC_TEXT * 8 : stats.CODEC_TEXT * 8 + 3] = b"lz4"
    w[stats.OPERATIONS] = 3
    found = attempt.sample()
    assert found is not None
    assert (found.step, found.loss, found.codec, found.operations) == (1, 0.5, "none", 3)


def test_a_part_that_changes_while_it_is_read_is_read_again(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = attempt.make()
    page.say(1, 10, 0.5, 8)
    real, reads = os.pread, 0

    def pread(fd: int, size: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 3:  # after the page, before its guard is looked at again
            page.say(2, 10, 0.25, 8)
        return real(fd, size, offset)

    monkeypatch.setattr(module.os, "pread", pread)
    found = attempt.sample()
    assert found is not None
    assert (found.step, found.loss, found.samples) == (2, 0.25, 16)
    assert reads == 6


def test_a_part_that_never_rests_is_given_up_and_not_known(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = attempt.make()
    real, reads = os.pread, 0

    def pread(fd: int, size: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        page.say(reads, 10, 0.5, 8)
        return real(fd, size, offset)

    monkeypatch.setattr(module.os, "pread", pread)
    found = attempt.sample()
    assert found is not None
    assert found.step is None
    assert reads == 3 * module.TRIES


def test_text_is_cut_and_cleaned(attempt: Attempt) -> None:
    page = attempt.make()
    page.use_codec("lz4\x1b[2J" + "x" * 100, "a\nb\x00hidden")
    found = attempt.sample()
    assert found is not None
    assert found.codec == "lz4?[2J" + "x" * 9
    assert (found.codec_why, len(found.codec)) == ("a?b", module.CODEC_CHARS)


def test_bytes_that_are_no_text_are_replaced(attempt: Attempt) -> None:
    page = attempt.make()
    at = stats.CODEC_TEXT * 8
    page._map[at : at + stats.CODEC_BYTES] = b"\xff\xfe\n" + b"\xc3" * (stats.CODEC_BYTES - 3)
    page.words[stats.CODEC_GUARD] += 2
    found = attempt.sample()
    assert found is not None
    assert found.codec.isprintable()
    assert found.codec_why.isprintable()
    assert len(found.codec_why) <= module.WHY_CHARS


def test_negative_waits_for_a_peer_are_left_out(attempt: Attempt) -> None:
    page = attempt.make()
    page.words[stats.PEERS_AT], page.words[stats.PEERS_AT + 1] = -5, 10**9
    found = attempt.sample()
    assert found is not None
    assert found.waited_for == {1: 1.0}


def test_only_peers_of_the_world_are_waited_for(attempt: Attempt) -> None:
    page = attempt.make()
    for peer in (0, 3, 200, 255):
        page.words[stats.PEERS_AT + peer] = 10**9
    for size, peers in ((4, {0, 3}), (256, {0, 3, 200, 255}), (-1, {0, 3, 200, 255})):
        page.words[stats.WORLD] = size
        found = attempt.sample()
        assert found is not None
        assert set(found.waited_for) == peers


def test_noise_is_survived(attempt: Attempt) -> None:
    attempt.make()
    for seed in range(50):
        noise = b"".join(
            struct.pack("=Q", hash((seed, word)) & (1 << 64) - 1) for word in range(510)
        )
        head = struct.pack("=qq", stats.MAGIC, stats.VERSION)
        attempt.path().write_bytes(head + noise)
        for reading in attempt.read():
            assert reading.sample is None or reading.sample.operations >= 0


def test_memory_is_carried_from_one_look_to_the_next(attempt: Attempt) -> None:
    attempt.make()
    attempt.pages.weigh(1, 1, 0, 77, Usage(12345, 3.0))
    found = attempt.sample()
    assert found is not None
    assert (found.memory, found.cpu, found.cpu_s) == (12345, None, 3.0)
    attempt.now += 4.0
    attempt.pages.weigh(1, 1, 0, 77, Usage(12345, 13.0))
    found = attempt.sample()
    assert found is not None
    assert (found.cpu, found.cpu_s) == (2.0, 13.0)  # ten seconds in five
    attempt.now += 4.0
    attempt.pages.weigh(1, 1, 0, 77, Usage(12345, 1.0))  # a child has left with its seconds
    found = attempt.sample()
    assert found is not None
    assert (found.cpu, found.cpu_s) == (0.0, 13.0)
    attempt.pages.weigh(1, 1, 0, 77, None)
    found = attempt.sample()
    assert found is not None
    assert (found.memory, found.cpu, found.cpu_s) == (None, None, 13.0)
    attempt.pages.forget(1, 1)
    found = attempt.sample()
    assert found is not None
    assert found.memory is None


def test_a_rank_that_never_writes_has_what_its_processes_use(attempt: Attempt) -> None:
    attempt.path().write_bytes(bytes(4096))  # as its shim made it
    assert attempt.read() == []
    attempt.pages.weigh(1, 1, 0, 77, Usage(12345, 3.0))
    (reading,) = attempt.read()
    found = reading.sample
    assert found is not None
    assert (found.pid, found.memory, found.cpu_s, found.measured) == (77, 12345, 3.0, False)
    assert (reading.progress, found.step, found.operations) == ((), None, 0)
    attempt.make().say(3, None, None, None)
    (reading,) = attempt.read()
    assert reading.sample is not None
    assert (reading.sample.step, reading.sample.memory) == (3, 12345)
    attempt.path().write_bytes(b"")  # one that wrote, and spoils it, is not taken for a silent one
    assert attempt.read() == []


def test_metrics_are_read_by_name_and_one_that_is_no_number_is_none(attempt: Attempt) -> None:
    page = attempt.make()
    page.admit(["accuracy", "lr"])
    page.say(1, None, None, None, {"accuracy": 0.5, "lr": math.nan})
    found = attempt.sample()
    assert found is not None
    assert found.metrics == {"accuracy": 0.5, "lr": None}
    page.say(2, None, None, None, {"lr": 0.25})
    found = attempt.sample()
    assert found is not None
    assert found.metrics == {"accuracy": 0.5, "lr": 0.25}


@pytest.mark.parametrize("name", [b"\x1b[31m", b"a b", b"9lives", b"\xff" * 32, b'x"} 1\n'])
def test_a_name_that_is_none_has_no_metric(attempt: Attempt, name: bytes) -> None:
    page = attempt.make()
    page.admit(["accuracy", "spoiled"])
    page.say(1, None, None, None, {"accuracy": 0.5, "spoiled": 1.0})
    at = stats.NAMES_AT * 8 + stats.NAME_BYTES
    page._map[at : at + stats.NAME_BYTES] = name.ljust(stats.NAME_BYTES, b"\0")
    found = attempt.sample()
    assert found is not None
    assert found.metrics == {"accuracy": 0.5}


def test_what_a_run_measures_is_read_as_far_as_it_can_be(attempt: Attempt) -> None:
    page = attempt.make()
    sample = attempt.sample()
    assert sample is not None
    assert sample.training == TrainingMetrics()
    page.tell(noise_scale=1900.0, share=0.25, speed_spread=math.nan, balance_gain=-1.0)
    page.tell(round_steps=1e300, own_steps=1.0)
    sample = attempt.sample()
    assert sample is not None
    assert sample.training == TrainingMetrics(noise_scale=1900.0, share=0.25, own_steps=True)


def test_the_page_has_a_word_for_every_figure() -> None:
    assert TrainingMetrics.__struct_fields__ == stats.TRAINING_METRICS
