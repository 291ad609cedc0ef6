"""Which socket options make TCP between two machines faster, and which only look as if they did?

Two hosts made of network namespaces, a Python sender and receiver in them. Everything is a ratio to
the same run's default, taken in turns. It ends with a verdict on each thing the first WIIIIIDE set,
and with what the watch's keepalive options survive. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lib import machine, program
from lib.fleet import Fleet, FleetError
from lib.hosts import Hosts, HostsFleet, require_hosts
from lib.measure import in_turns
from lib.report import BenchResult, console, finish, progress
from lib.sockets import report, watch
from lib.sockets.cases import CHAPTERS, LINKS, SocketChapter, SocketLink, SocketWay
from lib.sockets.report import SocketRound

METHOD = (
    "Two network namespaces, each on a veth pair to a common switch; a rate is tbf with burst"
    " 256kb and latency 50ms at each end of both. Ways take turns in {rounds} rounds, each"
    " beginning with another one and each with fresh connections; shown is the median over"
    " rounds, then the ratio to the first way of the same round: its median, the least and the"
    " most; above 1 is better. The first way also runs against itself: what that shows, its"
    " worst round aside and at least 3 %, counts as no difference, and so does what a round"
    " speaks against, one of seven aside. Bulk: part of the bytes go first, untimed; the time"
    " ends when the receiver has said that it has all; every byte goes to its place in a region"
    " of 4 MB, which is compared at the end. CPU is that of both processes, the kernel's work"
    " for them included."
)
_TRIP_S, _URGENT_S = 0.3, 1.0


@dataclass(frozen=True)
class SocketsPlan:
    """How much of it."""

    rounds: int
    links: Sequence[SocketLink]
    chapters: Sequence[SocketChapter]
    share: float  # of the bytes and seconds of a full run
    phases: int  # of the watch's connections; 0: leave it out


def _sample(
    ends: Fleet, chapter: SocketChapter, link: SocketLink, way: SocketWay, share: float
) -> SocketRound:
    per_stream = int(link.total * share) // way.streams
    asked = {
        "form": chapter.form,
        "way": way.plain(),
        "warm": int(link.warm * share) // way.streams,
        "total": per_stream,
        "payload": chapter.payload,
        "seconds": share * (_TRIP_S if chapter.form == "trips" else _URGENT_S),
    }
    (listener,) = ends.ask({**asked, "do": "listen"}, only=[0])
    received, sent = ends.ask({**asked, "do": "move", **listener})
    if not (sent.get("right", True) and received["right"]):
        raise FleetError(f"{chapter.title}, {way.label}: the bytes that arrived are not those sent")
    granted = [sent["granted"][0], received["granted"][1]]
    if chapter.form == "trips":
        return SocketRound(statistics.median(sent["trips"]), 0.0, 0.0, granted)
    if chapter.form == "urgent":
        return SocketRound(statistics.median(received["delays"]), 0.0, received["rate"], granted)
    rate = per_stream * way.streams / sent["seconds"]
    return SocketRound(sent["seconds"], sent["cpu"] + received["cpu"], rate, granted)


def _measure(
    ends: Fleet, chapter: SocketChapter, link: SocketLink, plan: SocketsPlan
) -> dict[str, list[SocketRound]]:
    ways = chapter.turns
    taken: dict[str, list[SocketRound]] = {way.label: [] for way in ways}
    for _, way in in_turns(ways, plan.rounds):
        taken[way.label].append(_sample(ends, chapter, link, way, plan.share))
    return taken


def run(plan: SocketsPlan, say: Callable[[str], None]) -> tuple[report.Taken, list[watch.CutTrial]]:
    taken: report.Taken = {}
    with Hosts([1, 1]) as hosts, HostsFleet(hosts, {}, "sockets.rank") as ends:
        for link in plan.links:
            hosts.shape(link.rate)
            for chapter in plan.chapters:
                say(f"{link.name}: {chapter.title}")
                taken[chapter.title, link.name] = _measure(ends, chapter, link, plan)
        hosts.shape("")
        say("the watch")
        return taken, watch.trials(hosts, ends, plan.phases) if plan.phases else []


def _kernel_notes() -> list[str]:
    """The settings of the machine's owner: the sweep depends on it."""
    names = (
        *("core/rmem_max", "core/wmem_max", "ipv4/tcp_rmem", "ipv4/tcp_wmem"),
        "ipv4/tcp_congestion_control",
    )
    paths = [Path("/proc/sys/net") / name for name in names]
    shown = [f"{path.name} {' '.join(path.read_text().split())}" for path in paths]
    return ["the kernel's settings: " + ", ".join(shown)]


def _options() -> tuple[SocketsPlan, argparse.Namespace]:
    parser = program.parser(__doc__ or "", rounds=7, saves=False)
    parser.add_argument("--only", default="", help="chapters with this in their title")
    given = program.arguments(parser)
    wanted = [one for one in CHAPTERS if given.only.lower() in one.title.lower()]
    rounds = given.rounds or (3 if given.quick else 7)
    phases = 12 if given.quick else 24
    if given.only.lower() not in watch.TITLE.lower():
        phases = 0
    plan = SocketsPlan(rounds, LINKS, wanted, 0.25 if given.quick else 1.0, phases)
    if given.only and given.save:
        parser.error("--save is for whole runs: leave --only out")
    return plan, given


def _result(
    plan: SocketsPlan,
    about: dict[str, str],
    taken: report.Taken,
    trials: list[watch.CutTrial],
) -> BenchResult:
    found = report.verdicts(plan.links, taken)
    sheets = [report.sheet(one, plan.links, taken) for one in plan.chapters]
    if trials:
        sheets.append(watch.sheet(trials))
    sheets.append(report.verdict_sheet(plan.links, found))
    notes = [*_kernel_notes(), *report.granted_notes(taken)]
    data = {**report.data(taken, found), "watch": watch.data(trials)}
    return BenchResult("sockets", about, METHOD.format(rounds=plan.rounds), sheets, notes, data)


def main() -> int:
    plan, given = _options()
    require_hosts()
    about = machine.about()
    screen = console()
    with progress(screen) as say:
        taken, trials = run(plan, say)
    finish(_result(plan, about, taken, trials), given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
