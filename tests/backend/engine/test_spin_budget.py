"""How the spin budget follows what spinning has been worth."""

from __future__ import annotations

from wiiiiided.backend.engine.spin_budget import LEAST, PROBE_EVERY, SpinBudget


def test_it_begins_with_the_most() -> None:
    assert SpinBudget(400).passes() == 400


def test_spins_in_vain_shrink_the_budget_to_the_least_and_no_further() -> None:
    budget = SpinBudget(400)
    for _ in range(PROBE_EVERY - 2):
        budget.in_vain()
    assert budget.passes() == LEAST


def test_the_most_is_tried_again_now_and_then() -> None:
    budget = SpinBudget(400)
    tried = []
    for _ in range(4 * PROBE_EVERY):
        tried.append(budget.passes())
        budget.in_vain()
    assert tried.count(400) == 5  # the first, and every PROBE_EVERY-th


def test_a_spin_that_paid_brings_the_budget_back_at_once() -> None:
    budget = SpinBudget(400)
    for _ in range(PROBE_EVERY - 2):
        budget.in_vain()
    budget.paid(60)
    assert budget.passes() == 240


def test_never_spinning_stays_so() -> None:
    budget = SpinBudget(1)
    for _ in range(3 * PROBE_EVERY):
        budget.in_vain()
        assert budget.passes() == 1
    budget.paid(0)
    assert budget.passes() == 1
