"""What every test of a command gets: a fake daemon, and the command itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.fake_daemon import FakeDaemon
from tests.ui.cli.kit import Cli, Complete, Program


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    with FakeDaemon() as fake:
        yield fake


@pytest.fixture
def cli(
    daemon: FakeDaemon, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """The command in this process: fast."""
    monkeypatch.setenv("WIIIIIDE_HOME", daemon.home)
    for name in ("NO_COLOR", "COLUMNS", "WIIIIIDE_LOG"):
        monkeypatch.delenv(name, raising=False)
    return Cli(capfd)


@pytest.fixture
def complete(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Complete:
    return Complete(cli, monkeypatch)


@pytest.fixture
def program(daemon: FakeDaemon) -> Iterator[Program]:
    """The command as a process: real signals, pipes and terminals."""
    made = Program(daemon.home)
    yield made
    made.close()
