"""When the daemon looks at jobs: with a loop whose time only the test moves."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cluster.control.world import World, spec
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.monitoring.attempt_tracker import Followed, how_it_ended, why_it_ended
from wiiiiided.cluster.monitoring.sampler import EVERY_S, FLUSH_S, LEAST_S, Sampler
from wiiiiided.cluster.monitoring.snapshot import ENDED_ROWS, ROWS, SnapshotMaker
from wiiiiided.cluster.peering.metrics_codec import NodeMetrics
from wiiiiided.domain.metrics import Rates
from wiiiiided.domain.node import DrainRecord, Node
from wiiiiided.domain.spec import Restart
from wiiiiided.metrics.snapshot import Health


class Loop:
    """A clock, and what is to happen when."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: list[tuple[float, int, Any]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        handle = SimpleNamespace(call=call, cancelled=False)
        handle.cancel = lambda: setattr(handle, "cancelled", True)
        heapq.heappush(self._timers, (when, len(self._timers), handle))
        return handle

    def call_later(self, after: float, call: Callable[[], None]) -> Any:
        return self.call_at(self.now + after, call)

    @property
    def pending(self) -> int:
        return sum(not handle.cancelled for _, _, handle in self._timers)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, handle = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if not handle.cancelled:
                handle.call()
        self.now = end


class FakeTracker:
    """What a Sampler wants of them; `looks` are the moments it looked at."""

    node = "a"

    def __init__(self, loop: Loop) -> None:
        self.live: dict[Any, Any] = {}
        self.looks: list[float] = []
        self.waiting = False
        self.flushed: list[float] = []
        self.reader = SimpleNamespace(report=None, clock=None)
        self.taken: list[str] = []
        self._loop = loop
        self.defect: Exception | None = None

    def take(self, node: str, metrics: NodeMetrics) -> None:
        self.taken.append(node)

    def update(self, state: object) -> None:
        if self.defect is not None:
            raise self.defect

    def sample(self) -> set[str]:
        self.looks.append(self._loop.now)
        if self.defect is not None:
            raise self.defect
        return {followed.node for followed in self.live.values()}

    def flush(self) -> None:
        self.flushed.append(self._loop.now)
        self.waiting = False


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def tracker(loop: Loop) -> FakeTracker:
    return FakeTracker(loop)


@pytest.fixture
def sampler(loop: Loop, tracker: FakeTracker) -> Sampler:
    machine = SimpleNamespace(look=lambda: None, health=Health())
    state = SimpleNamespace(nodes={"a": None, "b": None})
    controller = SimpleNamespace(state=state, clock=lambda: 0.0, report=lambda event: None)
    made: Sampler = Sampler(controller, tracker, machine, loop)  # type: ignore[arg-type]
    return made


def a_job_comes(sampler: Sampler, tracker: FakeTracker) -> None:
    rates = [Rates(samples=64.0)]
    attempt_metrics = SimpleNamespace(rates=lambda node: rates, fresh={0: ("a", None)})
    tracker.live[1, 1] = SimpleNamespace(attempt_metrics=attempt_metrics, node="a")
    sampler.changed()


def test_with_no_job_and_no_watcher_nothing_happens_at_all(
    sampler: Sampler, loop: Loop, tracker: FakeTracker
) -> None:
    sampler.changed()
    assert loop.pending == 0
    loop.advance(100)
    assert tracker.looks == []


def test_while_a_job_runs_it_looks_once_a_second_and_then_no_more(
    sampler: Sampler, loop: Loop, tracker: FakeTracker
) -> None:
    a_job_comes(sampler, tracker)
    loop.advance(5.5)
    assert tracker.looks == [1000.0 + n for n in range(6)]
    tracker.live.clear()
    sampler.changed()
    assert loop.pending == 0


def test_a_watcher_is_woken_at_once_and_then_as_often_as_asked(
    sampler: Sampler, loop: Loop, tracker: FakeTracker
) -> None:
    woken = []
    with sampler.watching(0.5) as bell:
        for _ in range(40):
            loop.advance(0.1)
            if bell.is_set():
                woken.append(round(loop.now - 1000.0, 1))
                bell.clear()
    assert woken == [0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    assert loop.pending == 0
    loop.advance(10)
    assert len(tracker.looks) == 9


def test_however_many_watch_it_never_looks_oftener_than_four_times_a_second(
    sampler: Sampler, loop: Loop, tracker: FakeTracker
) -> None:
    a_job_comes(sampler, tracker)
    loop.advance(0.1)
    with sampler.watching(0.25), sampler.watching(0.3), sampler.watching(0.7):
        loop.advance(0.13)
        with sampler.watching(0.26):
            loop.advance(20)
    gaps = [b - a for a, b in zip(tracker.looks, tracker.looks[1:], strict=False)]
    assert min(gaps) >= LEAST_S - 1e-9
    assert len(tracker.looks) <= 82


def test_a_sample_that_was_just_taken_serves_a_new_watcher(
    sampler: Sampler, loop: Loop, tracker: FakeTracker
) -> None:
    a_job_comes(sampler, tracker)
    loop.advance(0.1)
    with sampler.watching(1.0) as bell:
        assert bell.is_set()
        bell.clear()
        loop.advance(1.0)
        assert bell.is_set()
    assert tracker.looks == [1000.0, 1001.0]


def test_a_slow_watcher_does_not_make_a_running_job_be_looked_at_less(
    sampler: Sampler, loop: Loop, tracker: FakeTracker
) -> None:
    a_job_comes(sampler, tracker)
    with sampler.watching(60.0):
        loop.advance(30)
    assert len(tracker.looks) == 31


def test_a_single_request_gets_what_is_at_most_a_second_old(
    sampler: Sampler, loop: Loop, tracker: FakeTracker
) -> None:
    sampler.refresh()
    assert tracker.looks == [1000.0]
    loop.advance(EVERY_S)
    sampler.refresh()
    assert len(tracker.looks) == 1
    loop.advance(EVERY_S)
    sampler.refresh()
    assert len(tracker.looks) == 2
    assert loop.pending == 0


def test_ends_are_written_together_soon_after(
    sampler: Sampler, loop: Loop, tracker: FakeTracker
) -> None:
    for _ in range(5):
        tracker.waiting = True
        sampler.changed()
        loop.advance(FLUSH_S / 10)
    loop.advance(1)
    assert tracker.flushed == [pytest.approx(1000.0 + FLUSH_S)]


def test_a_defect_in_looking_disturbs_no_job_and_is_told_once(
    sampler: Sampler, loop: Loop, tracker: FakeTracker, caplog: pytest.LogCaptureFixture
) -> None:
    tracker.defect = ZeroDivisionError("of a colleague")
    a_job_comes(sampler, tracker)
    with sampler.watching(1.0) as bell:
        loop.advance(5)
        assert bell.is_set()
    assert len(tracker.looks) == 6
    told = [record for record in caplog.records if "a defect while looking" in record.message]
    assert len(told) == 1


def test_the_main_rate_of_a_node_is_kept_while_something_runs_on_it(
    sampler: Sampler, loop: Loop, tracker: FakeTracker
) -> None:
    a_job_comes(sampler, tracker)
    loop.advance(3.5)
    assert list(sampler.trends["a"].values) == [64.0] * 4
    tracker.live.clear()
    sampler.refresh()
    loop.advance(2.0)
    sampler.refresh()
    assert sampler.trends == {}


def test_what_another_node_says_of_itself_is_kept_until_it_is_no_member(
    sampler: Sampler, loop: Loop, tracker: FakeTracker
) -> None:
    sampler.take("b", NodeMetrics(5.0, 0.5, 0.25, True))
    assert sampler.heard["b"] == (Health(0.5, 0.25, True), 1000.0)
    assert tracker.taken == ["b"]
    del sampler.controller.state.nodes["b"]
    sampler.changed()
    assert sampler.heard == {}


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan"), float("inf"), 1e308])
def test_a_ratio_beyond_its_bounds_is_not_known(sampler: Sampler, ratio: float) -> None:
    sampler.take("b", NodeMetrics(5.0, ratio, ratio, False))
    assert sampler.heard["b"].health == Health()


# ---- how an attempt ended


def followed(world: World, number: int) -> Followed:
    job = world.job(number)
    assert job.attempt is not None
    attempt_metrics: Any = SimpleNamespace(id=number, attempt=job.attempt.number)
    return Followed(job, attempt_metrics, 0.0, 0.0)


def begun(**policy: Any) -> tuple[World, int]:
    world = World()
    number = world.submit(spec(policy=policy))
    world.started_on(number)
    return world, number


def test_an_attempt_that_is_the_last_ended_as_its_job() -> None:
    world, number = begun()
    before = followed(world, number)
    world.now += 5
    world.ended_on(number)
    assert how_it_ended(before, world.job(number), 9999.0) == ("done", 0, world.now)
    assert why_it_ended(before, world.job(number)) == ""


def test_an_attempt_that_is_tried_again_failed_with_its_code() -> None:
    world, number = begun(restart=Restart(max=1, backoff_s=5.0))
    before = followed(world, number)
    world.ended_on(number, code=3)
    assert world.state_of(number) == "backoff"
    assert how_it_ended(before, world.job(number), 9999.0) == ("failed", 3, world.now)
    assert "3" in why_it_ended(before, world.job(number))


def test_a_requeued_attempt_says_so_though_the_next_has_begun() -> None:
    world, number = begun()
    world.requeue(number)
    before = followed(world, number)
    world.ended_on(number, code=143)
    after = world.job(number)
    assert after.attempt is not None
    assert after.attempt.number == 2
    assert how_it_ended(before, after, 1234.0) == ("requeued", None, 1234.0)
    assert "requeue" in why_it_ended(before, after)


def test_an_attempt_whose_node_left_before_it_began_says_so() -> None:
    world = World(Node("a", 4, 8 << 30), Node("b", 4, 8 << 30))
    number = world.submit(spec(resources={"nodes": (2, 2)}))
    world.feed(e.NodeLeft(world.now, "b"))
    before = followed(world, number)
    world.ended_on(number, "a")
    world.feed(e.NodeDeclaredLost(world.now, "b", "root"))
    assert world.state_of(number) == "queued"
    assert how_it_ended(before, world.job(number), 1234.0)[0] == "node-lost"


def test_of_a_job_that_is_gone_nothing_is_known() -> None:
    world, number = begun()
    assert how_it_ended(followed(world, number), None, 1234.0) == ("failed", None, None)
    assert why_it_ended(followed(world, number), None) == ""


# ---- snapshots


def picture_of(
    world: World, sampler: Sampler, ended: list[Job], cluster: str = ""
) -> SnapshotMaker:
    controller: Any = SimpleNamespace(
        state=world.state,
        clock=lambda: world.now,
        problem="the disk is full",
        unrecorded={},
        trouble="the disk is full",
        store=SimpleNamespace(ended=lambda limit: ended[:limit]),
    )
    return SnapshotMaker(controller, sampler, Node("a", 4, 8 << 30), cluster)


def test_what_runs_comes_first_then_the_queue_then_what_ended(sampler: Sampler) -> None:
    world = World()
    over = world.submit()
    world.started_on(over)
    world.ended_on(over)
    runs = world.submit()
    late = world.submit(spec(policy={"priority": 10}))
    soon = world.submit(spec(policy={"priority": 90}))
    snapshot = picture_of(world, sampler, [world.job(over)]).snapshot(2.0)
    assert [row.job.id for row in snapshot.jobs] == [runs, soon, late, over]
    assert (snapshot.every_s, snapshot.cluster, snapshot.problem) == (2.0, "a", "the disk is full")
    assert [node.name for node in snapshot.nodes] == ["a"]


def test_a_long_queue_is_cut_and_the_rest_counted(sampler: Sampler) -> None:
    world = World()
    for _ in range(ROWS + 7):
        world.submit(hold=True)
    snapshot = picture_of(world, sampler, []).snapshot()
    assert (len(snapshot.jobs), snapshot.more) == (ROWS, 7)


def test_only_what_ended_within_the_hour_is_shown(sampler: Sampler) -> None:
    world = World()
    ended = []
    for _ in range(ENDED_ROWS + 5):
        number = world.submit()
        world.started_on(number)
        world.ended_on(number)
        ended.insert(0, world.job(number))
    picture = picture_of(world, sampler, ended)
    assert len(picture.snapshot().jobs) == ENDED_ROWS
    world.now += 3601
    sampler.changed()
    assert picture.snapshot().jobs == ()


def test_all_watchers_get_the_same_and_a_change_is_seen_at_once(sampler: Sampler) -> None:
    world = World()
    picture = picture_of(world, sampler, [])
    first = picture.snapshot(0.5)
    assert picture.snapshot(2.0).nodes is first.nodes
    assert (first.every_s, picture.snapshot(2.0).every_s) == (0.5, 2.0)
    job = world.submit()
    sampler.changed()
    assert [row.job.id for row in picture.snapshot().jobs] == [job]


# ---- several machines


def three_nodes(sampler: Sampler, world: World) -> SnapshotMaker:
    sampler.take("b", NodeMetrics(5.0, 0.5, 0.25, False))
    sampler.take("c", NodeMetrics(7.0, 0.25, 0.5, True))
    return picture_of(world, sampler, [], "lab")


@pytest.fixture
def world() -> World:
    return World(*(Node(name, 4, 8 << 30) for name in ("a", "b", "c")))


def test_every_node_is_shown_with_what_it_said_and_how_old_that_is(
    sampler: Sampler, loop: Loop, world: World
) -> None:
    picture = three_nodes(sampler, world)
    loop.advance(2.0)
    sampler.refresh()
    snapshot = picture.snapshot()
    assert snapshot.cluster == "lab"
    shown = [(n.name, n.state, n.coordinator, n.cpu, n.note, n.age_s) for n in snapshot.nodes]
    assert shown == [
        ("a", "idle", True, None, "", 0.0),
        ("b", "idle", False, 0.5, "", 2.0),
        ("c", "idle", False, 0.25, "swapping", 2.0),
    ]


def test_a_node_is_lost_when_its_link_is_gone_for_longer_than_a_moment(
    sampler: Sampler, loop: Loop, world: World
) -> None:
    picture = three_nodes(sampler, world)
    loop.advance(1.0)
    sampler.take("b", NodeMetrics(6.0, 0.5, 0.25, False))
    world.state.absent.update(b=world.now, c=world.now - 10.0)  # c was silent before
    loop.advance(2.0)
    sampler.refresh()
    a, b, c = picture.snapshot().nodes
    assert (a.state, b.state, c.state) == ("idle", "idle", "lost")
    assert (b.cpu, c.cpu, c.memory_used, c.note) == (0.5, None, None, "")
    assert (b.age_s, c.age_s) == (2.0, 3.0)


def test_a_node_with_ranks_that_says_nothing_for_five_seconds_is_lost(
    sampler: Sampler, world: World
) -> None:
    picture = three_nodes(sampler, world)
    assert not picture._is_lost("b", works=True, age_s=4.9, now=world.now)
    assert picture._is_lost("b", works=True, age_s=5.0, now=world.now)
    assert not picture._is_lost("b", works=False, age_s=9.0, now=world.now)
    assert not picture._is_lost("a", works=True, age_s=9.0, now=world.now)  # it is this one


def test_a_node_that_was_not_heard_since_the_start_is_not_ok(
    sampler: Sampler, world: World
) -> None:
    picture = picture_of(world, sampler, [], "lab")
    world.state.absent.update(b=world.now)
    assert [node.state for node in picture.snapshot().nodes] == ["idle", "lost", "idle"]


def test_a_node_without_ranks_that_is_heard_is_not_lost_however_old_its_metrics_are(
    sampler: Sampler, loop: Loop, world: World
) -> None:
    picture = three_nodes(sampler, world)
    loop.advance(60.0)
    assert [node.state for node in picture.fresh().nodes] == ["idle"] * 3


def test_a_node_that_was_never_heard_is_as_old_as_its_silence(
    sampler: Sampler, world: World
) -> None:
    picture = picture_of(world, sampler, [], "lab")
    world.state.absent["b"] = world.now - 40.0
    b = picture.snapshot().nodes[1]
    assert (b.state, b.age_s, b.cpu) == ("lost", 40.0, None)


def test_a_node_that_was_declared_lost_is_so_at_once(sampler: Sampler, world: World) -> None:
    picture = three_nodes(sampler, world)
    world.state.absent["b"] = world.now
    world.state.lost.add("b")
    assert picture.snapshot().nodes[1].state == "lost"


def test_a_drained_node_says_why(sampler: Sampler, world: World) -> None:
    picture = three_nodes(sampler, world)
    world.state.drained["c"] = DrainRecord("root", "fan broken", world.now)
    c = picture.snapshot().nodes[2]
    assert (c.state, c.note) == ("drained", "fan broken; swapping")
