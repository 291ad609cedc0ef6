"""One server for all tests of the suite: started for the first, it goes at the end."""

from __future__ import annotations

import pytest

from tests.conformance.client import Client

_client: Client | None = None


@pytest.fixture
def client() -> Client:
    """The way to the suite; a new server when the last was lost with a test."""
    global _client
    if _client is None or _client.closed:
        _client = Client()
    return _client


def pytest_unconfigure() -> None:
    if _client is not None:
        _client.close()
