"""A command imports what it needs and nothing more: that is what makes it feel instant."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.kit import Program
from tests.kit.fake_daemon import FakeDaemon, machine, view
from wiiiiided.cli.group import COMMANDS
from wiiiiided.wire import messages as m

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
)


def imported(program: Program, *words: str) -> set[str]:
    script = (
        "import sys\nfrom wiiiiided.cli.main import main\ncode = main(sys.argv[1:])\n"
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
        ("renew",),
    ],
    ids=" ".join,
)
def test_simple_commands_import_nothing_heavy(
    program: Program, daemon: FakeDaemon, words: tuple[str, ...]
) -> None:
    daemon.answers(m.List, m.Jobs((view(),)))
    daemon.answers(m.Why, m.Reason(17, "queued", "waits"))
    daemon.answers(m.Cancel, view())
    daemon.answers(m.Drain, machine())
    daemon.answers(m.DeclareLost, machine())
    daemon.answers(m.Renew, m.ClusterView("lab", "member", "b"))
    assert not imported(program, *words) & set(HEAVY)


def test_a_command_does_not_import_the_others(program: Program, daemon: FakeDaemon) -> None:
    daemon.answers(m.Why, m.Reason(17, "queued", "waits"))
    found = imported(program, "why", "17")
    others = {module for name, (module, _) in COMMANDS.items() if name != "why"}
    assert "wiiiiided.cli.why" in found
    assert not found & others


def test_the_list_of_commands_imports_none_of_them(program: Program) -> None:
    found = imported(program, "--help")
    assert not found & {module for module, _ in COMMANDS.values()}
    assert not found & {"torch", "numpy", "rich"}
