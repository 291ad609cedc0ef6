"""The measurements of one_host.py: operations, sizes and contenders, and the targets.

The targets are data so that a reader can check them against the results without reading code.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lib.report import Value
from lib.units import KB, MB, size_text

FLOAT_BYTES = 4

GLOO, MPI, OURS, SHARED, MEMCPY = "gloo", "mpi", "wiiiiide", "shared", "memcpy"
CONTENDERS = (GLOO, MPI, OURS, SHARED, MEMCPY)
LABELS = {
    GLOO: "gloo",
    MPI: "Open MPI",
    OURS: "wiiiiide",
    SHARED: "shared_empty",
    MEMCPY: "memcpy",
}

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "all_reduce", "reduce_scatter", "all_gather"
SIZES = (
    *(4, 1 * KB, 16 * KB, 64 * KB, 256 * KB),
    *(1 * MB, 4 * MB, 16 * MB, 32 * MB, 64 * MB, 256 * MB),
)
QUICK_SIZES = (4, 64 * KB, 1 * MB, 4 * MB)
# The bytes of the large side: the input of reduce_scatter, the output of all_gather.
SCATTER_SIZES = (1 * MB, 16 * MB)
SCATTER_RANKS = 2


@dataclass(frozen=True)
class OneHostCell:
    """One row of a table."""

    op: str
    ranks: int
    nbytes: int

    @property
    def title(self) -> str:
        return f"{self.op} of {size_text(self.nbytes)} on {self.ranks} ranks"


@dataclass(frozen=True)
class SpeedTarget:
    """`contender` is to be at least `factor` times as fast as `against`."""

    contender: str
    against: str
    cell: OneHostCell
    factor: float


@dataclass(frozen=True)
class Outcome:
    """A target and what was measured for it."""

    target: SpeedTarget
    ratio: float
    steady: bool

    @property
    def met(self) -> bool:
        return self.ratio >= self.target.factor

    @property
    def text(self) -> str:
        target = self.target
        whom = LABELS[target.against]
        if target.factor > 1:
            aim = f"≥ {target.factor:.3g}× {whom}"
        elif target.factor < 1:
            aim = f"within {1 / target.factor:.3g}× of {whom}"
        else:
            aim = f"ahead of {whom}"
        # wiiiiide with ordinary tensors is what a row is about; only others need naming.
        who = "" if target.contender == OURS else f"{LABELS[target.contender]} "
        verdict = "met" if self.met else "missed"
        return f"{who}{aim}: {verdict}{'' if self.steady else ' (unsteady)'}"


def _to_gloo(op: str, ranks: int, nbytes: int, factor: float, contender: str = OURS) -> SpeedTarget:
    return SpeedTarget(contender, GLOO, OneHostCell(op, ranks, nbytes), factor)


GLOO_TARGETS = (
    _to_gloo(ALL_REDUCE, 2, 4, 8.0),
    _to_gloo(ALL_REDUCE, 2, 64 * KB, 10.0),
    _to_gloo(ALL_REDUCE, 2, 1 * MB, 6.0),
    _to_gloo(ALL_REDUCE, 2, 32 * MB, 4.5),
    _to_gloo(ALL_REDUCE, 2, 4 * MB, 15.0, SHARED),
    _to_gloo(REDUCE_SCATTER, 2, 16 * MB, 6.0),
    _to_gloo(ALL_GATHER, 2, 16 * MB, 3.5),
    _to_gloo(ALL_REDUCE, 4, 4, 6.0),
    _to_gloo(ALL_REDUCE, 4, 64 * KB, 15.0),
    _to_gloo(ALL_REDUCE, 4, 1 * MB, 7.0),
    _to_gloo(ALL_REDUCE, 4, 32 * MB, 2.8),
)
# In every cell from this size up: within 1.2 times of Open MPI's time, ahead with shared_empty.
MPI_FROM = 1 * MB
MPI_FACTORS: Mapping[str, float] = {OURS: 1 / 1.2, SHARED: 1.0}


def targets_of(cell: OneHostCell) -> list[SpeedTarget]:
    found = [target for target in GLOO_TARGETS if target.cell == cell]
    if cell.nbytes >= MPI_FROM:
        found += [SpeedTarget(who, MPI, cell, factor) for who, factor in MPI_FACTORS.items()]
    return found


def outcomes(cell: OneHostCell, times: Mapping[str, Value]) -> list[Outcome]:
    """The cell's targets against measured times; a contender not measured has no outcome."""
    found = []
    for target in targets_of(cell):
        ours, theirs = times.get(target.contender), times.get(target.against)
        if ours is not None and theirs is not None:
            steady = ours.steady and theirs.steady
            found.append(Outcome(target, theirs.median / ours.median, steady))
    return found


def cells_for(ranks: int, sizes: Iterable[int], scatter_sizes: Iterable[int]) -> list[OneHostCell]:
    cells = [OneHostCell(ALL_REDUCE, ranks, nbytes) for nbytes in sizes]
    if ranks == SCATTER_RANKS:
        for op in (REDUCE_SCATTER, ALL_GATHER):
            cells += [OneHostCell(op, ranks, nbytes) for nbytes in scatter_sizes]
    return cells


def parse_size(text: str) -> int:
    """Reads "64KB", "1 MB" or "4"; raises ValueError for anything but whole float32 values."""
    word = text.strip().upper().removesuffix("B").strip()
    unit = {"K": KB, "M": MB}.get(word[-1:], 1)
    try:
        nbytes = int(float(word.rstrip("KM")) * unit)
    except ValueError:
        raise ValueError(f"{text!r} is no size such as 4, 64KB or 1MB") from None
    if nbytes < FLOAT_BYTES or nbytes % FLOAT_BYTES:
        raise ValueError(f"{text!r} is not a whole number of float32 values")
    return nbytes
