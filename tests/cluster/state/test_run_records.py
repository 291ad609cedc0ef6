"""What stays of runs: rows that come back, outlive their jobs within bounds, and disturb no job."""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cluster.state.test_store import put, some_job
from tests.metrics.samples import empty_record, sample
from wiiiiided.cluster.state import run_records as module
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.domain.metrics import Point, RankRecord, Rates, RunRecord
from wiiiiided.log import logger


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    made = StateStore(tmp_path / "state")
    yield made
    made.close()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What the daemon logs."""
    lines: list[str] = []

    class Collect(logging.Handler):
        def emit(self, line: logging.LogRecord) -> None:
            lines.append(line.getMessage())

    handler = Collect()
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def a_run(job: int, attempt: int = 1, *, state: str = "done", name: str = "digits") -> RunRecord:
    return empty_record(
        job=job,
        attempt=attempt,
        name=name,
        state=state,
        points=(Point(1.0, 1.0, Rates(samples=3.0), step=4, loss=0.5),),
        ranks=(RankRecord(0, "a", sample(0, waited_for={3: 1.5}, codec_why="✓"), 77, 1.5),),
    )


def test_what_is_written_comes_back_the_same(store: StateStore, tmp_path: Path) -> None:
    runs = [a_run(1, 1, state="failed"), a_run(1, 2), a_run(2)]
    assert store.records.write(runs)
    assert store.records.of(1) == runs[:2]
    assert store.records.latest(1) == runs[1]
    assert store.records.attempt(1, 1) == runs[0]
    assert store.records.attempt(1, 3) is None
    assert store.records.latest(9) is None


def test_a_run_is_written_over_as_it_goes_on(store: StateStore) -> None:
    store.records.write([a_run(1, state="")])
    assert [run.job for run in store.records.unfinished()] == [1]
    store.records.write([a_run(1)])
    assert store.records.unfinished() == []
    assert [run.state for run in store.records.of(1)] == ["done"]


def test_prediction_gets_the_latest_done_runs_of_a_name(store: StateStore) -> None:
    names = ("digits", "other")
    store.records.write(a_run(job, name=names[job % 2]) for job in range(1, 21))
    store.records.write([a_run(30, state="failed", name="other")])
    assert [run.job for run in store.records.done("other")] == [19, 17, 15, 13, 11]
    assert store.records.done("nobody") == []


def test_the_longest_run_of_a_name_is_read_once_and_again_when_another_is_done(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = store.records
    assert records.longest("digits") is None
    assert records.knows("digits")
    took = dict(enumerate((30.0, 10.0, 50.0, 20.0, 5.0, 5.0, 5.0, 5.0), 1))
    for job, seconds in list(took.items())[:3]:
        records.write([replace(a_run(job), started_at=100.0, ended_at=100.0 + seconds)])
    records.write([replace(a_run(9, state="failed"), started_at=0.0, ended_at=900.0)])
    assert not records.knows("digits")
    assert (records.longest("digits"), records.longest("other")) == (50.0, None)
    monkeypatch.setattr(module, "_decoded", lambda *_: pytest.fail("it is known"))
    assert records.longest("digits") == 50.0
    monkeypatch.undo()
    for job, seconds in list(took.items())[3:]:
        records.write([replace(a_run(job), started_at=100.0, ended_at=100.0 + seconds)])
    assert records.longest("digits") == 20.0  # of the latest five


def test_of_a_forgotten_job_the_done_run_stays_without_its_points(store: StateStore) -> None:
    put(store, *(some_job(n, ended=True) for n in (1, 2)))
    store.records.write([a_run(1, 1, state="failed"), a_run(1, 2), a_run(2)])
    store.forget([1])
    (left,) = store.records.of(1)
    assert (left.attempt, left.points, left.ranks) == (2, (), a_run(1).ranks)
    assert store.records.of(2) == [a_run(2)]


def test_only_so_many_runs_of_a_name_outlive_their_jobs(store: StateStore) -> None:
    put(store, *(some_job(n, ended=True) for n in range(1, 21)))
    store.records.write(a_run(n) for n in range(1, 21))
    store.forget(list(range(1, 16)))
    kept = [n for n in range(1, 21) if store.records.of(n)]
    assert kept == list(range(11, 21))  # five of those forgotten, and all that are still there


def test_only_so_many_outlive_their_jobs_in_all(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OUTLIVE", 7)
    put(store, *(some_job(n, ended=True) for n in range(1, 21)))
    store.records.write(a_run(n, name=f"job-{n}") for n in range(1, 21))
    store.forget(list(range(1, 21)))
    assert [n for n in range(1, 21) if store.records.of(n)] == list(range(14, 21))


def test_no_more_attempts_are_kept_or_answered_than_fit_and_the_latest_count(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.records.write(a_run(1, attempt) for attempt in range(1, 101))
    for attempt in range(101, 111):
        store.records.write([a_run(1, attempt)])
    attempts = [run.attempt for run in store.records.of(1)]
    assert attempts == list(range(111 - module.ATTEMPTS, 111))
    size = len(module._encode(a_run(1, 100)))
    monkeypatch.setattr(module, "ANSWER_BYTES", int(3.5 * size))
    assert [run.attempt for run in store.records.of(1)] == [108, 109, 110]


def test_a_row_that_cannot_be_read_counts_as_not_there(store: StateStore) -> None:
    store.records.write([a_run(1), a_run(2), a_run(3)])
    store._db.execute("UPDATE runs SET body = x'7b7d' WHERE job = 1")
    later = zlib.compress(b'{"of": "another version"}')
    store._db.execute("UPDATE runs SET body = ? WHERE job = 2", (later,))
    assert store.records.of(1) == store.records.of(2) == []
    assert [run.job for run in store.records.done("digits")] == [3]
    store.forget([1, 2])


def test_what_cannot_be_written_is_said_once_and_no_more(
    store: StateStore, said: list[str]
) -> None:
    store._db.execute("PRAGMA query_only = ON")
    assert not store.records.write([a_run(1)])
    assert not store.records.write([a_run(1)])
    assert len(said) == 1
    assert "jobs go on" in said[0]
    store._db.execute("PRAGMA query_only = OFF")
    assert store.records.write([a_run(1)])
    store._db.execute("PRAGMA query_only = ON")
    assert not store.records.write([a_run(2)])
    assert len(said) == 2  # it is another time


def test_a_write_that_fails_leaves_no_transaction_open(store: StateStore) -> None:
    store._db.execute("PRAGMA query_only = ON")
    store.records.write([a_run(1)])
    store._db.execute("PRAGMA query_only = OFF")
    put(store, some_job(1))
    assert not store._db.in_transaction
    with pytest.raises(sqlite3.OperationalError):
        store._db.execute("COMMIT")
