"""How much memory do the ranks of a host take to train one model: under DDP, and wide.parallel?

Under DDP every rank has the weights, the gradients, the buckets and the optimizer's state; with
wide.parallel the host has the weights and the state once.
"""

import sys

from lib import machine, program, report
from lib.fleet import Fleet
from lib.report import BenchResult, Sheet, console, ratio_text
from lib.units import MB

GLOO, DDP, VIEWS, PARALLEL = (
    "gloo, DDP",
    "wiiiiide, DDP",
    "wiiiiide, DDP, bucket views",
    "wide.parallel",
)
CONTENDERS = (GLOO, DDP, VIEWS, PARALLEL)
TARGET = 0.5
_WIDTHS = (2048, 4096, 4096, 4096, 2048)  # 50.3 million parameters
_QUICK = (1024, 2048, 2048, 2048, 1024)  # 12.6 million
METHOD = (
    "{ranks} ranks train a multilayer perceptron of {parameters:.1f} million parameters with AdamW"
    " (fused), float32, for three steps. Shown is what that adds to the ranks' memory: the sum over"
    " ranks of their proportional set size (a page that several ranks map is counted once in"
    " total), after the steps, gradients in place, less that of the same processes before the model"
    " was made. A process of wiiiiide's keeps what it has freed, up to 512 MB, for the next step"
    " (WIIIIIDE_KEEP_MEMORY): that is counted. The target is for wide.parallel's, to that of DDP in"
    " such processes."
)


def _taken(contender: str, ranks: int, widths: tuple[int, ...]) -> tuple[int, int]:
    """(bytes, parameters)"""
    with Fleet("train_rank", ranks) as fleet:
        before = sum(answer["pss"] for answer in fleet.ask({"do": "memory"}))
        message = {
            "do": "open",
            "contender": contender,
            "backend": "gloo" if contender == GLOO else "wiiiiide",
            "way": "parallel" if contender == PARALLEL else "ddp",
            "views": contender == VIEWS,
            "optimizer": "adamw",
            "widths": widths,
            "proof": False,  # its copies would be counted
        }
        parameters = fleet.ask(message, seconds=300.0)[0]["parameters"]
        return sum(answer["pss"] for answer in fleet.ask({"do": "memory"})) - before, parameters


def main() -> int:
    parser = program.parser(__doc__ or "")
    parser.add_argument("--ranks", type=int, default=4)
    given = program.arguments(parser)
    about, screen = machine.about(), console()
    taken: dict[str, int] = {}
    parameters = 0
    for contender in CONTENDERS:
        with screen.status(contender):
            widths = _QUICK if given.quick else _WIDTHS
            taken[contender], parameters = _taken(contender, given.ranks, widths)
    sheet = Sheet(
        f"Memory of {given.ranks} ranks, AdamW",
        ["", "taken", "bytes a parameter", "to gloo's DDP", "to wiiiiide's DDP", "target"],
    )
    for contender, nbytes in taken.items():
        part = nbytes / taken[DDP]
        verdict = ""
        if contender == PARALLEL:
            verdict = f"≤ {TARGET}: {'met' if part <= TARGET else 'missed'}"
        cells = [f"{nbytes / MB:,.0f} MB", f"{nbytes / parameters:.1f}"]
        ratios = [ratio_text(nbytes / taken[GLOO]), ratio_text(part)]
        sheet.rows.append([contender, *cells, *ratios, verdict])
    method = METHOD.format(ranks=given.ranks, parameters=parameters / 1e6)
    result = BenchResult("train_memory", about, method, [sheet], [], {"bytes": taken})
    report.finish(result, given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
