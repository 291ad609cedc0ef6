"""How fast are collectives between processes of one host, next to gloo and Open MPI?

The machine may be shared and noisy, so the contenders take turns, round after round, within
one run: whatever disturbs one disturbs the others, and ratios between them hold.
"""

import argparse
import contextlib
import importlib.util
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lib import machine, program, report
from lib.fleet import Fleet, FleetError, FleetLost
from lib.measure import in_turns
from lib.one_host import cells
from lib.one_host import report as one_host_report
from lib.one_host.cells import GLOO, MEMCPY, MPI, OURS, SHARED, OneHostCell
from lib.one_host.report import CallTimes, Taken
from lib.report import console
from lib.units import MB

_MPIRUN = (
    *("--oversubscribe", "--bind-to", "none"),  # placed by the kernel, as the torch ranks are
    *("--mca", "btl", "self,vader"),
    *("--mca", "btl_base_warn_component_unused", "0"),
    *("--mca", "orte_base_help_aggregate", "1"),
)
_LEAST_CALLS, _MOST_CALLS, _MOST_WARMUP = 4, 10_000, 100
_LARGE = 4 * MB
_TORCH_SIDE = (GLOO, OURS, SHARED, MEMCPY)


@dataclass(frozen=True)
class OneHostPlan:
    """The wishes of the command line."""

    ranks: Sequence[int]
    sizes: Sequence[int]
    scatter_sizes: Sequence[int]
    rounds: int
    round_seconds: float
    mpi: bool


def mpi_absent() -> str | None:
    """Why Open MPI cannot take part, or None where it can."""
    if shutil.which("mpirun") is None:
        return "there is no mpirun (Debian: openmpi-bin)"
    if importlib.util.find_spec("mpi4py") is None:
        return "there is no mpi4py (pip install '.[bench]')"
    return None


def _mpirun(ranks: int) -> list[str]:
    # Open MPI refuses to run as root unless told so.
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", *as_root, *_MPIRUN, "-np", str(ranks)]


@dataclass
class RanksContest:
    """All contenders on one number of ranks."""

    plan: OneHostPlan
    ranks: int
    notes: list[str]
    stack: contextlib.ExitStack
    failed: bool = False
    active: list[str] = field(default_factory=lambda: list(cells.CONTENDERS))
    _fleets: dict[str, Fleet] = field(default_factory=dict)

    def start(self) -> None:
        if MPI in self.active and (not self.plan.mpi or mpi_absent()):
            self.active.remove(MPI)
        self._start_side(_TORCH_SIDE)
        if MPI in self.active:
            self._start_side((MPI,))

    def measure(self, cell: OneHostCell, say: Callable[[str], None]) -> dict[str, list[CallTimes]]:
        """The time of each round, for every contender that got through."""
        calls: dict[str, int] = {}
        for contender in list(self.active):
            say(f"{cell.title}: {cells.LABELS[contender]}, first calls")
            few = cell.nbytes > _LARGE
            first = self._attempt(cell, contender, calls=2 if few else 8, warmup=1 if few else 4)
            if first:
                fitting = self.plan.round_seconds / statistics.median(first)
                calls[contender] = int(min(max(fitting, _LEAST_CALLS), _MOST_CALLS))
        taken: dict[str, list[CallTimes]] = {contender: [] for contender in calls}
        for number, contender in in_turns(taken, self.plan.rounds):
            say(f"{cell.title}: {cells.LABELS[contender]}, round {number}")
            count = calls[contender]
            times = self._attempt(cell, contender, count, min(1 + count // 5, _MOST_WARMUP))
            if times:
                one = CallTimes(statistics.median(times), statistics.fmean(times))
                taken[contender].append(one)
            else:
                del taken[contender]
        return taken

    def _attempt(self, cell: OneHostCell, contender: str, calls: int, warmup: int) -> list[float]:
        """Seconds of each call as the slowest rank saw it; empty where the contender failed."""
        message = {
            "do": "measure",
            "contender": contender,
            "op": cell.op,
            "nbytes": cell.nbytes,
            "iterations": calls,
            "warmup": warmup,
        }
        try:
            only = [0] if contender == MEMCPY else []
            answers = self._fleets[contender].ask(message, only)
        except FleetError as problem:
            self._drop(contender, f"{cell.title}: {problem}", problem)
            return []
        return [max(times) / 1e9 for times in zip(*(a["ns"] for a in answers), strict=True)]

    def _drop(self, contender: str, what: str, problem: FleetError) -> None:
        self.notes.append(f"{cells.LABELS[contender]} failed: {what}")
        self.failed = True
        if isinstance(problem, FleetLost):
            self.active.remove(contender)
            self._fleets[contender].close(politely=False)
            side = (MPI,) if contender == MPI else _TORCH_SIDE
            self._start_side(side)

    def _start_side(self, side: Sequence[str]) -> None:
        """Starts a side's ranks; one that cannot be opened is left out and the rest goes on."""
        while here := [contender for contender in side if contender in self.active]:
            fleet = self._start_ranks(side)
            if fleet is None:
                return
            for contender in here:
                try:
                    opened = self._open(fleet, contender)
                except FleetLost as problem:
                    self._leave_out(contender, problem)
                    fleet.close(politely=False)
                    break
                if opened:
                    self._fleets[contender] = fleet
            else:
                return

    def _start_ranks(self, side: Sequence[str]) -> Fleet | None:
        try:
            if side != (MPI,):
                return self.stack.enter_context(Fleet("one_host.torch_rank", self.ranks))
            launcher = _mpirun(self.ranks)
            return self.stack.enter_context(Fleet("one_host.mpi_rank", self.ranks, launcher))
        except FleetLost as problem:
            if side != (MPI,):
                raise FleetError(f"the torch ranks did not start: {problem}") from None
            self._leave_out(MPI, problem)
            return None

    def _open(self, fleet: Fleet, contender: str) -> bool:
        if contender in (MPI, MEMCPY):
            return True
        try:
            fleet.ask({"do": "open", "contender": contender})
        except FleetLost:
            raise
        except FleetError as problem:
            self._leave_out(contender, problem)
            return False
        return True

    def _leave_out(self, contender: str, problem: FleetError) -> None:
        self.active.remove(contender)
        self.failed = True
        text = f"{cells.LABELS[contender]} is left out on {self.ranks} ranks: {problem}"
        self.notes.append(text)


def run(plan: OneHostPlan, say: Callable[[str], None]) -> tuple[Taken, list[str], bool]:
    """Measures everything. Also returns the notes, and whether a contender failed."""
    taken: Taken = {}
    notes: list[str] = []
    failed = False
    absent = mpi_absent() if plan.mpi else "--no-mpi was given"
    if absent:
        notes.append(f"Open MPI is left out: {absent}")
    for ranks in plan.ranks:
        with contextlib.ExitStack() as stack:
            contest = RanksContest(plan, ranks, notes, stack)
            say(f"starting {ranks} ranks")
            contest.start()
            for cell in cells.cells_for(ranks, plan.sizes, plan.scatter_sizes):
                taken[cell] = contest.measure(cell, say)
            failed = failed or contest.failed
    return taken, notes, failed


def options() -> tuple[OneHostPlan, argparse.Namespace]:
    parser = program.parser(__doc__ or "", rounds=7)
    parser.add_argument("--ranks", type=program.several, default=[2, 4], help="such as 2,4")
    parser.add_argument("--sizes", default=None, help="such as 4,64KB,1MB (1 KB is 1024 bytes)")
    parser.add_argument("--no-mpi", action="store_true", help="leave Open MPI out")
    given = program.arguments(parser)
    sizes = list(cells.QUICK_SIZES if given.quick else cells.SIZES)
    scatter = list(cells.SCATTER_SIZES)
    if given.sizes is not None:
        try:
            sizes = [cells.parse_size(word) for word in given.sizes.split(",")]
        except ValueError as problem:
            parser.error(f"--sizes: {problem}")
        scatter = [size for size in sizes if size in scatter]
    if min(given.ranks) < 2:
        parser.error("--ranks: a collective needs 2 ranks or more")
    plan = OneHostPlan(
        ranks=given.ranks,
        sizes=sizes,
        scatter_sizes=scatter,
        rounds=given.rounds or (3 if given.quick else 7),
        round_seconds=0.06 if given.quick else 0.25,
        mpi=not given.no_mpi,
    )
    return plan, given


def main() -> int:
    plan, given = options()
    about = machine.about()
    screen = console()
    with screen.status("") as status:
        taken, notes, failed = run(plan, status.update)
    report.finish(one_host_report.result(about, plan.rounds, taken, notes), given, screen)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
