"""What does a data set cost that the ranks of a host share: memory, batches, an epoch's start?

Private copies are what a script has that loads its data in every rank; torch's DataLoader with a
DistributedSampler is how such a script takes batches.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

from lib import machine, measure, program, report
from lib.fleet import Fleet, FleetError
from lib.measure import BYTES, RATE, RATIO, SECONDS, Chapter, Measure, in_turns, ratios
from lib.report import console

MEMORY_RANKS, SPEED_RANKS = 8, 2
MOST_MEMORY, LEAST_OF_OWN, LEAST_OF_LOADER = 1.1, 0.95, 1.0
MOST_START_S = 0.01
CONTENDERS = {
    "shared": "wide.Batches over wide.shared_dataset",
    "own": "wide.Batches over each rank's own tensors",
    "loader": "DataLoader with DistributedSampler over them",
}
METHOD = (
    "A data set of {megabytes:,} MB: rows of 784 float32 and a label. Memory: the sum of the ranks'"
    " PSS once every rank has read all of it, less what they had before, on {memory_ranks} ranks"
    " and on one. Batches: {speed_ranks} ranks take {batches} batches of 32 samples at the same"
    " time, contenders in turns, in {rounds} rounds; a round's time is that of the slower rank, an"
    " epoch's start is not in it, no workers; ratios are those of each round. The start of"
    " an epoch of {samples:,} samples goes up to its first batch; beside it torch.randperm."
)


@dataclass(frozen=True)
class DataPlan:
    """How much and how often."""

    megabytes: int = 2000
    rounds: int = 9
    batches: int = 5000
    samples: int = 100_000_000
    starts: int = 3


QUICK = DataPlan(200, 3, 2000, 10_000_000, 3)


def _pss(fleet: Fleet) -> int:
    return sum(answer["pss"] for answer in fleet.ask({"do": "memory"}))


def _data_bytes(ranks: int, plan: DataPlan) -> int:
    """The memory of the data set on so many ranks."""
    with Fleet("data_rank", ranks) as fleet:
        before = _pss(fleet)
        read = fleet.ask({"do": "share", "megabytes": plan.megabytes})
        if len({answer["sum"] for answer in read}) != 1:
            raise FleetError("ranks read different data out of one data set")
        return _pss(fleet) - before


def _memory(plan: DataPlan) -> Chapter:
    one, many = _data_bytes(1, plan), _data_bytes(MEMORY_RANKS, plan)
    return Chapter(
        "Memory",
        [
            Measure("the data set on one rank", BYTES, [one]),
            Measure(f"on {MEMORY_RANKS} ranks", BYTES, [many]),
            Measure("to one rank's", RATIO, [many / one], MOST_MEMORY),
        ],
    )


def _speed(fleet: Fleet, plan: DataPlan, say: Callable[[str], None]) -> Chapter:
    fleet.ask({"do": "share", "megabytes": plan.megabytes})
    fleet.ask({"do": "copy", "megabytes": plan.megabytes})
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for number, name in in_turns(CONTENDERS, plan.rounds):
        say(f"round {number} of {plan.rounds}: {CONTENDERS[name]}")
        message = {"do": "take", "contender": name, "batches": plan.batches}
        slowest = max(answer["ns"] for answer in fleet.ask(message))
        rates[name].append(plan.batches / slowest * 1e9)
    measures = [
        Measure(f"{what}, batches", RATE, rates[name], at_least=True)
        for name, what in CONTENDERS.items()
    ]
    asked = (("own", "each rank's own", LEAST_OF_OWN), ("loader", "DataLoader's", LEAST_OF_LOADER))
    for name, whose, least in asked:
        found = ratios(rates["shared"], rates[name])
        measures.append(Measure(f"shared to {whose}", RATIO, found, least, at_least=True))
    return Chapter("Batches of a rank", measures)


def _starts(fleet: Fleet, plan: DataPlan) -> Chapter:
    keyed, listed = [], []
    for epoch in range(1, plan.starts + 1):
        message = {"do": "epoch_start", "samples": plan.samples, "epoch": epoch}
        (answer,) = fleet.ask(message, only=[0])
        keyed.append(answer["keyed_ns"] / 1e9)
        listed.append(answer["list_ns"] / 1e9)
    return Chapter(
        f"The start of an epoch of {plan.samples:,} samples",
        [
            Measure("wide.Batches", SECONDS, keyed, MOST_START_S),
            Measure(f"torch.randperm, {plan.samples * 8 // 10**6} MB", SECONDS, listed),
        ],
    )


def main() -> int:
    given = program.arguments(program.parser(__doc__ or ""))
    plan = QUICK if given.quick else DataPlan()
    about, screen = machine.about(), console()
    with screen.status(f"memory of {MEMORY_RANKS} ranks") as status:
        chapters = [_memory(plan)]
        with Fleet("data_rank", SPEED_RANKS) as fleet:
            chapters.append(_speed(fleet, plan, status.update))
            status.update("the start of an epoch")
            chapters.append(_starts(fleet, plan))
    method = METHOD.format(memory_ranks=MEMORY_RANKS, speed_ranks=SPEED_RANKS, **vars(plan))
    result = measure.result("shared_dataset", about, method, chapters, not given.quick)
    report.finish(result, given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
