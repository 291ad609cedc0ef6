"""What does the exchange of gradients add to a training step under DDP, next to gloo?

The exchange overlaps with the backward pass, so it cannot be timed by itself: it is what a step
takes beyond the same step without DDP, the three of them taking turns within one run.
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any

import _machine
import _plot
import _program
import _report
from _cells import GLOO, LABELS, OURS, Value
from _fleet import Fleet, FleetError
from _report import Result, Sheet, console, ratio_text, value_text

ALONE = "alone"
RANKS = 2
# The exchange with wiiiiide is to take at most this part of the exchange with gloo.
TARGET = 0.5
METHOD = (
    "A step (forward, backward, SGD) of a multilayer perceptron with {parameters:.1f} million"
    " parameters, batch 16, on 2 ranks of one thread each, DDP with {ddp}. Contenders take"
    " turns in {rounds} rounds of {steps} steps; a step's time is that of the slower rank; shown is"
    " the median over rounds of each round's median, in brackets the least and the most of them."
    " The exchange is a round's step minus the same round's step without DDP. After the first"
    " three steps the parameters of both ranks must be the same to the bit, and the same as"
    " with gloo."
)
Rounds = dict[str, list[float]]


def _open_all(fleet: Fleet, backend: str, views: bool) -> int:
    """Makes the three trainers and checks that both backends train alike; raises if not."""
    backends = {ALONE: None, GLOO: "gloo", OURS: backend}
    digests: dict[str, set[str]] = {}
    parameters = 0
    for contender, name in backends.items():
        try:
            answers = fleet.ask(
                {"do": "open", "contender": contender, "backend": name, "views": views}
            )
        except FleetError as problem:
            label = "no DDP" if name is None else name
            raise FleetError(f"training with {label} failed: {problem}") from None
        digests[contender] = {answer["digest"] for answer in answers}
        parameters = answers[0]["parameters"]
    if len(digests[ALONE]) == 1:
        raise FleetError("both ranks trained on the same data, so the check would prove nothing")
    for contender in (GLOO, OURS):
        if len(digests[contender]) != 1:
            raise FleetError(f"with {LABELS[contender]} the ranks' parameters differ")
    if digests[OURS] != digests[GLOO]:
        raise FleetError(f"{LABELS[OURS]} trained other parameters than gloo")
    return parameters


def _measure(fleet: Fleet, rounds: int, steps: int, say: Callable[[str], None]) -> Rounds:
    order = [ALONE, GLOO, OURS]
    taken: Rounds = {contender: [] for contender in order}
    for number in range(rounds):
        turn = number % len(order)
        for contender in order[turn:] + order[:turn]:
            say(f"round {number + 1} of {rounds}: {contender}")
            message = {"do": "measure", "contender": contender, "iterations": steps, "warmup": 3}
            answers = fleet.ask(message)
            slower = [max(times) for times in zip(*(a["ns"] for a in answers), strict=True)]
            taken[contender].append(statistics.median(slower) / 1e9)
    return taken


def _summary(rounds: list[float]) -> Value:
    return Value(statistics.median(rounds), min(rounds), max(rounds))


def _exchange(taken: Rounds, contender: str) -> Value:
    pairs = zip(taken[contender], taken[ALONE], strict=True)
    return _summary([step - alone for step, alone in pairs])


def _sheet(steps: dict[str, Value], exchanges: dict[str, Value], part: float | None) -> Sheet:
    sheet = Sheet(
        "DDP step, 2 ranks", ["", "step", "exchange", "exchange to gloo's", f"target ≤ {TARGET}×"]
    )
    sheet.rows.append(["without DDP", value_text(steps[ALONE]), "–", "–", ""])
    gloo = [value_text(steps[GLOO]), value_text(exchanges[GLOO])]
    sheet.rows.append(["gloo", *gloo, ratio_text(1.0), ""])
    ours = [value_text(steps[OURS]), value_text(exchanges[OURS])]
    if part is None:
        verdict = "no verdict: gloo's exchange is lost in the noise"
    else:
        verdict = f"≤ {TARGET}× gloo's: {'met' if part <= TARGET else 'missed'}"
    sheet.rows.append([LABELS[OURS], *ours, ratio_text(part), verdict])
    return sheet


def _publish(taken: Rounds, part: float | None, result: Result, given: Any, screen: Any) -> None:
    _report.show(result, screen)
    if not given.save:
        return
    written = _report.write(result, given.out)
    names = {ALONE: "without DDP", GLOO: "gloo", OURS: LABELS[OURS]}
    panels = [
        _plot.Bars("step", {names[who]: _summary(times) for who, times in taken.items()}),
        _plot.Bars("exchange", {names[who]: _exchange(taken, who) for who in (GLOO, OURS)}),
    ]
    picture = given.out / f"{result.name}.png"
    if _plot.draw_bars(panels, result.about, picture):
        written.append(picture)
    screen.print("written: " + ", ".join(path.name for path in written), style="dim")


def main() -> int:
    parser = _program.parser(__doc__ or "", rounds=9)
    parser.add_argument(
        "--bucket-views",
        action="store_true",
        help="DDP with gradient_as_bucket_view: without its own copies of the gradients, which"
        " its defaults add to every backend's exchange",
    )
    given = _program.arguments(parser)
    _program.name_stand_in(given.backend)
    rounds = given.rounds or (3 if given.quick else 9)
    steps = 6 if given.quick else 15
    about = _machine.about()
    screen = console()
    with screen.status("starting 2 ranks") as status, Fleet("_ddp_rank.py", RANKS) as fleet:
        parameters = _open_all(fleet, given.backend, given.bucket_views)
        taken = _measure(fleet, rounds, steps, status.update)
    values = {contender: _summary(times) for contender, times in taken.items()}
    exchanges = {contender: _exchange(taken, contender) for contender in (GLOO, OURS)}
    gloo = exchanges[GLOO].median
    part = max(exchanges[OURS].median, 0.0) / gloo if gloo > 0 else None
    data = {
        "step_seconds_by_round": taken,
        "exchange_to_gloo": part,
        "target_at_most": TARGET,
        "met": None if part is None else part <= TARGET,
    }
    views = given.bucket_views
    name = _program.file_name("ddp_step_views" if views else "ddp_step", given.quick)
    ddp = "gradient_as_bucket_view=True" if views else "its defaults"
    method = METHOD.format(parameters=parameters / 1e6, rounds=rounds, steps=steps, ddp=ddp)
    sheets = [_sheet(values, exchanges, part)]
    result = Result(name, about, method, sheets, _machine.busy_notes(about), data)
    _publish(taken, part, result, given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(_program.guarded(main))
