"""What runs at the start of every Python of a job: it must help, and never be noticed."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.shims import Attempt
from tests.kit.source import parse
from wiiiiided.cluster.shim import environment, stacks

BOOTSTRAP = Path(environment.BOOTSTRAP)
SOURCE = (BOOTSTRAP / "sitecustomize.py").read_text()


def python(program: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a rank's Python would, without a shim."""
    env = {"PYTHONPATH": str(BOOTSTRAP), **env}
    command = [sys.executable, *options, "-c", program]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_the_signal_is_the_one_that_is_sent() -> None:
    assert f"\nSIGNAL = {stacks.SIGNAL} " in SOURCE


def test_nothing_of_it_is_left_to_see() -> None:
    answer = python(
        "import sys; print(sys.path, 'sitecustomize' in sys.modules)\nprint(*sorted(sys.modules))"
    )
    assert str(BOOTSTRAP) not in answer.stdout
    assert answer.stderr == ""
    plain = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        env={},
        check=True,
    )
    more = set(answer.stdout.splitlines()[1].split()) - set(plain.stdout.split())
    assert more <= {"sitecustomize", "faulthandler"}


@pytest.mark.parametrize(
    "env",
    [
        {"WIIIIIDE_STACKS": "/no/such/file"},
        {"WIIIIIDE_STACKS": "/dev/full"},
        {"WIIIIIDE_STACKS": "/"},
        {"WIIIIIDE_SECRETS": "/no/such/file"},
        {"WIIIIIDE_SECRETS": "/dev/null"},
        {"WIIIIIDE_SECRETS": "/proc/self/mem"},
        {"WIIIIIDE_SECRETS": "/proc/self/cmdline"},
    ],
)
def test_whatever_is_wrong_the_program_runs(env: dict[str, str]) -> None:
    answer = python("print('fine')", **env)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "fine\n", "")


def test_the_sitecustomize_that_it_hides_has_its_turn(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; own = 42\nprint('mine', __file__)")
    path = f"{BOOTSTRAP}:{tmp_path}"
    answer = python("import sitecustomize; print(sitecustomize.own)", PYTHONPATH=path)
    assert answer.stdout == f"mine {tmp_path}/sitecustomize.py\n42\n"
    assert answer.stderr == ""


def test_an_error_in_a_hidden_sitecustomize_is_reported_as_ever(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0")
    alone = python("print('on')", PYTHONPATH=str(tmp_path))
    behind = python("print('on')", PYTHONPATH=f"{BOOTSTRAP}:{tmp_path}")
    assert "ZeroDivisionError" in alone.stderr
    assert (behind.returncode, behind.stdout) == (alone.returncode, alone.stdout) == (0, "on\n")
    assert behind.stderr == alone.stderr


def test_a_venv_with_its_own_sitecustomize_works_under_a_shim(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sitecustomize.py").write_text("import builtins; builtins.marked = 'yes'")
    program = "import sys; print(f\"{marked} {any('bootstrap' in path for path in sys.path)}\")"
    env = {"PYTHONPATH": str(tmp_path / "lib")}
    with Attempt(tmp_path / "job", [sys.executable, "-c", program], env=env) as attempt:
        assert attempt.run().code == 0
        assert attempt.texts() == ["yes False"]


VALUES = {
    "PLAIN": "abc123",
    "EMPTY": "",
    "SPACES": "  a  b ",
    "QUOTES": "it's \"quoted\" 'twice'",
    "LINES": "first\nsecond='x'\nTHIRD=3\n",
    "SHELL": "$HOME `id` $(id) \\ \\n ; # !",
    "EQUALS": "a=b=c",
    "UNICODE": "schlüssel ☃",
    "TABS": "\ta\t\r",
}


def test_secrets_are_read_as_a_shell_reads_them(tmp_path: Path) -> None:
    text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in VALUES.items())
    (tmp_path / "secrets").write_text(text, newline="")
    program = "import os, sys; print(repr({n: os.environ.get(n) for n in sys.argv[1:]}))"
    command = [sys.executable, "-c", program, *VALUES, "THIRD"]
    env = {"PYTHONPATH": str(BOOTSTRAP), "WIIIIIDE_SECRETS": str(tmp_path / "secrets")}
    answer = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == repr({**VALUES, "THIRD": None})


def test_it_is_written_for_old_pythons() -> None:
    parse(SOURCE, feature_version=(3, 8))
    assert "wiiiiided" not in [
        name.name.split(".")[0]
        for node in ast.walk(parse(SOURCE))
        if isinstance(node, ast.Import)
        for name in node.names
    ]
