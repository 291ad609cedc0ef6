"""Daemons one version apart work together; those further apart say which is too old."""

from __future__ import annotations

import pytest

from wiiiiided.cluster.peering.versions import common_protocol, disagreement


@pytest.mark.parametrize(
    ("ours", "theirs", "spoken"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 1), (0, 1), 1),
        ((1, 1), (1, 2), 1),
        ((1, 2), (1, 2), 2),
        ((1, 2), (2, 3), 2),
        ((2, 3), (1, 2), 2),
        ((1, 1), (2, 3), None),
        ((2, 3), (1, 1), None),
        ((1, 1), (5, 2), None),
    ],
)
def test_the_highest_number_that_both_know_is_spoken(
    ours: tuple[int, int], theirs: tuple[int, int], spoken: int | None
) -> None:
    assert common_protocol(theirs, ours) == spoken
    assert common_protocol(ours, theirs) == spoken


def test_a_disagreement_names_the_daemon_that_is_too_old() -> None:
    newer = disagreement((3, 4), "0.9", "0.1", (1, 1))
    assert "this one is too old" in newer
    assert "0.9" in newer
    assert "3 to 4" in newer
    older = disagreement((1, 1), "0.1", "0.9", (3, 4))
    assert "the one that asks is too old" in older
