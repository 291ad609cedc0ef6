"""From words to an exit code: usage, errors, bugs, signals."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.fake_daemon import FakeDaemon, line, view
from tests.ui.cli.kit import Cli, Program
from wiiiiided import __version__
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.ui.cli import command_table
from wiiiiided.ui.cli.command_table import COMMANDS, load
from wiiiiided.ui.cli.commands import why
from wiiiiided.ui.cli.main import main


def test_help_lists_every_command(cli: Cli) -> None:
    for words in (("--help",), ("-h",)):
        result = cli(*words)
        assert (result.code, result.err) == (0, "")
        for name, (about, _) in command_table.COMMANDS.items():
            assert f"  {name} " in result.out
            assert about in result.out
    assert "--install-completion" not in result.out


def test_without_a_command_there_is_help_and_code_2(cli: Cli) -> None:
    result = cli()
    assert result.code == 2
    assert "Run jobs:" in result.out + result.err


def words_of_all_commands() -> list[tuple[str, ...]]:
    """Commands, and those that some of them have."""
    each = {
        name: getattr(command_table.load(name), "commands", {}) for name in command_table.COMMANDS
    }
    return [(name, *sub) for name, subs in each.items() for sub in ((), *((one,) for one in subs))]


@pytest.mark.parametrize("words", words_of_all_commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli(*words, "--help")
    assert (result.code, result.err) == (0, "")
    command = " ".join(("wiiiiide", *words))
    assert result.out.startswith(f"Usage: {command} ")
    example = result.out.partition("Example: ")[2]
    assert command in " ".join(example.split())
    for noise in ("<str>", "<bool>", "[bold]"):
        assert noise not in result.out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("words", words_of_all_commands(), ids=" ".join)
def test_on_a_terminal_every_flag_is_a_flag(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """typer writes "<bool>" behind one, also behind -h."""
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    # Made anew: whether help is drawn is decided where the commands are made.
    monkeypatch.delitem(sys.modules, f"wiiiiided.ui.cli.commands.{words[0]}", raising=False)
    assert main([*words, "-h"]) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert "╭─ Options ─" in shown
    assert "<bool>" not in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_is_understood(name: str) -> None:
    said = re.search(r"wiiiiide ([^)]*)", COMMANDS[name].example)
    assert said is not None
    words = shlex.split(said[1])
    command, words = load(words[0]), words[1:]
    while words and (inner := getattr(command, "commands", {}).get(words[0])) is not None:
        command, words = inner, words[1:]
    with command.make_context(name, words) as context:
        assert context.params is not None


def test_a_terminal_gets_help_in_panels_with_an_example(program: Program) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", program.on_terminal("ps", "-h").out)
    assert "╭─ Options ─" in shown
    assert "Example: wiiiiide ps -a" in shown
    assert "<bool>" not in shown


def test_help_in_panels_breaks_lines_where_they_are_full(program: Program) -> None:
    shown = re.sub(r"\x1b\[[0-9;]*m", "", program.on_terminal("doctor", "-h", width=60).out)
    lines = [line.strip() for line in shown.splitlines()]
    assert "the cluster is tried; each direction counts, so run it on" in lines


@pytest.mark.parametrize("name", command_table.COMMANDS)
def test_help_has_nothing_that_rich_would_take_for_markup(name: str) -> None:
    """`[word]` would be a style of Rich's, and vanish."""
    made = command_table.load(name)
    every = [made, *getattr(made, "commands", {}).values()]
    texts = [text for one in every for text in (one.help, one.epilog, one.short_help)]
    texts += [getattr(param, "help", "") for one in every for param in one.params]
    assert not [text for text in texts if text and re.search(r"\[[a-z#/@]", text)]


@pytest.mark.parametrize("name", command_table.COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    """A section of its own, or one that it shares; the table at the top leads to it."""
    text = (Path(__file__).parents[3] / "docs/cli.md").read_text()
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    words = {word for title in titles for word in title[3:].split(", ")}
    assert name in words or f"`{name}` | this machine; see [service.md]" in text
    assert f"[{name}](#" in text or f"`{name}`" in text


def test_the_version_is_told(cli: Cli) -> None:
    assert cli("--version").out == f"wiiiiide {__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("statsu",), "No such command 'statsu'"),
        (("cancle", "17"), "Did you mean 'cancel'"),
        (("ps", "--bogus"), "No such option"),
        (("ps", "17"), "'17' is no sweep such as s12"),
        (("why", "17", "18"), "unexpected extra argument"),
        (("show",), "Missing argument"),
        (("history", "-n", "x"), "should be a valid integer"),
    ],
)
def test_usage_is_code_2_and_a_hint(cli: Cli, words: tuple[str, ...], said: str) -> None:
    result = cli(*words)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "-h' for help" in result.err
    assert "Traceback" not in result.err


def test_without_a_daemon_it_is_code_4_with_a_hint(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.stop()
    result = cli("ps")
    assert (result.code, result.out) == (4, "")
    assert result.err == (
        f"wiiiiide: no daemon answers on {daemon.home}/wiiiiided.sock\n"
        f"start it: WIIIIIDE_HOME={daemon.home} wiiiiided\n"
    )


def test_another_version_is_code_4_with_both_versions(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.hello = m.Hello(m.PROTOCOL + 1, "9.9")
    daemon.answers(m.ListJobs, m.JobList(()))
    result = cli("ps")
    assert result.code == 4
    assert __version__ in result.err
    assert "9.9" in result.err


def test_a_home_that_cannot_be_is_usage(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIIIIIDE_HOME", "/tmp/" + "x" * 120)
    result = cli("ps")
    assert result.code == 2
    assert "is too long" in result.err


def test_what_the_daemon_says_is_harmless(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, m.Refusal(1, "no \x1b[2J", "\x1b]0;x\x07"))
    result = cli("ps")
    assert "\x1b" not in result.err
    assert "\\x1b[2J" in result.err


def test_a_bug_is_one_line_and_how_to_see_more(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug() -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(why, "connect", bug)
    result = cli("why", "17")
    assert result.code == 1
    assert result.err == (
        "wiiiiide: ZeroDivisionError: oops\n"
        "this is a bug; run again with WIIIIIDE_LOG=verbose for the traceback\n"
    )
    monkeypatch.setenv("WIIIIIDE_LOG", "verbose")
    assert "Traceback (most recent call last)" in cli("why", "17").err
    monkeypatch.setenv("WIIIIIDE_LOG", "nonsense")
    assert "Traceback" not in cli("why", "17").err


@pytest.mark.parametrize("words", [("run", "true"), ("new",), ("report", "17", "-o", "x.html")])
def test_a_current_folder_that_was_removed_is_a_sentence(
    program: Program, daemon: FakeDaemon, tmp_path: Path, words: tuple[str, ...]
) -> None:
    daemon.answers(m.GetRecords, m.JobRecords(view(), (), ()))
    command = shlex.join([sys.executable, "-m", "wiiiiided.ui.cli.main", *words])
    script = f"mkdir gone && cd gone && rmdir ../gone && {command}"
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=program.env, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert "this is a bug" not in done.stderr
    assert "the current folder was removed" in done.stderr


def test_ctrl_c_while_the_program_is_imported_is_no_traceback(
    program: Program, tmp_path: Path
) -> None:
    slow = "import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "typer.py").write_text(slow)
    start = "import sys; from wiiiiided.ui.cli.start import main; sys.exit(main())"
    path = os.pathsep.join([str(tmp_path), program.env.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, "-c", start, "ps"], env={**program.env, "PYTHONPATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (-signal.SIGINT, "")


def test_a_closed_stdout_is_no_traceback(program: Program, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, m.JobList(()))
    reader, writer = os.pipe()
    os.close(reader)
    process = program.start("ps", "--json", stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (141, "")


def test_the_program_is_installed_under_its_name(program: Program) -> None:
    path = Path(sys.executable).with_name("wiiiiide")
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"wiiiiide {__version__}\n")


def test_a_full_disk_behind_stdout_is_a_sentence(program: Program, daemon: FakeDaemon) -> None:
    daemon.answers(m.ListJobs, m.JobList(()))
    with open("/dev/full", "w") as full:
        result = program.run("ps", "--json", stdout=full)
    assert result.code == 1
    assert result.err == "wiiiiide: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(program: Program, daemon: FakeDaemon, closed: str) -> None:
    daemon.answers(m.ListJobs, m.JobList(()))
    command = f"{sys.executable} -m wiiiiided.ui.cli.main ps {closed}"
    done = subprocess.run(
        ["sh", "-c", command], env=program.env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_an_error_into_a_closed_pipe_is_no_traceback(program: Program, daemon: FakeDaemon) -> None:
    """Half a page of output is waiting to be written when the daemon goes away."""
    lines = tuple(line("x" * 20) for _ in range(20))
    daemon.answers(m.Show, m.JobDetail(view(), {}, (), (), ""))
    daemon.answers(m.Logs, m.LogLines(lines))
    reader, writer = os.pipe()
    os.close(reader)
    process = program.start("logs", "17", stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (141, "")
