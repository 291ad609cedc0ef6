"""Measurements of `wide.parallel` in a run, in words: the same in top, report and show. Pure.

batch     about 1,900 samples a step are worth it (gradient noise scale); it has 256
shares    a 75 %, b 25 % of the samples; speeds 3 times apart: with even parts a step would …
rounds    hosts exchange every 16 steps and compute 93 % of the time
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from wiiiiided.domain.metrics import TrainingMetrics

LISTED: Final = 6  # shares that are listed; of more, the least and the most
EVEN: Final = 1.05  # largest share to smallest: up to here they are called even
NOTABLE: Final = 0.02  # the least part of a step's time that balancing must change
OTHER: Final = 0.1  # of a share, by which a rank takes another than `run.share` says


class RankTraining(NamedTuple):
    """One rank's measurements."""

    rank: int
    node: str
    told: TrainingMetrics


def training_facts(
    ranks: Sequence[RankTraining], samples: float | None = None
) -> Iterator[tuple[str, str]]:
    """A name and a sentence for each that is known; `samples` are those of a step of all ranks."""
    for name, text in (
        ("batch", batch_words(ranks, samples)),
        ("shares", shares_words(ranks)),
        ("rounds", rounds_words(ranks)),
    ):
        if text:
            yield name, text


def batch_words(ranks: Sequence[RankTraining], samples: float | None = None) -> str:
    """The batch that gradients want, beside the one that there is."""
    scale, batches = _mean(ranks, "noise_scale"), _mean(ranks, "noise_batches")
    if scale is None and batches is not None:
        return f"about {_about(batches)} batches of a rank are worth a step (gradient noise scale)"
    if scale is None:
        return ""
    has = "" if samples is None or _mean(ranks, "round_steps") else f"; it has {samples:,.0f}"
    return f"about {_about(scale)} samples a step are worth it (gradient noise scale){has}"


def shares_words(ranks: Sequence[RankTraining]) -> str:
    """The part of all samples that each host, or each rank of one, has; and what that gains."""
    taken = _parts(ranks, "share")
    if len(taken) < 2:
        return ""
    text = f"{_listed(taken)} of the samples"
    if (spread := _mean(ranks, "speed_spread")) is not None:
        text += f"; speeds {spread:.2g} times apart"
    gain = _mean(ranks, "balance_gain")
    if gain is not None and abs(gain - 1) > NOTABLE:
        text += f": with even parts a step would take {gain:.2g} times as long"
    wanted = _parts(ranks, "wanted_share")
    if wanted.keys() == taken.keys() and any(
        abs(taken[name] / wanted[name] - 1) > OTHER for name in taken
    ):
        text += f"; run.share says {_listed(wanted)}"
    return text


def rounds_words(ranks: Sequence[RankTraining]) -> str:
    """How often hosts exchange, and how much of the time that leaves for computing."""
    told = ((one.node, one.told.round_steps) for one in ranks)
    steps = {node: many for node, many in told if many is not None}
    compute = _mean(ranks, "round_compute")
    if not steps or compute is None:
        return ""
    least, most = min(steps.values()), max(steps.values())
    every = f"{least:,.0f} steps"
    if least < most and len(steps) > LISTED:
        every = f"{least:,.0f} to {most:,.0f} steps"
    elif least < most:
        every = ", ".join(f"{many:,.0f} steps on {node}" for node, many in steps.items())
    return f"hosts exchange every {every} and compute {100 * compute:.0f} % of the time"


def _parts(ranks: Sequence[RankTraining], name: str) -> dict[str, float]:
    """Each node's part; where there is one node, each rank's."""
    found: dict[str, float] = {}
    alone = len({one.node for one in ranks}) < 2
    for one in ranks:
        if (part := getattr(one.told, name)) is not None:
            key = f"rank {one.rank}" if alone else one.node
            found[key] = found.get(key, 0.0) + part
    return found


def _listed(parts: Mapping[str, float]) -> str:
    least, most = min(parts.values()), max(parts.values())
    if most <= EVEN * least:
        return "even parts"
    if len(parts) > LISTED:
        return f"{100 * least:.2g} % to {100 * most:.2g} %"
    return ", ".join(f"{name} {100 * part:.2g} %" for name, part in parts.items())


def _mean(ranks: Sequence[RankTraining], name: str) -> float | None:
    told = [value for one in ranks if (value := getattr(one.told, name)) is not None]
    return sum(told) / len(told) if told else None


def _about(value: float) -> str:
    """Two digits of a number: more are not known."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"
