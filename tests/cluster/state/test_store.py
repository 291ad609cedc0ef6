"""The state on disk: what is committed is there, what cannot be is refused and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.cluster.control.world import World, spec
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.actions import AnyAction, Tell
from wiiiiided.cluster.control.events import Ticked
from wiiiiided.cluster.control.job import Job, Owner
from wiiiiided.cluster.control.node_table import NodeRow
from wiiiiided.cluster.state import store as store_module
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.state.store import MIGRATIONS, StateStore, StoreError, StoreUnusable
from wiiiiided.domain.node import DrainRecord, Node
from wiiiiided.domain.plan import PROBE
from wiiiiided.domain.spec import JobSpec, Resources, Run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    made = StateStore(tmp_path / "state")
    yield made
    made.close()


def some_job(number: int = 1, *, ended: bool = False) -> Job:
    world = World()
    world._next = number
    job = world.submit(spec(f"job-{number}"))
    if ended:
        world.ended_on(job)
    return world.job(job)


def put(store: StateStore, *jobs: Job, secrets: dict[int, dict[str, str]] | None = None) -> None:
    lines = [Tell(job.id, 1.0, f"told of {job.id}") for job in jobs]
    store.commit(jobs, lines, Ticked(1.0), secrets)


def test_what_is_committed_comes_back_the_same(store: StateStore, tmp_path: Path) -> None:
    live, over = some_job(1), some_job(2, ended=True)
    put(store, live, over, secrets={1: {"KEY": "s3cret"}})
    store.close()
    again = StateStore(tmp_path / "state")
    try:
        assert again.live() == [live]
        assert again.ended(10) == [over]
        assert again.job(2) == over
        assert again.job(3) is None
        assert again.story(1) == [(1.0, "told of 1")]
        assert again.secrets(1) == {"KEY": "s3cret"}
        assert again.next_id() == 3
    finally:
        again.close()
        store._lock = os.open("/dev/null", os.O_RDONLY)  # the fixture closes it


def test_everything_is_private_from_its_first_moment(store: StateStore, tmp_path: Path) -> None:
    put(store, some_job())
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    for path in (tmp_path / "state").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_numbers_are_never_used_again(store: StateStore) -> None:
    put(store, some_job(7, ended=True))
    store.forget([7])
    assert store.job(7) is None
    assert store.story(7) == []
    assert store.next_id() == 8


def test_a_line_is_told_of_a_job_that_is_over_and_of_none_that_is_forgotten(
    store: StateStore,
) -> None:
    put(store, some_job(7, ended=True))
    store.tell(Tell(7, 2.0, "and then"))
    store.tell(Tell(8, 2.0, "of nobody"))
    assert store.story(7) == [(1.0, "told of 7"), (2.0, "and then")]
    assert store.story(8) == []


def lines_of(store: StateStore, number: int) -> int:
    sql = "SELECT count(*) FROM story WHERE job = ?"
    return int(store.db.execute(sql, (number,)).fetchone()[0])


def test_a_live_jobs_story_has_an_end_and_its_latest_lines_are_read(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in {"STORY_LINES": 3, "STORY_KEPT": 5, "STORY_CUT": 2}.items():
        monkeypatch.setattr(store_module, name, number)
    put(store, some_job(1), some_job(2))
    for number in range(20):  # as an older version wrote it
        store.db.execute("INSERT INTO story (job, at, text) VALUES (2, 0, ?)", (f"old {number}",))
    for number in range(1, 9):
        store.commit([], [Tell(1, float(number), f"held {number}")], Ticked(1.0))
    store.tell(Tell(1, 9.0, "released"))
    assert lines_of(store, 1) == 5
    assert store.story(1) == [(7.0, "held 7"), (8.0, "held 8"), (9.0, "released")]
    assert lines_of(store, 2) == 21
    for _ in range(20):
        store.tell(Tell(2, 1.0, "told"))
    assert lines_of(store, 2) == 5


def test_reading_a_story_and_adding_to_it_look_at_its_end_only(store: StateStore) -> None:
    """Instructions of SQLite are counted."""
    put(store, some_job(1))

    def steps(lines: int) -> int:
        rows = ((1, 0.0, "held by ada") for _ in range(lines))
        with store.db:
            store.db.execute("BEGIN")
            store.db.executemany("INSERT INTO story (job, at, text) VALUES (?, ?, ?)", rows)
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        store.db.set_progress_handler(count, 100)
        store.tell(Tell(1, 1.0, "released by ada"))
        assert len(store.story(1)) == store_module.STORY_LINES
        store.db.set_progress_handler(None, 0)
        return counted

    few = steps(2 * store_module.STORY_KEPT)
    assert steps(20 * store_module.STORY_KEPT) <= 1.5 * few


def test_the_latest_ended_are_kept_and_the_rest_is_named(store: StateStore) -> None:
    put(store, *(some_job(n, ended=True) for n in range(1, 6)), some_job(9))
    assert store.ended_before_latest(2) == [3, 2, 1]
    assert [job.id for job in store.ended(2)] == [5, 4]


def spoil(store: StateStore, number: int, old: bytes, new: bytes) -> None:
    (body,) = store.db.execute("SELECT body FROM jobs WHERE id = ?", (number,)).fetchone()
    assert old in body
    sql = "UPDATE jobs SET body = ? WHERE id = ?"
    store.db.execute(sql, (body.replace(old, new, 1), number))


SPOILED = {
    "a later field": (b'"run":{', b'"run":{"later":1,'),
    "no text": (b'"job-', b'"\xff\xfe-'),
    "no JSON": (b'{"', b'{{"'),
}


@pytest.mark.parametrize(("old", "new"), SPOILED.values(), ids=SPOILED)
def test_a_job_that_is_over_and_cannot_be_read_is_left_out_and_named_once(
    store: StateStore, old: bytes, new: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    put(store, *(some_job(number, ended=True) for number in (1, 2, 3)), some_job(4))
    spoil(store, 2, old, new)
    for _ in range(2):
        assert [job.id for job in store.ended(10)] == [3, 1]
        assert store.job(2) is None
    assert store.latest_attempts().keys() == store.numbers() == {1, 2, 3, 4}
    assert [job.id for job in store.live()] == [4]
    (line,) = caplog.messages
    assert "this version cannot read are left out, their files stay: 2 (1)" in line
    assert "Install the version that wrote them" in line


@pytest.mark.parametrize(("old", "new"), SPOILED.values(), ids=SPOILED)
def test_a_state_with_a_live_job_that_cannot_be_read_is_not_used(
    store: StateStore, old: bytes, new: bytes
) -> None:
    put(store, some_job(1))
    spoil(store, 1, old, new)
    with pytest.raises(StoreUnusable, match="a job that this version cannot read"):
        store.live()


def test_a_trial_that_cannot_be_read_does_not_keep_the_state_from_opening(
    store: StateStore, tmp_path: Path
) -> None:
    trial = some_job(1, ended=True)
    run = replace(trial.spec.run, env={PROBE: "1"})
    put(store, replace(trial, spec=replace(trial.spec, run=run)))
    spoil(store, 1, *SPOILED["a later field"])
    store.close()
    again = StateStore(tmp_path / "state")
    again.close()
    store._lock = os.open("/dev/null", os.O_RDONLY)  # the fixture closes it


def test_a_second_daemon_is_refused_by_name(store: StateStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"another wiiiiided \(pid {os.getpid()}\)"):
        StateStore(tmp_path / "state")


def test_a_foreign_file_is_left_as_it_is(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    foreign = sqlite3.connect(state / "state.sqlite")
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.commit()
    foreign.close()
    before = (state / "state.sqlite").read_bytes()
    with pytest.raises(StoreError, match="another program"):
        StateStore(state)
    assert (state / "state.sqlite").read_bytes() == before


def test_garbage_is_left_as_it_is(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "state.sqlite").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreError, match="cannot use"):
        StateStore(state)
    assert (state / "state.sqlite").read_bytes() == b"not a database" * 1000


def test_a_newer_schema_is_refused_and_an_older_one_brought_forward(tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = StateStore(state)
    put(store, some_job())
    store.close()
    later = (*MIGRATIONS, "ALTER TABLE jobs ADD COLUMN colour TEXT")
    newer = StateStore(state, later)
    assert newer.job(1) is not None
    put(newer, some_job(2))
    newer.close()
    known = len(MIGRATIONS)
    text = f"schema version {known + 1}, this wiiiiided knows up to {known}"
    with pytest.raises(StoreError, match=text):
        StateStore(state)
    newer = StateStore(state, later)
    assert [job.id for job in newer.live()] == [1, 2]
    newer.close()


def test_a_state_of_before_the_metrics_is_brought_forward(tmp_path: Path) -> None:
    old = StateStore(tmp_path / "state", MIGRATIONS[:1])
    put(old, some_job())
    old.close()
    store = StateStore(tmp_path / "state")
    assert [job.id for job in store.live()] == [1]
    assert store.records.of(1) == []
    store.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = StateStore(state)
    put(store, some_job())
    store.close()
    broken = (*MIGRATIONS, "ALTER TABLE jobs ADD COLUMN colour TEXT; DROP TABLE nonsense")
    with pytest.raises(StoreError, match="left as it is"):
        StateStore(state, broken)
    again = StateStore(state)
    assert [job.id for job in again.live()] == [1]
    again.close()


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def fill_store(store: StateStore) -> int:
    """Commit until it is refused (the log has room for a few more); the number refused."""
    for number in range(2, 10_000):
        try:
            put(store, some_job(number))
        except StoreError as problem:
            if "the disk is full" in str(problem):
                return number
            raise
    raise AssertionError("a full disk was never noticed")


@pytest.mark.needs("root", "mount")
def test_a_full_disk_refuses_the_change_and_keeps_what_was(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", state], check=True)
    try:
        store = StateStore(state)
        put(store, some_job(1))
        filler = state / "filler"
        fill(filler)
        number = fill_store(store)
        stored = [job.id for job in store.live()]
        assert stored == list(range(1, number))
        filler.unlink()
        put(store, some_job(number))
        assert len(store.live()) == number
        store.close()
    finally:
        subprocess.run(["umount", state], check=True)


def test_an_unwritable_directory_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make the state directory"):
        StateStore(tmp_path / "file" / "state")


def test_a_sigkill_in_the_middle_of_a_commit_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """A child commits as fast as it can and says each number when it is stored; then it dies."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.cluster.state.test_store import put, some_job\n"
        "from wiiiiided.cluster.state.store import StateStore as Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for number in range(1, 10**6):\n"
        "    put(store, some_job(number))\n"
        "    print(number, flush=True)\n"
    )
    root = Path(__file__).parents[3]
    for stop_at in (1, 7, 23):
        state = tmp_path / f"state-{stop_at}"
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(state)], stdout=subprocess.PIPE, text=True, cwd=root
        )
        assert child.stdout is not None
        said = 0
        for line in child.stdout:
            said = int(line)
            if said >= stop_at:
                child.kill()
                break
        said = max([said, *(int(line) for line in child.stdout if line.endswith("\n"))])
        child.stdout.close()
        child.wait()
        store = StateStore(state)
        stored = [job.id for job in store.live()]
        assert stored == list(range(1, len(stored) + 1))
        assert len(stored) >= said
        store.close()
        shutil.rmtree(state)


# ---- nodes


def node(name: str, cores: int = 2) -> Node:
    return Node(name, cores, 1 << 30, address="10.0.0.1", port=9461, version="0.6.0")


def controller(store: StateStore, own: str = "a") -> Controller:
    return Controller(store, [node(own)], lambda action, job: None, lambda: None)


def test_nodes_come_back_in_the_order_they_joined(store: StateStore) -> None:
    rows = {name: NodeRow(node(name)) for name in "cab"}
    store.commit([], [], Ticked(1.0), nodes=rows)
    changed = NodeRow(node("c", 8), DrainRecord("root", "fan broken", 1.0), lost=True)
    store.commit([], [], Ticked(2.0), nodes={"c": changed, "a": None})
    assert store.nodes() == [changed, NodeRow(node("b"))]
    store.forget_nodes()
    assert store.nodes() == []


def test_a_change_of_a_node_is_stored_or_has_not_happened(store: StateStore) -> None:
    asyncio.run(a_disk_that_takes_no_node(store))


async def a_disk_that_takes_no_node(store: StateStore) -> None:
    first = controller(store)
    store.db.execute("CREATE TRIGGER no BEFORE INSERT ON nodes BEGIN SELECT raise(FAIL, 'no'); END")
    first.report(e.NodeSeen(1.0, node("b")))
    assert "cannot write" in first.problem
    assert list(first.state.nodes) == ["a"]
    with pytest.raises(StoreError):
        first.ask(e.NodeDrained(1.0, "a", "root", ""))
    assert not first.state.drained
    store.db.execute("DROP TRIGGER no")
    first.tick()
    assert first.problem == ""
    assert list(first.state.nodes) == ["a", "b"]
    assert [row.node.name for row in store.nodes()] == ["b"]
    first.close()


def test_a_controller_knows_all_members_again_and_has_heard_only_itself(store: StateStore) -> None:
    first = controller(store)
    changes = []
    first.on_change = lambda: changes.append(first.state.absent.copy())
    for event in (
        e.NodeSeen(1.0, node("b")),
        e.NodeSeen(1.0, node("c")),
        e.NodeDrained(1.0, "a", "root", "old"),
        e.NodeDrained(1.0, "b", "root", "fan broken"),
        e.NodeLeft(1.0, "c"),
        e.NodeDeclaredLost(1.0, "c", "root"),
    ):
        first.report(event)
    assert len(changes) == 6
    again = controller(store)
    assert again.state.nodes == first.state.nodes
    assert again.state.drained == first.state.drained
    assert again.state.lost == {"c"}
    assert set(again.state.absent) == {"b", "c"}
    again.report(e.NodeRemoved(2.0, "c", "root"))
    assert set(controller(store).state.nodes) == {"a", "b"}


def test_a_gang_that_is_being_prepared_comes_back_the_same(store: StateStore) -> None:
    world = World(node("a"), node("b"))
    job = world.submit(spec(resources={"nodes": (2, 2)}))
    world.prepared_on(job, "a")
    put(store, world.job(job))
    (found,) = store.live()
    assert found == world.job(job)
    assert found.attempt is not None
    assert not found.attempt.ordered
    assert found.attempt.prepared["a"].torch == "2.13.0+cpu"


def test_a_job_of_an_earlier_version_was_ordered_to_start(store: StateStore) -> None:
    """Its attempt says nothing of it: there was one machine, and no preparing."""
    put(store, some_job())
    (body,) = store.db.execute("SELECT body FROM jobs").fetchone()
    job = msgspec.json.decode(body)
    del job["attempt"]["ordered"], job["attempt"]["prepared"]
    store.db.execute("UPDATE jobs SET body = ?", (msgspec.json.encode(job),))
    (found,) = store.live()
    assert found.attempt is not None
    assert found.attempt.ordered


def test_an_action_that_fails_ends_its_allocation_and_keeps_no_other_from_being_told(
    store: StateStore,
) -> None:
    asyncio.run(a_gang_of_which_one_share_cannot_be_prepared(store))


async def a_gang_of_which_one_share_cannot_be_prepared(store: StateStore) -> None:
    told = []

    def perform(action: AnyAction, job: Job) -> None:
        told.append((type(action).__name__, getattr(action, "node", "")))
        if told[-1] == ("PrepareWorkers", "a"):
            raise KeyError("a bug")

    first = Controller(store, [node("a")], perform, lambda: None)
    first.report(e.NodeSeen(first.clock(), node("b")))
    gang = JobSpec("gang", Run(("python",)), Resources((2, 2)))
    first.ask(e.JobSubmitted(first.clock(), 1, gang, Owner("a", 0, "root"), "ab" * 32))
    assert told == [("PrepareWorkers", "a"), ("PrepareWorkers", "b")]
    await asyncio.sleep(0)  # what failed is reported after the step it belongs to
    job = first.job(1)
    assert job is not None
    assert job.state == "stopping"
    assert ("StopWorkers", "b") in told
    first.close()
