"""Completion: what the shells get, and that nothing in it is ever evaluated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.kit import Cli, Program, Result
from tests.kit.fake_daemon import FakeDaemon, ended, machine, view
from wiiiiided.cli.candidates import JOBS, ONE
from wiiiiided.cli.group import COMMANDS, load
from wiiiiided.wire import messages as m


def values(result: Result) -> list[str]:
    assert (result.code, result.err) == (0, "")
    return [line.partition("\t")[0] for line in result.out.splitlines()]


def complete(cli: Cli, *words: str) -> list[str]:
    return values(cli("__complete", "--", *words))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_and_is_told_nothing_when_it_reads_it(cli: Cli, shell: str) -> None:
    result = cli("completion", shell)
    assert result.code == 0
    assert "wiiiiide __complete --" in result.out
    assert "eval" not in result.out
    assert result.err == ""


def test_a_person_is_told_where_to_put_it(program: Program, daemon: FakeDaemon) -> None:
    assert "# save it as ~/.local" in program.on_terminal("completion", "bash", width=200).out


def test_another_shell_is_usage(cli: Cli) -> None:
    result = cli("completion", "tcsh")
    assert result.code == 2
    assert "bash, zsh, fish" in result.err


def test_commands_are_completed(cli: Cli) -> None:
    assert complete(cli, "") == list(COMMANDS)
    assert complete(cli, "ru") == ["run"]
    assert complete(cli, "re") == ["report", "requeue", "release", "resume", "renew"]
    assert complete(cli, "--v") == ["--version"]
    assert complete(cli, "__") == []


def test_options_are_completed(cli: Cli) -> None:
    assert complete(cli, "logs", "--") == [
        *("--follow", "--rank", "--node", "--all", "--tail", "--grep", "--since", "--attempt"),
        *("--time", "--json", "--help"),
    ]
    assert complete(cli, "ps", "--state", "r") == ["running"]
    assert complete(cli, "submit", "job.toml", "--dr") == ["--dry-run"]


def test_words_of_the_command_that_is_run_are_left_to_the_shell(cli: Cli) -> None:
    assert "--nodes" in complete(cli, "run", "-n", "2", "--")
    assert complete(cli, "run", "-n", "2", "python", "--") == []
    assert complete(cli, "run", "--", "python", "--n") == []
    assert complete(cli, "run", "--name", "") == []


def test_commands_of_commands_are_completed(cli: Cli) -> None:
    assert complete(cli, "service", "") == ["install", "uninstall"]
    assert "--user" in complete(cli, "service", "install", "--")


def test_shells_are_completed(cli: Cli) -> None:
    assert complete(cli, "completion", "") == ["bash", "zsh", "fish"]


def test_jobs_are_completed_by_what_the_command_is_about(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(
        m.List,
        m.Jobs((ended(15), view(16), view(17, state="queued"), view(27, state="held"))),
    )
    assert complete(cli, "show", "") == ["15", "16", "17", "27"]
    assert complete(cli, "show", "1") == ["15", "16", "17"]
    assert complete(cli, "cancel", "") == ["16", "17", "27"]
    assert complete(cli, "cancel", "16", "") == ["17", "27"]
    assert complete(cli, "hold", "") == ["17"]
    assert complete(cli, "release", "") == ["27"]
    assert complete(cli, "submit", "job.toml", "--after", "") == ["16", "17", "27"]


def test_every_command_about_jobs_completes_their_numbers() -> None:
    about: dict[str, int] = {}  # how many it takes; -1: any number
    for name, (module, _) in COMMANDS.items():
        for param in load(name, module).params:
            if param.param_type_name == "argument" and param.metavar == "ID":
                about[name] = param.nargs
    assert set(about) == set(JOBS)
    assert {name for name, count in about.items() if count == 1} == set(ONE)


def test_machines_are_completed(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Nodes, m.NodeList("lab", (machine("a"), machine("b"))))
    assert complete(cli, "nodes", "") == ["remove", "lost"]
    for words in (("drain",), ("resume",), ("nodes", "lost"), ("nodes", "remove", "--force")):
        assert complete(cli, *words, "") == ["a", "b"]
    assert complete(cli, "logs", "17", "--node", "b") == ["b"]
    assert complete(cli, "drain", "a", "") == []


def test_files_are_left_to_the_shell(cli: Cli) -> None:
    for words in (("submit", ""), ("check", ""), ("show", "17", ""), ("pull", "17", "-o", "")):
        assert complete(cli, *words) == []


def test_without_a_daemon_it_is_silent(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.stop()
    assert complete(cli, "show", "") == []
    assert complete(cli, "nonsense", "") == []


def test_names_of_jobs_are_harmless(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.List, m.Jobs((view(name="$(touch x)\n99\tforged\x1b"),)))
    assert cli("__complete", "--", "show", "").out == (
        "17\t$(touch x)\\x0a99\\tforged\\x1b, running\n"
    )


def test_bash_takes_the_candidates_as_text(cli: Cli, daemon: FakeDaemon, tmp_path: Path) -> None:
    """The real shell, with a job whose name would do harm if it were evaluated."""
    daemon.answers(
        m.List, m.Jobs((view(name=f"$(touch {tmp_path}/harm) `touch {tmp_path}/harm`"),))
    )
    (tmp_path / "wiiiiide").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m wiiiiided.cli.main "$@"\n'
    )
    (tmp_path / "wiiiiide").chmod(0o755)
    script = cli("completion", "bash").out + (
        "COMP_WORDS=(wiiiiide show ''); COMP_CWORD=2; _wiiiiide\n"
        "printf '%s,' \"${COMPREPLY[@]}\"\n"
        "COMP_WORDS=(wiiiiide logs --f); COMP_CWORD=2; _wiiiiide\n"
        "printf '%s,' \"${COMPREPLY[@]}\"\n"
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "WIIIIIDE_HOME": daemon.home}
    done = subprocess.run(
        ["bash", "-euc", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("17,--follow,", "")
    assert not (tmp_path / "harm").exists()
