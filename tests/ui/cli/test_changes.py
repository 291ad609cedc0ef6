"""`wiiiiide requeue`, `hold`, `release`: the same for one job or several."""

from __future__ import annotations

import pytest

from tests.kit.fake_daemon import FakeConnection, FakeDaemon, view
from tests.ui.cli.kit import Cli
from wiiiiided.cluster.rpc import messages as m

KINDS = {"requeue": m.Requeue, "hold": m.Hold, "release": m.Release}


@pytest.mark.parametrize("command", KINDS)
def test_each_job_is_changed_and_said(cli: Cli, daemon: FakeDaemon, command: str) -> None:
    kind = KINDS[command]
    daemon.does(kind, lambda request, link: link.say(view(request.id, why="is changed")))
    result = cli(command, "17", "18", "17")
    assert (result.code, result.out) == (0, "")
    assert result.err == "job 17 (digits): is changed\njob 18 (digits): is changed\n"
    assert daemon.requests == [kind(17), kind(18)]


@pytest.mark.parametrize("command", KINDS)
def test_a_refusal_of_one_does_not_keep_it_from_the_others(
    cli: Cli, daemon: FakeDaemon, command: str
) -> None:
    def change(request: m.Hold, link: FakeConnection) -> None:
        if request.id == 18:
            link.say(view(18))
        else:
            link.say(m.Refusal(6 if request.id == 9 else 5, f"not {request.id}", "a hint"))

    daemon.does(KINDS[command], change)
    result = cli(command, "9", "18", "10")
    assert result.code == 6
    assert result.err == (
        "wiiiiide: not 9\na hint\njob 18 (digits): runs on a\nwiiiiide: not 10\na hint\n"
    )


@pytest.mark.parametrize("command", [*KINDS, "cancel", "wait"])
def test_a_number_that_is_none_stops_it_before_anything_is_done(
    cli: Cli, daemon: FakeDaemon, command: str
) -> None:
    assert cli(command, "17", "x").code == 2
    assert cli(command).code == 2
    assert daemon.requests == []
