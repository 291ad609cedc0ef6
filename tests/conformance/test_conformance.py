"""PyTorch's own distributed suite against the backend; tests/conformance/__init__.py says how."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import settings
from tests.conformance.cannot_pass import CANNOT_PASS
from tests.conformance.client import Client
from tests.conformance.verdicts import runnable

# The server ends a test that hangs; this is for a server that does.
pytestmark = pytest.mark.timeout(settings.START_SECONDS + settings.TEST_SECONDS + 60)

# What runs of the suite, as of torch 2.13: it need not be loaded to know how many tests there are.
NAMES = Path(__file__).with_name("names.txt")
# The list is about this backend: gloo, when it is put in its place, passes them.
EXCLUDED = CANNOT_PASS if settings.BACKEND == settings.OURS else {}
SUITE = [name for name in NAMES.read_text().split() if name not in EXCLUDED]


# Ranks on two hosts take the ways through shared memory and the network; tests/torch has those of
# one host alone as well.
@pytest.mark.parametrize(
    "hosts",
    [pytest.param(1, id="one_host", marks=pytest.mark.soak), pytest.param(2, id="two_hosts")],
)
@pytest.mark.parametrize("suite_test", SUITE)
def test_suite(suite_test: str, hosts: int, client: Client) -> None:
    outcome = client.run(suite_test, hosts)
    if outcome.failure is not None:
        pytest.fail(outcome.failure, pytrace=False)


def test_every_test_of_the_suite_that_can_run_is_in_the_list(client: Client) -> None:
    there = "\n".join(runnable(client.census)) + "\n"
    assert there == NAMES.read_text(), "look at what is new or gone, and write it down"


def test_list_of_what_cannot_pass_is_not_stale(client: Client) -> None:
    unknown = CANNOT_PASS.keys() - client.census.keys()
    assert not unknown, "the suite has no such tests"
    filtered = CANNOT_PASS.keys() - set(runnable(client.census))
    assert not filtered, "these do not run anyway"
    assert all(reason.strip() for reason in CANNOT_PASS.values())
