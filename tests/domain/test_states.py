"""The table of moves, and the page made from it."""

from __future__ import annotations

from pathlib import Path

from tests.kit.made_docs import states_page
from wiiiiided.domain.states import ENDED, MOVES, ON_NODES, STATES

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_table_says() -> None:
    assert (DOCS / "job-states.md").read_text() == states_page()


def test_every_state_can_be_reached_and_left() -> None:
    reached = {new for moves in MOVES.values() for news in moves.values() for new in news}
    assert reached == set(STATES)
    assert set(MOVES) - {"new"} == set(STATES)
    assert all(MOVES[state] for state in STATES)


def test_a_job_with_workers_can_always_be_cancelled_and_always_notices_their_end() -> None:
    for state in ON_NODES:
        assert "CancelRequested" in MOVES[state]
        assert "WorkersEnded" in MOVES[state]


def test_nothing_but_a_requeue_leaves_an_end() -> None:
    for state in ENDED:
        assert list(MOVES[state]) == ["RequeueRequested"]
