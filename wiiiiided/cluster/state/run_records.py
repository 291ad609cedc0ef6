"""Records of runs: a row an attempt, in the same file as the state but never in its way.

    while it runs      written every 5 s at first, every minute later
    at its end         written once more, with how it ended
    job forgotten      the latest done runs of each name stay, without their points: prediction
                       needs them

A row's body is the RunRecord as JSON, compressed: 512 points are 240 KB, and 85 KB then.

Metrics are no state: when they cannot be written, that is said once and nothing else happens. A row
that this version cannot read counts as not there.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.domain.metrics import RunRecord
from wiiiiided.log import logger

PER_NAME: Final = 5  # done runs of a name that prediction looks at, and that outlive their jobs
REMEMBERED: Final = 4096  # names whose longest run is known without reading
OUTLIVE: Final = 1000  # runs of forgotten jobs in all
ATTEMPTS: Final = 64  # the latest of a job that are kept,
ANSWER_BYTES: Final = 8 << 20  # and shown as far as they fit into one answer (rpc/framing)

_as_json = msgspec.json.Encoder().encode
_from_json = json_decoder(RunRecord)


class RunTimes(msgspec.Struct, frozen=True):
    """The times of a RunRecord, which `longest` needs; its points are passed over, which is much
    faster."""

    started_at: float
    ended_at: float | None = None


_times = json_decoder(RunTimes)
Kind = TypeVar("Kind")


class RunRecords:
    """The table `runs`. Used from the store's one thread."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._failed = False  # and that was said
        self._longest: dict[str, float | None] = {}  # by name

    def write(self, records: Iterable[RunRecord]) -> bool:
        """Write all records in one transaction; False: not now."""
        rows = [(r.job, r.attempt, r.name, r.state, _encode(r)) for r in records]
        if not rows:
            return True
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", rows)
                old = [(job, attempt - ATTEMPTS) for job, attempt, *_ in rows]
                self._db.executemany("DELETE FROM runs WHERE job = ? AND attempt <= ?", old)
        except sqlite3.Error as problem:
            if not self._failed:
                logger.warning("metrics of runs cannot be written: %s; jobs go on", problem)
            self._failed = True
            return False
        self._failed = False
        for _, _, name, state, _ in rows:
            if state == "done":
                self._longest.pop(name, None)
        return True

    def of(self, job: int) -> list[RunRecord]:
        """A job's attempts, oldest first."""
        rows = self._db.execute("SELECT body FROM runs WHERE job = ? ORDER BY attempt DESC", (job,))
        found, size = [], 0
        for row in rows:
            size += len(row[0])
            if size > ANSWER_BYTES:
                break
            found.append(row)
        return list(_readable(reversed(found)))

    def attempt(self, job: int, attempt: int) -> RunRecord | None:
        rows = self._db.execute(
            "SELECT body FROM runs WHERE job = ? AND attempt = ?", (job, attempt)
        )
        return next(_readable(rows), None)

    def latest(self, job: int) -> RunRecord | None:
        rows = self._db.execute(
            "SELECT body FROM runs WHERE job = ? ORDER BY attempt DESC LIMIT 1", (job,)
        )
        return next(_readable(rows), None)

    def unfinished(self) -> list[RunRecord]:
        """Attempts whose end is not written down."""
        return list(_readable(self._db.execute("SELECT body FROM runs WHERE state = ''")))

    def done(self, name: str) -> list[RunRecord]:
        """The latest done runs of that name, latest first."""
        rows = self._db.execute(
            "SELECT body FROM runs WHERE name = ? AND state = 'done' "
            "ORDER BY job DESC, attempt DESC LIMIT ?",
            (name, PER_NAME),
        )
        return list(_readable(rows))

    def knows(self, name: str) -> bool:
        """Whether `longest` has the answer without reading."""
        return name in self._longest

    def longest(self, name: str) -> float | None:
        """Seconds that the longest of the latest done runs of that name took; None: there is none.
        Remembered until another is done."""
        if name not in self._longest:
            rows = self._db.execute(
                "SELECT body FROM runs WHERE name = ? AND state = 'done' "
                "ORDER BY job DESC, attempt DESC LIMIT ?",
                (name, PER_NAME),
            )
            ended = ((run.ended_at, run.started_at) for run in _decoded(rows, _times))
            took = [max(0.0, end - start) for end, start in ended if end is not None]
            if len(self._longest) >= REMEMBERED:
                self._longest.clear()
            self._longest[name] = max(took, default=None)
        return self._longest[name]

    def drop(self, job: int) -> None:
        """Delete a trial's records, those for predictions included."""
        self._db.execute("DELETE FROM runs WHERE job = ?", (job,))

    def forget(self, jobs: Sequence[int]) -> None:
        """Keep what prediction needs, and remove the rest, in the transaction that forgets the
        jobs."""
        if not jobs:
            return
        self._longest.clear()
        for job in jobs:
            self._db.execute("DELETE FROM runs WHERE job = ? AND state != 'done'", (job,))
            for run in self.of(job):
                row = (_encode(replace(run, points=())), job, run.attempt)
                self._db.execute("UPDATE runs SET body = ? WHERE job = ? AND attempt = ?", row)
        self._db.execute(
            "DELETE FROM runs WHERE (job, attempt) IN (SELECT job, attempt FROM ("
            "SELECT job, attempt, row_number() OVER "
            "(PARTITION BY name ORDER BY job DESC, attempt DESC) AS place FROM runs "
            "WHERE job NOT IN (SELECT id FROM jobs)) WHERE place > ?)",
            (PER_NAME,),
        )
        self._db.execute(
            "DELETE FROM runs WHERE (job, attempt) IN (SELECT job, attempt FROM runs "
            "WHERE job NOT IN (SELECT id FROM jobs) ORDER BY job DESC LIMIT -1 OFFSET ?)",
            (OUTLIVE,),
        )


def _encode(record: RunRecord) -> bytes:
    return zlib.compress(_as_json(record), 1)


def _readable(rows: Iterable[tuple[bytes]]) -> Iterator[RunRecord]:
    return _decoded(rows, _from_json)


def _decoded(rows: Iterable[tuple[bytes]], decode: Callable[[bytes], Kind]) -> Iterator[Kind]:
    for (body,) in rows:
        try:
            yield decode(zlib.decompress(body))
        except (zlib.error, msgspec.DecodeError):
            continue
