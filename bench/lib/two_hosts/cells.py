"""The cells of a row of two_hosts.py, out of what its sides did in turns: times, ratios, bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lib.grid import MBIT, MEBIBYTES, NUMBER, PERCENT, TIMES, TIMES_EXACT, Asked, GridRow, plain
from lib.measure import SECONDS, Measure, MeasureUnit
from lib.one_host.cells import ALL_REDUCE
from lib.two_hosts.rig import EntryTurn, SideContest


class Cells:
    """Collects a row's cells; what could not be measured is left out."""

    def __init__(self, contest: SideContest) -> None:
        self._contest = contest
        self.made: dict[str, Measure] = {}
        self._missing: list[tuple[Asked, MeasureUnit]] = []

    def row(self, what: str) -> GridRow:
        return GridRow(what, self.made, self._missing)

    def add(
        self, column: str, unit: MeasureUnit, rounds: Sequence[float], asked: Asked | None = None
    ) -> None:
        if not rounds:
            self._missing += [(asked, unit)] if asked else []
        elif asked is None:
            self.made[column] = Measure(plain(column), unit, rounds)
        else:
            self.made[column] = Measure(asked.what, unit, rounds, asked.bound, asked.at_least)

    def times(self, *names: str, named: str | None = None) -> None:
        for name in names:
            self.add(named or name, SECONDS, self.seconds(name))

    def ratio(
        self,
        column: str,
        upper: str,
        lower: str,
        asked: Asked | None = None,
        unit: MeasureUnit = TIMES,
    ) -> None:
        """One entry's time over another's, round by round."""
        pairs = zip(self.seconds(upper), self.seconds(lower), strict=False)
        self.add(column, unit, [above / below for above, below in pairs], asked)

    def rates(self) -> None:
        self.add("iperf3,\neach way", MBIT, [rate.each for rate in self._contest.rates])

    def allowed(self, column: str, name: str, least: float, asked: Asked | None = None) -> None:
        """Which share of what iperf3's rate allows was reached, with `least` bytes to move.

        Of iperf3's rounds the best counts: a busy machine slows it too, and would flatter us.
        """
        rates = [rate.each for rate in self._contest.rates]
        taken = self.seconds(name) if rates else []
        self.add(column, PERCENT, [least / max(rates) / one for one in taken], asked)

    def seconds(self, name: str) -> list[float]:
        return [turn.median for turn in self._contest.turns.get(name, [])]

    def over_turns(
        self,
        column: str,
        name: str,
        unit: MeasureUnit,
        of: Callable[[EntryTurn], float],
        asked: Asked | None = None,
    ) -> None:
        turns = self._contest.turns.get(name, [])
        self.add(column, unit, [of(turn) for turn in turns], asked)


def least_bytes(op: str, nbytes: int, hosts: int) -> float:
    """The bytes that every host must at least send, and receive, when all hosts share equally."""
    once = (hosts - 1) / hosts * nbytes
    return 2 * once if op == ALL_REDUCE else once


def busiest(turn: EntryTurn) -> float:
    """The bytes the busiest host's interface carried in its busier direction, for one call."""
    return max(host.most for host in turn.traffic)


def bytes_to(least: float) -> Callable[[EntryTurn], float]:
    return lambda turn: busiest(turn) / least


def _payload(turn: EntryTurn) -> float:
    return max(host.most_payload for host in turn.traffic)


def _packets(turn: EntryTurn) -> float:
    return max(max(host.out_packets, host.in_packets) for host in turn.traffic)


def wire_row(
    what: str, contest: SideContest, name: str, least: float, asked: Asked | None = None
) -> GridRow:
    """One entry's bytes on the wire next to the least there could be."""
    cells = Cells(contest)
    cells.add("least", MEBIBYTES, [least])
    cells.over_turns("interface counter", name, MEBIBYTES, busiest)
    to_least = "counter to least"
    cells.over_turns(to_least, name, TIMES_EXACT, bytes_to(least), asked)
    cells.over_turns("without headers", name, TIMES_EXACT, lambda turn: _payload(turn) / least)
    cells.over_turns("packets counted", name, NUMBER, _packets)
    if all(turn.own for turn in contest.turns.get(name, [])):

        def own(turn: EntryTurn) -> float:
            return max(max(host) for host in turn.own) / least

        cells.over_turns("by the backend's\nown counters", name, TIMES_EXACT, own)
    return cells.row(what)
