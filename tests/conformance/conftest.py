"""Makes one pytest test of every test of the suite that runs, and takes the server down at the end.

The names are the server's to say, so it is started when the tests are collected.
"""

from __future__ import annotations

import pytest

from tests.conformance.cannot_pass import CANNOT_PASS
from tests.conformance.client import Client
from tests.conformance.settings import BACKEND, OURS
from tests.conformance.verdicts import runnable

_client: Client | None = None


def _started() -> Client:
    """The server of this session; a new one when the last was lost with a test."""
    global _client
    if _client is None or _client.closed:
        _client = Client()
    return _client


@pytest.fixture
def client() -> Client:
    """The way to the suite."""
    return _started()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "suite_test" not in metafunc.fixturenames:
        return
    names = []
    # Seconds, for those who have asked for everything else.
    if "not conformance" not in metafunc.config.option.markexpr:
        names = runnable(_started().census)
    # The list is about this backend: gloo, when it is put in its place, passes them.
    excluded = CANNOT_PASS if BACKEND == OURS else {}
    metafunc.parametrize("suite_test", [name for name in names if name not in excluded])


def pytest_unconfigure() -> None:
    if _client is not None:
        _client.close()
