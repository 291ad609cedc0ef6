"""Two machines with a wire between them, made of network namespaces: needs root and iproute2.

    namespace …a                      namespace …b
    end  10.77.0.1/24  ◄──── veth ────►  end  10.77.0.2/24

The wire can be given a rate (tbf at both ends), be pulled out, or be made silent. The names carry
a random suffix, so that several runs do not meet, and are removed at the end whatever happens.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Self

from lib.fleet import FleetError

ADDRESSES = ("10.77.0.1", "10.77.0.2")
_HERE = Path(__file__).resolve().parents[1]  # where `lib` is importable from
_NOBODY = "02:00:00:00:00:01"  # no machine has it: what is sent there is lost without a word
_END_SECONDS = 5.0


def lacking() -> str | None:
    """Why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root: run this as root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} (Debian: apt-get install iproute2)"
    return None


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FleetError(f"`{' '.join(words)}` failed: {done.stderr.strip()}")


class NamespacePair:
    """Both namespaces and what runs in them. Use it in a `with`."""

    def __init__(self) -> None:
        suffix = secrets.token_hex(3)
        self.names = (f"wide-{suffix}-a", f"wide-{suffix}-b")
        self._programs: list[NamespaceProgram] = []
        self._interruption = _Interruption()

    def __enter__(self) -> Self:
        self._interruption.expect()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _make(self) -> None:
        a, b = self.names
        for name in self.names:
            _run("ip", "netns", "add", name)
            self.ip(name, "link", "set", "lo", "up")
        # Both ends are born in their namespaces: nothing ever shows in the machine's own.
        self.ip(a, "link", "add", "end", "type", "veth", "peer", "name", "end", "netns", b)
        for name, address in zip(self.names, ADDRESSES, strict=True):
            self.ip(name, "addr", "add", f"{address}/24", "dev", "end")
            self.ip(name, "link", "set", "end", "up")

    def ip(self, name: str, *words: str) -> None:
        _run("ip", "-n", name, *words)

    def shape(self, rate: str) -> None:
        """Both directions at `rate`, such as 1gbit; empty: as fast as the machine is."""
        for name in self.names:
            at = ("tc", "-n", name, "qdisc")
            if rate:
                how = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
                _run(*at, "replace", "dev", "end", "root", *how)
            else:
                subprocess.run([*at, "del", "dev", "end", "root"], capture_output=True, check=False)

    def cable(self, plugged: bool) -> None:
        """Pull the cable out of b, or put it back: a sees that its carrier is gone."""
        self.ip(self.names[1], "link", "set", "end", "up" if plugged else "down")

    def silence(self, silent: bool) -> None:
        """Neither hears the other, though both have a carrier: a cable out behind a switch."""
        for name, other in zip(self.names, reversed(ADDRESSES), strict=True):
            if silent:
                how = ("lladdr", _NOBODY, "nud", "permanent")
                self.ip(name, "neigh", "replace", other, "dev", "end", *how)
            else:
                self.ip(name, "neigh", "del", other, "dev", "end")

    def start(self, end: int, script: str) -> NamespaceProgram:
        started = NamespaceProgram(self.names[end], script)
        self._programs.append(started)
        return started

    def _remove(self) -> None:
        self._interruption.defer()
        for program in self._programs:
            program.close()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        self._interruption.forget()


class _Interruption:
    """An end from outside unwinds the run once. A second, impatient Ctrl-C must not
    stop what the first has set going: namespaces would be left behind."""

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._unwinding = False
        self._before: dict[signal.Signals, Any] = {}

    def expect(self) -> None:
        self._before = {number: signal.signal(number, self._came) for number in self._SIGNALS}

    def defer(self) -> None:
        self._unwinding = True

    def forget(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _came(self, number: int, frame: FrameType | None) -> None:
        if not self._unwinding:
            self._unwinding = True
            raise KeyboardInterrupt


class NamespaceProgram:
    """A program of this folder in a namespace; it answers lines of JSON with lines of JSON."""

    def __init__(self, namespace: str, script: str) -> None:
        self._script = script
        # A session of its own: Ctrl-C is for the program on the terminal, which ends this one.
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, sys.executable, "-m", f"lib.{script}"],
            env=os.environ | {"PYTHONPATH": str(_HERE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def tell(self, message: dict[str, Any]) -> None:
        try:
            self._to.write(json.dumps(message).encode() + b"\n")
            self._to.flush()
        except OSError as problem:
            raise FleetError(f"{self._script} is gone: {problem}") from None

    def hear(self, seconds: float) -> dict[str, Any]:
        """Its next answer; an {"error": …} is raised."""
        if not select.select([self._from], [], [], seconds)[0]:
            raise FleetError(f"{self._script} did not answer within {seconds:g} s")
        line = self._from.readline()
        if not line:
            raise FleetError(f"{self._script} ended; what it printed says why")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise FleetError(f"{self._script}: {answer['error']}")
        return answer

    def close(self) -> None:
        self._to.close()  # its loop ends with its input
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._from.close()
