"""Completion: what the shells get, and that nothing in it is ever evaluated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.fake_daemon import FakeDaemon, ended, machine, view
from tests.ui.cli.kit import Cli, Complete, Program
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.states import STATES
from wiiiiided.ui.cli.command_table import COMMANDS, load
from wiiiiided.ui.cli.commands.completion import COMPLETE


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_and_is_told_nothing_when_it_reads_it(cli: Cli, shell: str) -> None:
    result = cli("completion", shell)
    assert (result.code, result.err) == (0, "")
    assert f"{COMPLETE}=complete_{shell}" in result.out
    assert result.out.startswith("#compdef wiiiiide\n") == (shell == "zsh")


def test_a_person_is_told_where_to_put_it(program: Program, daemon: FakeDaemon) -> None:
    assert "# save it as ~/.local" in program.on_terminal("completion", "bash", width=200).out


def test_another_shell_is_usage(cli: Cli) -> None:
    result = cli("completion", "tcsh")
    assert result.code == 2
    assert "'bash', 'zsh', 'fish'" in result.err


def test_commands_are_completed(complete: Complete) -> None:
    assert complete("") == list(COMMANDS)
    assert complete("ru") == ["run"]
    assert complete("re") == ["report", "requeue", "release", "resume", "renew"]
    assert complete("--v") == ["--version"]
    assert complete("__") == []


def test_options_are_completed(complete: Complete) -> None:
    assert complete("logs", "--") == [
        *("--follow", "--rank", "--node", "--all", "--tail", "--grep", "--since", "--attempt"),
        *("--time", "--json", "--help"),
    ]
    assert complete("ps", "--state", "r") == ["running"]
    assert complete("submit", "job.toml", "--dr") == ["--dry-run"]


def test_words_of_the_command_that_is_run_are_left_to_the_shell(complete: Complete) -> None:
    assert "--nodes" in complete("run", "-n", "2", "--")
    assert complete("run", "-n", "2", "python", "--") == []
    assert complete("run", "--", "python", "--n") == []
    assert complete("run", "--name", "") == []


def test_commands_of_commands_are_completed(complete: Complete) -> None:
    assert complete("service", "") == ["install", "uninstall"]
    assert "--user" in complete("service", "install", "--")


def test_shells_are_completed(complete: Complete) -> None:
    assert complete("completion", "") == ["bash", "zsh", "fish"]


def test_jobs_are_completed_by_what_the_command_is_about(
    complete: Complete, daemon: FakeDaemon
) -> None:
    daemon.answers(
        m.ListJobs,
        m.JobList((ended(15), view(16), view(17, state="queued"), view(27, state="held"))),
    )
    assert complete("show", "") == ["15", "16", "17", "27"]
    assert complete("show", "1") == ["15", "16", "17"]
    assert complete("cancel", "") == ["16", "17", "27"]
    assert complete("cancel", "16", "") == ["17", "27"]
    assert complete("hold", "") == ["17"]
    assert complete("release", "") == ["27"]
    assert complete("submit", "job.toml", "--after", "") == ["16", "17", "27"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_about_jobs_or_machines_completes_them(
    complete: Complete, daemon: FakeDaemon, name: str
) -> None:
    every = [view(number, state=state) for number, state in enumerate(STATES, 10)]
    daemon.answers(m.ListJobs, m.JobList(tuple(every)))
    daemon.answers(m.ListNodes, m.NodeList("lab", (machine("a"),)))
    for param in load(name).params:
        if param.param_type_name == "argument" and param.metavar in ("ID", "NAME"):
            assert complete(name, "")


def test_machines_are_completed(complete: Complete, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListNodes, m.NodeList("lab", (machine("a"), machine("b"))))
    assert complete("nodes", "") == ["remove", "lost"]
    for words in (("drain",), ("resume",), ("nodes", "lost"), ("nodes", "remove", "--force")):
        assert complete(*words, "") == ["a", "b"]
    assert complete("logs", "17", "--node", "b") == ["b"]
    assert complete("drain", "a", "") == []


def test_files_are_left_to_the_shell(complete: Complete) -> None:
    for words in (("submit", ""), ("check", ""), ("show", "17", ""), ("pull", "17", "-o", "")):
        assert complete(*words) == []


def test_without_a_daemon_it_is_silent(complete: Complete, daemon: FakeDaemon) -> None:
    daemon.stop()
    assert complete("show", "") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_names_of_jobs_are_harmless(complete: Complete, daemon: FakeDaemon, shell: str) -> None:
    """zsh evaluates what it is told."""
    daemon.answers(m.ListJobs, m.JobList((view(name="$(touch x)\n9\t[bold]\x1b\\`'\""),)))
    said = complete.asked(shell, "show", "")
    told = "??touch x??9??bold??????, running"
    assert said.strip() in (f"17\t{told}", f"""_arguments '*: :(("17":"{told}"))'""")


def test_a_machine_whose_name_a_shell_could_evaluate_is_no_candidate(
    complete: Complete, daemon: FakeDaemon
) -> None:
    daemon.answers(m.ListNodes, m.NodeList("lab", (machine("a"), machine("$(touch x)"))))
    assert complete("drain", "") == ["a"]


def test_bash_takes_the_candidates_as_text(cli: Cli, daemon: FakeDaemon, tmp_path: Path) -> None:
    """The real shell, with a job whose name would do harm if it were evaluated."""
    daemon.answers(
        m.ListJobs, m.JobList((view(name=f"$(touch {tmp_path}/harm) `touch {tmp_path}/harm`"),))
    )
    (tmp_path / "wiiiiide").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m wiiiiided.ui.cli.main "$@"\n'
    )
    (tmp_path / "wiiiiide").chmod(0o755)
    script = cli("completion", "bash").out + (
        "COMP_WORDS=(wiiiiide show ''); COMP_CWORD=2; _wiiiiide_completion wiiiiide\n"
        "printf '%s,' \"${COMPREPLY[@]}\"\n"
        "COMP_WORDS=(wiiiiide logs --f); COMP_CWORD=2; _wiiiiide_completion wiiiiide\n"
        "printf '%s,' \"${COMPREPLY[@]}\"\n"
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "WIIIIIDE_HOME": daemon.home}
    done = subprocess.run(
        ["bash", "-euc", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("17,--follow,", "")
    assert not (tmp_path / "harm").exists()
