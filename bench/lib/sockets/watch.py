"""How soon a silent machine is known, and what cuts of a cable are survived: the watch's options.

Idle connections are opened a moment apart, so that a cut meets every phase between two probes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lib.fleet import Fleet
from lib.hosts import Hosts
from lib.report import Sheet

TITLE = "The watch: idle connections with keepalive, when the other machine is not heard"
OURS = "ours (tune_watch)"
# idle, interval, count; None: what the package sets
SETS: dict[str, list[int] | None] = {OURS: None, "3 s, 1 s, 5 probes": [3, 1, 5]}
CUT_S = 5.0
_LOOK_S = 14.0
_SPREAD_S = 3.0  # the longest time between two probes of an idle connection
_WATCHER = "b"  # the host of rank 1


@dataclass(frozen=True)
class CutTrial:
    """The fate of `phases` connections of each set; `ended`: seconds after the cut began."""

    what: str
    phases: int
    ended: dict[str, list[float]]


def trials(hosts: Hosts, ends: Fleet, phases: int) -> list[CutTrial]:
    made = []
    for what, cut, heals, speak in (
        (f"cable out for {CUT_S:.0f} s, no carrier", hosts.cut, True, False),
        (f"silence for {CUT_S:.0f} s, carrier at both", hosts.silence, True, False),
        ("silence for good", hosts.silence, False, False),
        ("silence for good, a frame sent into it after 1 s", hosts.silence, False, True),
    ):
        _open(ends, phases)
        message = {"do": "deaths", "seconds": _LOOK_S, "speak": speak}
        with ThreadPoolExecutor(1) as meanwhile:
            looking = meanwhile.submit(ends.ask, message, [1])
            began = time.monotonic()
            cut(_WATCHER)
            if heals:
                time.sleep(CUT_S)
                hosts.heal(_WATCHER)
            (found,) = looking.result()
        hosts.heal(_WATCHER)
        made.append(CutTrial(what, phases, _by_set(found, began)))
    return made


def _open(ends: Fleet, phases: int) -> None:
    (held,) = ends.ask({"do": "hold", "count": phases * len(SETS)}, [0])
    shape = {"sets": SETS, "phases": phases, "spread_s": _SPREAD_S}
    ends.ask({"do": "watch", "port": held["port"], **shape}, [1])


def _by_set(found: dict[str, Any], began: float) -> dict[str, list[float]]:
    ended: dict[str, list[float]] = {name: [] for name in SETS}
    for name, when in found["ended"]:
        ended[name].append(when - began)
    return ended


def sheet(made: Sequence[CutTrial]) -> Sheet:
    shown = Sheet(TITLE, ["", *SETS])
    for trial in made:
        shown.rows.append([trial.what, *(_text(trial, name) for name in SETS)])
    return shown


def _text(trial: CutTrial, name: str) -> str:
    ended = trial.ended[name]
    if not ended:
        return f"0 of {trial.phases} ended within {_LOOK_S:.0f} s"
    return f"{len(ended)} of {trial.phases} ended\nafter {min(ended):.1f}–{max(ended):.1f} s"


def data(made: Sequence[CutTrial]) -> list[dict[str, Any]]:
    return [{"what": one.what, "phases": one.phases, "ended_s": one.ended} for one in made]
