"""How `make test` spreads the tests over processes (pytest-xdist, --dist loadgroup).

Tests that boot machines or make networks come first and all go to one worker, so that there is one
set of machines at a time, lent from test to test; PyTorch's suite goes to another, with its one
server. Tests that share something made once for their file stay together, so do the quick ones of
a file; every other test is a group of its own. The long groups begin first: at the end there are
only small ones to fill the gaps.
"""

from __future__ import annotations

import pytest

# For two cores. Half of the time of the tests that start processes is spent waiting.
WORKERS = 3

_TOGETHER = {"machines": "machines", "networks": "machines", "conformance": "conformance"}


def spread(items: list[pytest.Item]) -> None:
    """Give each test its group, and begin with the longest."""
    for item in items:
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_turn)


def _group(item: pytest.Item) -> str | None:
    if together := _TOGETHER.get(_folder(item)):
        return together
    if item.get_closest_marker("quick") or _shares(item):
        return item.nodeid.partition("::")[0]
    return None


def _shares(item: pytest.Item) -> bool:
    """Whether a fixture of the tests' own lives longer than one test."""
    fixtures = [each for all_ in item._fixtureinfo.name2fixturedefs.values() for each in all_]  # type: ignore[attr-defined]
    return any(each.scope != "function" and each.baseid for each in fixtures)


def _turn(item: pytest.Item) -> int:
    if (folder := _folder(item)) in _TOGETHER:
        return list(_TOGETHER).index(folder)
    return 99 if item.get_closest_marker("quick") else 9 - _shares(item)


def _folder(item: pytest.Item) -> str:
    return item.path.parent.name
