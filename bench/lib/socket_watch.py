"""How soon a silent machine is known, and what cuts of a cable are survived: the watch's options.

Idle connections are opened a moment apart, so that a cut meets every phase between two probes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lib.namespaces import NamespacePair, NamespaceProgram
from lib.report import Sheet

TITLE = "The watch: idle connections with keepalive, when the other machine is not heard"
OURS = "ours (tune_watch)"
# idle, interval, count; None: what the package sets
SETS: dict[str, list[int] | None] = {OURS: None, "3 s, 1 s, 5 probes": [3, 1, 5]}
CUT_S = 5.0
_LOOK_S = 14.0
_SPREAD_S = 3.0  # the longest time between two probes of an idle connection
_ANSWER_S = 60.0


@dataclass(frozen=True)
class CutTrial:
    """The fate of `phases` connections of each set; `ended`: seconds after the cut began."""

    what: str
    phases: int
    ended: dict[str, list[float]]


def trials(wire: NamespacePair, ends: Sequence[NamespaceProgram], phases: int) -> list[CutTrial]:
    made = []
    for what, cut, heal, speak in (
        (f"cable out for {CUT_S:.0f} s at the other machine", wire.cable, True, False),
        (f"silence for {CUT_S:.0f} s, carrier at both", wire.silence, True, False),
        ("silence for good", wire.silence, False, False),
        ("silence for good, a frame sent into it after 1 s", wire.silence, False, True),
    ):
        _open(ends, phases)
        ends[0].tell({"do": "deaths", "seconds": _LOOK_S, "speak": speak})
        began = time.monotonic()
        out = cut == wire.cable  # for a cable True means plugged, for silence silent
        cut(not out)
        if heal:
            time.sleep(CUT_S)
            cut(out)
        found = ends[0].hear(_ANSWER_S)
        if not heal:
            cut(out)
        made.append(CutTrial(what, phases, _by_set(found, began)))
    return made


def _open(ends: Sequence[NamespaceProgram], phases: int) -> None:
    ends[1].tell({"do": "keep", "count": phases * len(SETS)})
    port = ends[1].hear(_ANSWER_S)["port"]
    message = {"do": "watch", "port": port, "sets": SETS, "phases": phases, "spread_s": _SPREAD_S}
    ends[0].tell(message)
    ends[0].hear(_ANSWER_S)


def _by_set(found: dict[str, Any], began: float) -> dict[str, list[float]]:
    ended: dict[str, list[float]] = {name: [] for name in SETS}
    for name, when, _ in found["ended"]:
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
