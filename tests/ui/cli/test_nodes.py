"""`wiiiiide nodes`, `drain`, `resume`: the machines, and what an operator says about one."""

from __future__ import annotations

import pytest

from tests.kit.fake_daemon import FakeDaemon, machine
from tests.ui.cli.kit import Cli, Program
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.node import Node
from wiiiiided.text import columns

NASTY = "[red]x\x1b[2J\n\u202e漢字"
A = Node("a", 8, 32 << 30, 1, address="10.0.0.1", port=9461, version="0.1.0")
B = Node("lab-b", 64, 128 << 30, 0, address="fd00::5", port=9461, version="0.1.0")


def lab() -> m.NodeList:
    return m.NodeList(
        "lab",
        (
            machine(node=A, coordinator=True, state="ok", why="runs jobs 3 and 17", jobs=(3, 17)),
            machine(node=B, state="drained", why="drained by root: fan broken"),
            machine("c", state="lost", why=NASTY),
        ),
    )


def test_machines_are_listed_with_all_that_matters(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListNodes, lab())
    result = cli("nodes")
    heading, first, second, third = result.out.splitlines()
    assert heading.split() == [
        *("NAME", "STATE", "ADDRESS", "CORES", "MEMORY", "GPUS", "JOBS", "VERSION", "WHY")
    ]
    head = ["a", "*", "ok", "10.0.0.1:9461", "8", "32", "GiB", "1", "3,17", "0.1.0"]
    assert first.split()[:10] == head
    assert first.endswith("runs jobs 3 and 17")
    assert second.split()[:3] == ["lab-b", "drained", "[fd00::5]:9461"]
    assert second.endswith("drained by root: fan broken")
    assert third.split()[:3] == ["c", "lost", "-"]
    assert "\x1b" not in third
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132])
def test_no_row_is_wider_than_the_screen(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    daemon.answers(m.ListNodes, lab())
    monkeypatch.setenv("COLUMNS", str(width))
    lines = cli("nodes").out.splitlines()
    assert len(lines) == 4
    assert all(columns(line) <= width for line in lines)
    assert "drained" in lines[2]


def test_a_narrow_screen_keeps_what_matters_most(
    cli: Cli, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answers(m.ListNodes, m.NodeList("lab", lab().nodes[:2]))
    headings = {}
    for width in (40, 70):
        monkeypatch.setenv("COLUMNS", str(width))
        headings[width] = cli("nodes").out.splitlines()[0].split()
    assert headings[40] == ["NAME", "STATE", "WHY"]
    assert headings[70] == ["NAME", "STATE", "ADDRESS", "JOBS", "WHY"]


def test_json_has_every_field(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListNodes, lab())
    found = cli("nodes", "--json").json
    assert found["cluster"] == "lab"
    assert found["nodes"][0] == {
        "node": {
            "name": "a",
            "cores": 8,
            "memory": 32 << 30,
            "gpus": 1,
            "boot_id": "",
            "address": "10.0.0.1",
            "port": 9461,
            "version": "0.1.0",
            "interface": "",
        },
        "state": "ok",
        "why": "runs jobs 3 and 17",
        "coordinator": True,
        "jobs": [3, 17],
        "since": 0.0,
        "certificate_until": None,
    }


def test_a_machine_alone_is_told_how_to_get_company(cli: Cli, daemon: FakeDaemon) -> None:
    result = cli("nodes")
    assert len(result.out.splitlines()) == 2
    assert "wiiiiide init" in result.err


def test_states_have_colours(program: Program, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListNodes, lab())
    assert "\x1b[1;31mlost" in program.on_terminal("nodes", width=120).out


def test_a_machine_is_drained_with_a_reason(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Drain, lab().nodes[1])
    result = cli("drain", "lab-b", "fan", "broken")
    assert (result.code, result.out) == (0, "")
    assert result.err == "lab-b: drained by root: fan broken\n"
    assert cli("drain", "lab-b").code == 0
    assert daemon.requests == [m.Drain("lab-b", "fan broken"), m.Drain("lab-b", "")]


def test_a_machine_is_resumed(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Resume, machine("b"))
    assert cli("resume", "b").err == "b: nothing runs on it\n"
    assert daemon.requests == [m.Resume("b")]


def test_a_machine_is_removed(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.RemoveNode, machine("b"))
    assert cli("nodes", "remove", "b").err.startswith("b is no longer of the cluster")
    assert cli("nodes", "remove", "b", "--force").code == 0
    assert daemon.requests == [m.RemoveNode("b"), m.RemoveNode("b", True)]


def test_a_machine_is_declared_lost(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.DeclareLost, machine("b", state="lost", why="declared lost by root"))
    assert cli("nodes", "lost", "b").err == "b: declared lost by root\n"
    assert daemon.requests == [m.DeclareLost("b")]


RISKY = [
    (("nodes", "lost", "a"), m.DeclareLost("a")),
    (("nodes", "remove", "a", "--force"), m.RemoveNode("a", True)),
]
SILENT = machine("a", state="lost", jobs=(3, 17))
HEARD = machine("a", state="ok", jobs=(3, 17))


@pytest.mark.parametrize(
    ("words", "request_", "node", "what"),
    [
        (*RISKY[0], SILENT, "it counts as ended"),
        (*RISKY[1], SILENT, "it counts as ended"),
        (*RISKY[1], HEARD, "it is ended there"),
    ],
)
def test_a_person_sees_which_jobs_end_and_is_asked(
    program: Program,
    daemon: FakeDaemon,
    words: tuple[str, ...],
    request_: m.Message,
    node: m.NodeView,
    what: str,
) -> None:
    daemon.answers(m.ListNodes, m.NodeList("lab", (node,)))
    daemon.answers(type(request_), machine("a", state="lost", why="so be it"))
    for no in ("n\n", "\n", "yes\n", "\x04"):
        result = program.on_terminal(*words, typed=no)
        assert result.code == 1
        assert f"a runs a part of jobs 3, 17: {what}" in result.out
        assert "nothing was changed" in result.out
    assert daemon.asked(type(request_)) == []
    assert program.on_terminal(*words, typed="y\n").code == 0
    assert daemon.asked(type(request_)) == [request_]


@pytest.mark.parametrize(("words", "request_"), RISKY)
def test_with_yes_or_without_a_terminal_it_does_not_ask(
    program: Program, cli: Cli, daemon: FakeDaemon, words: tuple[str, ...], request_: m.Message
) -> None:
    daemon.answers(m.ListNodes, lab())
    daemon.answers(type(request_), machine("a"))
    assert program.on_terminal(*words, "--yes").code == 0
    assert cli(*words).code == 0
    assert daemon.requests == [request_, request_]


def test_where_no_job_is_at_stake_nothing_is_asked(program: Program, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListNodes, lab())
    daemon.answers(m.DeclareLost, machine("c"))
    assert program.on_terminal("nodes", "lost", "c").code == 0


@pytest.mark.parametrize("words", [("nodes", "-h"), ("token", "-h")])
def test_what_a_command_does_is_not_cut(cli: Cli, words: tuple[str, ...]) -> None:
    assert "..." not in cli(*words).out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("drain", "x"), m.Drain),
        (("resume", "x"), m.Resume),
        (("nodes", "lost", "x"), m.DeclareLost),
        (("nodes", "remove", "x"), m.RemoveNode),
    ],
)
def test_no_such_machine_and_not_allowed_have_their_codes(
    cli: Cli, daemon: FakeDaemon, words: tuple[str, ...], kind: type
) -> None:
    for code, why in ((6, "there is no node x: a, b"), (5, "only root may")):
        daemon.answers(kind, m.Refusal(code, why))
        result = cli(*words)
        assert (result.code, result.out, result.err) == (code, "", f"wiiiiide: {why}\n")


@pytest.mark.parametrize("words", [("nodes", "x"), ("nodes", "lost"), ("drain",), ("resume",)])
def test_what_makes_no_sense_is_usage(cli: Cli, daemon: FakeDaemon, words: tuple[str, ...]) -> None:
    assert cli(*words).code == 2
    assert daemon.requests == []
