"""How the spin budget follows what spinning has been worth."""

from __future__ import annotations

from wiiiiided.engine.patience import LEAST, PROBE_EVERY, Patience


def test_it_begins_with_the_most() -> None:
    assert Patience(400).passes() == 400


def test_spins_in_vain_shrink_the_budget_to_the_least_and_no_further() -> None:
    patience = Patience(400)
    for _ in range(PROBE_EVERY - 2):
        patience.in_vain()
    assert patience.passes() == LEAST


def test_the_most_is_tried_again_now_and_then() -> None:
    patience = Patience(400)
    tried = []
    for _ in range(4 * PROBE_EVERY):
        tried.append(patience.passes())
        patience.in_vain()
    assert tried.count(400) == 5  # the first, and every PROBE_EVERY-th


def test_a_spin_that_paid_brings_the_budget_back_at_once() -> None:
    patience = Patience(400)
    for _ in range(PROBE_EVERY - 2):
        patience.in_vain()
    patience.paid(60)
    assert patience.passes() == 240


def test_never_spinning_stays_so() -> None:
    patience = Patience(1)
    for _ in range(3 * PROBE_EVERY):
        patience.in_vain()
        assert patience.passes() == 1
    patience.paid(0)
    assert patience.passes() == 1
