"""Loss over steps: recorded, seen, and begun again."""

from __future__ import annotations

from tests.ui.top import snapshots as s
from wiiiiided.domain.metrics import Point, Rates, RunRecord
from wiiiiided.ui.top.losses import POINTS, LossHistory


def seen(history: LossHistory, step: int, loss: float) -> None:
    history.take(s.snapshot(s.node(), jobs=(s.doing(17, step=step, loss=loss),)))


def test_every_step_adds_its_loss_once() -> None:
    history = LossHistory()
    for step, loss in ((1, 3.0), (1, 3.0), (2, 2.0)):
        seen(history, step, loss)
    assert history.values() == {17: (3.0, 2.0)}


def test_a_record_stands_before_what_was_seen() -> None:
    history = LossHistory()
    seen(history, 3, 1.0)
    points = tuple(Point(float(n), 1.0, Rates(), step=n, loss=5.0 - n) for n in range(4))
    history.begin(17, (RunRecord(17, "x", 1, ("a",), 1, 0.0, points=points),))
    assert history.values() == {17: (5.0, 4.0, 3.0, 1.0)}


def test_a_job_that_begins_again_replaces_what_it_does_again() -> None:
    history = LossHistory()
    for step, loss in ((1, 3.0), (2, 2.0), (3, 1.0), (2, 1.9)):
        seen(history, step, loss)
    assert history.values() == {17: (3.0, 1.9)}


def test_a_long_run_is_thinned_and_keeps_its_ends() -> None:
    history = LossHistory()
    for step in range(POINTS * 3):
        seen(history, step, float(step))
    losses = history.values()[17]
    assert len(losses) <= POINTS
    assert losses[0] == 0.0
    assert losses[-1] == POINTS * 3 - 1.0
    assert list(losses) == sorted(losses)


def test_a_job_that_is_gone_is_forgotten() -> None:
    history = LossHistory()
    seen(history, 1, 3.0)
    history.take(s.snapshot(s.node()))
    assert history.values() == {}
