"""What does a checkpoint cost: how long does training stand still, and how fast does it go on?

Beside it one torch.save of the same state to /dev/shm, by one rank while the others wait.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lib import machine, measure, program, report
from lib.fleet import Fleet, FleetError
from lib.measure import RATIO, SECONDS, Chapter, Measure, ratios
from lib.report import console

RANKS = 2
MOST_STANDING, LEAST_STEPS, MOST_RESUME_S = 0.3, 0.95, 1.0
METHOD = (
    "{ranks} ranks train {parameters:,} parameters with AdamW under wide.parallel(save=…), whose"
    " files are of {megabytes:,} MB. Standing still: the time for which a training forward waits"
    " for a save that is due, on the slower rank, {rounds} times, each followed by torch.save of"
    " model and optimizer to /dev/shm, and begun when the last file was on the disk; the first"
    " save is listed by itself. Steps: {window} s of steps in which one save is made, next to as"
    " many steps of ranks without save=, in {windows} turns. Resume: a state after {samples:,}"
    " samples, from run.resume() to the first batch, on new ranks, less reading the file and its"
    " SHA-256."
)


@dataclass(frozen=True)
class CheckpointPlan:
    """How much and how often."""

    width: int = 2048
    layers: int = 12
    rounds: int = 7
    window: int = 50  # seconds, in which there is one save: a little more than one a minute
    windows: int = 3
    samples: int = 10_000_000


QUICK = CheckpointPlan(1024, 6, 3, 8, 1, 1_000_000)


def _model(plan: CheckpointPlan) -> dict[str, object]:
    return {"do": "make", "width": plan.width, "layers": plan.layers}


def _standing(plan: CheckpointPlan, folder: str, say: Callable[[str], None]) -> Chapter:
    ours, theirs, name = [], [], ""
    saving = {"folder": folder, "save_every": 2}
    with Fleet("checkpoint_rank", RANKS) as fleet:
        fleet.ask({**_model(plan), **saving})
        fleet.ask({"do": "steps", "count": 2})  # the next forward has the first save
        for number in range(plan.rounds + 1):
            say(f"save {number + 1} of {plan.rounds + 1}")
            answers = fleet.ask({"do": "steps", "count": 2})
            ours.append(max(answer["stood_ns"] for answer in answers) / 1e9)
            (written,) = fleet.ask({"do": "written", "before": name}, only=[0])
            name = written["name"]
            with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
                message = {"do": "torch_save", "path": f"{memory}/state.pt"}
                (answer,) = fleet.ask(message, only=[0])
            theirs.append(answer["ns"] / 1e9)
    standing = ratios(ours, theirs)
    return Chapter(
        "Training stands still for a save",
        [
            Measure("wide.parallel(save=…)", SECONDS, ours[1:]),
            Measure("torch.save to /dev/shm", SECONDS, theirs[1:]),
            Measure("to torch.save's", RATIO, standing[1:], MOST_STANDING),
            Measure("the first save, to torch.save's", RATIO, standing[:1]),
        ],
    )


def _steps(plan: CheckpointPlan, folder: str, say: Callable[[str], None]) -> Chapter:
    kept, stood = [], []
    with Fleet("checkpoint_rank", RANKS) as saving, Fleet("checkpoint_rank", RANKS) as without:
        saving.ask({**_model(plan), "folder": folder, "save_every": f"{plan.window}s"})
        without.ask(_model(plan))
        saving.ask({"do": "steps", "count": 3})
        times = [a["ns"] for a in without.ask({"do": "steps", "count": 8})]
        count = max(4, int(plan.window * 1e9 / (statistics.median(times) / 8)))
        for number in range(plan.windows):
            say(f"{count} steps, turn {number + 1} of {plan.windows}")
            alone = max(a["ns"] for a in without.ask({"do": "steps", "count": count}))
            answers = saving.ask({"do": "steps", "count": count})
            kept.append(alone / max(answer["ns"] for answer in answers))
            stood.append(max(answer["stood_ns"] for answer in answers) / 1e9)
            if not list(Path(folder).glob("*.wide")):
                raise FleetError("no checkpoint was written in this time")
    return Chapter(
        "Steps of a run that saves",
        [
            Measure("to those of one that does not", RATIO, kept, LEAST_STEPS, at_least=True),
            Measure("the longest that a save stopped a step", SECONDS, stood),
        ],
    )


def _resume(plan: CheckpointPlan, folder: str) -> tuple[Chapter, int]:
    data = {"folder": folder, "save_every": "1h", "samples": plan.samples}
    with Fleet("checkpoint_rank", RANKS) as fleet:
        fleet.ask({**_model(plan), **data, "large_batches": True})
        nbytes = fleet.ask({"do": "train", "count": 10})[0]["bytes"]
    whole, read = [], []
    for _ in range(3):
        with Fleet("checkpoint_rank", RANKS) as fleet:
            fleet.ask({**_model(plan), **data})
            read.append(fleet.ask({"do": "read"}, only=[0])[0]["ns"] / 1e9)
            answers = fleet.ask({"do": "resume"})
            if any(answer["step"] != 10 for answer in answers):
                raise FleetError(f"ranks went on after step {answers[0]['step']}, and not 10")
            whole.append(max(answer["ns"] for answer in answers) / 1e9)
    over = [a - b for a, b in zip(whole, read, strict=True)]
    measures = [
        Measure("run.resume() and the first batch", SECONDS, whole),
        Measure("reading the file and its SHA-256", SECONDS, read),
        Measure("the one less the other", SECONDS, over, MOST_RESUME_S),
    ]
    return Chapter(f"Going on after {plan.samples:,} samples", measures), nbytes


def main() -> int:
    given = program.arguments(program.parser(__doc__ or ""))
    plan = QUICK if given.quick else CheckpointPlan()
    about, screen = machine.about(), console()
    chapters: list[Chapter] = []
    with screen.status("a save") as status:
        for make in (_standing, _steps):
            with tempfile.TemporaryDirectory(prefix="wiiiiide-checkpoint-") as folder:
                chapters.append(make(plan, folder, status.update))
        status.update("resume")
        with tempfile.TemporaryDirectory(prefix="wiiiiide-checkpoint-") as folder:
            chapter, nbytes = _resume(plan, folder)
            chapters.append(chapter)
    size = {"parameters": plan.layers * plan.width**2, "megabytes": nbytes // 10**6}
    method = METHOD.format(ranks=RANKS, **size, **vars(plan))
    result = measure.result("checkpoint", about, method, chapters, not given.quick)
    report.finish(result, given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
