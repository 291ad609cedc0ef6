"""Rates per second, from a rank's counters: two samples make a rate, ranks make a sum.

Some counters move only when an operation ends: one that takes ten seconds brings ten seconds of
waiting at once. So a rate is taken between two moments at which something had just ended, and
stays until the next, for as long as that may reasonably take:

    samples      s─────s─────s─────s─────s─────s─────s        one a second
    moved        *                       *           *
    rate over    ├───────────────────────┤
                                         ├───────────┤

Steps and samples are exact: a page says when its script last spoke, so a rate is whole steps over
the time they took, whenever the daemon looked. It covers ten steps, or a minute where they are
longer: at a step every two seconds, nodes that are looked at in different moments of a step would
show 0 and 0.5 by turns, and all take the same steps.

Ranks of a synchronous job make each step together, but their rates are of other ten steps, and
where a step takes longer than the one before they differ by a tenth. So ranks that are in step
have one rate of steps, the mean of theirs, and each its own number of samples a step (`in_step`).

Rejected: the difference of the last two samples (a step of ten seconds shows 0 0 0 … 100 %, and an
even job of nine steps a second jumps between eight and ten).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from wiiiiided.domain.metrics import METRICS, Metrics, RankSample, Rates

SMOOTH_S: Final = 0.9  # a rate covers this much at least: at 4 samples a second it would jump
STALL_S: Final = 3.0  # with nothing moving for this long, and two periods, rates are what they are
STEPS, STEPS_S = 10, 60.0  # a rate of steps covers so many, or two of them in so many seconds
# Ranks are in step whose rates differ by so much of their mean, and whose steps by so many, or by
# those of so many seconds: samples of two machines are that far apart.
ALIKE, APART, APART_S = 0.3, 3, 3.0
WAITS, WAITS_S = 4, 5.0  # the peer that is waited for is found over so many ends, so many seconds
NOTABLE: Final = 0.05  # of the time: a peer that is waited for less is not named
OVERDUE: Final = 3.0  # times the usual length of a step: the script has stopped

T = TypeVar("T", int, float)

COUNTERS: Final = (
    *("operations", "failed", "shm_bytes", "wire_out", "wire_in", "wire_out_raw", "wire_in_raw"),
    *("exchange_s", "waiting_s", "encode_s", "decode_s"),
)

# Rates of several ranks: those that are summed, and those whose mean is taken.
SUMMED: Final = ("operations", "shm", "wire_out", "wire_in", "wire_out_raw", "wire_in_raw")
SHARES: Final = ("exchange", "waiting", "encode", "decode")


def fell(old: RankSample, new: RankSample) -> bool:
    """Whether a counter is smaller than before: what no counter of one process does."""
    if old.pid != new.pid:
        return False
    if any(getattr(new, name) < getattr(old, name) for name in COUNTERS):
        return True
    return old.samples is not None and (new.samples is None or new.samples < old.samples)


def moved(old: RankSample, new: RankSample) -> bool:
    """Whether an operation ended, or the script reported progress."""
    return (
        new.operations != old.operations
        or new.step != old.step
        or new.samples != old.samples
        or new.failed != old.failed
        or new.pid != old.pid
    )


def blank(first: RankSample, at: float) -> RankSample:
    """A rank's sample when its page was made: nothing was counted yet."""
    return RankSample(first.rank, at, first.pid, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)


def between(old: RankSample, new: RankSample) -> Rates:
    """The rates from one sample to a later one; none when they are of two processes."""
    span = new.at - old.at
    if span <= 0 or old.pid != new.pid:
        return Rates(measured=new.measured)
    said = _said_span(old, new, span)
    waiting = (new.waiting_s - old.waiting_s) / span
    # An operation is counted when it ends, its waiting already before.
    exchange = max(waiting, (new.exchange_s - old.exchange_s) / span)
    return Rates(
        steps=_steps(old, new, said),
        samples=None if new.samples is None else (new.samples - (old.samples or 0)) / said,
        operations=(new.operations - old.operations) / span,
        shm=(new.shm_bytes - old.shm_bytes) / span,
        wire_out=(new.wire_out - old.wire_out) / span,
        wire_in=(new.wire_in - old.wire_in) / span,
        wire_out_raw=(new.wire_out_raw - old.wire_out_raw) / span,
        wire_in_raw=(new.wire_in_raw - old.wire_in_raw) / span,
        exchange=_share(exchange),
        waiting=_share(waiting),
        encode=_share((new.encode_s - old.encode_s) / span),
        decode=_share((new.decode_s - old.decode_s) / span),
        measured=new.measured,
    )


def _said_span(old: RankSample, new: RankSample, span: float) -> float:
    """The seconds between the moments at which the script reported these steps."""
    if old.said_at is None or new.said_at is None or new.said_at <= old.said_at:
        return span
    return new.said_at - old.said_at


def _steps(old: RankSample, new: RankSample, span: float) -> float | None:
    # A script may begin at 0 again, every epoch: then it is not known how many there were.
    if old.step is None or new.step is None or new.step < old.step:
        return None
    return (new.step - old.step) / span


def _share(value: float) -> float:
    """The share within 0 to 1: operations overlap, and one may have begun long before."""
    return min(1.0, max(0.0, value))


def together(rates: Sequence[Rates]) -> Rates:
    """Several ranks as one: bytes, samples, operations are summed; steps and shares are means."""
    if len(rates) < 2:
        return rates[0] if rates else Rates(measured=False)
    samples = [rate.samples for rate in rates if rate.samples is not None]
    steps = [rate.steps for rate in rates if rate.steps is not None]
    counted = [rate for rate in rates if rate.measured]
    number = max(1, len(counted))
    sums = {name: sum(getattr(rate, name) for rate in counted) for name in SUMMED}
    means = {name: sum(getattr(rate, name) for rate in counted) / number for name in SHARES}
    return Rates(
        steps=sum(steps) / len(steps) if steps else None,
        samples=sum(samples) if samples else None,
        **sums,
        **means,
        measured=bool(counted),
    )


def in_step(rates: Mapping[int, Rates], steps: Mapping[int, int]) -> dict[int, Rates]:
    """The rates of ranks, by rank: with one rate of steps where all make their steps together."""
    paces = {rank: rate.steps for rank, rate in rates.items() if rate.steps}
    if len(paces) < 2 or len(paces) < len(rates) or not paces.keys() <= steps.keys():
        return dict(rates)
    mean = sum(paces.values()) / len(paces)
    places = [steps[rank] for rank in paces]
    if max(abs(pace - mean) for pace in paces.values()) > ALIKE * mean:
        return dict(rates)
    if max(places) - min(places) > APART + APART_S * mean:
        return dict(rates)
    return {rank: _at_pace(rate, paces[rank], mean) for rank, rate in rates.items()}


def _at_pace(rate: Rates, pace: float, other: float) -> Rates:
    """The rates of a rank that makes so many steps a second, with as many samples in each."""
    samples = None if rate.samples is None else rate.samples / pace * other
    return replace(rate, steps=other, samples=samples)


def waited_most(old: RankSample, new: RankSample) -> int | None:
    """The peer that the rank waited for longest, if that was NOTABLE of the time at least."""
    waits = {peer: s - old.waited_for.get(peer, 0.0) for peer, s in new.waited_for.items()}
    peer = max(waits, key=waits.__getitem__, default=None)
    notable = peer is not None and waits[peer] >= NOTABLE * (new.at - old.at)
    return peer if notable else None


def total_of(values: Iterable[T | None]) -> T | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def metrics_of(samples: Iterable[RankSample]) -> Metrics:
    """Metrics reported by name, in the mean; None where one of them is not a finite number. Eight
    names, those of the first ranks: ranks may report different ones."""
    found: dict[str, list[float | None]] = {}
    for sample in samples:
        for name, value in sample.metrics.items():
            if name in found or len(found) < METRICS:
                found.setdefault(name, []).append(value)
    return {name: _mean(values) for name, values in found.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def one_word(words: Iterable[str]) -> str:
    """The word that all give, "mixed" where they differ; empty ones do not count."""
    found = {word for word in words if word}
    return found.pop() if len(found) == 1 else "mixed" if found else ""


class ProgressMark(NamedTuple):
    """A script's report of its progress at one moment."""

    at: float
    step: int
    samples: int | None


class ProgressRates:
    """The rates of a script's steps and samples, which stay between two steps."""

    def __init__(self) -> None:
        self.steps: float | None = None
        self.samples: float | None = None
        self._said: deque[ProgressMark] = deque()
        self._paused = False

    def take(self, sample: RankSample) -> None:
        if sample.step is None:
            return
        said = self._said
        at = sample.at if sample.said_at is None else sample.said_at
        now = ProgressMark(at, sample.step, sample.samples)
        last = said[-1] if said else None
        if last is not None and now[1:] == last[1:]:
            self._miss(sample.at - last.at)
            return
        if last is not None and (self._paused or now.step < last.step or at <= last.at):
            # A pause is no part of the steps that follow. A new epoch counts from 0 again: how
            # many there were is not known.
            said.clear()
        self._paused = False
        said.append(now)
        while len(said) > 2 and _enough(said[1], now):
            said.popleft()
        if len(said) > 1:
            first, span = said[0], at - said[0].at
            self.steps = (now.step - first.step) / span
            if now.samples is not None:
                self.samples = (now.samples - (first.samples or 0)) / span

    def _miss(self, since_s: float) -> None:
        """Nothing new was reported: a script whose next step is overdue by far has stopped."""
        step_s = 1 / self.steps if self.steps else 0.0
        if self.steps is not None and since_s > max(STALL_S, OVERDUE * step_s):
            self.steps = 0.0
            self.samples = None if self.samples is None else 0.0
            self._paused = True


def _enough(first: ProgressMark, now: ProgressMark) -> bool:
    """Whether a rate from this mark on covers enough steps or time."""
    span, steps = now.at - first.at, now.step - first.step
    return (span >= SMOOTH_S and steps >= STEPS) or (span >= STEPS_S and steps >= 2)


class RateMeter:
    """The rates of one rank, sample after sample."""

    def __init__(self) -> None:
        self.rates: Rates | None = None  # None: only one sample so far
        self.waits_for: int | None = None  # the peer it waited for longest, if for any notably
        self._ends: deque[RankSample] = deque()  # samples at which something had just ended
        self._waits: deque[RankSample] = deque()  # more of them
        self._period_s = 0.0  # between the last two of them
        self._spoken = ProgressRates()

    def take(self, sample: RankSample) -> None:
        self._count(sample)
        said = self._spoken
        said.take(sample)
        if self.rates is not None:
            self.rates = replace(self.rates, steps=said.steps, samples=said.samples)

    def _count(self, sample: RankSample) -> None:
        ends = self._ends
        if not ends or ends[-1].pid != sample.pid:
            ends.clear()
            ends.append(sample)
            self._waits = deque(ends)
            self.rates, self._period_s, self._spoken = None, 0.0, ProgressRates()
            self.waits_for = None
        elif moved(ends[-1], sample):
            self._period_s = sample.at - ends[-1].at
            ends.append(sample)
            while len(ends) > 2 and sample.at - ends[1].at >= SMOOTH_S:
                ends.popleft()
            self.rates = between(ends[0], sample)
            self._waits.append(sample)
            while len(self._waits) > WAITS + 1 and sample.at - self._waits[1].at >= WAITS_S:
                self._waits.popleft()
            self.waits_for = waited_most(self._waits[0], sample)
        elif sample.at - ends[-1].at > max(STALL_S, 2 * self._period_s):
            self.rates = between(ends[-1], sample)
