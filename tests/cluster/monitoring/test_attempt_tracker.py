"""Attempts that are followed: what is read, told and written down, on a clock of the test's own."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster.control.world import World, spec
from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.stats import StatsPage
from wiiiiided.cluster.allocation.job_dirs import JobDirs
from wiiiiided.cluster.allocation.spawn import JobAccount
from wiiiiided.cluster.monitoring.attempt_tracker import AttemptTracker
from wiiiiided.cluster.monitoring.rank_stats import RankStatsReader
from wiiiiided.cluster.monitoring.stats_pages import StatsPageReader
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.domain.metrics import RunRecord
from wiiiiided.log import logger

DAY = 1_800_000_000.0  # the clock's difference to monotonic time


class Site:
    """A node with a job of two ranks that the test moves by hand."""

    def __init__(self, root: Path) -> None:
        self.now = 1000.0
        self.world = World()
        self.store = StateStore(root / "state")
        self.job_dirs = JobDirs(root / "jobs", JobAccount.this())
        self.tracker = self.new_daemon()
        self.world.now = self.now + DAY
        self.job = self.world.submit(spec("digits", resources={"workers_per_node": 2}))
        self.job_dirs.make(self.job, 1)
        self.tracker.update(self.world.state)
        self.pages: list[StatsPage] = []

    def new_daemon(self) -> AttemptTracker:
        def monotonic() -> float:
            return self.now

        def clock() -> float:
            return self.now + DAY

        pages = StatsPageReader(self.job_dirs, monotonic, clock)
        records = self.store.records
        reader = RankStatsReader("a", pages, {}, lambda event: None, monotonic, clock)
        find = self.world.last.get
        return AttemptTracker(reader, records, find, lambda event: None, monotonic, clock)

    def begin(self) -> None:
        """The ranks make their pages."""
        for rank in (0, 1):
            path = self.job_dirs.attempt(self.job, 1) / f"stats-{rank}"
            path.touch()
            self.pages.append(StatsPage(str(path)))
            self.pages[-1].words[3] = int((self.now + DAY) * 1e9)
            self.pages[-1].words[stats.WORLD] = 2

    def work(self, seconds: float, waits: tuple[float, float] = (0.5, 0.0)) -> None:
        """Ten operations a second each, so much of it waiting; looked at once a second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for page, share in zip(self.pages, waits, strict=True):
                page.words[stats.OPERATIONS] += 10
                page.words[stats.WAITING_NS] += int(share * 1e9)
            self.tracker.sample()

    def stored(self) -> RunRecord | None:
        return self.store.records.latest(self.job)

    def end(self) -> RunRecord:
        self.world.started_on(self.job)
        self.world.now = self.now + DAY
        self.world.ended_on(self.job)
        self.tracker.update(self.world.state)
        found = self.tracker.latest(self.job)
        assert found is not None
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, line: logging.LogRecord) -> None:
            lines.append(line.getMessage())

    handler, level = Collect(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


def counted(record: RunRecord) -> float:
    """Operations, as the points have them."""
    return sum(point.span * point.rates.operations for point in record.points)


def test_it_is_written_down_soon_and_then_more_and_more_seldom(site: Site) -> None:
    site.begin()
    writes = []
    for _ in range(800):
        before = site.stored()
        site.work(1)
        if site.stored() != before:
            writes.append(site.now - 1000.0)
    gaps = [later - earlier for earlier, later in pairwise(writes)]
    assert writes[:3] == [2.0, 7.0, 12.0]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 60.0


def test_the_end_is_known_at_once_and_written_when_flushed(site: Site) -> None:
    site.begin()
    site.work(1)
    record = site.end()
    assert (record.state, record.code, record.ended_at) == ("done", 0, site.now + DAY)
    assert site.tracker.waiting
    assert site.stored() is None
    assert site.tracker.of(site.job) == [record]
    site.tracker.flush()
    assert not site.tracker.waiting
    assert site.stored() == record


def test_what_was_counted_after_the_last_look_is_in_the_record(site: Site) -> None:
    site.begin()
    site.work(3)
    site.pages[0].words[stats.OPERATIONS] += 7
    assert site.end().ranks[0].totals.operations == 37


def test_an_end_that_cannot_be_written_waits_for_its_turn(site: Site) -> None:
    site.begin()
    site.work(3)
    record = site.end()
    site.store._db.execute("PRAGMA query_only = ON")
    site.tracker.flush()
    assert site.tracker.waiting
    assert site.tracker.latest(site.job) == record
    site.store._db.execute("PRAGMA query_only = OFF")
    site.tracker.flush()
    assert site.stored() == record


def test_a_daemon_that_stops_writes_what_runs(site: Site) -> None:
    site.begin()
    site.work(3)
    site.tracker.close()
    stored = site.stored()
    assert stored is not None
    assert (stored.state, stored.observed_s, len(stored.points)) == ("", 3.0, 3)


def test_an_attempt_that_ended_unseen_is_ended_by_the_next_daemon(site: Site) -> None:
    site.begin()
    site.work(6)
    site.world.started_on(site.job)
    site.world.now = site.now + DAY + 30
    site.world.ended_on(site.job)  # stored by a daemon that died before it wrote the figures
    site.pages[1].words[stats.OPERATIONS] += 9
    site.now += 100
    again = site.new_daemon()
    again.update(site.world.state)
    again.end_what_was_left()
    again.flush()
    stored = site.stored()
    assert stored is not None
    assert (stored.state, stored.code, stored.ended_at) == ("done", 0, site.world.now)
    assert stored.ranks[1].totals.operations == 69
    assert stored.observed_s == 2.0  # as it was written; no sample was taken since
    assert stored.points[-1].at == pytest.approx(36.0)  # when it ended, not when that was found
    assert counted(stored) == pytest.approx(60 + 69)
    assert site.store.records.unfinished() == []


def test_the_straggler_is_told_at_its_change_and_at_most_once_a_minute(
    site: Site, said: list[str]
) -> None:
    site.begin()
    site.work(40)
    assert [line.split(":")[1] for line in said] == [" rank 1 on a costs +100 % step time"]
    assert said[0].startswith(f"job {site.job} (digits): ")
    site.work(35, (0.0, 0.5))  # within the minute: it is too early to say more
    assert len(said) == 1
    site.work(20, (0.0, 0.5))
    assert len(said) == 2
    assert said[1].startswith(f"job {site.job} (digits): rank 0 on a costs +")
    site.work(90, (0.2, 0.2))
    (last,) = said[2:]
    assert last.startswith(f"job {site.job} (digits): no rank is late any more: ranks take turns: ")


@pytest.mark.parametrize("born", [0, -(10**18), 2 * int(DAY * 1e9), (1 << 63) - 1])
def test_a_page_that_lies_about_its_birth_is_counted_from_the_first_look(
    site: Site, born: int
) -> None:
    site.begin()
    for page in site.pages:
        page.words[3] = born
    site.work(3)
    record = site.end()
    assert [(point.at, point.span) for point in record.points] == [(2.0, 1.0), (3.0, 1.0)]


def test_a_page_whose_birth_was_seen_is_counted_from_there(site: Site) -> None:
    site.now += 0.5
    site.begin()
    site.work(2)
    record = site.end()
    assert [(point.at, point.span) for point in record.points] == [
        (pytest.approx(1.5), pytest.approx(1.0)),
        (pytest.approx(2.5), pytest.approx(1.0)),
    ]
    assert sum(p.span * p.rates.operations for p in record.points) == pytest.approx(40)


def test_a_daemon_that_comes_back_soon_after_the_birth_counts_nothing_twice(site: Site) -> None:
    site.begin()
    site.work(1)
    site.tracker.close()
    site.now += 0.5
    site.tracker = site.new_daemon()
    site.tracker.update(site.world.state)
    site.work(2)
    record = site.end()
    found = [(point.at, point.span) for point in record.points]
    assert found == [(1.0, 1.0), (2.5, 1.5), (3.5, 1.0)]
    assert counted(record) == pytest.approx(60)
    assert record.observed_s == 3.0


@pytest.mark.parametrize("seconds", [1, 3, 11, 40, 200])
def test_a_daemon_that_is_killed_leaves_no_hole_in_the_metrics(site: Site, seconds: int) -> None:
    """Whenever it was, and whatever was not written yet: the ranks have counted on."""
    site.begin()
    site.work(seconds)
    site.tracker = site.new_daemon()
    site.tracker.update(site.world.state)
    site.now += 2.0
    site.work(5)
    record = site.end()
    assert counted(record) == pytest.approx(2 * 10 * (seconds + 5))
    assert [rank.totals.operations for rank in record.ranks] == [10 * (seconds + 5)] * 2
    ends = [0.0, *(point.at for point in record.points)]
    begins = [point.at - point.span for point in record.points]
    assert begins == pytest.approx(ends[:-1])
    assert ends[-1] == seconds + 7.0


def test_a_clock_that_was_set_back_meanwhile_keeps_the_points_in_order(site: Site) -> None:
    site.begin()
    site.work(100)
    site.tracker.close()
    site.world.now -= 5000
    again = site.new_daemon()
    again._clock = lambda: site.now + DAY - 5000
    again.update(site.world.state)
    site.tracker = again
    site.work(5)
    record = again.latest(site.job)
    assert record is not None
    ends = [point.at for point in record.points]
    assert ends == sorted(ends)
    assert ends[-1] > 100
