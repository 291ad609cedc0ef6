"""Sides that live next to each other on the same hosts, and take turns.

Round after round each side is measured once, each round beginning with another one; iperf3 is one
of them, so that the link is measured at the same time as what uses it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from lib.fleet import FleetError, FleetLost, RankFailed
from lib.hosts import INTERFACE, Hosts, HostsFleet, LinkSpeed, Traffic
from lib.two_hosts import iperf
from lib.two_hosts.iperf import Rate
from lib.two_hosts.task import Task

_OPEN_SECONDS = 150.0
_MOST_CALLS = 4096
# A side whose ranks were lost this often is not started again.
_STRIKES = 2
_IPERF = "iperf3"


@dataclass(frozen=True)
class TwoHostsPlan:
    """How much is measured."""

    rounds: int
    round_seconds: float  # of large operations; a small one gets a quarter
    nbytes: int
    memory_nbytes: int
    iperf_seconds: int


@dataclass(frozen=True)
class Side:
    """A backend with settings in its ranks' environment, under the name it has in the tables."""

    label: str
    backend: str
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """gloo is told its interface; the other one has to find it."""
        told = {"GLOO_SOCKET_IFNAME": INTERFACE} if self.backend == "gloo" else {}
        return dict(self.settings) | told


GLOO, OURS = Side("gloo", "gloo"), Side("wiiiiide", "wiiiiide")
BOTH = (GLOO, OURS)


def with_setting(label: str, name: str, value: str) -> Side:
    """wiiiiide under another setting, as ranks of its own."""
    return Side(label, OURS.backend, ((name, value),))


@dataclass(frozen=True)
class Entry:
    """A side's calls in a contest. `first_calls` come first, for a side that has to learn."""

    side: Side
    task: Task
    first_calls: int = 1


def each_side(task: Task) -> dict[str, Entry]:
    """Both sides' calls of one task."""
    return {side.label: Entry(side, task) for side in BOTH}


@dataclass(frozen=True)
class EntryTurn:
    """One entry's calls in one round. Traffic is that of one call, host by host."""

    median: float
    mean: float
    traffic: Sequence[Traffic]
    own: Sequence[tuple[float, float]]  # sent and received by the backend's word; may be empty


@dataclass
class SideContest:
    """The turns of every round of a contest; a side that did not get through has none at all."""

    turns: dict[str, list[EntryTurn]] = field(default_factory=dict)
    rates: list[Rate] = field(default_factory=list)


class Rig:
    """Hosts and the sides that are alive on them."""

    def __init__(self, hosts: Hosts, plan: TwoHostsPlan, say: Callable[[str], None]) -> None:
        self.hosts, self.plan, self._say = hosts, plan, say
        self.notes: list[str] = []
        self.failed = False
        self._fleets: dict[Side, HostsFleet] = {}
        self._strikes: Counter[Side] = Counter()
        self._digests: dict[tuple[Side, Task], str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for fleet in self._fleets.values():
            fleet.close(politely=kind is None)
        self._fleets = {}

    @property
    def layout(self) -> str:
        return f"{'+'.join(str(host.ranks) for host in self.hosts.all)} ranks"

    def shape(self, link: LinkSpeed) -> None:
        self.hosts.shape(link.rate)

    def keep_only(self, sides: Sequence[Side]) -> None:
        """Ends all other sides."""
        for side in [side for side in self._fleets if side not in sides]:
            self._fleets.pop(side).close()

    def start(self, side: Side) -> HostsFleet:
        """New ranks of a side, which have not joined each other yet."""
        self._say(f"starting {side.label}")
        fleet = HostsFleet(self.hosts, side.environment, "two_hosts.rank")
        self._fleets[side] = fleet
        return fleet

    def contest(
        self, what: str, entries: Mapping[str, Entry], with_iperf: bool = False
    ) -> SideContest:
        """Measures all entries in turns."""
        sides = dict.fromkeys(entry.side for entry in entries.values())
        here = [side for side in sides if self._ready(side) and self._prepare(side, what, entries)]
        ready = {name: entry for name, entry in entries.items() if entry.side in here}
        calls = self._first_calls(what, ready)
        result = SideContest({name: [] for name in calls})
        with_iperf = with_iperf and iperf.absent() is None
        for number in range(self.plan.rounds):
            order = [*result.turns, *([_IPERF] if with_iperf else [])]
            turn = number % max(len(order), 1)
            for name in order[turn:] + order[:turn]:
                self._say(f"{what}: {name}, round {number + 1}")
                if name == _IPERF:
                    self._add_rate(result)
                elif (one := self._turn(what, ready[name], 1, calls[name])) is not None:
                    result.turns[name].append(one)
                else:
                    del result.turns[name]
        return result

    def _ready(self, side: Side) -> bool:
        """Starts a side's ranks and has them join, unless they have."""
        if side in self._fleets:
            return True
        if self._strikes[side] >= _STRIKES:
            return False
        try:
            self.start(side).ask({"do": "open", "backend": side.backend}, seconds=_OPEN_SECONDS)
        except FleetError as problem:
            # Trying again would take as long and end the same way.
            self._strikes[side] = _STRIKES
            self._give_up(side, f"{side.label} is left out: {problem}")
            return False
        return True

    def _prepare(self, side: Side, what: str, entries: Mapping[str, Entry]) -> bool:
        tasks = [entry.task.message() for entry in entries.values() if entry.side == side]
        return self._ask(side, what, {"do": "prepare", "tasks": tasks}) is not None

    def _give_up(self, side: Side, note: str) -> None:
        self.failed = True
        self.notes.append(note)
        if side in self._fleets:
            self._fleets.pop(side).close(politely=False)

    def _ask(self, side: Side, what: str, message: dict[str, Any]) -> list[Any] | None:
        """The ranks' answers, or None after a note on what went wrong."""
        if side not in self._fleets:
            return None
        try:
            return self._fleets[side].ask(message)
        except FleetLost as problem:
            self._strikes[side] += 1
            self._give_up(side, f"{side.label} failed: {what}: {problem}")
        except RankFailed as problem:
            self.failed = True
            self.notes.append(f"{side.label} failed: {what}: {problem}")
        return None

    def _first_calls(self, what: str, entries: Mapping[str, Entry]) -> dict[str, int]:
        """How many calls fit into a round, for every entry whose first calls went well."""
        fitting: dict[str, int] = {}
        for name, entry in entries.items():
            self._say(f"{what}: {name}, first calls")
            row = entry.task.in_a_row
            first = self._turn(what, entry, max(entry.first_calls, row), row)
            if first is not None:
                seconds = self.plan.round_seconds / (4 if row > 1 else 1)
                fitting[name] = int(min(max(seconds / first.median, row), _MOST_CALLS))
        return fitting

    def _turn(self, what: str, entry: Entry, warmup: int, calls: int) -> EntryTurn | None:
        before = self.hosts.traffic()
        task = entry.task.message()
        message = {"do": "measure", "task": task, "warmup": warmup, "calls": calls}
        answers = self._ask(entry.side, what, message)
        if answers is None:
            return None
        after = self.hosts.traffic()
        if not self._right(what, entry):
            return None
        made = warmup + calls
        slowest = [max(times) / 1e9 for times in zip(*(a["ns"] for a in answers), strict=True)]
        traffic = [late.since(early, made) for late, early in zip(after, before, strict=True)]
        own = self._own([answer["own"] for answer in answers], made)
        return EntryTurn(statistics.median(slowest), statistics.fmean(slowest), traffic, own)

    def _right(self, what: str, entry: Entry) -> bool:
        """Has the ranks check their results, and compares these bit by bit."""
        side, task = entry.side, entry.task
        answers = self._ask(side, what, {"do": "check", "task": task.message()})
        if answers is None:
            return False
        digests = {answer["digest"] for answer in answers}
        if len(digests) > 1:
            self.failed = True
            self.notes.append(f"{side.label} failed: {what}: the ranks' results differ in bits")
            return False
        digest = digests.pop()
        if self._digests.setdefault((side, task), digest) != digest:
            self._digests[side, task] = digest
            self.notes.append(f"{side.label}: {what}: the result's bits differ between rounds")
        return True

    def _own(self, counted: Sequence[Sequence[int]], calls: int) -> list[tuple[float, float]]:
        """The ranks' own counters, added up for each host."""
        if not all(counted):
            return []
        found, rest = [], list(counted)
        for host in self.hosts.all:
            here, rest = rest[: host.ranks], rest[host.ranks :]
            sent, received = (sum(one[way] for one in here) / calls for way in (0, 1))
            found.append((sent, received))
        return found

    def _add_rate(self, result: SideContest) -> None:
        """The slowest link's rate: with two hosts there is only one pair."""
        hosts = self.hosts.all
        pairs = list(zip(hosts, hosts[1:] + hosts[:1], strict=True))[: None if hosts[2:] else 1]
        streams = max(host.ranks for host in hosts)
        try:
            rates = [iperf.measure(*pair, streams, self.plan.iperf_seconds) for pair in pairs]
        except FleetError as problem:
            self.failed = True
            self.notes.append(str(problem))
            return
        result.rates.append(min(rates, key=lambda rate: rate.each))
