"""What do asynchronous updates cost in what is learnt: the loss after equal samples, next to sync?

Not speed: a rank that is ahead applies gradients of weights that others have changed since, and
gradients are not averaged.
"""

import statistics
import sys

from lib import machine, program, report
from lib.fleet import Fleet
from lib.report import BenchResult, Sheet, console

STALENESS = (0, 1, 4, 16, 64)  # 0: synchronous
RATES = (1.0, 0.5)
METHOD = (
    "The demo's language model (3.6 million parameters, AdamW), {ranks} ranks with wide.parallel,"
    " {steps} steps of 4 sequences a rank, {seeds} seeds. The same sequences in every way, so all"
    " have seen the same samples. Shown is the mean over seeds of the cross entropy on 400"
    " sequences that are the same for all, in brackets the least and the most. The learning rate is"
    " the demo's, times what stands above the column."
)


def _name(staleness: int) -> str:
    return f"async, staleness {staleness}" if staleness else "sync"


def main() -> int:
    parser = program.parser(__doc__ or "")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seeds", type=program.positive, default=3)
    given = program.arguments(parser)
    steps, seeds = (30, 1) if given.quick else (150, given.seeds)
    about, screen = machine.about(), console()
    losses: dict[tuple[int, float], list[float]] = {}
    with screen.status("starting") as status, Fleet("loss_rank", given.ranks) as fleet:
        for seed in range(1, seeds + 1):
            for staleness in STALENESS:
                for rate in RATES if staleness else RATES[:1]:
                    status.update(f"seed {seed} of {seeds}: {_name(staleness)}, rate × {rate:g}")
                    message = {"do": "train", "steps": steps, "seed": seed, "rate": rate}
                    answers = fleet.ask({**message, "staleness": staleness}, seconds=600.0)
                    losses.setdefault((staleness, rate), []).append(answers[0]["loss"])
    sheet = Sheet(
        f"Loss after {steps * given.ranks * 4:,} sequences, {given.ranks} ranks",
        ["", *(f"rate × {rate:g}" for rate in RATES)],
    )
    for staleness in STALENESS:
        cells = []
        for rate in RATES:
            found = losses.get((staleness, rate))
            cells.append(
                f"{statistics.fmean(found):.3f} ({min(found):.3f}–{max(found):.3f})"
                if found
                else ""
            )
        sheet.rows.append([_name(staleness), *cells])
    method = METHOD.format(ranks=given.ranks, steps=steps, seeds=seeds)
    data = {"losses": {f"{_name(s)}, rate × {r:g}": found for (s, r), found in losses.items()}}
    name = f"async_loss_{given.ranks}"
    report.finish(BenchResult(name, about, method, [sheet], [], data), given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
