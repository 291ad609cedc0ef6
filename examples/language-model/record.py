"""The record of one run while it goes on: losses, times, and the numbers made from them.

Apart from the display, so that the live view, the plain lines and the closing table cannot come
to different numbers for one run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from wiiiiided.cluster.rpc.messages import JobView
from wiiiiided.domain.states import ENDED

SKIPPED_STEPS = 5  # the first steps allocate memory and DDP regroups its buckets: not typical
CLOSING_STEPS = 20  # one batch's loss jumps about; the mean of so many does not


@dataclass(frozen=True)
class Way:
    """A way to train: what it is called, and what it needs job.toml to say otherwise."""

    name: str
    settings: tuple[str, ...] = ()
    closing: str = "writing a sample"  # what it does after its last step


WAYS = {
    "parallel": Way("wide.parallel"),
    "ddp": Way("DDP over wiiiiide", ("run.env.WRAP=ddp",)),
    "gloo": Way("DDP over gloo", ("network.backend=gloo",)),
}


@dataclass
class Record:
    """One run in one way, filled from its job's state and the events that train.py prints."""

    way: Way
    steps: int
    samples_per_step: int
    job: int = 0
    view: JobView | None = None
    parameters: int = 0
    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)
    outside_s: list[float] = field(default_factory=list)
    sample: str | None = None  # until the run is complete
    counters: dict[str, float] | None = None
    is_given_up: bool = False  # the demo ends before this run does

    @property
    def state(self) -> str:
        """One or two words; while the job runs, train.py knows better than the daemon."""
        if self.view is None:
            return "submitted"
        if self.is_given_up and not self.is_over:
            return "stopped"
        if self.view.state != "running":
            return self.view.state
        if not self.parameters:
            return "starting"
        return "training" if len(self.losses) < self.steps else self.way.closing

    @property
    def is_over(self) -> bool:
        return self.view is not None and self.view.state in ENDED

    @property
    def sentence(self) -> str:
        """The daemon's words about the job, with its state in front where the words lack it."""
        if self.view is None:
            return "is submitted"
        why, state = self.view.why, self.view.state
        return f"{state}: {why}" if self.is_over and not why.startswith(state) else why

    def take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "start":
            self.parameters = event["parameters"]
        elif kind == "step":
            self.take_step(event)
        elif kind == "end":
            self.sample = event["sample"]
            self.counters = event["counters"]

    def take_step(self, event: dict[str, Any]) -> None:
        self.losses.append(event["loss"])
        if event["step"] > SKIPPED_STEPS:
            self.step_s.append(event["step_s"])
            if event["compute_s"] is not None:
                self.compute_s.append(event["compute_s"])
                self.outside_s.append(event["step_s"] - event["compute_s"])

    @property
    def step_time(self) -> float | None:
        """Seconds of a typical step: the median, which one busy moment of the machine leaves."""
        return median(self.step_s) if self.step_s else None

    @property
    def samples_per_second(self) -> float | None:
        return self.samples_per_step / self.step_time if self.step_time else None

    @property
    def compute(self) -> float | None:
        """Seconds of a typical step without any exchange."""
        return median(self.compute_s) if self.compute_s else None

    @property
    def outside_compute(self) -> float | None:
        """Seconds of a typical step that the same step without any exchange does not take.

        Each difference is between two steps over one batch, one right after the other: other work
        on the machine then weighs on both. Negative where noise, or what is saved because ranks
        divide the optimizer's work, exceeds the exchange.
        """
        return median(self.outside_s) if self.outside_s else None

    @property
    def share_outside(self) -> float | None:
        outside, step = self.outside_compute, self.step_time
        return outside / step if outside is not None and step else None

    @property
    def wall_s(self) -> float | None:
        """Seconds of the whole job, the start of its processes included."""
        if self.view is None or self.view.started_at is None or self.view.ended_at is None:
            return None
        return self.view.ended_at - self.view.started_at

    @property
    def closing_loss(self) -> float | None:
        return fmean(self.losses[-CLOSING_STEPS:]) if self.losses else None


def largest_difference(records: Sequence[Record]) -> float:
    """How far the losses of the runs are apart where they are furthest apart."""
    each = zip(*(record.losses for record in records), strict=True)
    return max(float(max(losses) - min(losses)) for losses in each)
