"""Running `wiiiiide` in tests: inside this process, as a process, or on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from typing import Any

import pytest

from wiiiiided.ui.cli.commands.completion import COMPLETE
from wiiiiided.ui.cli.main import main

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout; its schema is checked and left out."""
        found = self.jsons
        assert len(found) == 1
        return found[0]

    @property
    def jsons(self) -> list[Any]:
        found = [json.loads(text) for text in self.out.splitlines()]
        for each in found:
            assert each.pop("schema") == 1
        return found


class Cli:
    """Call it with the words of a command line."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: str) -> Result:
        self._capture.readouterr()
        code = main(list(words))
        sys.stdout.flush()
        said = self._capture.readouterr()
        return Result(code, said.out, said.err)


class Complete:
    """Call it with the words of a line; the last is the one to be completed."""

    def __init__(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cli = cli
        self._set = monkeypatch.setenv

    def asked(self, shell: str, *words: str) -> str:
        line = shlex.join(["wiiiiide", *words[:-1]]) + f" {words[-1]}"
        self._set("COMP_WORDS", line)
        self._set("COMP_CWORD", str(len(words)))
        self._set("_TYPER_COMPLETE_ARGS", line)
        self._set("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        self._set(COMPLETE, f"complete_{shell}")
        result = self._cli()
        assert (result.code, result.err) == (0, "")
        return result.out

    def __call__(self, *words: str) -> list[str]:
        return [line for line in self.asked("bash", *words).splitlines() if line]


class Program:
    """Starts `wiiiiide` as a process, and ends what it started."""

    def __init__(self, home: str) -> None:
        kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
        self.env = {**kept, "WIIIIIDE_HOME": home, "TERM": "xterm"}
        self._started: list[subprocess.Popen[str]] = []
        self.shown = ""  # on the terminal, so far

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "wiiiiided.ui.cli.main", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, **{"env": self.env, **pipes, **options})
        self._started.append(process)
        return process

    def run(self, *words: str, **options: Any) -> Result:
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=PATIENCE_S)
        return Result(process.returncode, out or "", err or "")

    def on_terminal(self, *words: str, width: int = 80, typed: str = "", **env: str) -> Result:
        """With all three streams on one terminal; everything it got is in `out`, `typed` too."""
        ours, theirs = pty.openpty()
        os.write(ours, typed.encode())
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        process = self.start(*words, env={**self.env, **env}, **streams)
        os.close(theirs)
        shown = b""
        self.shown = ""
        deadline = time.monotonic() + PATIENCE_S
        with contextlib.closing(open(ours, "rb", buffering=0)) as terminal:
            while time.monotonic() < deadline:
                if not select.select([terminal], [], [], 0.1)[0]:
                    continue
                try:
                    piece = terminal.read(1 << 16)
                except OSError:  # EIO: no process has the other end any more
                    break
                if not piece:
                    break
                shown += piece
                self.shown = shown.decode(errors="replace").replace("\r\n", "\n")
        return Result(process.wait(PATIENCE_S), self.shown, "")

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
