"""The rounds' counts, in the columns of the first WIIIIIDE's documents, and what is asked."""

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lib.ladder.contenders import ASYNC, BOUND, FOUR, STAGES, SYNC, Contender, LadderStage
from lib.ladder.counts import Count, LadderRound
from lib.measure import RATIO, Chapter, Measure
from lib.report import UNSTEADY, Sheet, Value, ratio_text

Rounds = Mapping[Contender, Sequence[LadderRound]]
COLUMNS = (
    *("", "in 2024", "batches/s", "to the bound", "MB/s", "network time"),
    *("compression time", "ratio", "memory", "batches a node", "loss"),
)
# (contender, against, the least ratio of their batches/s)
TARGETS: tuple[tuple[Contender, Contender, float], ...] = (
    (SYNC, STAGES[-1], 2.0),
    (SYNC, BOUND, 0.6),
    (FOUR, BOUND, 0.8),
    (ASYNC, BOUND, 0.9),
)


def rates(rounds: Sequence[LadderRound]) -> Value:
    found = [each.rate for each in rounds]
    return Value(statistics.median(found), min(found), max(found))


def sheet(taken: Rounds, nodes: int, seconds: float) -> Sheet:
    title = f"The ladder: {nodes} nodes, {seconds:g} s each"
    rows = [_row(contender, rounds, taken.get(BOUND)) for contender, rounds in taken.items()]
    return Sheet(title, COLUMNS, [*rows])


def targets(taken: Rounds) -> Chapter:
    """The targets, as far as its contenders were measured."""
    asked = []
    for contender, against, least in TARGETS:
        if contender in taken and against in taken:
            ratios = _ratios(taken[contender], taken[against])
            what = f"{contender.title}, to {against.title}"
            asked.append(Measure(what, RATIO, ratios, least, at_least=True))
    return Chapter("What is asked: ratios of batches/s", asked)


def notes(taken: Rounds) -> list[str]:
    """How busy the stages' servers were, for which nodes wait; and which rounds say little."""
    found = []
    used = [
        f"{contender.title} {statistics.median(each.server_cores or 0.0 for each in rounds):.2f}"
        for contender, rounds in taken.items()
        if isinstance(contender, LadderStage)
    ]
    if used:
        cores = len(os.sched_getaffinity(0))
        found.append(f"cores that a stage's server was using, of {cores}: {', '.join(used)}")
    unsteady = [who.title for who, rounds in taken.items() if not rates(rounds).steady]
    if unsteady:
        found.append(f"unsteady, rounds more than {UNSTEADY:g} times apart: {', '.join(unsteady)}")
    return found


def data(taken: Rounds) -> dict[str, Any]:
    return {
        "rounds": {
            contender.title: [{"batches_per_second": r.rate, **asdict(r)} for r in rounds]
            for contender, rounds in taken.items()
        }
    }


def _row(
    contender: Contender, rounds: Sequence[LadderRound], bound: Sequence[LadderRound] | None
) -> Sequence[str]:
    rate = rates(rounds)
    counts = [count for each in rounds for count in each.nodes]
    wire, plain = _sum(counts, "wire_bytes"), _sum(counts, "plain_bytes")
    of_nodes = [each.nodes for each in rounds]
    is_stage = isinstance(contender, LadderStage)
    return (
        contender.title,
        f"{contender.then:,}" if isinstance(contender, LadderStage) else "",
        f"{rate.median:,.0f}\n({rate.low:,.0f}–{rate.high:,.0f})",
        "–" if bound is None else ratio_text(statistics.median(_ratios(rounds, bound))),
        f"{wire / _sum(counts, 'seconds') * len(rounds[0].nodes) / 1e6:,.1f}" if wire else "–",
        "–" if contender is BOUND else _span(of_nodes, "network_s", "{:.2f}".format) + " s",
        _span(of_nodes, "packing_s", "{:.2f}".format) + " s" if is_stage else "–",
        f"{plain / wire:.2f}" if is_stage else "–",
        f"{max(each.memory_bytes for each in rounds) / 1e6:,.0f} MB",
        _span(of_nodes, "batches", "{:,.0f}".format),
        f"{statistics.mean(each.loss for each in rounds):.3f}",
    )


def _ratios(above: Sequence[LadderRound], below: Sequence[LadderRound]) -> list[float]:
    return [a.rate / b.rate for a, b in zip(above, below, strict=True)]


def _sum(counts: Iterable[Count], name: str) -> float:
    return float(sum(getattr(count, name) for count in counts))


def _span(rounds: Sequence[Sequence[Count]], name: str, text: Callable[[float], str]) -> str:
    """The least and the most of a node, over all rounds."""
    by_node = [_sum(counts, name) for counts in zip(*rounds, strict=True)]
    return f"{text(min(by_node))}–{text(max(by_node))}"
