"""What does the exchange of gradients add to a training step: DDP, FSDP2 and wide.parallel?

The exchange overlaps with the backward pass, so it cannot be timed by itself: it is what a step
takes beyond the same step without any exchange, all contenders taking turns within one run. DDP
copies gradients to buckets and back whether it exchanges them or not: what the exchange adds to its
step is what it takes beyond DDP with a hook that exchanges nothing.
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from lib import machine, program, report
from lib.fleet import Fleet, FleetError
from lib.measure import in_turns, ratios
from lib.report import BenchResult, Sheet, Value, console, ratio_text, value_text

ALONE, IDLE = "without any exchange", "DDP, exchanging nothing"
GLOO, DDP, PARALLEL = "gloo, DDP", "wiiiiide, DDP", "wide.parallel"
GLOO_FSDP, FSDP = "gloo, FSDP2", "wiiiiide, FSDP2"
WAYS = {
    ALONE: "alone",
    IDLE: "ddp without exchange",
    GLOO: "ddp",
    DDP: "ddp",
    PARALLEL: "parallel",
    GLOO_FSDP: "fsdp",
    FSDP: "fsdp",
}
CONTENDERS = tuple(WAYS)


class StepTarget(NamedTuple):
    """The target of a step: to the step without exchange, gloo's to it, and of its exchange."""

    most_of_alone: float | None
    least_of_gloo: float
    most_of_exchange: float | None

    def verdict(self, alone: float, faster: float, part: float | None) -> str:
        """The target in words, and whether it was met."""
        wanted = [
            (self.most_of_alone, "≤", alone),
            (self.least_of_gloo, "≥", faster),
            (self.most_of_exchange, "≤", part),
        ]
        asked = [(limit, sign, got) for limit, sign, got in wanted if limit is not None]
        met = all(
            got is not None and (got <= limit if sign == "≤" else got >= limit)
            for limit, sign, got in asked
        )
        text = ", ".join(f"{sign} {limit}" for limit, sign, _ in asked)
        return f"{text}: {'met' if met else 'missed'}"


TARGETS = {
    (PARALLEL, 2): StepTarget(1.05, 1.8, None),
    (PARALLEL, 4): StepTarget(1.15, 2.0, None),
    (DDP, 2): StepTarget(None, 1.6, 0.35),
}
METHOD = (
    "A step (forward, backward, {optimizer}) of a multilayer perceptron with {parameters:.1f}"
    " million parameters, batch 16, on {ranks} ranks of one thread each, DDP with {ddp}. Contenders"
    " take turns in {rounds} rounds of {steps} steps; a step's time is that of the slowest rank;"
    " shown is the median over rounds of each round's median, in brackets the least and the most of"
    " them. Ratios are medians of the rounds' own ratios, FSDP2's to gloo's FSDP2. The exchange of"
    " DDP is what a step takes beyond DDP exchanging nothing. After three steps the parameters of"
    " all ranks must be the same to the bit, and equal gloo's up to rounding."
)
Rounds = dict[str, list[float]]


def _open_all(fleet: Fleet, given: Any) -> int:
    """Makes the trainers and checks that they train alike; raises if not."""
    others = {ALONE: None, GLOO: "gloo", GLOO_FSDP: "gloo"}
    sums: dict[str, list[float]] = {}
    parameters = 0
    for contender in CONTENDERS:
        message = {
            "do": "open",
            "contender": contender,
            "backend": others.get(contender, "wiiiiide"),
            "way": WAYS[contender],
            "views": given.bucket_views,
            "optimizer": given.optimizer,
        }
        try:
            answers = fleet.ask(message)
        except FleetError as problem:
            raise FleetError(f"training with {contender} failed: {problem}") from None
        same = len({answer["digest"] for answer in answers}) == 1
        if same != (contender not in (ALONE, IDLE)):
            raise FleetError(f"{contender}: the ranks' parameters are {'the same' * same or 'not'}")
        sums[contender] = [answer["sum"] for answer in answers]
        parameters = answers[0]["parameters"]
    for contender in (DDP, PARALLEL, GLOO_FSDP, FSDP):
        if abs(sums[contender][0] - sums[GLOO][0]) > 1e-4 * abs(sums[GLOO][0]):
            raise FleetError(f"{contender} trained other parameters than gloo")
    return parameters


def _measure(fleet: Fleet, rounds: int, steps: int, say: Callable[[str], None]) -> Rounds:
    taken: Rounds = {contender: [] for contender in CONTENDERS}
    for number, contender in in_turns(CONTENDERS, rounds):
        say(f"round {number} of {rounds}: {contender}")
        message = {"do": "measure", "contender": contender, "iterations": steps, "warmup": 3}
        answers = fleet.ask(message)
        slowest = [max(times) for times in zip(*(a["ns"] for a in answers), strict=True)]
        taken[contender].append(statistics.median(slowest) / 1e9)
    return taken


def _summary(rounds: list[float]) -> Value:
    return Value(statistics.median(rounds), min(rounds), max(rounds))


def _ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(ratios(above, below))


def _exchange(taken: Rounds, contender: str) -> float:
    without = taken[IDLE if WAYS[contender] == "ddp" else ALONE]
    return statistics.median(
        step - alone for step, alone in zip(taken[contender], without, strict=True)
    )


def _sheet(taken: Rounds, ranks: int, optimizer: str) -> tuple[Sheet, dict[str, Any]]:
    heads = ["", "step", "to no exchange", "gloo's step to it", "exchange to gloo's", "target"]
    sheet = Sheet(f"A step of {optimizer}, {ranks} ranks", heads)
    gloo = _exchange(taken, GLOO)
    figures: dict[str, Any] = {}
    for contender in CONTENDERS:
        beside = GLOO_FSDP if WAYS[contender] == "fsdp" else GLOO
        alone = _ratio(taken[contender], taken[ALONE])
        faster = _ratio(taken[beside], taken[contender])
        part = max(_exchange(taken, contender), 0.0) / gloo if gloo > 0 else None
        figures[contender] = {"to_alone": alone, "gloo_to_it": faster, "exchange_to_gloo": part}
        target = TARGETS.get((contender, ranks))
        verdict = target.verdict(alone, faster, part) if target else ""
        cells = [ratio_text(alone), ratio_text(faster), ratio_text(part)]
        sheet.rows.append([contender, value_text(_summary(taken[contender])), *cells, verdict])
    return sheet, figures


def main() -> int:
    parser = program.parser(__doc__ or "", rounds=9)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="adamw")
    parser.add_argument(
        "--bucket-views",
        action="store_true",
        help="DDP with gradient_as_bucket_view: without its own copies of the gradients, which"
        " its defaults add to every backend's exchange",
    )
    given = program.arguments(parser)
    rounds = given.rounds or (3 if given.quick else 9)
    steps = 6 if given.quick else 15
    about = machine.about()
    screen = console()
    starting = f"starting {given.ranks} ranks"
    with screen.status(starting) as status, Fleet("train_rank", given.ranks) as fleet:
        parameters = _open_all(fleet, given)
        taken = _measure(fleet, rounds, steps, status.update)
    sheet, figures = _sheet(taken, given.ranks, given.optimizer)
    method = METHOD.format(
        optimizer="AdamW, fused" if given.optimizer == "adamw" else "SGD",
        parameters=parameters / 1e6,
        ranks=given.ranks,
        ddp="gradient_as_bucket_view=True" if given.bucket_views else "its defaults",
        rounds=rounds,
        steps=steps,
    )
    views = "_views" if given.bucket_views else ""
    name = f"train_step_{given.optimizer}_{given.ranks}{views}"
    data = {"step_seconds_by_round": taken, **figures}
    report.finish(BenchResult(name, about, method, [sheet], [], data), given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
