"""A run's measurements of itself, told to `wiiiiide top` and the report by the rank's stats page.

    NoiseScale ── every 64 steps ─┐
    Balance ───── every 16 steps ─┼─► words of the stats page ──► daemon ──► top, report, metrics
    OuterStep ─── every round ────┘

A figure is told when it is measured: a word of memory, in a step that did more than that anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

from wiiiiided.backend.engine.process import stats_page
from wiiiiided.backend.shm.stats import TRAINING_METRICS
from wiiiiided.train.balance import Balance


def begin() -> None:
    """A new run begins: clear the metrics of an earlier one in this process."""
    stats_page().tell(**dict.fromkeys(TRAINING_METRICS, 0.0))


def tell_noise(scale: float | None, is_in_samples: bool) -> None:
    """Tell the gradient noise scale, in samples or in batches of a rank; None: not known."""
    told, other = ("noise_scale", "noise_batches")[:: 1 if is_in_samples else -1]
    stats_page().tell(**{told: scale or 0.0, other: 0.0})


def tell_balance(balance: Balance, samples: Sequence[float], rank: int) -> None:
    """Tell the parts of the global batch that ranks had in this step, and what those parts gain."""
    total = sum(samples)
    if not total > 0:  # NaN too: a rank did not say
        return
    parts = [count / total for count in samples]
    stats_page().tell(
        share=parts[rank],
        wanted_share=balance.shares[rank],
        speed_spread=balance.spread,
        balance_gain=balance.gain_of(parts),
    )


def tell_round(
    steps: int, compute: float, share: float, balance: Balance | None, parts: Sequence[float]
) -> None:
    """A round of this host: its steps, the share of its time in which ranks neither exchanged nor
    waited for other hosts, this rank's share of all samples in it; and where hosts take their parts
    by their speeds, what these parts of theirs gain."""
    stats_page().tell(round_steps=steps, round_compute=max(compute, 1e-6), share=share)
    if balance is not None and balance.is_measured and min(parts) > 0:
        gain = balance.gain_of(parts)
        stats_page().tell(speed_spread=balance.spread, balance_gain=gain)


def tell_own_steps() -> None:
    """Hosts step by themselves between two exchanges: ranks that are at different steps are no
    sign of a wrong checkpoint in this run."""
    stats_page().tell(own_steps=1.0)
