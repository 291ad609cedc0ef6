"""How fast are collectives between hosts, next to gloo and to what the link allows?

Two and three hosts are made out of network namespaces on this machine, each with an address, a
link and a /dev/shm of its own. Links are as fast as the kernel goes, or slowed down to 1 Gbit and
100 Mbit. gloo is told which interface to use; wiiiiide is told nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lib import machine, program, report
from lib.grid import Grid
from lib.grid import targets as asked
from lib.hosts import Hosts, require_hosts
from lib.report import BenchResult, console
from lib.two_hosts import cost, iperf, speed
from lib.two_hosts.rig import BOTH, Rig, TwoHostsPlan
from lib.units import MB

FULL = TwoHostsPlan(
    rounds=7, round_seconds=1.0, nbytes=25 * MB, memory_nbytes=100 * MB, iperf_seconds=2
)
QUICK = TwoHostsPlan(
    rounds=3, round_seconds=0.2, nbytes=4 * MB, memory_nbytes=8 * MB, iperf_seconds=1
)
METHOD = (
    "Hosts are network namespaces of one machine with an address, a link to a common switch and"
    " shared memory of their own; tbf slows each end of a link down (burst 256 KB, latency 50"
    " ms). All processes share the machine's cores. float32, sum, one thread a rank. Sides are"
    " alive next to each other and take turns in {rounds} rounds within one run, iperf3"
    " (--bidir, as many streams as a host has ranks) among them; a call's time is that of its"
    " slowest rank, after a barrier and on fresh data (small operations: 32 in a row); shown is"
    " the median over rounds of each round's median, in brackets the least and the most of them;"
    " ratios are those of each round. Results are compared with a sum in double precision within"
    " what rounding may do, zeros and copies exactly, and bit by bit between ranks, outside of"
    " the timed part. The least bytes a host must send, and receive, are 2(H−1)/H × N for"
    " all_reduce, half of that for reduce_scatter and all_gather. What iperf3's rate allows is"
    " these bytes at the best rate of its rounds (payload, the mean of both directions), less"
    " the 256 KB that tbf lets through at once after a rest. Bytes are those of the hosts'"
    " interface counters over all calls and the barriers between them. These count Ethernet, IP"
    " and TCP headers (66 bytes) once for each packet as the kernel hands it over: a veth takes"
    " segments of up to 64 KB whole, where a cable would see a header every 1448 bytes. So"
    " headers stay in where bytes are held against the least; without headers means less 66"
    " bytes for every packet counted. Memory is what a rank has more than before it joined the"
    " others: its part of anonymous and shared pages, looked at every 20 ms while operations"
    " run, and its host's socket buffers (ss --memory) divided by the host's ranks. 1 MB is 1024"
    " × 1024 bytes."
)


@dataclass(frozen=True)
class Part:
    """`ranks` are those of each host."""

    title: str
    run: Callable[[Rig], list[Grid]]
    ranks: tuple[int, ...] = (2, 2)


PARTS: dict[str, Part] = {
    "all_reduce": Part("all_reduce against gloo and the link", speed.all_reduce),
    "latency": Part("small messages", speed.latency),
    "scatter": Part("reduce_scatter and all_gather", speed.scatter),
    "async": Part("many small operations at once", speed.many),
    "codec": Part("the codec, chosen by itself or off", cost.codec),
    "checks": Part("what checksum and TLS cost", cost.checks),
    "memory": Part("memory for exchange", cost.memory),
    "three_hosts": Part("three hosts with uneven ranks", speed.three_hosts, (2, 1, 1)),
}


def by_hosts(names: Sequence[str]) -> dict[tuple[int, ...], list[Part]]:
    """The parts to run on each set of hosts, in the order of the table above."""
    found: dict[tuple[int, ...], list[Part]] = {}
    for name, part in PARTS.items():
        if name in names:
            found.setdefault(part.ranks, []).append(part)
    return found


@dataclass
class TwoHostsFindings:
    """All that a run gave."""

    grids: list[Grid] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: bool = False


def run(
    plan: TwoHostsPlan,
    names: Sequence[str],
    say: Callable[[str], None],
    show: Callable[[Grid], None],
) -> TwoHostsFindings:
    """Runs the parts; each shows its tables as soon as it is through."""
    found = TwoHostsFindings()
    for ranks, here in by_hosts(names).items():
        say(f"making {len(ranks)} hosts")
        with Hosts(ranks) as hosts, Rig(hosts, plan, say) as rig:
            for part in here:
                for grid in part.run(rig):
                    found.grids.append(grid)
                    show(grid)
                rig.keep_only(BOTH)
            found.notes += rig.notes
            found.failed = found.failed or rig.failed
    return found


def options() -> argparse.Namespace:
    parser = program.parser(__doc__ or "", rounds=FULL.rounds, saves=False)
    listed = "; ".join(f"{name}: {part.title}" for name, part in PARTS.items())
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of: {listed}")
    given = program.arguments(parser)
    given.parts = given.parts.split(",")
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        parser.error(f"--parts: there is no {unknown[0]}; there are {', '.join(PARTS)}")
    return given


def _plan(given: argparse.Namespace) -> TwoHostsPlan:
    plan = QUICK if given.quick else FULL
    return TwoHostsPlan(**{**vars(plan), "rounds": given.rounds or plan.rounds})


def _about() -> dict[str, str]:
    facts = machine.about()
    facts["iperf3"] = iperf.version()
    del facts["open_mpi"]  # takes no part here
    return facts


def main() -> int:
    given = options()
    require_hosts()
    judged, plan = not given.quick, _plan(given)
    about, screen = _about(), console()
    with report.progress(screen) as say:

        def show(grid: Grid) -> None:
            report.show_sheet(grid.sheet(judged), screen)

        found = run(plan, given.parts, say, show)
    targets = asked(found.grids, judged)
    sheets = [targets, *(grid.sheet(judged) for grid in found.grids)]
    data = {"tables": [grid.data(judged) for grid in found.grids]}
    notes = [*filter(None, [iperf.absent()]), *found.notes]
    method = METHOD.format(rounds=plan.rounds)
    result = BenchResult("two_hosts", about, method, sheets, notes, data)
    report.finish(result, given, screen, left=[targets])
    return 1 if found.failed else 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
