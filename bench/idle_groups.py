"""What does an unused group cost: in processor time, and in shared memory?

A training program keeps groups open for hours that it uses now and then. They must neither
spin nor hold much memory.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from lib import machine, program, report
from lib.fleet import Fleet, FleetError
from lib.report import BenchResult, Sheet, console, seconds_text
from lib.units import MB

CPU_RANKS, CPU_GROUPS, CPU_SECONDS = 2, 10, 5.0
MEMORY_RANKS, MEMORY_GROUPS = 8, 50
MEMORY_TARGET = 256 * MB
# Opening hundreds of group memberships on few cores takes its time.
_OPEN_SECONDS = 600.0
METHOD = (
    "Every group spans all ranks and has been used once (an all_reduce of one value). Processor"
    " time: that of all threads of a rank while it sleeps for {seconds:.0f} s, the sum over ranks."
    " Shared memory: what opening the groups adds. Mapped: the sum over ranks of Pss_Shmem, each"
    " page counted once in total. Allocated: the memory behind all shared segments the ranks have,"
    " each counted once, whether a page is mapped or not. The larger one is held against the"
    " target. Whole machine: Shmem of /proc/meminfo, with whatever other programs did meanwhile."
)


def _open(fleet: Fleet, backend: str, groups: int) -> None:
    message = {"do": "open", "backend": backend, "groups": groups}
    try:
        fleet.ask(message, seconds=_OPEN_SECONDS)
    except FleetError as problem:
        raise FleetError(f"opening {groups} groups of {backend} failed: {problem}") from None


def _processor_time(backend: str, groups: int, seconds: float) -> list[float]:
    with Fleet("idle_rank", CPU_RANKS) as fleet:
        if groups:
            _open(fleet, backend, groups)
        answers = fleet.ask({"do": "rest", "seconds": seconds})
    return [answer["cpu_seconds"] for answer in answers]


def _machine_shared() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no Shmem")


@dataclass(frozen=True)
class SharedMemoryUse:
    """Bytes of shared memory, counted in three ways."""

    mapped: int
    allocated: int
    machine: int

    @property
    def judged(self) -> int:
        return max(self.mapped, self.allocated)


def _memory_now(fleet: Fleet) -> SharedMemoryUse:
    answers = fleet.ask({"do": "memory"})
    segments: dict[str, int] = {}
    for answer in answers:
        segments.update(answer["segments"])
    mapped = sum(answer["mapped"] for answer in answers)
    return SharedMemoryUse(mapped, sum(segments.values()), _machine_shared())


def _shared_memory(ranks: int, groups: int) -> SharedMemoryUse:
    """The memory of the groups: the difference that opening them makes."""
    with Fleet("idle_rank", ranks) as fleet:
        before = _memory_now(fleet)
        _open(fleet, "wiiiiide", groups)
        after = _memory_now(fleet)
    return SharedMemoryUse(
        after.mapped - before.mapped,
        after.allocated - before.allocated,
        after.machine - before.machine,
    )


def _cpu_sheet(used: dict[str, list[float]], seconds: float) -> Sheet:
    title = f"Processor time over {seconds:.0f} s, {CPU_RANKS} ranks, {CPU_GROUPS} idle groups"
    sheet = Sheet(title, ["", "all ranks", "of one core", ""])
    for label, ranks in used.items():
        total = sum(ranks)
        sheet.rows.append([label, seconds_text(total), f"{100 * total / seconds:.3f} %", ""])
    return sheet


def _memory_sheet(ranks: int, groups: int, memory: SharedMemoryUse, full: bool) -> Sheet:
    sheet = Sheet(
        f"Shared memory, {ranks} ranks, {groups} idle groups",
        ["", "mapped by the ranks", "allocated in segments", "whole machine", "target"],
    )
    word = "met" if memory.judged < MEMORY_TARGET else "missed"
    verdict = f"< {MEMORY_TARGET // MB} MiB: {word}" if full else "only a full run has one"
    amounts = (memory.mapped, memory.allocated, memory.machine)
    sheet.rows.append(["wiiiiide", *(f"{amount / MB:.1f} MiB" for amount in amounts), verdict])
    return sheet


def main() -> int:
    given = program.arguments(program.parser(__doc__ or ""))
    seconds = 1.0 if given.quick else CPU_SECONDS
    ranks, groups = (4, 8) if given.quick else (MEMORY_RANKS, MEMORY_GROUPS)
    about = machine.about()
    screen = console()
    used: dict[str, list[float]] = {}
    with screen.status("") as status:
        status.update("processor time without further groups")
        used["no groups"] = _processor_time("gloo", 0, seconds)
        for backend in ("gloo", "wiiiiide"):
            status.update(f"processor time of {backend}")
            used[backend] = _processor_time(backend, CPU_GROUPS, seconds)
        status.update(f"shared memory of {groups} groups on {ranks} ranks")
        memory = _shared_memory(ranks, groups)
    sheets = [_cpu_sheet(used, seconds)]
    sheets.append(_memory_sheet(ranks, groups, memory, not given.quick))
    data = {
        "cpu_seconds_by_rank": used,
        "over_seconds": seconds,
        "memory": {
            "ranks": ranks,
            "groups": groups,
            "mapped_bytes": memory.mapped,
            "allocated_bytes": memory.allocated,
            "machine_bytes": memory.machine,
            "target_below_bytes": MEMORY_TARGET,
            "met": None if given.quick else memory.judged < MEMORY_TARGET,
        },
    }
    method = METHOD.format(seconds=seconds)
    report.finish(BenchResult("idle_groups", about, method, sheets, [], data), given, screen)
    return 0


if __name__ == "__main__":
    sys.exit(program.guarded(main))
