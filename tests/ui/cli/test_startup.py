"""A command imports what it needs and nothing more: that is what makes it feel instant."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.kit.fake_daemon import FakeDaemon, ended, machine, view
from tests.ui.cli.kit import Program
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.ui.cli.command_table import COMMANDS

FOLDER = "wiiiiided.ui.cli.commands"
# torch and numpy take seconds; the others take as long as all else together.
HEAVY = (
    "torch",
    "numpy",
    "rich",
    "pydantic",
    "asyncio",
    "sqlite3",
    "pathspec",
    "tarfile",
    "psutil",
    "jinja2",
)


def imported(program: Program, *words: str) -> set[str]:
    script = (
        "import sys\nfrom wiiiiided.ui.cli.main import main\ncode = main(sys.argv[1:])\n"
        "print(*sys.modules, file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        env=program.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return {name.partition(".")[0] for name in done.stderr.split()} | set(done.stderr.split())


@pytest.mark.parametrize(
    "words",
    [
        *(("ps",), ("why", "17"), ("--version",), ("ps", "--json"), ("cancel", "17")),
        *(("nodes",), ("nodes", "--json"), ("nodes", "lost", "a"), ("drain", "a", "fan")),
        *(("renew",), ("report", "17"), ("history", "-n", "5"), ("submit", "-h"), ("run", "-h")),
    ],
    ids=" ".join,
)
def test_simple_commands_import_nothing_heavy(
    program: Program, daemon: FakeDaemon, words: tuple[str, ...]
) -> None:
    daemon.answers(m.ListJobs, m.JobList((view(),)))
    daemon.answers(m.Why, m.JobReason(17, "queued", "waits"))
    daemon.answers(m.Cancel, view())
    daemon.answers(m.Drain, machine())
    daemon.answers(m.DeclareLost, machine())
    daemon.answers(m.Renew, m.ClusterView("lab", "member", "b"))
    daemon.answers(m.ListHistory, m.JobList((ended(),)))
    daemon.answers(m.GetRecords, m.JobRecords(view(), (), ()))
    assert not imported(program, *words) & set(HEAVY)


def test_a_command_does_not_import_the_others(program: Program, daemon: FakeDaemon) -> None:
    daemon.answers(m.Why, m.JobReason(17, "queued", "waits"))
    found = imported(program, "why", "17")
    others = {
        f"wiiiiided.ui.cli.commands.{name}"
        for name in COMMANDS
        if name not in ("why", "completion")
    }
    assert f"{FOLDER}.why" in found
    assert not found & others


def test_the_list_of_commands_imports_none_of_them(program: Program) -> None:
    found = imported(program, "--help")
    assert not found & {
        f"wiiiiided.ui.cli.commands.{name}" for name in COMMANDS if name != "completion"
    }
    assert not found & {"torch", "numpy", "rich"}


@pytest.mark.parametrize(("words", "drawn"), [(("ps",), True), (("cancel", "17"), False)])
def test_rich_is_imported_where_something_is_drawn(
    program: Program, daemon: FakeDaemon, words: tuple[str, ...], drawn: bool
) -> None:
    daemon.answers(m.ListJobs, m.JobList((view(),)))
    daemon.answers(m.Cancel, view())
    said = program.on_terminal(*words, width=200, PYTHONPROFILEIMPORTTIME="1").out
    assert ("rich.table" in said) == drawn
    assert "pydantic" not in said
