"""A step of the training loop: the optimizer's step, and what the run knows of the data around it.

weigh     this rank's gradient counts by the samples it has got since the last step, those of
          several batches with gradient accumulation
step      of all ranks (`sync_step`, `outer_step`)
commit    the samples are trained: a step that raises is not counted
save      now and then, before the next step begins (`checkpoints`)
tell      step, epoch and samples, for `wiiiiide top`, unless the script itself calls progress
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from wiiiiided.backend.engine.process import stats_page
from wiiiiided.train.checkpoints.saving import Saver
from wiiiiided.train.data.batches import Batches
from wiiiiided.train.learning_rates import scale_rates
from wiiiiided.train.outer_step import OuterStep
from wiiiiided.train.sync_step import SyncStep
from wiiiiided.train.training_loop import TrainingLoop


class LoopStep:
    """The step that the divided optimizer calls, where the run has the loop's data."""

    def __init__(
        self,
        steps: SyncStep | OuterStep,
        loop: TrainingLoop,
        saver: Saver | None,
        optimizer: torch.optim.Optimizer,
        say: Callable[[str], None],
    ) -> None:
        """`say`: to the log, once for all ranks."""
        self._steps, self._data, self._saver = steps, loop.data, saver
        self._optimizer, self._scheduler, self._say = optimizer, loop.scheduler, say
        self._before = 0  # steps that were made before this process began
        self._is_skipped = False  # the step that the last batch was for
        if loop.data is not None:
            loop.data.attach(self)

    @property
    def number(self) -> int:
        """The number of the last step, counted from the beginning of training."""
        return self._before + self._steps.number

    def go_on_after(self, step: int) -> None:
        """Count on from this step."""
        self._before = step - self._steps.number

    def noise_state(self) -> dict[str, Any]:
        """The gradient noise as a checkpoint has it: the same on all ranks of a host."""
        noise = self._steps.noise
        return {} if noise is None else {"noise_scale": noise.state()}

    def load_noise(self, saved: Mapping[str, Any]) -> None:
        """Take back what `noise_state` gave; an older checkpoint has none."""
        if self._steps.noise is not None:
            self._steps.noise.load(saved.get("noise_scale", {}))

    def weigh(self) -> None:
        """Weight this rank's gradient by its samples, unless the script says by how many."""
        if self._data is not None and self._steps.samples is None and not self._is_skipped:
            self._steps.count_samples(float(self._data.samples_of_step()))

    # -- calls of the divided optimizer ----

    def step(self, inner: Callable[[], Any]) -> None:
        """Make a step of all ranks, and what follows from it."""
        self._begin()
        self._steps.step(inner)
        self._end()

    def skipped(self) -> None:
        """GradScaler skips a step: its samples are gone, and hosts may meet after it."""
        self._begin()
        self._steps.skipped()
        self._end()
        self._is_skipped = True

    def _begin(self) -> None:
        self.between_steps()  # of a rank that had no batch, and so no forward
        self.weigh()
        self._ask()

    def _ask(self) -> None:
        """Tell the others in this step whether this rank wants a checkpoint."""
        if self._saver is not None:
            self._saver.begin()
            self._steps.wishes_save = self._saver.wishes(self.number + 1)

    def _end(self) -> None:
        if self._data is not None:
            samples = self._data.samples_of_step()
            self._data.committed()
            if isinstance(self._steps, SyncStep):
                self._divide(self._data, self._steps)
            self._tell(self._data, samples)
        self._hear()

    def _hear(self) -> None:
        """Tell the saver whether one of all ranks wanted a checkpoint."""
        if self._saver is not None and self._is_common and self._steps.number:
            self._saver.stepped(self.number, self._steps.save_wished)

    def ran_out(self) -> None:
        """The loop has got all of its epoch: hosts meet, if they have not after its last step."""
        if isinstance(self._steps, OuterStep):
            self._ask()
            if self._steps.ran_out():
                self._hear()

    def _divide(self, data: Batches, steps: SyncStep) -> None:
        """Divide the next batch, as all ranks have heard and decided alike."""
        size, why = data.batch_size, ""
        if data.adaptive is not None and steps.noise is not None:
            size, why = data.adaptive.follow(size, steps.noise.value)
        if why:
            factor = data.adaptive.lr_factor(data.batch_size, size)  # type: ignore[union-attr]
            scale_rates(self._optimizer, self._scheduler, factor)
            self._say(why)
        data.divide(steps.shares, size)

    @property
    def _is_common(self) -> bool:
        """Whether all hosts have the same weights."""
        return not isinstance(self._steps, OuterStep) or self._steps.is_round_over

    def wants_batch(self) -> None:
        """The loop asks for the next batch. One before it may have been given up after clipping, as
        one does for a norm that is not finite: then its samples count for no step."""
        if self._data is not None and self._steps.discard_clipped():
            self._data.give_up()
        self.between_steps()

    def between_steps(self) -> None:
        """All that belongs to the last step has been done: save, if it is time."""
        self._is_skipped = False
        if self._saver is not None:
            self._saver.save_pending(self.number)

    def end_loop(self) -> None:
        """The loop over the data has got all of its epoch."""
        if self._saver is not None:
            self._saver.end_loop(self.number)

    def state_dict(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The optimizer's state."""
        return self._steps.state_dict(make)

    def check_load(self) -> None:
        """The optimizer may be loaded at any time."""

    def loaded_optimizer(self) -> None:
        """This rank has loaded the optimizer."""
        self._steps.loaded_optimizer()

    def _tell(self, data: Batches, samples: int) -> None:
        page = stats_page()
        if not page.is_scripts:
            page.admit(("epoch",))
            total = data.total_steps(self.number)
            page.say(self.number, total, None, samples, {"epoch": data.epochs_done})
