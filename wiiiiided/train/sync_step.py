"""One step of all ranks together, from gradients to weights.

    barrier   all ranks have their gradients where others can read them; what must agree is compared
    average   each rank its part of all ranks' gradients (`gradient_store`)
    update    … and that part of the weights, with the user's own optimizer
    barrier   all parts are written: the next forward reads them where they lie

Ranks tell each other a *record* at a barrier: words, and a byte for each parameter that
says whether it has a gradient. On one host it lies in shared memory; between hosts it is gathered.
Every rank looks at the same records and decides the same: go on, raise, or first take over what
a rank has loaded and then come to the barrier again.

Gradient clipping (`clip`) averages first; the step that follows scales the average it finds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from wiiiiided import log
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.errors import Mismatch, UsageError
from wiiiiided.train.balance import Balance, Parts, RankSpeed, StepClock, is_told
from wiiiiided.train.checkpoints.policy import SaveWish
from wiiiiided.train.gradient_store import Weights
from wiiiiided.train.group_settings import GroupSettings
from wiiiiided.train.memory import WORDS, Bytes, Record, StepBarrier, host_barrier
from wiiiiided.train.noise_scale import BatchSizes, NoiseScale, is_measured
from wiiiiided.train.shared_model import SharedModel, no_gradients
from wiiiiided.train.small_collectives import all_gather_rows
from wiiiiided.train.training_metrics import tell_balance, tell_noise

_STEP: Final = CallSignature.of("optimizer.step() of wide.parallel")
_CLIP: Final = CallSignature.of("run.clip_grad_norm_() of wide.parallel")
_WRITTEN: Final = CallSignature.of("the end of optimizer.step() of wide.parallel")
_LOADED: Final = CallSignature.of("weights that another host has loaded")

_BUFFER_BYTES: Final = 25 << 20  # buffers are broadcast in pieces of this size, as DDP does it

# Words of a record.
_SAMPLES, _SETTINGS, _FLAGS, _OWN_NORM, _MEAN_NORM, _SPEED, _MEASURED_S = range(7)
_LOADED_OPTIMIZER, _LOADED_MODEL, _NEW, _AVERAGED = 1, 2, 8, 16
_SAVE: Final = 32  # times a SaveWish


class SyncStep:
    """The steps of one `Parallel` whose ranks go together."""

    def __init__(
        self,
        shared: SharedModel,
        model: torch.nn.Module,
        is_whole: bool = True,
        when_loaded: Callable[[], None] | None = None,
        knows_batches: bool = False,
    ) -> None:
        """`is_whole`: these are all ranks of the run, and not those of one host among several.
        `when_loaded`: called on every rank when one has loaded the model, before any writes.
        `knows_batches`: samples are those of the loop's data; a step of none changes nothing."""
        self._shared, self._model, self._is_whole = shared, model, is_whole
        self._when_loaded, self._knows_batches = when_loaded, knows_batches
        self._has_buffers = any(True for _ in model.buffers()) and shared.process_group.size() > 1
        self._memory, self._gradients = shared.memory, shared.gradients
        self._settings = GroupSettings(shared.optimizer, shared.process_group)
        self._step_barrier = StepBarrier(shared.group, _STEP)
        self._here = list(shared.layout.ranks[shared.layout.host])
        # Of a small model some ranks update nothing: they need not be there while others do.
        self._idle = shared.alone and shared.divided and not shared.pieces
        self._present = no_gradients(len(shared.parameters))
        self._words = np.zeros(WORDS, np.int64)
        self._factor: torch.Tensor | None = None  # by which clip_grad_norm_ scales the average
        self._averaged_samples: float | None = None  # those that the present average was made with
        self._is_empty = False  # no rank has a sample in this step
        self._flags = 0
        is_told = shared.process_group.size() > 1 and self._gradients.tells_noise
        self.noise = NoiseScale() if is_told else None
        self._told = False  # this rank's record has norms or a speed
        self._measured: BatchSizes | None = None  # of the step whose norms are told at the next
        self.balance = Balance(Parts.of_ranks(shared.process_group.size()))
        self._uses_shares = False  # the loop or the script has asked for them
        self._clock, self._heard = StepClock(), 0  # the last step in which speeds were told
        self.number = 0  # of the last step
        self.samples: float | None = None  # of this rank's batch, for the next step
        self.wishes_save = SaveWish.NO  # this rank wants a checkpoint after the next step
        self.save_wished = SaveWish.NO  # a rank did, before the last step: all know

    # -- calls of users ----

    def step(self, inner: Callable[[], Any]) -> None:
        """Run a step of all ranks: the divided optimizer calls this in place of its own step."""
        number = self.number + 1
        self._memory.begin(number)
        try:
            if self._idle:
                self._memory.complete(number)  # it has nothing to write
                while not self._pass_by():
                    pass
            else:
                present = self._exchange(_STEP)
                self._memory.check_left(number)
        except UsageError:  # before the barrier, or of all ranks alike: no rank goes on to write
            self._memory.begin(self.number)
            raise
        except BaseException:
            self._memory.leave(number)
            raise
        if not self._idle:
            self._update(inner, present, number)
        self._clock.stepped(self.samples)
        self.number, self.samples = number, None
        self._shared.weights.written()
        if self._memory.is_fresh(number):
            self._shared.state.share()
        self._shared.weights.remember()

    def skipped(self) -> None:
        """GradScaler skips a step of all ranks: what was said of it is not of the next."""
        self.samples, self.save_wished = None, SaveWish.NO
        self._clock.stepped(None)

    def _update(self, inner: Callable[[], Any], present: Bytes, number: int) -> None:
        """Update this rank's part of the weights, and wait for the others'."""
        shared = self._shared
        factor, self._factor = self._factor, None
        if not self._is_empty:
            if factor is not None:
                shared.scale_average(present, factor)
            shared.update(inner, present)
        self._gradients.holds_average = False
        if shared.state.look():
            self._memory.mark_fresh(number)
        self._memory.complete(number)
        if shared.alone:
            self._step_barrier.leave()
        else:
            host_barrier(shared.group, _WRITTEN)

    def clip(self, max_norm: float, kind: float, error_if_nonfinite: bool) -> torch.Tensor:
        """Clip the averaged gradient and return its norm."""
        present = self._exchange(_CLIP)
        before = torch.ones(()) if self._factor is None else self._factor
        total = self._norm(present, kind) * before
        if error_if_nonfinite and not bool(torch.isfinite(total)):
            raise UsageError(f"the norm of the averaged gradient is {float(total)}")
        # Applied in the step, after its barrier: until then a rank may throw its gradient away and
        # begin another backward, which writes where the average lies.
        self._factor = before * torch.clamp(max_norm / (total + 1e-6), max=1.0)
        return total

    def _norm(self, present: Bytes, kind: float) -> torch.Tensor:
        """The norm of the averaged gradient: every rank measures its part."""
        norms, most = self._shared.norms(present, kind), math.isinf(kind)
        total = norms.max() if most else norms.pow(kind).sum()
        # Every host has the whole gradient: the ranks of the first host make it up.
        first = list(self._shared.layout.ranks[0])
        chosen = all_gather_rows(self._shared.process_group, total.reshape(1)).flatten()[first]
        norm: torch.Tensor = chosen.max() if most else chosen.sum().pow(1.0 / kind)
        whole = all(p.dtype is torch.float64 for p in self._shared.parameters)
        return norm if whole else norm.float()

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of a global batch that each rank should take."""
        self._uses_shares = True
        return self.balance.shares

    def count_samples(self, count: float) -> None:
        """This rank's batch had so many samples."""
        if self._factor is not None and count != self._averaged_samples and self._is_averaged():
            raise UsageError(
                f"run.samples({count:g}) after run.clip_grad_norm_(), which has averaged the "
                "gradients: call run.samples() before it"
            )
        self.samples = count

    def _is_averaged(self) -> bool:
        """Whether gradients are there whose average has been made."""
        pairs = zip(self._shared.parameters, self._gradients.pending, strict=True)
        return any(p.grad is pending and pending.reduced for p, pending in pairs)

    def discard_clipped(self) -> bool:
        """Forget a batch whose gradients were thrown away after clip_grad_norm_; whether there was
        one."""
        if self._factor is None or any(p.grad is not None for p in self._shared.parameters):
            return False
        self._factor = self.samples = None
        return True

    def before_forward(self) -> None:
        """Send rank 0's buffers to all, as DDP does; free the memory of discarded gradients."""
        self._gradients.let_go()
        if self._has_buffers:
            begun = time.monotonic()
            with torch.no_grad():
                buffers = [buffer for buffer in self._model.buffers() if buffer.numel()]
                dist._broadcast_coalesced(self._shared.process_group, buffers, _BUFFER_BYTES, 0)  # type: ignore[attr-defined]
            self._clock.wait(time.monotonic() - begun)

    # -- saving and loading ----

    def copy_weights(self) -> list[torch.Tensor] | None:
        """None: no rank writes between two steps; raises if a step was interrupted."""
        self._memory.whole()
        return None

    def check_load(self) -> None:
        """The optimizer may be loaded at any time."""

    def loaded_model(self) -> None:
        """This rank has loaded the model."""
        self._flags |= _LOADED_MODEL
        self._shared.weights.loaded()

    def loaded_optimizer(self) -> None:
        """This rank has loaded the optimizer: at the next barrier the others take it over."""
        self._flags |= _LOADED_OPTIMIZER

    def take_loaded(self) -> None:
        """Take over what was loaded now: every rank has the model, rank 0 the optimizer."""
        self._shared.state.take(0)
        self._settings.take(0)
        self._flags = 0

    def state_dict(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The optimizer's state; raises if a step was interrupted."""
        self._memory.whole()
        if not self._flags & _LOADED_OPTIMIZER:  # what this rank has loaded is newer
            self._shared.state.refresh()
        return make()

    # -- the barrier ----

    def _exchange(self, call: CallSignature) -> Bytes:
        """Compare what must agree, and average; returns which parameters have a gradient."""
        while True:
            alike, records = self._exchange_records(call)
            if alike or self._may_go_on(records):
                break
            if call is _STEP and self._shared.alone:
                self._step_barrier.leave()  # without having written anything
            self._resolve_differences(records)
        anywhere: Bytes = self._present
        weights: Weights = None
        counts = [self.samples] if alike else [_float(record, _SAMPLES) for record in records]
        self._is_empty = self._knows_batches and not any(count != 0 for count in counts)
        self.save_wished = SaveWish.NO
        if not alike:
            self._hear_wishes(records)
            self._hear_noise(records)
            self._hear_speeds(records)
            weights = _weighting(records)
            anywhere = np.maximum.reduce([record.present for record in records])
        if any(int(record.words[_FLAGS]) & _NEW for record in records[: 1 if alike else None]):
            here = [] if alike else [records[rank].present for rank in self._here]
            measure = self.noise is not None and is_measured(self.number + 1)
            self._gradients.average(here, anywhere, weights, measure)
            self._measured = self._batch_sizes(weights, records) if measure else None
            self._mark_averaged()
            self._factor = None
        return anywhere

    def _mark_averaged(self) -> None:
        self._averaged_samples = self.samples
        for pending in self._gradients.pending:
            pending.reduced = True

    def _hear_noise(self, records: Sequence[Record]) -> None:
        """Hear the norms of the step before this one from all ranks, if it was measured."""
        told = [record.words[_OWN_NORM : _MEAN_NORM + 1].view(np.float64) for record in records]
        own, mean = (float(sum(norms[i] for norms in told)) for i in (0, 1))
        if self.noise is not None and self._measured and own and math.isfinite(own):
            self.noise.add(own / len(records), mean, self._measured)
            tell_noise(self.noise.value, self.samples is not None)
        self._measured = None

    def _batch_sizes(self, weights: Weights, records: Sequence[Record]) -> BatchSizes | None:
        """The samples of every rank in this step, as all of them know them."""
        if weights is None:
            return BatchSizes.even(self.samples or 1.0, self._shared.process_group.size())
        return BatchSizes.of([_float(record, _SAMPLES) for record in records])

    def _hear_speeds(self, records: Sequence[Record]) -> None:
        """Hear all ranks' speeds, once a step (clip_grad_norm_ has a barrier before it)."""
        if not self._is_whole or self._heard == self.number + 1 or not is_told(self.number + 1):
            return
        self._heard = self.number + 1
        told = [
            RankSpeed(_float(record, _SPEED), _float(record, _MEASURED_S)) for record in records
        ]
        if why := self.balance.hear(told):
            self._clock.begin_anew()
            if self._uses_shares and self._shared.process_group.rank() == 0:
                log.tell(self._shared.group.who, why)
        if min(speed.samples_per_s for speed in told) > 0:
            samples = [_float(record, _SAMPLES) for record in records]
            tell_balance(self.balance, samples, self._shared.process_group.rank())

    def _pass_by(self) -> bool:
        """A step of a rank that updates nothing; whether the others have gone on."""
        self._write_record()
        self._step_barrier.pass_by()
        self.save_wished = SaveWish.NO
        if self._flags & ~_NEW or not self._memory.all_alike():
            records = self._memory.records()
            if not self._may_go_on(records):
                self._resolve_differences(records)
                return False
            self._hear_noise(records)
            self._hear_wishes(records)
            self._hear_speeds(records)
        if self.noise is not None and is_measured(self.number + 1):
            records = self._memory.records()
            self._measured = self._batch_sizes(_weighting(records), records)
        self._mark_averaged()
        self._flags, self._factor = 0, None
        return True

    def _exchange_records(self, call: CallSignature) -> tuple[bool, list[Record]]:
        """Wait for all ranks; whether they told the same and nothing special, and their records."""
        self._write_record()
        special = self._flags & ~_NEW
        if self._shared.alone:
            if call is _STEP:
                self._step_barrier.enter()
            else:
                host_barrier(self._shared.group, call)
            records = self._memory.records()
            alike = not special and self._memory.all_alike()
        else:
            host_barrier(self._shared.group, call)
            mine = self._memory.records()[self._memory.place]
            raw = np.concatenate([mine.words.view(np.uint8), mine.present])
            found = all_gather_rows(self._shared.process_group, torch.from_numpy(raw)).numpy()
            head = WORDS * 8
            records = [Record(row[:head].copy().view(np.int64), row[head:]) for row in found]
            alike = not special and bool((found == found[0]).all())
        if alike:
            self._flags = 0
        return alike, records

    def _write_record(self) -> None:
        """Look at what this rank has, and lay it out for the others."""
        self._clock.arrive()
        self._shared.check_groups()
        self._shared.weights.check()
        self._flags = self._flags & (_LOADED_MODEL | _LOADED_OPTIMIZER) | self._collect()
        self._flags |= _SAVE * self.wishes_save
        words = self._words
        words[_SAMPLES] = -1 if self.samples is None else np.float64(self.samples).view(np.int64)
        words[_SETTINGS], words[_FLAGS] = self._settings.digest(), self._flags
        if self._told:
            words[_OWN_NORM:] = 0
            self._told = False
        if self._measured:
            norms = np.array([self._gradients.own_norm, self._gradients.mean_norm])
            words[_OWN_NORM : _MEAN_NORM + 1] = norms.view(np.int64)
            self._told = True
        if self._is_whole and self.samples is not None and is_told(self.number + 1):
            words[_SPEED : _MEASURED_S + 1] = np.array(self._clock.speed).view(np.int64)
            self._told = True
        self._memory.write_record(words, self._present)

    def _hear_wishes(self, records: Sequence[Record]) -> None:
        """Hear the strongest save wish of any rank."""
        self.save_wished = SaveWish(max(int(r.words[_FLAGS]) // _SAVE for r in records))

    def _may_go_on(self, records: Sequence[Record]) -> bool:
        """Whether nothing but gradients and weights differs. Raises what all ranks raise alike."""
        flags = [int(record.words[_FLAGS]) for record in records]
        if any(flag & (_LOADED_MODEL | _LOADED_OPTIMIZER) for flag in flags):
            return False
        if len({int(record.words[_SETTINGS]) for record in records}) > 1:
            return False
        ages = {flag & (_NEW | _AVERAGED) for flag in flags} - {0}
        if len(ages) > 1 or _NEW | _AVERAGED in ages:
            return False
        said = [int(record.words[_SAMPLES]) == -1 for record in records]
        if any(said) and not all(said):
            return False
        self._flags = 0
        return True

    def _resolve_differences(self, records: Sequence[Record]) -> None:
        """Take over what ranks have loaded; raise what does not fit together."""
        self._take_over(records)
        ages = {int(record.words[_FLAGS]) & (_NEW | _AVERAGED) for record in records} - {0}
        if len(ages) > 1 or _NEW | _AVERAGED in ages:
            raise UsageError(
                "some gradients have been averaged already and some are new: between "
                "clip_grad_norm_ and step there can be no other backward, unless all are zeroed"
            )
        _weighting(records)

    def _collect(self) -> int:
        """Which parameters have a gradient here, and of which age, as flags.

        A gradient that a program put there is copied.
        """
        ages = 0
        for i, parameter in enumerate(self._shared.parameters):
            gradient, pending = parameter.grad, self._gradients.pending[i]
            self._present[i] = gradient is not None
            if gradient is not None:
                if gradient is not pending:
                    self._gradients.keep(i, gradient, theirs=True)
                ages |= _AVERAGED if pending.reduced else _NEW
        return ages

    def _take_over(self, records: Sequence[Record]) -> None:
        """Take over the state that ranks have loaded since the last barrier; then all must have the
        same settings.
        """
        flags = [int(record.words[_FLAGS]) for record in records]
        self._flags = 0
        loaders = [rank for rank, flag in enumerate(flags) if flag & _LOADED_MODEL]
        if loaders and self._has_buffers and 0 not in loaders:
            raise UsageError(
                f"rank {loaders[0]} has loaded a model with buffers, and rank 0, whose buffers "
                "count, has not: load it on rank 0, or on all ranks"
            )
        if loaders and not self._shared.alone:
            self._shared.broadcast_weights(loaders[0])
            host_barrier(self._shared.group, _LOADED)
            self._shared.weights.remember()
        if loaders and self._when_loaded is not None:
            self._when_loaded()
        loaders = [rank for rank, flag in enumerate(flags) if flag & _LOADED_OPTIMIZER]
        if loaders:
            self._shared.state.take(loaders[0])
            self._settings.take(loaders[0])
            mine = torch.tensor([self._settings.digest()])
            digests = all_gather_rows(self._shared.process_group, mine).flatten().tolist()
        else:
            digests = [int(record.words[_SETTINGS]) for record in records]
        if len(set(digests)) > 1:
            raise self._settings.difference()


def _weighting(records: Sequence[Record]) -> Weights:
    """The weights of ranks, if they differ."""
    said = [int(record.words[_SAMPLES]) for record in records]
    if all(word == -1 for word in said):
        return None
    if any(word == -1 for word in said):
        raise Mismatch(
            f"rank {said.index(-1)} did not call run.samples() before this step and another "
            "rank did: all ranks say how many samples they had, or none"
        )
    counts = [_float(record, _SAMPLES) for record in records]
    total = sum(counts)
    if len(set(counts)) == 1:
        return None
    return [count / total for count in counts]


def _float(record: Record, word: int) -> float:
    return float(record.words[word : word + 1].view(np.float64)[0])
