"""The rate of a link, as iperf3 measures it: both directions at once, as a collective uses it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lib.fleet import FleetError
from lib.hosts import NetHost

_PATIENCE_S = 20.0
_DIE_WITH_US = ["setpriv", "--pdeathsig", "KILL"]


@dataclass(frozen=True)
class Rate:
    """Payload bytes a second: headers are not in it."""

    there: float
    back: float

    @property
    def each(self) -> float:
        """One direction's share of what both carried: stricter than the slower of the two."""
        return (self.there + self.back) / 2


def absent() -> str | None:
    if shutil.which("iperf3") is None:
        return (
            "iperf3 is missing (Debian: apt-get install iperf3): what the link allows was not"
            " measured, so nothing is held against it"
        )
    return None


def version() -> str:
    if absent():
        return "absent"
    said = subprocess.run(["iperf3", "--version"], capture_output=True, text=True, check=False)
    return (said.stdout.split() or ["", ""])[1]


def parsed(report: Mapping[str, Any]) -> Rate:
    """The rates in a client's report; raises FleetError where it has none."""
    if "error" in report:
        raise FleetError(f"iperf3: {report['error']}")
    try:
        ends = [report["end"][f"sum_received{way}"] for way in ("", "_bidir_reverse")]
        there, back = (float(end["bits_per_second"]) / 8 for end in ends)
    except KeyError as lack:
        raise FleetError(f"iperf3's report has no {lack}: 3.7 or newer knows --bidir") from None
    if there <= 0 or back <= 0:
        raise FleetError("iperf3 moved nothing in one of the directions")
    return Rate(there, back)


def measure(near: NetHost, far: NetHost, streams: int, seconds: int) -> Rate:
    """Runs iperf3 between two hosts with so many streams in each direction."""
    server_words = ["iperf3", "--server", "--one-off", "--bind", far.address, "--forceflush"]
    client_words = ["iperf3", "--client", far.address, "--bidir", "--json"]
    client_words += ["--parallel", str(streams), "--time", str(seconds)]
    server = subprocess.Popen(
        _DIE_WITH_US + far.space.inside(server_words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        _await_listening(server)
        done = subprocess.run(
            _DIE_WITH_US + near.space.inside(client_words),
            capture_output=True,
            text=True,
            timeout=seconds + _PATIENCE_S,
            start_new_session=True,
        )
        return parsed(json.loads(done.stdout))
    except (subprocess.TimeoutExpired, json.JSONDecodeError) as problem:
        raise FleetError(f"iperf3 gave no report: {type(problem).__name__}") from None
    finally:
        # With its output closed it could also be stuck in a write: it has nothing more to say.
        server.kill()
        server.communicate()


def _await_listening(server: subprocess.Popen[str]) -> None:
    assert server.stdout is not None
    said = ""
    for line in server.stdout:
        said += line
        if "listening" in line:
            return
    raise FleetError(f"iperf3's server did not start: {said.strip()}")
