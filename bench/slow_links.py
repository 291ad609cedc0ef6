"""What do slow links leave of several hosts' speed, and what do fewer bits and exchanges cost?

Two and three hosts made of network namespaces train one network at 1 Gbit, 100 Mbit and 10 Mbit:
DDP over gloo and over wiiiiide, wide.parallel exact, in fewer bits, and with exchanges every H
steps, next to one host alone; then two hosts, one of which is three times slower than the other.
With --losses instead: the loss of the demo's language model after equal samples and after equal
time, on hosts that are only pretended.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from lib import machine, program, report
from lib.fleet import Fleet
from lib.grid import Grid, targets
from lib.hosts import Hosts, require_hosts
from lib.report import BenchResult, console
from lib.slow_links import losses, speed, uneven
from lib.slow_links.cpu_quota import NoQuota
from lib.slow_links.speed import SlowLinks, SlowLinksPlan, Speed
from lib.slow_links.uneven import Uneven
from rich.console import Console

SPEED_METHOD = (
    "A step (forward, backward, AdamW, fused; denormal numbers count as 0) of a multilayer"
    " perceptron with 6.5 million"
    " parameters, 26 MB of gradients, batch 16 a rank, one thread a rank. Hosts are network"
    " namespaces of one machine; tbf slows each end of a link down (burst 256 KB, latency 50 ms)."
    " Each host has cores of its own, a rank a core, where there are enough; they slow each other,"
    " so one host alone is measured while the others train unconnected copies, and is the mean of"
    " them. All contenders are alive in the same ranks and take turns in rounds; a turn has whole"
    ' rounds of H steps, every="auto" has found its H before. A step is the mean of a turn, of the'
    " slowest rank. Shown is the median over rounds, in brackets the least and the most; ratios"
    " are those of each round. Computing is one host alone's step to the contender's. Bytes are"
    " those of the interface counter of the busiest host in its busier direction. Before links are"
    " slowed down, all ranks must have the same parameters to the bit, and the exact contenders"
    " gloo's up to rounding. The slow host is slowed down by a control group's quota, a third of a"
    " core in periods of 10 ms; batches are larger there (2048 a rank, 256 with every=16), so that"
    " speed is that of machines and not of the link. Contenders train for as long as speeds are"
    " measured before shares change, and are measured then, each alone in turns with both"
    " together."
)
LOSS_METHOD = (
    "The demo's language model (3.6 million parameters, AdamW) with wide.parallel on {hosts}"
    " pretended hosts of one rank, {steps} steps of 4 sequences a rank, {seeds} seeds; the same"
    " sequences in every way. Shown is the mean over seeds of the cross entropy on 400 sequences"
    " that are the same for all, in brackets the least and the most. Equal time is that in which"
    " every=16, int8 makes its steps at 100 Mbit: a step as measured here without exchange, an"
    " exchange as long as its bytes take. A way that makes fewer steps in it has a schedule of its"
    " own for those; so do runs {longer} times as long. The JSON has the training losses, means of"
    " 16 steps."
)


def _speed(plan: SlowLinksPlan, screen: Console, say: Callable[[str], None], judged: bool) -> Speed:
    def show(grid: Grid) -> None:
        report.show_sheet(grid.sheet(judged), screen)

    whole = Speed()
    for site in plan.sites:
        say(f"making {len(site.ranks)} hosts")
        with Hosts(site.ranks, pinned=True) as hosts:
            found = SlowLinks(hosts, plan.turn_seconds, say).run(site.stages, show)
            if not hosts.are_pinned:
                ranks = "+".join(map(str, site.ranks))
                found.notes.append(f"{ranks} ranks are more than there are cores: hosts share them")
        whole.grids += found.grids
        whole.notes += found.notes
    try:
        grid = Uneven(plan.uneven, say).run()
    except NoQuota as problem:
        whole.notes.append(str(problem))
    else:
        show(grid)
        whole.grids.append(grid)
    return whole


def _measure_speed(given: argparse.Namespace, screen: Console) -> None:
    require_hosts()
    plan, judged, about = _plan(given), not given.quick, machine.about()
    with report.progress(screen) as say:
        found = _speed(plan, screen, say, judged)
    asked = targets(found.grids, judged, speed.asked() + uneven.asked())
    sheets = [*(grid.sheet(judged) for grid in found.grids), asked]
    data = {"tables": [grid.data(judged) for grid in found.grids]}
    result = BenchResult("slow_links", about, SPEED_METHOD, sheets, found.notes, data)
    report.finish(result, given, screen, left=[asked])


def _measure_losses(given: argparse.Namespace, screen: Console) -> None:
    steps, seeds, hosts = (64, 1, 2) if given.quick else (192, given.seeds, 2)
    about, judged = machine.about(), not given.quick
    with screen.status("starting") as status, Fleet("loss_rank", hosts, hosts=hosts) as fleet:
        found = losses.measure(fleet, steps, seeds, status.update)
    longer = losses.LONGER
    method = LOSS_METHOD.format(hosts=hosts, steps=steps, seeds=seeds, longer=longer)
    sheets = found.sheets(steps * hosts * 4, judged)
    result = BenchResult("slow_links_losses", about, method, sheets, [], found.data())
    report.finish(result, given, screen)


def _plan(given: argparse.Namespace) -> SlowLinksPlan:
    plan = speed.QUICK if given.quick else speed.FULL
    return plan if given.rounds is None else plan.with_rounds(given.rounds)


def main() -> int:
    parser = program.parser(__doc__ or "")
    parser.add_argument("--rounds", type=program.positive, help="default: 5 to 1, by link")
    parser.add_argument("--losses", action="store_true", help="what is learnt, instead of speed")
    parser.add_argument("--seeds", type=program.positive, default=3, help="with --losses")
    given = program.arguments(parser)
    (_measure_losses if given.losses else _measure_speed)(given, console())
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
