"""Does `wiiiiide plan` predict what happens, and is what it recommends the best way to train?

In every round a new trial of two hosts, and then a turn of each way that it has a row for.
"""

from __future__ import annotations

import argparse
import sys

from lib import machine, program, report
from lib.grid import targets
from lib.hosts import FAST, GIGABIT, SLOW, Hosts, require_hosts
from lib.plan_accuracy.accuracy import LinkAccuracy, PlanAccuracy, asked
from lib.report import BenchResult, console
from rich.console import Console

LINKS = (GIGABIT, FAST, SLOW)
METHOD = (
    "Two hosts of one rank, each a network namespace with a core of its own where there are two;"
    " tbf slows each end of a link down. The network is that of slow_links.py: 26 MB of gradients,"
    " batch 16, AdamW. Predicted: from a new trial in every round (the program's own parts: steps"
    " of both hosts at the same time, unconnected, as wiiiiided.torch.step_probe sees them, of one"
    " batch for both hosts also with half of it; then"
    " their link by wiiiiided.torch.link_probe) by metrics/plan.py. Measured: a turn of each way in"
    " the same round, of {turn:g} s or one exchange at least; one machine is the mean of two hosts"
    " that train unconnected copies, by wide.parallel too. Rows with data= have one batch of 32 for"
    " both hosts, which one machine has for itself, the others 16 for each host; measured are one"
    " machine, every step and every H steps in int8, or in the codec that the first trial"
    " recommends. H is that of the first trial, 1,024 at most. Shown are medians over {rounds}"
    " rounds, in brackets the least and the most."
)


def _run(
    given: argparse.Namespace, rounds: int, turn_s: float, screen: Console
) -> list[LinkAccuracy]:
    links = LINKS[:2] if given.quick else LINKS
    with report.progress(screen) as say, Hosts([1, 1], pinned=True) as hosts:
        found = []
        for one in PlanAccuracy(hosts, rounds, turn_s, say).run(links):
            report.show_sheet(one.grid(not given.quick).sheet(not given.quick), screen)
            found.append(one)
        return found


def main() -> int:
    parser = program.parser(__doc__ or "", 5)
    given = program.arguments(parser)
    require_hosts()
    rounds, turn_s = given.rounds or (3 if given.quick else 5), 1.0 if given.quick else 4.0
    about, judged, screen = machine.about(), not given.quick, console()
    found = _run(given, rounds, turn_s, screen)
    grids = [one.grid(judged) for one in found]
    asked_of_all = targets(grids, judged, asked(LINKS))
    result = BenchResult(
        "plan_accuracy",
        about,
        METHOD.format(rounds=rounds, turn=turn_s),
        [*(grid.sheet(judged) for grid in grids), asked_of_all],
        [one.note for one in found],
        {"tables": [grid.data(judged) for grid in grids]},
    )
    report.finish(result, given, screen, left=[asked_of_all])
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
