"""The measurements of a job's short trial, and what is predicted from them: the words of `plan`.

    MachineProbe   one machine alone with the user's own script      ┐
    PairProbe      two machines that average a piece together         ├─► metrics/plan ──► PlanRow
    ScriptFacts    what the script trains, and how                    ┘

A ProbeLine is how ranks of a trial say it: one line of JSON on stderr, behind a mark. They are a
job's own words, so what is read of them is checked by type, and a line that is none is passed over.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from wiiiiided.domain.json_decoder import json_decoder

MARK = "wiiiiide-probe "  # before the JSON of a line
PROBE = "WIIIIIDE_PROBE"  # the variable that tells ranks, and the daemon, that a job is a trial
START = "WIIIIIDE_EVERY_START"  # the variable that tells ranks what plans found for every="auto"
SCRIPT, LINKS = "1", "links"  # its values: the user's script; the program that times links
EXACT, INT8, INT4 = "exact", "int8", "int4"
CODECS = (EXACT, INT8, INT4)  # that have rows
TIMED = (*CODECS, "bf16")  # … and what else a job may ask for; "topk" has many
SMALLER = 0.75  # of a batch, at most: a larger step says nothing of the cost of a sample

Way = Literal["parallel", "ddp", "other"]  # wide.parallel; torch's DDP; neither was seen


class MachineProbe(msgspec.Struct, frozen=True):
    """A machine alone: all its ranks together."""

    name: str
    workers: int
    step_s: float
    samples: float  # of a step, all ranks together
    memory: int = 0  # bytes of the largest rank, at its most
    part_s: float = 0.0  # a step of fewer samples; 0: none was measured
    part_samples: float = 0.0

    @property
    def speed(self) -> float:
        """Samples per second."""
        return self.samples / self.step_s

    @property
    def has_part(self) -> bool:
        """Whether a step of fewer samples was measured, and the script did make it with fewer."""
        return 0 < self.part_samples <= SMALLER * self.samples and self.part_s > 0

    @property
    def sample_s(self) -> float:
        """The time each sample adds to a step."""
        if not self.has_part:
            return self.step_s / self.samples
        added = (self.step_s - self.part_s) / (self.samples - self.part_samples)
        return min(max(added, 0.0), self.step_s / self.samples)

    @property
    def fixed_s(self) -> float:
        """The seconds of a step however few its samples are; 0 where they are not known."""
        return max(0.0, self.step_s - self.sample_s * self.samples) if self.has_part else 0.0

    def seconds(self, samples: float) -> float:
        """The seconds of a step of so many samples."""
        return self.fixed_s + self.sample_s * samples


class PairProbe(msgspec.Struct, frozen=True):
    """Two machines that average arrays: it takes fixed_s + bytes · byte_s."""

    a: str
    b: str
    fixed_s: float
    byte_s: dict[str, float]  # seconds of a byte of float32 before it is coded, by codec
    bits_per_s: float = 0.0  # the link's rate each way, with exact gradients

    def is_of(self, name: str) -> bool:
        """Whether a machine is one of the two."""
        return name in (self.a, self.b)


class ScriptFacts(msgspec.Struct, frozen=True):
    """The script's way to train, and its exchange of gradients."""

    gradient_bytes: int  # of a step, in float32
    way: Way = "parallel"
    coded: bool = True  # network.gradients counts for it
    fixed: str = ""  # what the script itself says of the exchange, which counts more
    shares: bool = False  # exchanging every step, a machine takes samples by its speed
    shape: str = ""  # a digest of the model's
    data: bool = False  # the same with seldom exchanges: the run divides the loop's data
    global_batch: bool = False  # the batch is that of all machines together, not of each
    gradients: str | None = None  # of `fixed`; None: the job file's count
    every: int | str | None = None


class TrialMeasures(msgspec.Struct, frozen=True):
    """All measurements of a trial."""

    machines: tuple[MachineProbe, ...]
    pairs: tuple[PairProbe, ...]
    script: ScriptFacts


class PlanRow(msgspec.Struct, frozen=True):
    """One way to run the job, and its predicted speed."""

    nodes: tuple[str, ...]
    every: int
    gradients: str
    samples_per_s: float
    recommended: bool = False
    why: str = ""


class MachineSet(msgspec.Struct, frozen=True):
    """The machines of a row together: the times from which any way to train is predicted."""

    machines: int
    samples: float  # of a step of all
    step_s: float  # computing it, with an exchange every step
    seldom_s: float  # … with one every H steps
    exchange_s: dict[str, float]  # by codec


class KeptPlan(msgspec.Struct, frozen=True):
    """The record of a plan, by the job's name."""

    at: float  # seconds since 1970
    shape: str
    rows: tuple[PlanRow, ...]
    way: Way = "parallel"
    gradients: str | None = None  # that the script trains with, whatever a job file says
    every: int | str | None = None
    sets: tuple[MachineSet, ...] = ()  # none: how the job would train cannot be predicted


class RankLine(msgspec.Struct, frozen=True, tag="rank", tag_field="kind"):
    """A rank of the user's script, after some steps."""

    steps: int
    step_s: float
    samples: float  # of a step
    gradient_bytes: int
    memory: int
    way: Way
    coded: bool
    fixed: str
    shares: bool
    shape: str
    data: bool = False
    global_batch: bool = False
    part_s: float = 0.0  # a step of fewer samples; 0: none was measured
    part_samples: float = 0.0
    more: bool = False  # such steps are being measured: a line that has them may follow
    gradients: str | None = None  # of `fixed`; None: the job file's count
    every: int | str | None = None


class PairLine(msgspec.Struct, frozen=True, tag="pair", tag_field="kind"):
    """A pair of machines, by their numbers in the trial."""

    a: int
    b: int
    fixed_s: float
    byte_s: dict[str, float]
    bits_per_s: float


ProbeLine = RankLine | PairLine
_decode = json_decoder(ProbeLine)


def spell(line: ProbeLine) -> str:
    """The text of a line, as a rank writes it."""
    return MARK + msgspec.json.encode(line).decode()


def read_line(text: str) -> ProbeLine | None:
    """A rank's message; None: it is another line, or no sense is in it."""
    if not text.startswith(MARK):
        return None
    try:
        line = _decode(text.removeprefix(MARK))
    except msgspec.DecodeError:
        return None
    return line if _is_possible(line) else None


def is_every(value: int | str) -> bool:
    """Whether it is what `every` may be."""
    return value >= 1 if isinstance(value, int) else value == "auto"


def _is_possible(line: ProbeLine) -> bool:
    match line:
        case RankLine():
            sizes = (line.samples, line.gradient_bytes, line.part_s, line.part_samples)
            named = line.every is None or is_every(line.every)
            return line.step_s > 0 and min(sizes) >= 0 and named
        case PairLine():
            times = (line.fixed_s, *line.byte_s.values())
            known = all(codec in line.byte_s for codec in CODECS)
            return known and line.byte_s[EXACT] > 0 and all(0 <= each < 1e6 for each in times)
