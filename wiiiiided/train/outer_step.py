"""Hosts that exchange seldom: every step inside a host, every H steps between hosts.

Local SGD between hosts; with momentum in the outer optimizer, DiLoCo.

    anchor    ●───────────────────────────●      the weights on which all hosts agreed last
    host 0     ╲ step step … step ── delta │      H steps of its own, on weights of its own
    host 1     ╲ step step … step ── delta │
                                           └─ anchor := outer optimizer(anchor, mean of deltas)
                                              weights := anchor

A delta is the anchor less a host's weights; their mean, by the samples that each host has seen, is
to the outer optimizer what a gradient is to an inner one. All hosts compute the same from the same,
so after an exchange they have the same bits. A host keeps as its own the inner optimizer's state,
residuals of lossy deltas, random numbers.

Inside a host the anchor lies in shared memory beside the weights; rank r of a host exchanges and
updates share r of all elements, counted over all parameters:

    host 0, two ranks     │      rank 0      │      rank 1      │
    host 1, three ranks   │   rank 2   │   rank 3  │   rank 4   │

In fragments (`fragments`) a round has as many legs; at a leg's end one fragment is sent, and the
one before it, which travelled while this host made the leg's steps, is merged:

    leg       │ step step │ step step │ step step │ step step │ …       every=6, fragments=3
    sent      │           0           1           2           0
    merged                            0           1           2

So hosts seldom have the same weights. They have after an *agreement*: what is under way is merged,
and every fragment exchanged at once. With one fragment each exchange is one.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from wiiiiided import log
from wiiiiided.backend.collectives.dispatch import all_gather
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.errors import UsageError
from wiiiiided.train.between import AUTO, Between
from wiiiiided.train.checkpoints.policy import SaveWish
from wiiiiided.train.fragments import Fragment, Fragments
from wiiiiided.train.group_settings import GroupSettings
from wiiiiided.train.layout import ParameterPart
from wiiiiided.train.memory import MappedMemory, host_barrier, run_plan
from wiiiiided.train.noise_scale import NoiseScale
from wiiiiided.train.outer_optimizer import OuterOptimizer
from wiiiiided.train.residuals import HostNumber, Residuals, read_state
from wiiiiided.train.round_length import RoundTimes, first_length, next_length, shape_of
from wiiiiided.train.round_report import (
    RoundReport,
    check_origins,
    check_reports,
    host_reports,
    weight_of,
)
from wiiiiided.train.rounds import DataRounds, StepRounds
from wiiiiided.train.shared_model import SharedModel
from wiiiiided.train.side_groups import side_group
from wiiiiided.train.small_collectives import all_gather_rows
from wiiiiided.train.sync_step import SyncStep
from wiiiiided.train.training_loop import TrainingLoop
from wiiiiided.train.training_metrics import tell_own_steps, tell_round

# A mismatch shows it: a host that left its loop early calls something else (barrier) meanwhile.
_REPORT: Final = CallSignature.of(
    "the exchange at a round's end (hosts must leave a loop at the same exchange: docs/data.md, "
    '"Leaving a loop")'
)
_EXCHANGED: Final = CallSignature.of("weights of other hosts")
_WRITTEN: Final = CallSignature.of("the end of the exchange of weights")


def broadcast_model(model: torch.nn.Module, process_group: dist.ProcessGroup) -> None:
    """Send rank 0's parameters and buffers to all ranks. A collective call."""
    source = dist.get_global_rank(process_group, 0)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.numel():
            dist.broadcast(tensor.detach(), source, process_group)


class OuterStep:
    """The steps of one `Parallel` whose hosts exchange seldom; `inner`: those of a host."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        process_group: dist.ProcessGroup,
        group: Group,
        between: Between,
        loop: TrainingLoop,
        on_skipped_step: Callable[[], None],
    ) -> None:
        """`on_skipped_step`: called when GradScaler skips a step of this host, and calls
        `skipped`. A collective call. All hosts have the same weights."""
        self._model, self._between = model, between
        self._process_group, self._group = process_group, group
        assert group.wide is not None
        self._wide = group.wide
        host = side_group(self, process_group, group.team.ranks, group)
        shared = self.shared = SharedModel(
            model,
            optimizer,
            process_group=host.process_group,
            group=host.group,
            between=Between(),
            on_skipped_step=on_skipped_step,
        )
        self._inner = SyncStep(
            shared, model, False, self._begin_anew, knows_batches=loop.data is not None
        )
        tell_own_steps()
        self._length = self._first_length(model, group.driver.config.every_start)
        self._rounds = self._make_rounds(loop)
        self._knows_schedule = loop.scheduler is not None
        counts = [p.numel() for p in shared.parameters]
        self._begins = [int(at) for at in np.cumsum([0, *counts])]
        self._memory = MappedMemory(
            group, "weights on which all hosts agreed", 4 * self._begins[-1]
        )
        self._anchor = torch.from_numpy(self._memory.bytes.view(np.float32))
        codec = between.codec()
        self._exact_left = between.warmup_steps
        self.residuals = self._make_residuals() if codec is not None else None
        self._fragments = Fragments(
            self._link_group(),
            shared.parameters,
            self._anchor,
            count=between.fragments,
            residuals=self.residuals,
            codec=codec,
        )
        self._outer = OuterOptimizer(between.outer, self._fragments.all, shared, process_group)
        self._settings = GroupSettings(optimizer, process_group)
        self._first_settings = self._settings.digest()
        self._since = self._round_since = time.monotonic()
        self._times = RoundTimes()
        self._skipped_steps = 0  # by GradScaler
        self._unsent: list[float] = []  # by fragment: samples since it was sent
        self._busy_s = 0.0  # in the exchanges of this round
        self._origin = 0.0  # of weights that were loaded in this round, a digest
        self._loads = shared.memory.loads()
        self.wishes_save = self.save_wished = SaveWish.NO
        self._take_anchor()
        host_barrier(group, _WRITTEN)

    def _link_group(self) -> Group:
        """The group of fragments under way: a program's own operations do not queue behind them."""
        if self._between.fragments == 1:
            return self._group
        everyone = range(self._process_group.size())
        return side_group(self, self._process_group, everyone, self._group).group

    def _first_length(self, model: torch.nn.Module, found: str) -> int:
        """Rank 0's: what `plan` has found may differ from host to host."""
        mine = first_length(self._between.every or 1, found, shape_of(model.named_parameters()))
        return int(all_gather_rows(self._process_group, torch.tensor([mine]))[0])

    def _make_rounds(self, loop: TrainingLoop) -> StepRounds | DataRounds:
        if loop.data is None:
            return StepRounds(self._length)
        hosts, rank = self._wide.hosts, self._group.rank
        return DataRounds(loop.data, loop.scheduler, hosts, rank, self._length)

    def _make_residuals(self) -> Residuals:
        parameters = self.shared.parameters
        parts = [ParameterPart(i, 0, p.numel()) for i, p in enumerate(parameters)]
        return Residuals(self._group, parts, parameters, self.shared.names)

    # -- calls of the divided optimizer ----

    def step(self, inner: Callable[[], Any]) -> None:
        """Make a step of this host, and the exchange if it is the last of its round."""
        samples = self._inner.samples
        self._inner.step(inner)
        self._count_step(samples)

    def skipped(self) -> None:
        """GradScaler skips a step of this host; others make it, and exchange after it."""
        samples = self._inner.samples
        self._inner.skipped()
        self._skipped_steps += 1
        self._count_step(samples)

    def ran_out(self) -> bool:
        """The loop has got all of its epoch: the round ends here, if its last step did not end it.

        Batches no step has taken go with the next one; other hosts may have stepped all of theirs.
        """
        if not self._rounds.batches:
            return False
        while self._rounds.batches:
            self._end_leg(self._rounds.unstepped)
        self._since = time.monotonic()
        return True

    def _count_step(self, samples: float | None) -> None:
        self.save_wished = SaveWish.NO
        now = time.monotonic()
        self._times.add_step(now - self._since)
        self._since = now
        self._samples += 1.0 if samples is None else samples
        self._counted_steps += samples is not None
        self._unsent = [count + (1.0 if samples is None else samples) for count in self._unsent]
        self._steps += 1
        self._is_agreed = False
        while self._leg_ends():
            self._end_leg()
            self._since = time.monotonic()

    @property
    def _legs(self) -> int:
        """Legs of this round; a round shorter than `fragments` has one."""
        fragments = self._between.fragments
        return fragments if self._length >= fragments else 1

    def _leg_ends(self) -> bool:
        """Whether this host's steps of the present leg are made."""
        return self._steps > 0 and self._rounds.legs_over(self._steps, self._legs) > self._leg

    def state_dict(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The inner optimizer's state: this host's."""
        return self._inner.state_dict(make)

    def check_load(self) -> None:
        """The inner optimizer may be loaded at any time."""

    def loaded_optimizer(self) -> None:
        """This rank has loaded the inner optimizer."""
        self._inner.loaded_optimizer()

    # -- calls of `Parallel` ----

    @property
    def number(self) -> int:
        """The number of the last step; where hosts make different numbers, of all together."""
        found = self._rounds.global_steps(self._steps)
        return self._inner.number + self._skipped_steps if found is None else found

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of a round that each rank takes."""
        hosts = self._wide.hosts
        by_host = self._rounds.shares or [
            len(ranks) / self._process_group.size() for ranks in hosts
        ]
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
        """The noise scale of this host's gradients."""
        return self._inner.noise

    @property
    def samples(self) -> float | None:
        """The samples of this rank's batch, for the next step."""
        return self._inner.samples

    def count_samples(self, count: float) -> None:
        """This rank's batch had so many samples."""
        self._inner.count_samples(count)

    def discard_clipped(self) -> bool:
        """Forget a batch whose gradients were thrown away after clip_grad_norm_."""
        return self._inner.discard_clipped()

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
        return self._is_agreed

    def end_round(self) -> None:
        """Agree now, if hosts have not. A collective call of all hosts."""
        told = self._tell(unstepped=self._rounds.unstepped, is_asked=True)
        if not all(report.is_agreed for report in told):
            begun = time.monotonic()
            self._agree(told)
            self._end_round(told, begun)
            self._since = time.monotonic()

    def begin_round(self) -> None:
        """Begin a round from the weights that all hosts have loaded."""
        self._loads = self.shared.memory.loads()
        self._take_anchor()
        host_barrier(self.shared.group, _WRITTEN)

    def take_loaded(self) -> None:
        """Every rank has loaded the model, the first of each host the optimizer."""
        self._inner.take_loaded()

    def loaded_model(self) -> None:
        """This rank has loaded the model: all hosts begin a round from what they have loaded."""
        self._inner.loaded_model()

    # -- the exchange ----

    def _end_leg(self, unstepped: int = 0) -> None:
        """Merge the fragment that is under way and send the next one, or agree on all of them."""
        is_last = self._leg + 1 == self._legs
        told = self._tell(unstepped, is_last)
        begun = time.monotonic()
        if is_last and (self._legs == 1 or self.save_wished):
            self._agree(told)
        else:
            self._merge()
            fragment = self._fragments.all[self._leg]
            self._fragments.send(fragment, *self._weighed(fragment, told))
            self._leg += 1
        if is_last:
            self._end_round(told, begun)
        else:
            self._busy_s += time.monotonic() - begun

    def _tell(
        self, unstepped: int, is_last: bool = True, is_asked: bool = False
    ) -> list[RoundReport]:
        """Gather every rank's report; raises on all ranks if reports contradict each other.

        `is_last`: a round ends here.
        """
        mine = RoundReport(
            samples=self._samples,
            counted_steps=self._counted_steps,
            step_s=self._times.step_s,
            usual_step_s=self._times.usual_step_s,
            busy_s=self._times.busy_s,
            link_s=self._times.link_s,
            origin=self._origin,
            settings=self._settings.digest(),
            wishes_save=self.wishes_save,
            steps=self._steps,
            batches=self._rounds.batches,
            unstepped=unstepped,
            measured_s=self._rounds.measured_s,
            scheduled=self._rounds.scheduled,
            has_changed=self._settings.digest() != self._first_settings,
            is_agreed=self._is_agreed,
            is_asked=is_asked,
            unsent=tuple(self._unsent),
        ).row()
        rows = np.empty((self._process_group.size(), mine.size))
        plan = all_gather(self._group, _REPORT, mine, list(rows))
        run_plan(self._group, "the exchange at a round's end", plan, mine.nbytes)
        told = [RoundReport.read(row) for row in rows.tolist()]
        check_reports(told)
        self._compare_settings(told, is_last)
        self.save_wished = SaveWish(int(max(report.wishes_save for report in told)))
        return told

    def _weighed(self, fragment: Fragment, told: Sequence[RoundReport]) -> tuple[float, bool]:
        """This host's weight in the fragment's average, and whether it is sent exact."""
        weight = self._weight([report.unsent[fragment.number] for report in told])
        self._unsent[fragment.number] = 0.0
        exact = self._exact_left > 0
        if fragment is self._fragments.all[-1]:
            self._exact_left = max(0, self._exact_left - 1)
        return weight, exact

    def _weight(self, samples: Sequence[float]) -> float:
        """This host's part of all samples; `samples`: by rank."""
        return weight_of(self._wide.host, samples, self._wide.hosts)

    def _agree(self, told: Sequence[RoundReport]) -> None:
        """Exchange all, and wait for it: then all hosts have the same weights."""
        self._merge()
        for fragment in self._fragments.all:
            self._fragments.exchange(fragment, *self._weighed(fragment, told))
            self._write(fragment, fragment.take_anchor)
        self._is_agreed = True

    def _merge(self) -> None:
        """Merge the fragment that was under way."""
        fragment = self._fragments.arrive()
        if fragment is not None:
            self._write(fragment, fragment.add_anchor)

    def _write(self, fragment: Fragment, write: Callable[[], None]) -> None:
        """Make the outer step on this rank's share of a fragment, and write its weights."""
        memory, number = self.shared.memory, self._inner.number
        memory.begin(number + 1)
        try:
            host_barrier(self.shared.group, _EXCHANGED)
            memory.check_left(number + 1)
        except BaseException:
            memory.leave(number + 1)
            raise
        # From here on weights may be half old and half new.
        if self._outer.step(fragment, self._length):
            memory.mark_fresh(number)
        write()
        host_barrier(self.shared.group, _WRITTEN)
        memory.begin(number)
        if memory.is_fresh(number):
            self._outer.share()
        self.shared.weights.remember()

    def _compare_settings(self, told: Sequence[RoundReport], is_last: bool) -> None:
        """Raise on all ranks if hosts differ in settings, but for where a scheduler's pace lets
        them: it is brought together where a round ends, since its steps until then are due."""
        if any(row.scheduled != told[0].scheduled for row in told):
            if is_last:
                self._rounds.catch_up(max(int(row.scheduled) for row in told))
        elif any(row.settings != told[0].settings for row in told):
            raise self._settings.difference(
                "hosts make different numbers of steps: give the scheduler to "
                "wide.parallel(…, scheduler=…), and it follows the steps of all"
                if self._rounds.is_uneven
                else ""
            )

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
        dist.all_reduce(flat, group=self._process_group)
        at = 0
        with torch.no_grad():
            for buffer in buffers:
                buffer.copy_(flat[at : at + buffer.numel()].view_as(buffer))
                at += buffer.numel()

    def _end_round(self, told: Sequence[RoundReport], begun: float) -> None:
        """Close the round; `begun`: when its last exchange began."""
        self._average_buffers(self._weight([report.samples for report in told]))
        reports, why = host_reports(told, self._wide.hosts), ""
        if self._between.every == AUTO:
            # The times told are of the exchanges before this one: all ranks know the same.
            step_s = self._rounds.round_s(reports)
            busy_s, link_s = max(row.busy_s for row in told), max(row.link_s for row in told)
            self._length, why = next_length(
                self._length, step_s, busy_s, link_s, self._between.fragments
            )
        may_differ = self._knows_schedule or not any(row.has_changed for row in told)
        for said in (why, self._rounds.end(self._length, reports, may_differ)):
            if said and self._process_group.rank() == 0:
                log.tell(self._group.who, said)
        taken_s = self._busy_s + time.monotonic() - begun
        self._times.add_exchange(taken_s - self._fragments.waited_s, self._fragments.link_s)
        self._tell_round(told)
        self._origin = 0.0
        self._count_anew()

    def _count_anew(self) -> None:
        """Count from zero: a round begins."""
        self._steps = self._leg = self._counted_steps = 0
        self._samples = self._busy_s = 0.0
        self._fragments.begin_times()

    def _tell_round(self, told: Sequence[RoundReport]) -> None:
        """Tell `wiiiiide top` of a round, since whose last step this rank has only exchanged."""
        now = time.monotonic()
        compute = (self._since - self._round_since) / max(now - self._round_since, 1e-9)
        samples, rank = [row.samples for row in told], self._process_group.rank()
        parts = [
            weight_of(host, samples, self._wide.hosts) for host in range(len(self._wide.hosts))
        ]
        share = samples[rank] / max(sum(samples), 1e-9)
        tell_round(self._steps, compute, share, self._rounds.balance, parts)
        self._round_since = now

    def _take_anchor(self) -> None:
        """Take this host's weights as the anchor: all hosts agree on them."""
        self._fragments.arrive()  # a fragment of the old weights is dropped
        for parameter, begin in zip(self.shared.parameters, self._begins, strict=False):
            flat = parameter.detach().as_strided((parameter.numel(),), (1,))
            self._anchor[begin : begin + flat.numel()].copy_(flat)
        self._forget_round()

    def _forget_round(self) -> None:
        """All hosts have the anchor's weights, and nothing to exchange."""
        self._unsent, self._is_agreed = [0.0] * self._between.fragments, True
        self._count_anew()

    def _begin_anew(self) -> None:
        """A rank of this host has loaded the model: a round begins from it."""
        loads = self.shared.memory.loads()
        if loads != self._loads:  # else it came before a state that was loaded
            self._loads = loads
            self._take_anchor()
            self._origin = _digest(self._anchor)

    # -- saving and loading ----

    def outer_state(self) -> dict[str, Any]:
        """The state of this host besides its model and its optimizer."""
        self.shared.memory.whole()
        number = HostNumber.of(self._group)
        under_way = self._fragments.state()  # residuals are whole once it has come
        saved = number.state({}) if self.residuals is None else self.residuals.state_dict()
        saved["outer"] = {
            "anchor": self._anchor.clone(),
            "outer": self._outer.name,
            "optimizer": self._outer.state_dict(),
            "every": self._length,
            "steps": self._steps,
            "samples": self._samples,
            "counted_steps": self._counted_steps,
        }
        if self._between.fragments > 1:
            saved["outer"]["fragments"] = {
                "slot": self._leg,
                "unsent": list(self._unsent),
                "agreed": self._is_agreed,
                "numbers": self._outer.numbers(),
                "under_way": under_way,
            }
        return saved

    def load_outer_state(self, saved: Mapping[str, Any]) -> None:
        """Take back what `outer_state` gave; all ranks call it, those of a host with the same.

        Where a host has not its own state, of as many hosts and fragments, none is of use in the
        middle of a round: then the round begins anew everywhere, from the anchor.
        """
        number, _ = read_state(saved)
        outer = saved.get("outer")
        if outer is None or outer["anchor"].numel() != self._anchor.numel():
            raise UsageError("this state has no anchor of this model: it was saved without `every`")
        if outer["outer"] != self._outer.name:
            raise UsageError(
                f"this state was saved with {outer['outer']} as the outer optimizer, which is "
                f"{self._outer.name} here: the state of one is of no use to the other"
            )
        cut = outer.get("fragments") or {}
        count = len(cut.get("unsent", [0.0]))
        is_mine = number == HostNumber.of(self._group) and count == self._between.fragments
        origin = _digest(outer["anchor"])
        place = [outer["steps"], cut.get("slot", 0), (cut.get("under_way") or {}).get("fragment")]
        row = [origin, is_mine, *(-1 if at is None else at for at in place)]
        told = all_gather_rows(self._process_group, torch.tensor(row, dtype=torch.float64)).tolist()
        check_origins([row[0] for row in told])
        self._fragments.arrive()  # a fragment of the old weights is dropped
        if self.residuals is not None:
            self.residuals.load_state_dict(saved)
        self._anchor.copy_(outer["anchor"])
        self._outer.load(outer["optimizer"], cut.get("numbers", []))
        if self._between.every == AUTO:
            self._length = outer["every"]
            self._rounds.begin(self._length)
        self._loads = self.shared.memory.loads()  # all ranks are here: none is loading
        self._forget_round()
        # With data= samples count from exchange to exchange: a round begins anew, with its samples.
        goes_on = isinstance(self._rounds, StepRounds) or not outer["steps"]
        if goes_on and all(row[1] and row == told[0] for row in told):
            self._go_on(outer, cut)
        else:
            for fragment in self._fragments.all:
                fragment.take_anchor()
        host_barrier(self.shared.group, _WRITTEN)
        self.shared.weights.remember()

    def _go_on(self, outer: Mapping[str, Any], cut: Mapping[str, Any]) -> None:
        """Continue in the middle of a round; `cut`: the saved state of fragments."""
        self._steps, self._samples = outer["steps"], outer["samples"]
        self._counted_steps, self._leg = outer["counted_steps"], cut.get("slot", 0)
        self._unsent = list(cut.get("unsent", [self._samples]))
        self._is_agreed = cut.get("agreed", not self._steps)
        if cut.get("under_way"):
            self._fragments.load(**cut["under_way"])


def _digest(anchor: torch.Tensor) -> float:
    """A digest of an anchor, as a number above 0 that a float64 holds."""
    return float(1 + zlib.crc32(anchor.float().contiguous().numpy().data))
