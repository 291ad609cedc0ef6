"""An allocation's state machine, without a daemon: every move of its table, and what each means."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.cluster.daemon.test_full_disk import given
from wiiiiided.cluster.allocation.lifecycle import (
    FORFEITED,
    MOVES,
    UNKNOWN,
    Allocation,
    AllocationAction,
    AllocationEvent,
    CancelPreparation,
    Follow,
    NumberReused,
    PreparationDone,
    PreparationFailed,
    Prepare,
    PrepareOrdered,
    ReportEvent,
    RunningFound,
    ShimEnded,
    ShimStarted,
    StartOrdered,
    StopOrdered,
    StopShim,
    UnknownFound,
    is_another,
    step,
)
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Running
from wiiiiided.cluster.shim.protocol import AttemptEnd
from wiiiiided.domain.exit_codes import TERMINATED

KEY = (7, 1)
NEW = given()
JOB = NEW.job
OLD = replace(NEW, job=replace(JOB, submitted_at=-1.0))  # another job that had this number
THIRD = replace(NEW, job=replace(JOB, submitted_at=-2.0))  # … and one more
DONE = PreparationDone("3.11.2", "2.13.0", "1.0", "")
STOP = StopOrdered(JOB, 10.0, "cancelled by ada")
WELL = AttemptEnd(5.0, {"0": 0}, 0)
NEVER = AttemptEnd(0.0, {}, 1, reason=FORFEITED)
EVENTS: tuple[AllocationEvent, ...] = (
    *(PrepareOrdered(JOB), PrepareOrdered(OLD.job), StartOrdered(NEW), StartOrdered(OLD)),
    *(STOP, StopOrdered(OLD.job, 0.0, "x"), RunningFound(JOB), RunningFound(OLD.job)),
    *(UnknownFound(UNKNOWN, 0.0), NumberReused(), DONE, PreparationFailed(1, "no room")),
    *(ShimStarted(), ShimEnded(WELL), ShimEnded(NEVER)),
    *(PrepareOrdered(THIRD.job), StartOrdered(THIRD)),
)


class Story:
    """An allocation, and what its latest event made the node do."""

    def __init__(self, *events: AllocationEvent) -> None:
        self.now, self.did = Allocation(KEY, "b"), list[AllocationAction]()
        for event in events:
            self.take(event)

    def take(self, event: AllocationEvent) -> list[AllocationAction]:
        self.now, self.did = step(self.now, event, at=100.0)
        return self.did

    @property
    def ended(self) -> e.WorkersEnded:
        (report,) = self.did
        assert isinstance(report, ReportEvent)
        assert isinstance(report.event, e.WorkersEnded)
        return report.event


def walk(
    seed: int, steps: int = 400
) -> Iterator[tuple[str, AllocationEvent, Allocation, list[AllocationAction]]]:
    """Any events in any order: a node hears of them in none that it could rely on."""
    chosen, story = random.Random(seed), Story()
    for _ in range(steps):
        event, stage = chosen.choice(EVENTS), story.now.stage
        yield stage, event, story.now, story.take(event)
        check(story)


def check(story: Story) -> None:
    """What is true of every state, and of every list of actions."""
    beginning, shim = story.now.beginning, story.now.shim
    if beginning is not None and shim is not None:
        assert is_another(shim.job, beginning.job) or is_another(beginning.job, shim.job)
    for action in story.did:
        if isinstance(action, StopShim):
            assert shim is not None
            assert shim.ending


def test_no_order_of_events_makes_a_move_that_the_table_does_not_have() -> None:
    for seed in range(20):
        for _ in walk(seed):
            pass


def test_every_move_of_the_table_happens() -> None:
    seen = set()
    for seed in range(20):
        before = None
        for stage, event, _, _ in walk(seed):
            if before is not None:
                seen.add((*before, stage))
            before = stage, type(event).__name__
    table = {
        (stage, kind, after)
        for stage, moves in MOVES.items()
        for kind, legal in moves.items()
        for after in legal
    }
    assert table - seen == set()


def test_one_shim_is_followed_at_a_time_and_one_preparation_runs() -> None:
    for seed in range(20):
        shims = preparations = 0
        for stage, event, _, did in walk(seed):
            shims -= isinstance(event, ShimEnded) and shims > 0
            ends = isinstance(event, PreparationDone | PreparationFailed)
            preparations -= ends and stage == "preparing"
            for action in did:
                shims += isinstance(action, Follow)
                preparations += isinstance(action, Prepare)
                preparations -= isinstance(action, CancelPreparation)
            assert shims in (0, 1)
            assert preparations in (0, 1)


# ---- the usual way


def test_it_is_prepared_started_and_ends_each_reported_once() -> None:
    story = Story()
    assert story.take(PrepareOrdered(JOB)) == [Prepare(JOB)]
    (prepared,) = story.take(DONE)
    assert prepared == ReportEvent(e.WorkersPrepared(100.0, 7, 1, "b", "3.11.2", "2.13.0", "1.0"))
    assert story.take(StartOrdered(NEW)) == [Follow(NEW, starts=True)]
    assert story.take(ShimStarted()) == [ReportEvent(e.WorkersStarted(100.0, 7, 1, "b"))]
    assert story.now.shim is not None
    assert isinstance(story.now.shim.job.phase, Running)
    story.take(ShimEnded(WELL))
    assert (story.ended.code, story.ended.lost, story.ended.reason) == (0, False, "all ranks ended")
    assert story.now == Allocation(KEY, "b")


def test_orders_that_come_twice_get_what_is_known_reported_again() -> None:
    story = Story(PrepareOrdered(JOB))
    assert story.take(PrepareOrdered(JOB)) == []
    story.take(DONE)
    (again,) = story.take(PrepareOrdered(JOB))
    assert isinstance(again, ReportEvent)
    assert isinstance(again.event, e.WorkersPrepared)
    story.take(StartOrdered(NEW))
    assert story.take(StartOrdered(NEW)) == []
    story.take(ShimStarted())
    for order in (StartOrdered(NEW), PrepareOrdered(JOB), RunningFound(JOB)):
        assert story.take(order) == [ReportEvent(e.WorkersStarted(100.0, 7, 1, "b"))]


def test_a_preparation_that_fails_is_an_end() -> None:
    story = Story(PrepareOrdered(JOB), PreparationFailed(126, "no Python", idle=True))
    assert (story.ended.code, story.ended.reason, story.ended.idle) == (126, "no Python", True)
    assert story.now.stage == "absent"


def test_an_order_to_start_waits_for_the_preparation_that_runs() -> None:
    """A restarted daemon prepares again, while the coordinator has all that it waited for."""
    story = Story(PrepareOrdered(JOB))
    assert story.take(StartOrdered(NEW)) == []
    follow, prepared = story.take(DONE)
    assert follow == Follow(NEW, starts=True)
    assert isinstance(prepared, ReportEvent)


# ---- stopping


@pytest.mark.parametrize("before", [(), (PrepareOrdered(JOB),), (PrepareOrdered(JOB), DONE)])
def test_an_allocation_that_is_stopped_before_it_began_ends_without_a_failure(
    before: tuple[AllocationEvent, ...],
) -> None:
    story = Story(*before, STOP)
    assert [type(action) for action in story.did][-2:] == [Follow, StopShim]
    assert (CancelPreparation() in story.did) == (before == (PrepareOrdered(JOB),))
    story.take(ShimEnded(NEVER))
    assert (story.ended.code, story.ended.reason) == (0, FORFEITED)


def test_a_stop_that_was_not_ordered_is_a_loss() -> None:
    stopped = AttemptEnd(5.0, {"0": 0}, 0, stopped="the machine shuts down")
    story = Story(StartOrdered(NEW), ShimStarted(), ShimEnded(stopped))
    assert (story.ended.code, story.ended.lost) == (TERMINATED, True)
    story = Story(StartOrdered(NEW), ShimStarted(), STOP, ShimEnded(stopped))
    assert (story.ended.code, story.ended.lost) == (0, False)


def test_an_attempt_that_the_queue_does_not_know_is_ended_once() -> None:
    story = Story(RunningFound(JOB))
    assert story.take(UnknownFound(UNKNOWN, 3.0)) == [StopShim(3.0, UNKNOWN)]
    assert story.take(UnknownFound(UNKNOWN, 3.0)) == []
    story.take(STOP)  # ordered after all: it counts as lost all the same
    story.take(ShimEnded(NEVER))
    assert story.ended.lost


# ---- a number that is given anew


def test_a_start_waits_for_the_shim_of_another_job_with_its_number() -> None:
    story = Story(RunningFound(OLD.job))
    assert story.take(StartOrdered(NEW)) == [StopShim(0.0, UNKNOWN)]
    assert story.now.stage == "waiting"
    assert story.take(ShimStarted()) == []
    assert story.take(ShimEnded(WELL)) == [Follow(NEW, starts=True)]  # no word of the old one


@pytest.mark.parametrize("order", [PrepareOrdered(JOB), StartOrdered(NEW)])
def test_a_stop_of_the_new_job_is_answered_whatever_the_old_one_takes_to_end(
    order: AllocationEvent,
) -> None:
    story = Story(RunningFound(OLD.job), order, NumberReused(), STOP)
    ends = [action for action in story.did if isinstance(action, ReportEvent)]
    assert isinstance(ends[0].event, e.WorkersEnded)
    assert (ends[0].event.code, ends[0].event.reason) == (0, FORFEITED)
    assert story.take(ShimEnded(WELL)) == []
    assert story.now.stage == "absent"


def test_a_preparation_goes_on_while_the_old_jobs_shim_ends() -> None:
    story = Story(RunningFound(OLD.job), PrepareOrdered(JOB))
    assert story.take(NumberReused()) == [StopShim(0.0, UNKNOWN)]
    assert story.take(ShimEnded(WELL)) == []
    story.take(DONE)
    assert story.take(StartOrdered(NEW)) == [Follow(NEW, starts=True)]
