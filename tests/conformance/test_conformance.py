"""PyTorch's own distributed suite against the backend; tests/conformance/__init__.py says how."""

from __future__ import annotations

import pytest

from tests.conformance import settings
from tests.conformance.cannot_pass import CANNOT_PASS
from tests.conformance.client import Client
from tests.conformance.verdicts import runnable

pytestmark = [
    pytest.mark.conformance,
    # The server ends a test that hangs; this is for a server that does.
    pytest.mark.timeout(settings.START_SECONDS + settings.TEST_SECONDS + 60),
]

# As of torch 2.13. A new release may add tests; one that takes some away should be looked at.
AT_LEAST = 133


@pytest.mark.parametrize("hosts", [1, 2], ids=["one_host", "two_hosts"])
def test_suite(suite_test: str, hosts: int, client: Client) -> None:
    outcome = client.run(suite_test, hosts)
    if outcome.failure is not None:
        pytest.fail(outcome.failure, pytrace=False)


def test_no_test_was_lost(client: Client) -> None:
    assert len(runnable(client.census)) >= AT_LEAST


def test_list_of_what_cannot_pass_is_not_stale(client: Client) -> None:
    unknown = CANNOT_PASS.keys() - client.census.keys()
    assert not unknown, "the suite has no such tests"
    filtered = CANNOT_PASS.keys() - set(runnable(client.census))
    assert not filtered, "these do not run anyway"
    assert all(reason.strip() for reason in CANNOT_PASS.values())
