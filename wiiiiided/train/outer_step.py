"""Hosts that exchange seldom: every step inside a host, every H steps between hosts.

    anchor    ●───────────────────────────●      the weights on which all hosts agreed last
    host 0     ╲ step step … step ── delta │      H steps of its own, on weights of its own
    host 1     ╲ step step … step ── delta │
                                           └─ anchor := outer optimizer(anchor, mean of deltas)
                                              weights := anchor

A delta is the anchor less a host's weights; their mean, by the samples that each host has seen, is
to the outer optimizer what a gradient is to an inner one. All hosts compute the same from the same,
so after an exchange they have the same bits. What stays a host's own: the inner optimizer's state,
residuals of lossy deltas, random numbers.

Inside a host the anchor lies in shared memory beside the weights; rank r of a host exchanges and
updates share r of all elements, counted over all parameters:

    host 0, two ranks     │      rank 0      │      rank 1      │
    host 1, three ranks   │   rank 2   │   rank 3  │   rank 4   │
"""

from __future__ import annotations

import copy
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from wiiiiided import log
from wiiiiided.backend.collectives.pieces import share_bounds
from wiiiiided.backend.collectives.wide.coded_all_reduce import shared_stretches
from wiiiiided.backend.collectives.wide.segment_exchange import (
    HostSegment,
    count_pieces,
    exchange_segments,
)
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.errors import Mismatch, UsageError
from wiiiiided.train.agreement import gather
from wiiiiided.train.between import AUTO, Between
from wiiiiided.train.checkpoints.policy import SaveWish
from wiiiiided.train.checks import ELEMENTWISE
from wiiiiided.train.group_settings import GroupSettings
from wiiiiided.train.layout import ParameterPart
from wiiiiided.train.memory import Common, meet, run_plan
from wiiiiided.train.noise_scale import NoiseScale
from wiiiiided.train.optimizer import shown
from wiiiiided.train.residuals import HostNumber, Residuals, read_state
from wiiiiided.train.round_length import RoundTimes, next_length, outer_constants
from wiiiiided.train.rounds import DataRounds, HostReport, StepRounds
from wiiiiided.train.run_figures import tell_own_steps, tell_round
from wiiiiided.train.shared_model import SharedModel
from wiiiiided.train.state import Piece, SharedState
from wiiiiided.train.sync_step import SyncStep
from wiiiiided.train.training_loop import TrainingLoop

_EXCHANGE: Final = "the exchange of weights in optimizer.step()"
_EXCHANGED: Final = CallSignature.of("weights of other hosts")
_WRITTEN: Final = CallSignature.of("the end of the exchange of weights")
_BLOCK: Final = 64 * 1024  # elements that are worked on while they are in the L2 cache


def host_group(face: dist.ProcessGroup, group: Group) -> Any:
    """A group of the ranks of this host. A collective call."""
    ranks = [dist.get_global_rank(face, rank) for rank in group.team.ranks]
    return dist.new_group(
        ranks,
        timeout=timedelta(seconds=group.timeout_s),
        backend="wiiiiide",
        use_local_synchronization=True,
    )


def spread_model(model: torch.nn.Module, face: dist.ProcessGroup) -> None:
    """Rank 0's parameters and buffers to all ranks. A collective call."""
    source = dist.get_global_rank(face, 0)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.numel():
            dist.broadcast(tensor.detach(), source, face)


class _WeightStretch(NamedTuple):
    """Elements of one parameter that this rank exchanges."""

    begin: int  # among all elements
    weights: torch.Tensor  # flat: where the host's weights lie
    parameter: torch.Tensor


class _RoundReport(NamedTuple):
    """What ranks tell each other at the end of a round."""

    samples: float
    counted_steps: float  # before which run.samples() was called
    step_s: float
    exchange_s: float  # of the exchange before
    origin: float
    settings: float  # of the inner optimizer, a digest
    wishes_save: float  # a SaveWish
    steps: float  # of this round
    batches: float  # that the host's loop has got in it
    measured_s: float  # since hosts' shares changed
    scheduled: float  # steps of the scheduler
    has_changed: float  # 1: settings are not those of the beginning


class OuterStep:
    """The steps of one `Parallel` whose hosts exchange seldom; `inner`: those of a host."""

    def __init__(
        self,
        inner: SyncStep,
        shared: SharedModel,
        model: torch.nn.Module,
        face: dist.ProcessGroup,
        group: Group,
        between: Between,
        loop: TrainingLoop,
    ) -> None:
        """A collective call. All hosts have the same weights."""
        self._inner, self._shared, self._model = inner, shared, model
        self._face, self._group, self._between = face, group, between
        assert group.wide is not None
        self._wide, place = group.wide, group.team.rank
        self._length = 1 if between.every == AUTO else int(between.every)
        self._rounds = self._make_rounds(loop)
        self._knows_schedule = loop.scheduler is not None
        counts = [p.numel() for p in shared.parameters]
        self._begins = [int(at) for at in np.cumsum([0, *counts])]
        total = self._begins[-1]
        self._begin, self._end = share_bounds(total, group.team.size)[place]
        self._memory = Common(group, "weights on which all hosts agreed", 4 * total)
        floats = self._memory.bytes.view(np.float32)
        self._anchor = torch.from_numpy(floats)
        self._mine = self._anchor[self._begin : self._end]
        self._delta = torch.zeros(self._end - self._begin)
        self._stretches = list(self._cut())
        self._codec = between.codec()
        self._exact_left = between.warmup_steps
        self.residuals = self._make_residuals() if self._codec is not None else None
        self._segments = list(self._host_segments(total))
        self._outer, self._state = self._make_outer()
        self._settings = GroupSettings(shared.optimizer, face)
        self._first_settings = self._settings.digest()
        self._steps = 0  # of this round
        self._samples, self._counted_steps = 0.0, 0
        self._since = self._round_since = time.monotonic()
        self._times = RoundTimes()
        self._origin = 0.0  # of weights that were loaded in this round, a digest
        self._loads = shared.memory.loads()
        inner.when_loaded = self._begin_anew
        shared.gradients.when_left_out = self._left_out
        self.wishes_save = self.save_wished = SaveWish.NO
        self._take_anchor()
        meet(group, _WRITTEN)

    def _make_rounds(self, loop: TrainingLoop) -> StepRounds | DataRounds:
        if loop.data is None:
            return StepRounds(self._length)
        hosts, rank = self._wide.hosts, self._group.rank
        tell_own_steps()
        return DataRounds(loop.data, loop.scheduler, hosts, rank, self._length)

    def _cut(self) -> Iterator[_WeightStretch]:
        for parameter, begin, end in zip(
            self._shared.parameters, self._begins, self._begins[1:], strict=False
        ):
            low, high = max(begin, self._begin), min(end, self._end)
            if low < high:
                flat = parameter.detach().as_strided((parameter.numel(),), (1,))
                yield _WeightStretch(low, flat[low - begin : high - begin], parameter)

    def _make_residuals(self) -> Residuals:
        parameters = self._shared.parameters
        parts = [ParameterPart(i, 0, p.numel()) for i, p in enumerate(parameters)]
        return Residuals(self._group, parts, parameters, self._shared.names)

    def _host_segments(self, total: int) -> Iterator[HostSegment]:
        first, delta = 0, self._delta.numpy()
        for begin, end, members in shared_stretches(total, self._wide.hosts):
            if members[self._wide.host] == self._group.rank:
                left = None
                if self.residuals is not None:
                    left = self.residuals.stretch(begin, end - begin)
                values = delta[begin - self._begin : end - self._begin]
                yield HostSegment(values, members, first, left)
            first += count_pieces(end - begin, 4)

    def _make_outer(self) -> tuple[torch.optim.Optimizer, SharedState]:
        whole = torch.nn.Parameter(self._anchor, requires_grad=False)
        made = self._between.outer
        outer = torch.optim.SGD([whole], lr=1.0) if made is None else made([whole])
        if type(outer) not in ELEMENTWISE:
            raise UsageError(
                f"outer makes a {type(outer).__name__}, which does not treat each element by "
                "itself: use SGD, or one of the Adam family"
            )
        if [len(held["params"]) for held in outer.param_groups] != [1]:
            raise UsageError(
                "outer makes an optimizer of more than the parameters it is given, which are all "
                "weights in one tensor: write outer=lambda parameters: "
                "torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)"
            )
        settings = GroupSettings(outer, self._face)
        told = gather(self._face, torch.tensor([settings.digest()])).flatten().tolist()
        if len(set(told)) > 1:
            raise settings.difference()
        part = ParameterPart(0, self._begin, self._end)
        pieces = [Piece(part, self._mine, self._begin == 0)] if self._mine.numel() else []
        host = self._shared
        return outer, SharedState(host.group, host.face, outer, [whole], pieces, True)

    # -- what the divided optimizer calls ----

    def step(self, inner: Callable[[], Any]) -> None:
        """A step of this host, and the exchange if it is the last of its round."""
        samples = self._inner.samples
        self._inner.step(inner)
        self._count_step(samples)

    def _left_out(self) -> None:
        """GradScaler leaves out a step of this host; others make it, and exchange after it."""
        self._count_step(self._inner.samples)

    def _count_step(self, samples: float | None) -> None:
        self.save_wished = SaveWish.NO
        now = time.monotonic()
        self._times.add_step(now - self._since)
        self._since = now
        self._samples += 1.0 if samples is None else samples
        self._counted_steps += samples is not None
        self._steps += 1
        if self._rounds.is_over(self._steps):
            self._exchange()
            self._since = time.monotonic()

    def state_dict(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The inner optimizer's state: this host's."""
        return self._inner.state_dict(make)

    def check_load(self) -> None:
        """The inner optimizer may be loaded at any time."""

    def loaded_optimizer(self) -> None:
        """This rank has loaded the inner optimizer."""
        self._inner.loaded_optimizer()

    # -- what `Parallel` calls ----

    @property
    def number(self) -> int:
        """Of the last step; where hosts make different numbers of them, of all together."""
        found = self._rounds.global_steps(self._steps)
        return self._inner.number if found is None else found

    @property
    def shares(self) -> tuple[float, ...]:
        """What part of a round each rank takes."""
        hosts = self._wide.hosts
        by_host = self._rounds.shares or [len(ranks) / self._face.size() for ranks in hosts]
        found = [
            (rank, share / len(ranks))
            for ranks, share in zip(hosts, by_host, strict=True)
            for rank in ranks
        ]
        return tuple(share for _, share in sorted(found))

    @property
    def saves_at_exchange(self) -> bool:
        """Whether hosts are at different steps, so that they can only save when they meet."""
        return self._rounds.is_uneven and self._rounds.is_in_loop

    @property
    def noise(self) -> NoiseScale | None:
        """Of this host's gradients."""
        return self._inner.noise

    @property
    def samples(self) -> float | None:
        """Of this rank's batch, for the next step."""
        return self._inner.samples

    def count_samples(self, count: float) -> None:
        """This rank's batch had so many samples."""
        self._inner.count_samples(count)

    def clip(self, max_norm: float, kind: float, error_if_nonfinite: bool) -> torch.Tensor:
        """Clip the average of this host's gradients."""
        return self._inner.clip(max_norm, kind, error_if_nonfinite)

    def before_forward(self) -> None:
        """A training forward begins."""
        self._inner.before_forward()

    def copy_weights(self) -> list[torch.Tensor] | None:
        """None: no rank writes between two steps; raises if a step was interrupted."""
        return self._inner.copy_weights()

    @property
    def is_round_over(self) -> bool:
        """Whether all hosts have the same weights."""
        return not self._steps

    def end_round(self) -> None:
        """Exchange now, if there is something to exchange. A collective call of all hosts."""
        if self._steps:
            self._exchange()
            self._since = time.monotonic()

    def begin_round(self) -> None:
        """From the weights that all hosts have loaded."""
        self._loads = self._shared.memory.loads()
        self._take_anchor()
        meet(self._shared.group, _WRITTEN)

    def take_loaded(self) -> None:
        """Every rank has loaded the model, the first of each host the optimizer."""
        self._inner.take_loaded()

    def loaded_model(self) -> None:
        """This rank has loaded the model: all hosts begin a round from what they have loaded."""
        self._inner.loaded_model()

    # -- the exchange ----

    def _exchange(self) -> None:
        """Average what the hosts' weights have changed by, and apply it."""
        mine = _RoundReport(
            self._samples,
            self._counted_steps,
            self._times.step_s,
            self._times.exchange_s,
            self._origin,
            self._settings.digest(),
            self.wishes_save,
            self._steps,
            self._rounds.batches,
            self._rounds.measured_s,
            self._rounds.scheduled,
            self._settings.digest() != self._first_settings,
        )
        rows = gather(self._face, torch.tensor(mine, dtype=torch.float64)).tolist()
        told = [_RoundReport(*row) for row in rows]
        self._compare(told)
        self.save_wished = SaveWish(int(max(report.wishes_save for report in told)))
        begun = time.monotonic()
        samples = [sum(told[rank].samples for rank in ranks) for ranks in self._wide.hosts]
        total = sum(samples)
        weight = samples[self._wide.host] / total if total else 1 / len(samples)
        memory, number = self._shared.memory, self._inner.number
        self._fill_delta(weight)
        codec = None if self._exact_left else self._codec
        self._exact_left = max(0, self._exact_left - 1)
        text = _EXCHANGE if codec is None else f"{_EXCHANGE}, {codec.name}"
        plan = exchange_segments(self._group, CallSignature.of(text), self._segments, codec)
        run_plan(self._group, "the exchange of weights", plan, self._delta.numel() * 4)
        self._average_buffers(weight)
        memory.begin(number + 1)
        try:
            meet(self._shared.group, _EXCHANGED)
            memory.check_left(number + 1)
        except BaseException:
            memory.leave(number + 1)
            raise
        self._apply()  # from here on weights may be half old and half new
        if self._state.look():
            memory.mark_fresh(number)
        meet(self._shared.group, _WRITTEN)
        memory.begin(number)
        if memory.is_fresh(number):
            self._state.share()
        self._shared.weights.remember()
        self._end_round(told, time.monotonic() - begun)

    def _compare(self, told: Sequence[_RoundReport]) -> None:
        """Raise on all ranks what hosts, which have not met since the last exchange, differ in."""
        _check_origins([row.origin for row in told])
        for rank, theirs in enumerate(told):
            if theirs.counted_steps - theirs.steps != told[0].counted_steps - told[0].steps:
                raise Mismatch(
                    f"rank {rank} called run.samples() before {theirs.counted_steps:g} of "
                    f"{theirs.steps:g} steps of this round and rank 0 before "
                    f"{told[0].counted_steps:g} of {told[0].steps:g}: all ranks say how many "
                    "samples they had, or none"
                )
        if self._rounds.is_uneven and self._knows_schedule:
            self._rounds.catch_up(max(int(row.scheduled) for row in told))
        elif any(row.settings != told[0].settings for row in told):
            raise self._settings.difference(
                "hosts make different numbers of steps: give the scheduler to "
                "wide.parallel(…, scheduler=…), and it follows the steps of all"
                if self._rounds.is_uneven
                else ""
            )

    def _fill_delta(self, weight: float) -> None:
        for begin, weights, _ in self._stretches:
            at = begin - self._begin
            for low in range(0, weights.numel(), _BLOCK):
                here = weights[low : low + _BLOCK]
                delta = self._delta[at + low : at + low + here.numel()]
                torch.sub(self._mine[at + low : at + low + here.numel()], here, out=delta)
                delta.mul_(weight)

    def _apply(self) -> None:
        """The outer optimizer's step on this rank's share; then weights are the anchor."""
        if self._between.outer is None:
            rate, momentum = outer_constants(self._length)
            for held in self._outer.param_groups:
                held.update(lr=rate, momentum=momentum, nesterov=momentum > 0)
        frozen = [stretch for stretch in self._stretches if not stretch.parameter.requires_grad]
        untouched = [self._share_of(self._delta, stretch) == 0 for stretch in frozen]
        if self._mine.numel():
            self._mine.grad = self._delta
            with shown(self._outer, self._state.working, [[self._mine]]):
                self._outer.step()
            self._mine.grad = None
        # Nor does the outer optimizer change what is frozen, by a weight decay or a momentum.
        for stretch, same in zip(frozen, untouched, strict=True):
            mine = self._share_of(self._mine, stretch)
            mine.copy_(torch.where(same, stretch.weights.float(), mine))
        for stretch in self._stretches:
            stretch.weights.copy_(self._share_of(self._mine, stretch))

    def _share_of(self, mine: torch.Tensor, stretch: _WeightStretch) -> torch.Tensor:
        """A stretch of what this rank exchanges."""
        return mine[stretch.begin - self._begin :][: stretch.weights.numel()]

    def _average_buffers(self, weight: float) -> None:
        """Averages that a model keeps (BatchNorm's) by samples; counts stay a host's own."""
        buffers = [b for b in self._model.buffers() if b.is_floating_point() and b.numel()]
        if not buffers:
            return
        flat = torch.cat([buffer.flatten().double() for buffer in buffers])
        if weight and self._group.team.rank == 0:
            flat.mul_(weight)
        else:
            flat.zero_()  # zero times an infinity (of an attention mask) would be NaN
        dist.all_reduce(flat, group=self._face)
        at = 0
        with torch.no_grad():
            for buffer in buffers:
                buffer.copy_(flat[at : at + buffer.numel()].view_as(buffer))
                at += buffer.numel()

    def _end_round(self, told: Sequence[_RoundReport], taken_s: float) -> None:
        reports, why = self._host_reports(told), ""
        if self._between.every == AUTO:
            # What was told is of the exchanges before this one: all ranks know the same.
            exchange_s = max(row.exchange_s for row in told)
            step_s = self._rounds.round_s(reports)
            self._length, why = next_length(self._length, step_s, exchange_s)
        may_differ = self._knows_schedule or not any(row.has_changed for row in told)
        for said in (why, self._rounds.end(self._length, reports, may_differ)):
            if said and self._face.rank() == 0:
                log.tell(self._group.who, said)
        self._times.add_exchange(taken_s)
        self._tell_round(told)
        self._origin = 0.0
        self._steps, self._counted_steps, self._samples = 0, 0, 0.0

    def _host_reports(self, told: Sequence[_RoundReport]) -> list[HostReport]:
        found = []
        for ranks in self._wide.hosts:
            rows = [told[rank] for rank in ranks]
            found.append(
                HostReport(
                    int(rows[0].steps),
                    int(rows[0].batches),
                    sum(row.samples for row in rows),
                    max(row.step_s for row in rows),
                    min(row.measured_s for row in rows),
                )
            )
        return found

    def _tell_round(self, told: Sequence[_RoundReport]) -> None:
        """For `wiiiiide top`. Since this round's last step the rank has waited and exchanged."""
        now, mine = time.monotonic(), told[self._face.rank()].samples
        compute = (self._since - self._round_since) / max(now - self._round_since, 1e-9)
        tell_round(self._steps, compute, mine / max(sum(row.samples for row in told), 1e-9))
        self._round_since = now

    def _take_anchor(self) -> None:
        """The weights of this host are those on which all agree."""
        for parameter, begin in zip(self._shared.parameters, self._begins, strict=False):
            flat = parameter.detach().as_strided((parameter.numel(),), (1,))
            self._anchor[begin : begin + flat.numel()].copy_(flat)
        self._steps, self._counted_steps, self._samples = 0, 0, 0.0

    def _begin_anew(self) -> None:
        """A rank of this host has loaded the model: a round begins from it."""
        loads = self._shared.memory.loads()
        if loads != self._loads:  # else it came before a state that was loaded
            self._loads = loads
            self._take_anchor()
            self._origin = _digest(self._anchor)

    # -- saving and loading ----

    def outer_state(self) -> dict[str, Any]:
        """What this host has besides its model and its optimizer."""
        self._shared.memory.whole()
        number = HostNumber.of(self._group)
        saved = number.state({}) if self.residuals is None else self.residuals.state_dict()
        self._state.refresh()
        saved["outer"] = {
            "anchor": self._anchor.clone(),
            "outer": type(self._outer).__name__,
            "optimizer": copy.deepcopy(self._outer.state_dict()),
            "every": self._length,
            "steps": self._steps,
            "samples": self._samples,
            "counted_steps": self._counted_steps,
        }
        return saved

    def load_outer_state(self, saved: Mapping[str, Any]) -> None:
        """Take back what `outer_state` gave; all ranks call it, those of a host with the same.

        Where a host has not its own state, of as many hosts, none is of use in the middle of a
        round: then the round begins anew everywhere, from the anchor.
        """
        number, _ = read_state(saved)
        outer = saved.get("outer")
        if outer is None or outer["anchor"].numel() != self._anchor.numel():
            raise UsageError("this state has no anchor of this model: it was saved without `every`")
        if outer["outer"] != type(self._outer).__name__:
            raise UsageError(
                f"this state was saved with {outer['outer']} as the outer optimizer, which is "
                f"{type(self._outer).__name__} here: the state of one is of no use to the other"
            )
        is_mine = number == HostNumber.of(self._group)
        origin = _digest(outer["anchor"])
        mine = torch.tensor([origin, is_mine, outer["steps"]], dtype=torch.float64)
        told = gather(self._face, mine).tolist()
        _check_origins([row[0] for row in told])
        if self.residuals is not None:
            self.residuals.load_state_dict(saved)
        self._anchor.copy_(outer["anchor"])
        self._outer.load_state_dict(outer["optimizer"])
        self._state.take(0)
        self._length = outer["every"] if self._between.every == AUTO else self._length
        self._loads = self._shared.memory.loads()  # all ranks are here: none is loading
        # With data= samples count from exchange to exchange: a round begins anew, with its samples.
        goes_on = isinstance(self._rounds, StepRounds) or not outer["steps"]
        if goes_on and all(row[1] and row == told[0] for row in told):
            self._steps, self._samples = outer["steps"], outer["samples"]
            self._counted_steps = outer["counted_steps"]
        else:
            for stretch in self._stretches:
                stretch.weights.copy_(self._share_of(self._mine, stretch))
            self._steps, self._samples, self._counted_steps = 0, 0.0, 0
        meet(self._shared.group, _WRITTEN)
        self._shared.weights.remember()


def _digest(anchor: torch.Tensor) -> float:
    """Of an anchor, as a number above 0 that a float64 holds."""
    return float(1 + zlib.crc32(anchor.float().contiguous().numpy().data))


def _check_origins(told: Sequence[float]) -> None:
    """A mean of changes means something only if all began from the same weights."""
    for rank, theirs in enumerate(told):
        if theirs != told[0]:
            raise UsageError(
                f"rank {rank}'s host and rank 0's have loaded different weights, or only one of "
                "them has: with `every` load the same model, or states that were saved after the "
                "same exchange, on every host"
            )


def check_floats(parameters: Mapping[str, torch.Tensor]) -> None:
    """Hosts average weights in float32."""
    for name, parameter in parameters.items():
        if parameter.dtype is torch.float64 or not parameter.is_floating_point():
            raise UsageError(
                f"{name} is {str(parameter.dtype).removeprefix('torch.')}: with `every` hosts "
                "average weights in float32; use float32 or half precision"
            )


def check_states(told: Sequence[str], group: Group) -> None:
    """Each host goes on with the optimizer state that its first rank has; all do, or none."""
    assert group.wide is not None
    firsts = [ranks[0] for ranks in group.wide.hosts]
    without = [rank for rank in firsts if told[rank] == "0"]
    if without and "1" in told:
        raise UsageError(
            f"rank {told.index('1')}'s optimizer has a state and rank {without[0]}'s has none: "
            "with `every` a host's state is its own, so load it before wide.parallel() on every "
            "rank, or on the first of each host"
        )
