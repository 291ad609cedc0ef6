"""When a host's round is over, and what hosts take of the next one.

    StepRounds    hosts make the same number of steps: the run does not know what their loops have.
                  A fast one waits at each exchange, and that is said once
    DataRounds    the run has the loop's data: hosts take parts of a round by their speeds, so that
                  they come to the exchange at the same time, and with the end of an epoch their
                  loops end in the same round (`data.rounds` cuts them)

        host 0, fast   │ step step step step step step │ exchange │
        host 1, slow   │ step      step      step      │ exchange │

A round of H steps has as many samples as H global batches, on whichever host they are trained:
`every` means the same on machines of any speed, and a learning rate schedule follows global steps
(`SchedulerPace`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from wiiiiided.train.balance import LEAST_S, Balance, Parts, RankSpeed
from wiiiiided.train.data.batches import Batches, HostPlace
from wiiiiided.train.data.order import split
from wiiiiided.train.data.rounds import HostSizes

_APART: Final = 1.25  # between two hosts' steps: more is worth a sentence


class HostReport(NamedTuple):
    """A host's report at the end of a round."""

    steps: int
    batches: int  # that its loop has got; 0: the run does not know
    unstepped: int  # of them, at an epoch's end
    samples: float
    step_s: float  # of the last few; 0: not known
    usual_step_s: float  # of a minute
    measured_s: float  # since shares changed, or since the run began


class StepRounds:
    """Hosts make the same number of steps."""

    batches, unstepped, scheduled = 0, 0, 0
    is_uneven, is_in_loop, shares, balance = False, False, None, None

    def __init__(self, length: int) -> None:
        self._length = length
        self._begun = time.monotonic()
        self._has_told = False

    @property
    def measured_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._begun

    def legs_over(self, steps: int, legs: int) -> int:
        """How many of a round's legs are over after so many steps; the last ends with it."""
        return min(((steps + 1) * legs - 1) // self._length, legs)

    def begin(self, length: int) -> None:
        """Begin a round of so many steps, with what was loaded."""
        self._length = length

    def round_s(self, told: Sequence[HostReport]) -> float:
        """The time of a round's step: that of the slowest host."""
        return max(host.step_s for host in told)

    def end(self, length: int, told: Sequence[HostReport], may_differ: bool) -> str:
        """The next round has so many steps. Returns which host waits, once, or an empty string."""
        self._length = length
        taken = [host.usual_step_s for host in told]
        fast_s, slow_s = min(taken), max(taken)
        if self._has_told or min(host.measured_s for host in told) < LEAST_S:
            return ""
        if not 0 < _APART * fast_s < slow_s or not told[0].steps:
            return ""
        self._has_told = True
        fast, slow = taken.index(fast_s), taken.index(slow_s)
        return (
            f"host {fast} waits for host {slow} at the end of each round, for "
            f"{told[0].steps * (slow_s - fast_s):.3g} s of {told[0].steps} steps: its steps take "
            f"{1e3 * fast_s:.3g} ms and those of host {slow} {1e3 * slow_s:.3g} ms, and without "
            "data= both make as many; give wide.parallel data=wide.Batches(…), and each makes as "
            "many as its speed allows"
        )

    def global_steps(self, steps: int) -> int | None:
        """None: a host's own steps are those of all."""
        return None

    def catch_up(self, scheduled: int) -> None:
        """Do nothing: the run has no scheduler to advance."""


class DataRounds:
    """Hosts take parts of a round by their speeds."""

    def __init__(
        self, data: Batches, scheduler: Any, hosts: Sequence[Sequence[int]], rank: int, length: int
    ) -> None:
        """`hosts`: the ranks of each."""
        self._data, self._length = data, length
        self._host = next(i for i, ranks in enumerate(hosts) if rank in ranks)
        self._pace = SchedulerPace(scheduler, data) if scheduler is not None else None
        cuts = split(data.batch_size, sum(len(ranks) for ranks in hosts))
        self._batches = tuple(sum(cuts[r + 1] - cuts[r] for r in ranks) for ranks in hosts)
        even = tuple(batch / data.batch_size for batch in self._batches)
        self.balance = Balance(Parts("host", "a round", even))
        self._since = time.monotonic()
        self._done = 0  # global steps before this round
        self._batches_of_step = 1  # above 1 where loops accumulate gradients
        self._sizes = self._cut()
        mine = hosts[self._host]
        place = HostPlace(list(mine).index(rank), len(mine))
        data.begin_rounds(self._host, self._sizes, place)

    def _cut(self) -> HostSizes:
        whole = self._length * self._data.batch_size
        steps = [
            max(1, round(share * whole / batch))
            for share, batch in zip(self.balance.shares, self._batches, strict=True)
        ]
        return HostSizes(self._batches, tuple(self._batches_of_step * count for count in steps))

    def begin(self, length: int) -> None:
        """Begin a round of so many steps, with what was loaded."""
        self._length = length
        self._sizes = self._cut()
        self._data.resize_rounds(self._sizes)

    @property
    def batches(self) -> int:
        """Batches that this host's loop has got in this round."""
        return self._data.batches_of_round

    @property
    def unstepped(self) -> int:
        """Batches that this host's loop has got and no step has taken."""
        return self._data.unstepped

    @property
    def measured_s(self) -> float:
        """Seconds since shares changed."""
        return time.monotonic() - self._since

    @property
    def scheduled(self) -> int:
        """How often the scheduler has stepped."""
        return 0 if self._pace is None else self._pace.made

    @property
    def is_uneven(self) -> bool:
        """Whether hosts make different numbers of steps."""
        return len(set(self._sizes.counts)) > 1

    @property
    def is_in_loop(self) -> bool:
        """Whether a loop over the data goes on."""
        return self._data.is_in_loop

    @property
    def shares(self) -> tuple[float, ...]:
        """The shares of a round, by host."""
        return self.balance.shares

    def legs_over(self, steps: int, legs: int) -> int:
        """How many of a round's legs are over; an epoch's end may end several at once."""
        if self._data.is_round_over:
            return legs
        return min(self.batches * legs // max(1, self._sizes.counts[self._host]), legs - 1)

    def round_s(self, told: Sequence[HostReport]) -> float:
        """The time of a round's step: the slowest host's for its part, a global step."""
        counts = self._sizes.counts
        per_step = [c * host.step_s for c, host in zip(counts, told, strict=True)]
        return max(per_step) / (self._length * self._batches_of_step)

    def end(self, length: int, told: Sequence[HostReport], may_differ: bool) -> str:
        """End a round: hosts have exchanged. Returns why their shares change, or an empty string.

        `may_differ`: learning rates follow a schedule that the run knows, or none.
        """
        self._count_batches(told)
        self._done += self._steps_of_all(told)
        why = ""
        if may_differ:
            why = self.balance.hear(
                [
                    RankSpeed(
                        batch / host.usual_step_s if host.usual_step_s else 0.0, host.measured_s
                    )
                    for batch, host in zip(self._batches, told, strict=True)
                ]
            )
        if why:
            self._since = time.monotonic()
        self._length = length
        self._sizes = self._cut()
        made, unstepped = [host.batches for host in told], [host.unstepped for host in told]
        self._data.end_round(made, unstepped, self._sizes)
        if self._pace is not None:
            self._pace.begin_round(*self._next_steps())
        return why

    def _count_batches(self, told: Sequence[HostReport]) -> None:
        """How many batches a step takes: the most of any host."""
        stepped = [(host.batches - host.unstepped) / host.steps for host in told if host.steps]
        if any(stepped):
            self._batches_of_step = max(1, *(round(batches) for batches in stepped))

    def _steps_of_all(self, told: Sequence[HostReport]) -> int:
        """Global steps of the finished round: the hosts' own if equal, else by samples."""
        if len({host.steps for host in told}) == 1:
            return told[0].steps
        return max(1, self._global_steps_of(sum(host.samples for host in told)))

    def _global_steps_of(self, samples: float) -> int:
        return round(samples / (self._data.batch_size * self._batches_of_step))

    def _next_steps(self) -> tuple[int, int]:
        """Steps of the round that begins, a shorter one at an epoch's end: all and this host's."""
        found = self._data.next_round
        own = -(-found.counts[self._host] // self._batches_of_step)
        if len(set(found.counts)) == 1:
            return own, own
        return max(1, self._global_steps_of(found.end - found.ranges[0].begin)), own

    def global_steps(self, steps: int) -> int | None:
        """How many steps all hosts together have made, where this one has made `steps` of a
        round."""
        count = max(1, self._sizes.counts[self._host])
        return self._done + min(steps * self._length // count, self._length - 1)

    def catch_up(self, scheduled: int) -> None:
        """Bring the scheduler to where that of another host is."""
        if self._pace is not None:
            self._pace.catch_up(scheduled)


class SchedulerPace:
    """`scheduler.step()` in the pace of global steps, where a host makes more of them or fewer.

    A loop calls it after each of its own steps, so the last call of a round comes after the
    exchange: that one is a step on every host. Of a round's other n - 1 calls some do nothing, or
    several steps, so that G - 1 are made when hosts meet again, at the same place of the schedule;
    where fragments are sent in the middle of a round, they are at different ones. Between two loops
    (once an epoch) it is what it was.
    """

    def __init__(self, scheduler: Any, data: Batches) -> None:
        self._scheduler, self._data = scheduler, data
        self.made = 0
        self._credit, self._all, self._own = 0, 1, 1
        self._is_rounds_last = False  # the next call
        self._last_call: tuple[tuple[Any, ...], dict[str, Any]] = (), {}
        plain: Any = type(scheduler)
        self._plain_step = plain.step

        def step(_: Any, *args: Any, **kwargs: Any) -> None:
            self._last_call = args, kwargs
            self._called()

        # A class and not an attribute: attributes are part of a scheduler's state.
        names = {"step": step, "__module__": plain.__module__}
        scheduler.__class__ = type(plain.__name__, (plain,), names)

    def begin_round(self, global_steps: int, own_steps: int) -> None:
        """Hosts have met; the next round has so many steps, and so many of this host's."""
        self._credit, self._all, self._own = 0, global_steps - 1, own_steps - 1
        self._is_rounds_last = True

    def catch_up(self, made: int) -> None:
        """Step as often as another host has."""
        while self.made < made:
            self._step()

    def _called(self) -> None:
        if self._is_rounds_last or not self._data.is_in_loop:
            self._is_rounds_last = False
            self._step()
            return
        self._credit += self._all
        while self._own > 0 and self._credit >= self._own:
            self._credit -= self._own
            self._step()

    def _step(self) -> None:
        args, kwargs = self._last_call
        self._plain_step(self._scheduler, *args, **kwargs)
        self.made += 1
