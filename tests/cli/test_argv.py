"""A secret among the arguments: gone from what others see, and nothing else touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wiiiiided.cli import argv

SECRET = "wiiiiide1.c2VjcmV0"
SCRIPT = """
import sys
from wiiiiided.cli.argv import wipe
print(wipe(sys.argv[2]), open("/proc/self/cmdline").read().split("\\0")[3:-1], sys.argv[1:])
"""


def test_only_the_secret_is_overwritten() -> None:
    words = ["join", SECRET, "--name", f"x{SECRET}y"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"KEPT": "environment"},
    )
    hidden = "x" * len(SECRET)
    shown = ["join", hidden, "--name", f"x{hidden}y"]
    assert done.stdout == f"True {shown} {words}\n"


def test_what_is_not_there_is_hidden_already() -> None:
    before = Path("/proc/self/cmdline").read_bytes()
    assert argv.wipe("wiiiiide1.never-given")
    assert argv.wipe("")
    assert Path("/proc/self/cmdline").read_bytes() == before


def test_arguments_that_cannot_be_found_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argv, "_arguments", lambda: (0, 0))
    assert not argv.wipe(SECRET)
    monkeypatch.setattr(argv, "_arguments", lambda: (1, 4097))  # nothing is mapped there
    assert not argv.wipe(SECRET)
