"""The state on disk: SQLite, write-ahead log, synchronous FULL, one writer.

    jobs      id │ state │ name │ user │ ended (its number among the ends) │ body (the Job, JSON)
    story     job │ at │ text │ event (JSON, on the first line an event caused)
    secrets   job │ body       values of run.pass_env; the file is 0600 in a 0700 directory
    counters  name │ value     the next job's number, never used again; the next end's
    submissions  node │ uid │ nonce │ job │ swept   which request queued what; 0: no sweep
    facts     name │ value     what must not change: the name of this node; plans (state/plans)
    runs      job │ attempt │ name │ state │ body   metrics of attempts (state/run_records)
    nodes     name │ body      the machines of the cluster as the control plane has them
    members   name │ fingerprints of its certificates │ expires │ joined   (membership/members)
    refused   fingerprint │ name │ at       certificates that are worth nothing any more
    tokens    id │ SHA-256 of the secret │ expires │ uses left │ made │ by

`commit` takes everything one event changed in one transaction: when it returns, that has reached
the disk, and only then is anything done or acknowledged. The jobs table holds the current state;
the story is how it came to it. Rejected: replaying events at the start (a restart would take
longer with every job ever run).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from wiiiiided.cluster.control.actions import Tell
from wiiiiided.cluster.control.events import AnyEvent, JobSubmitted, SweepSubmitted
from wiiiiided.cluster.control.job import Ended, Job
from wiiiiided.cluster.control.node_table import NodeRow
from wiiiiided.cluster.state.disk_reserve import Reserve
from wiiiiided.cluster.state.plans import Plans
from wiiiiided.cluster.state.run_records import RunRecords
from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.domain.plan import PROBE
from wiiiiided.domain.sweep import MOST_JOBS
from wiiiiided.errors import WiiiiideError
from wiiiiided.log import logger

NEVER_ISSUED: Final = "stranger-"  # facts about jobs that only their files know of
SHOWN: Final = 9
STORY_LINES: Final = 1000  # the latest of a job, which are read,
STORY_KEPT: Final = 2000  # and which stay: a live job may be held and released for ever
STORY_CUT: Final = 100  # that go at once: an older version may have left millions
MOST_SKIPPED: Final = 100_000  # numbers at once: more is no queue's later state
NONCES: Final = 10_000  # of the latest jobs, kept when the jobs are not
APPLICATION_ID: Final = 0x57494935  # "WII5": which program an SQLite file belongs to

# Each entry brings the file one version further; entries are never changed, only added.
MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY, state TEXT NOT NULL, name TEXT NOT NULL, user TEXT NOT NULL,
        ended INTEGER, archive TEXT NOT NULL, body BLOB NOT NULL
    ) STRICT;
    CREATE INDEX jobs_live ON jobs (id) WHERE ended IS NULL;
    CREATE INDEX jobs_ended ON jobs (ended) WHERE ended IS NOT NULL;
    CREATE TABLE story (
        seq INTEGER PRIMARY KEY, job INTEGER NOT NULL, at REAL NOT NULL, text TEXT NOT NULL,
        event BLOB
    ) STRICT;
    CREATE INDEX story_job ON story (job, seq);
    CREATE TABLE secrets (job INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
    CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
    INSERT INTO counters VALUES ('next_job', 1), ('next_end', 1);
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
    """,
    """
    CREATE TABLE runs (
        job INTEGER NOT NULL, attempt INTEGER NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
        body BLOB NOT NULL, PRIMARY KEY (job, attempt)
    ) STRICT;
    CREATE INDEX runs_name ON runs (name, job, attempt);
    """,
    """
    CREATE TABLE nodes (name TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT;
    CREATE TABLE members (
        name TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, expires REAL NOT NULL,
        joined REAL NOT NULL
    ) STRICT;
    CREATE TABLE refused (
        fingerprint TEXT PRIMARY KEY, name TEXT NOT NULL, at REAL NOT NULL
    ) STRICT;
    CREATE TABLE tokens (
        id TEXT PRIMARY KEY, secret TEXT NOT NULL, expires REAL NOT NULL, uses INTEGER NOT NULL,
        made REAL NOT NULL, by TEXT NOT NULL
    ) STRICT;
    """,
    """
    CREATE TABLE submissions (
        node TEXT NOT NULL, uid INTEGER NOT NULL, nonce TEXT NOT NULL, job INTEGER NOT NULL,
        swept INTEGER NOT NULL, PRIMARY KEY (node, uid, nonce)
    ) STRICT;
    CREATE INDEX submissions_job ON submissions (job);
    """,
)

Kind = TypeVar("Kind")
_encode = msgspec.json.Encoder().encode
_job = json_decoder(Job)
_node = json_decoder(NodeRow)
_secrets = json_decoder(dict[str, str])


class StoreError(WiiiiideError):
    """The state cannot be opened or written. The message says what to do; nothing was changed."""


class StoreUnusable(StoreError):
    """The file there is not one this version can use: trying again will not help."""


class StateStore:
    """The daemon's only way to its state; used from one thread."""

    def __init__(self, directory: Path, migrations: Sequence[str] = MIGRATIONS) -> None:
        self.path = directory / "state.sqlite"
        _make_private(directory)
        self._lock = _lock(directory)
        self.reserve = Reserve(directory)
        try:
            self._db = self._open_at_last(migrations)
        except BaseException:
            os.close(self._lock)
            raise
        self.reserve.keep()
        self.records = RunRecords(self._db)
        self.plans = Plans(self._db)
        self.unreadable: set[int] = set()  # jobs that are over and were found unreadable
        self._trials = self._written_trials()  # jobs that may be some; what they are is in the rows

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    # ---- writing

    def commit(
        self,
        jobs: Iterable[Job],
        lines: Sequence[Tell],
        event: AnyEvent,
        secrets: dict[int, dict[str, str]] | None = None,
        nodes: Mapping[str, NodeRow | None] | None = None,
    ) -> None:
        """Write all of it to the disk, or none and StoreError. A node that is None is gone."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                for job in jobs:
                    self._put(job)
                body: bytes | None = _encode(event)
                for line in lines:
                    row = (line.id, line.at, line.text, body)
                    self._db.execute(
                        "INSERT INTO story (job, at, text, event) VALUES (?, ?, ?, ?)", row
                    )
                    body = None
                for number in {line.id for line in lines}:
                    self._cut_story(number)
                self._put_nonce(event)
                for number, values in (secrets or {}).items():
                    self._db.execute("INSERT INTO secrets VALUES (?, ?)", (number, _encode(values)))
                for name, node in (nodes or {}).items():
                    self._put_node(name, node)
        except sqlite3.Error as problem:
            raise StoreError(f"cannot write {self.path}: {self._reason(problem)}") from problem

    def tell(self, line: Tell) -> None:
        """A line of a job's story that no event caused; none of a job that was forgotten."""
        try:
            with self._db:
                sql = "INSERT INTO story (job, at, text) SELECT id, ?, ? FROM jobs WHERE id = ?"
                self._db.execute(sql, (line.at, line.text, line.id))
                self._cut_story(line.id)
        except sqlite3.Error as problem:
            raise StoreError(f"cannot write {self.path}: {self._reason(problem)}") from problem

    def _cut_story(self, number: int) -> None:
        """Delete some of the oldest lines of a job that has too many."""
        self._db.execute(
            "DELETE FROM story WHERE seq IN (SELECT seq FROM story WHERE job = ? AND seq <= "
            "(SELECT seq FROM story WHERE job = ? ORDER BY seq DESC LIMIT 1 OFFSET ?) "
            "ORDER BY seq LIMIT ?)",
            (number, number, STORY_KEPT, STORY_CUT),
        )

    def _put_nonce(self, event: AnyEvent) -> None:
        match event:
            case SweepSubmitted(jobs=(first, *_)):
                swept = len(event.jobs)
            case JobSubmitted():
                first, swept = event, 0
            case _:
                return
        if first.nonce:
            row = (first.owner.node, first.owner.uid, first.nonce, first.id, swept)
            self._db.execute("INSERT INTO submissions VALUES (?, ?, ?, ?, ?)", row)

    def _put(self, job: Job) -> None:
        # Ends are numbered: a clock that was set must not decide what is pruned.
        ended = self._next("next_end") if isinstance(job.phase, Ended) else None
        row = (job.id, job.state, job.spec.name, job.owner.user, ended, job.archive)
        self._db.execute(
            "INSERT OR REPLACE INTO jobs (id, state, name, user, ended, archive, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*row, _encode(job)),
        )
        if PROBE in job.spec.run.env:
            self._trials.add(job.id)
        self._db.execute(
            "UPDATE counters SET value = max(value, ?) WHERE name = 'next_job'", (job.id + 1,)
        )

    def _put_node(self, name: str, row: NodeRow | None) -> None:
        if row is None:
            self._db.execute("DELETE FROM nodes WHERE name = ?", (name,))
            return
        # Not REPLACE: a node that changes keeps its place in the order of joining.
        self._db.execute(
            "INSERT INTO nodes VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body",
            (name, _encode(row)),
        )

    def _next(self, counter: str) -> int:
        sql = "UPDATE counters SET value = value + 1 WHERE name = ? RETURNING value - 1"
        return int(self._db.execute(sql, (counter,)).fetchone()[0])

    def fact(self, name: str, first: str) -> str:
        """The answer about `name` when this was first asked."""
        try:
            with self._db:
                self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, first))
        except sqlite3.Error as problem:
            raise StoreError(f"cannot write {self.path}: {self._reason(problem)}") from problem
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(row[0])

    def forget(self, numbers: Sequence[int], trials: Sequence[int] = ()) -> None:
        """Remove ended jobs and all that belongs to them; of trials also what runs leave."""
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                for number in numbers:
                    for table, column in (("jobs", "id"), ("story", "job"), ("secrets", "job")):
                        self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (number,))
                # Not with its job, which may be over and gone before a lost answer is asked for.
                sql = "DELETE FROM submissions WHERE job < ?"
                self._db.execute(sql, (self.next_id() - NONCES,))
                self.records.forget(numbers)
                for number in trials:
                    self.records.drop(number)
        except sqlite3.Error as problem:
            raise StoreError(f"cannot write {self.path}: {self._reason(problem)}") from problem

    def never_issued(self, numbers: Sequence[int], skip: bool = True) -> set[int]:
        """Find, among these jobs, those that this queue never gave out: there was a later state of
        it, and an older one was restored. Their files are kept, and with `skip` their numbers, and
        all up to them, are given out no more: that is one range, however many there are."""
        first = self.next_id()
        new = [number for number in numbers if skip and first <= number < first + MOST_SKIPPED]
        if new:
            self._skip(first, max(new))
            text = "jobs %s have files, and this queue never knew them: it was restored from "
            text += "an older copy, or begun anew. Their files stay; the next job is number %d"
            logger.warning(text, _some_of(new), self.next_id())
        ranges = self._skipped()
        lows = [low for low, _ in ranges]

        def was_skipped(number: int) -> bool:
            at = bisect_right(lows, number) - 1
            return at >= 0 and number <= ranges[at][1]

        return {number for number in numbers if number >= first or was_skipped(number)}

    def _skip(self, first: int, last: int) -> None:
        """Give none of these out; a range that ends before them grows."""
        before = [(low, high) for low, high in self._skipped() if high == first - 1]
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                for low, high in before:
                    names = (f"{NEVER_ISSUED}{low}-{high}", f"{NEVER_ISSUED}{low}")
                    self._db.execute("DELETE FROM facts WHERE name IN (?, ?)", names)
                    first = min(first, low)
                row = (f"{NEVER_ISSUED}{first}-{last}", "")
                self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", row)
                sql = "UPDATE counters SET value = max(value, ?) WHERE name = 'next_job'"
                self._db.execute(sql, (last + 1,))
        except sqlite3.Error as problem:
            raise StoreError(f"cannot write {self.path}: {self._reason(problem)}") from problem

    def _skipped(self) -> list[tuple[int, int]]:
        """Ranges of numbers, the first and the last; older versions wrote each by itself."""
        sql = "SELECT substr(name, ?) FROM facts WHERE name GLOB ?"
        rows = self._db.execute(sql, (len(NEVER_ISSUED) + 1, f"{NEVER_ISSUED}*"))
        found = (row[0].partition("-") for row in rows)
        return sorted((int(low), int(high or low)) for low, _, high in found)

    def forget_nodes(self) -> None:
        """The cluster is no more: this machine is alone."""
        try:
            with self._db:
                self._db.execute("DELETE FROM nodes")
        except sqlite3.Error as problem:
            raise StoreError(f"cannot write {self.path}: {self._reason(problem)}") from problem

    # ---- reading

    @property
    def db(self) -> sqlite3.Connection:
        """The connection, for classes that keep tables of their own in the same file
        (membership/members)."""
        return self._db

    def nodes(self) -> list[NodeRow]:
        """The machines of the cluster, in the order they joined."""
        return self._all("node", _node, "SELECT body FROM nodes ORDER BY rowid")

    def latest_attempts(self) -> dict[int, int]:
        """The number of every job's latest attempt, whether the job is over or not; 0: it had none.
        The jobs are not read whole: there may be a hundred thousand."""
        text = "CAST(body AS TEXT)"
        attempt = f"CASE WHEN json_valid({text}) THEN json_extract({text}, '$.attempt.number') END"
        sql = f"SELECT id, {attempt} FROM jobs"
        return {number: attempt or 0 for number, attempt in self._db.execute(sql)}

    def numbers(self) -> set[int]:
        """The numbers of all jobs, over or not."""
        return {row[0] for row in self._db.execute("SELECT id FROM jobs")}

    def next_id(self) -> int:
        row = self._db.execute("SELECT value FROM counters WHERE name = 'next_job'").fetchone()
        return int(row[0])

    def live(self) -> list[Job]:
        """All jobs that are not over."""
        sql = "SELECT body FROM jobs WHERE ended IS NULL ORDER BY id"
        return self._all("job", _job, sql)

    def _all(self, what: str, decode: Callable[[bytes], Kind], sql: str) -> list[Kind]:
        """Read all rows: a state of which a part cannot be read is not used."""
        try:
            return [decode(row[0]) for row in self._db.execute(sql)]
        except msgspec.DecodeError as problem:
            raise StoreUnusable(
                f"{self.path} has a {what} that this version cannot read ({problem}); it was left "
                "as it is. Install the version that wrote it again"
            ) from problem

    def ended(self, limit: int) -> list[Job]:
        """The latest to end, latest first."""
        rows = self._db.execute(
            "SELECT id, body FROM jobs WHERE ended IS NOT NULL ORDER BY ended DESC LIMIT ?",
            (limit,),
        )
        return list(self._readable(rows))

    def _readable(self, rows: Iterable[tuple[int, bytes]]) -> Iterator[Job]:
        """Yield jobs, but for those that cannot be read: what is over must not keep what goes on
        from being seen. They are named in the log once."""
        new, why = [], ""
        try:
            for number, body in rows:
                try:
                    yield _job(body)
                except msgspec.DecodeError as problem:
                    if number not in self.unreadable:
                        new.append(number)
                        self.unreadable.add(number)
                        why = str(problem)
        finally:
            if new:
                text = "%s: jobs that this version cannot read are left out, their files stay: %s "
                text += "(%s). Install the version that wrote them to see them again"
                logger.warning(text, self.path, _some_of(new), why)

    def sweep(self, number: int) -> list[Job]:
        """The jobs of a sweep, over or not, but for those that were pruned. Their numbers follow
        each other, so no more than MOST_JOBS rows are read."""
        sql = "SELECT id, body FROM jobs WHERE id >= ? AND id < ? ORDER BY id"
        found: list[Job] = []
        for job in self._readable(self._db.execute(sql, (number, number + MOST_JOBS))):
            if job.sweep != number:
                break
            found.append(job)
        return found

    def ended_trials(self, before: float) -> list[int]:
        """Trials of `wiiiiide plan` that ended before then. This is asked often: of thousands of
        jobs only the trials are read."""
        found = {number: self.job(number) for number in sorted(self._trials)}
        self._trials = {number for number, job in found.items() if job is not None}
        return [
            number
            for number, job in found.items()
            if job is not None and isinstance(job.phase, Ended) and job.phase.since < before
        ]

    def _written_trials(self) -> set[int]:
        sql = "SELECT id, body FROM jobs WHERE instr(body, ?)"
        found = self._readable(self._db.execute(sql, (PROBE.encode(),)))
        return {job.id for job in found if PROBE in job.spec.run.env}

    def ended_before_latest(self, keep: int) -> list[int]:
        """Numbers of ended jobs but for the latest `keep`."""
        rows = self._db.execute(
            "SELECT id FROM jobs WHERE ended IS NOT NULL ORDER BY ended DESC LIMIT -1 OFFSET ?",
            (keep,),
        )
        return [row[0] for row in rows]

    def job(self, number: int) -> Job | None:
        """Read any job there ever was, unless it was pruned or cannot be read."""
        rows = self._db.execute("SELECT id, body FROM jobs WHERE id = ?", (number,))
        return next(self._readable(rows), None)

    def story(self, number: int) -> list[tuple[float, str]]:
        """The latest lines of a job, the oldest of them first."""
        sql = "SELECT at, text FROM story WHERE job = ? ORDER BY seq DESC LIMIT ?"
        rows = self._db.execute(sql, (number, STORY_LINES)).fetchall()
        return [(row[0], row[1]) for row in reversed(rows)]

    def secrets(self, number: int) -> dict[str, str]:
        row = self._db.execute("SELECT body FROM secrets WHERE job = ?", (number,)).fetchone()
        return {} if row is None else _secrets(row[0])

    def submitted(self, node: str, uid: int, nonce: str) -> tuple[int, int] | None:
        """The job that a request of that user queued, and how many it swept, 0 where it is no
        sweep; None: none was."""
        sql = "SELECT job, swept FROM submissions WHERE node = ? AND uid = ? AND nonce = ?"
        row = self._db.execute(sql, (node, uid, nonce)).fetchone()
        return None if row is None else (row[0], row[1])

    def unneeded_archives(self, there: Iterable[str]) -> list[str]:
        """Archives of these that no job names, then those that only jobs which are over name, those
        first that ended first."""
        named = self.archives()
        sql = "SELECT archive FROM jobs GROUP BY archive HAVING count(ended) = count(*) "
        ended = (row[0] for row in self._db.execute(f"{sql}ORDER BY max(ended)"))
        return [*(digest for digest in there if digest not in named), *ended]

    def archives(self) -> set[str]:
        """Archives that some job still names."""
        return {row[0] for row in self._db.execute("SELECT DISTINCT archive FROM jobs")}

    def _reason(self, problem: sqlite3.Error) -> str:
        text = str(problem)
        # A file that cannot be made longer is an I/O error to SQLite.
        if "disk is full" in text or ("I/O" in text and self.reserve.trouble):
            return "the disk is full"
        if "readonly" in text or "read-only" in text:
            return "it is read-only for this user"
        return text

    # ---- opening

    def _open_at_last(self, migrations: Sequence[str]) -> sqlite3.Connection:
        """Open the state, on a full disk with the room of the reserve: a daemon that cannot start
        ends no job."""
        try:
            return self._open(migrations)
        except StoreUnusable:
            raise
        except StoreError:
            if not self.reserve.release():
                raise
            return self._open(migrations)

    def _open(self, migrations: Sequence[str]) -> sqlite3.Connection:
        old_umask = os.umask(0o077)  # the file and its log are made with their final mode
        try:
            db = sqlite3.connect(self.path, timeout=5.0, isolation_level=None)
        except sqlite3.Error as problem:
            raise StoreError(f"cannot open {self.path}: {self._reason(problem)}") from problem
        finally:
            os.umask(old_umask)
        try:
            self._check_and_migrate(db, migrations)
        except sqlite3.Error as problem:
            db.close()
            raise (StoreUnusable if _is_broken(problem) else StoreError)(
                f"cannot use {self.path}: {self._reason(problem)}. It was left as it is; mend it, "
                "or move it away to begin with an empty queue"
            ) from problem
        except StoreError:
            db.close()
            raise
        return db

    def _check_and_migrate(self, db: sqlite3.Connection, migrations: Sequence[str]) -> None:
        # Everything is looked at before anything is written: a foreign file stays untouched.
        owner = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        empty = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0
        if owner != APPLICATION_ID and not empty:
            raise StoreUnusable(
                f"{self.path} is an SQLite file of another program; it was left as it is. "
                "Move it away"
            )
        if version > len(migrations):
            raise StoreUnusable(
                f"{self.path} has schema version {version}, this wiiiiided knows up to "
                f"{len(migrations)}: it was written by a newer one. Install that version again; "
                "the file was left as it is"
            )
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")  # secrets of forgotten jobs are overwritten
        if owner != APPLICATION_ID:  # a write, which a full disk does not take
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for number in range(version, len(migrations)):
            script = f"BEGIN;{migrations[number]};PRAGMA user_version = {number + 1};COMMIT;"
            try:
                db.executescript(script)
            except sqlite3.Error:
                if db.in_transaction:
                    db.rollback()
                raise
        (check,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if check != "ok":
            raise StoreUnusable(
                f"{self.path} is damaged ({check}); it was left as it is. Restore a copy, or move "
                "it away to begin with an empty queue"
            )


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as problem:
        raise StoreError(
            f"cannot make the state directory {directory}: {problem.strerror}. "
            "Give this user a directory it can write"
        ) from problem


def _lock(directory: Path) -> int:
    """Held as long as the process lives: two daemons must never share a state."""
    path = directory / "lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise StoreError(
            f"cannot write in the state directory {directory}: {problem.strerror}. "
            "Is it this user's, and is the disk full or mounted read-only?"
        ) from problem
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        raise StoreError(
            f"another wiiiiided (pid {pid or 'unknown'}) works with {directory}. "
            "Stop that one first"
        ) from None
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass  # a full disk: the lock is what counts, the number is a courtesy
    return fd


def _some_of(jobs: Sequence[int]) -> str:
    """Name jobs by their numbers: the first, and how many there are."""
    shown = ", ".join(map(str, sorted(jobs)[:SHOWN])) + (" …" if len(jobs) > SHOWN else "")
    return f"{shown} ({len(jobs)})"


def _is_broken(problem: sqlite3.Error) -> bool:
    """Trying again will not help; a full, busy or read-only disk may be mended meanwhile."""
    waits = ("full", "locked", "busy", "readonly", "read-only", "I/O", "unable to open")
    return not any(word in str(problem) for word in waits)
