"""A rank of `wiiiiide plan`'s trial watches its own steps, and says what they took on stderr.

    WIIIIIDE_PROBE=1   import torch ──► watch(): two hooks of torch's, on all optimizers and modules
    a forward          of the outermost module that learns: its batch, by its first dimension
    a step             of the first optimizer: the time since the one before
    after 5 s of them  a line (domain/plan), and again every second: the reader sees the last lines
    wide.Batches       then hand out half of each batch (train/script_notes), and after 3 s of such
                       steps lines have them too: what a machine would need that gets only a part

The first steps are not counted, nor those that took five times the median: an evaluation between
two steps is none. Samples are those the script reports with wide.progress, else of the batches. The
script itself is not touched; `plan` ends it.
"""

from __future__ import annotations

import atexit
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
from msgspec.structs import replace
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from wiiiiided.backend.engine.process import stats_page
from wiiiiided.backend.shm import stats
from wiiiiided.domain.plan import RankLine, Way, spell
from wiiiiided.train.checks import MARK
from wiiiiided.train.round_length import shape_of
from wiiiiided.train.script_notes import notes

WARM_S: Final = 1.0  # of steps that are not counted, or three of them
MEASURED_S: Final = 5.0  # of steps, at least three
HALVES_S: Final = 3.0  # of steps with half of each batch, at least three
LONGEST_S: Final = 20.0  # then fewer have to do
AGAIN_S: Final = 1.0
_OUTLIER: Final = 5.0  # medians


class MeasuredSteps:
    """Times of steps, and their samples, from when they began; those that warm up do not count."""

    def __init__(self, begun: float, wanted_s: float) -> None:
        self._begun, self._wanted_s = begun, wanted_s
        self._made = 0
        self._times: list[float] = []
        self._batches: list[float] = []
        self._reported_before = self._reported = 0  # samples, by the script

    def __len__(self) -> int:
        return len(self._times)

    def add(self, now: float, taken_s: float, batch: float) -> None:
        """Add a step that was made."""
        self._made += 1
        self._reported = reported_samples()
        if not self._times and self._is_cold(now):
            self._reported_before = self._reported
            return
        self._times.append(taken_s)
        self._batches.append(batch)

    def _is_cold(self, now: float) -> bool:
        """The steps of the first second, and never fewer than one or more than it takes."""
        return self._made == 1 or (self._made <= 3 and now - self._begun < WARM_S)

    @property
    def is_enough(self) -> bool:
        measured_s = sum(self._times)
        return measured_s >= LONGEST_S or (measured_s >= self._wanted_s and len(self) >= 3)

    @property
    def step_s(self) -> float:
        return usual(self._times)

    @property
    def samples(self) -> float:
        """The samples of a step."""
        reported = self._reported - self._reported_before
        if reported > 0:
            return reported / len(self)
        return statistics.fmean(self._batches) or 1.0


class StepProbe:
    """Watches the steps of this process; `say` gets a line now and then."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._optimizer: int | None = None  # the first that made a step, by its id
        self._model: torch.nn.Module | None = None
        self._batch = 0.0  # samples of forwards since the last step
        self._last = clock()
        self._steps: MeasuredSteps | None = None
        self._halves: MeasuredSteps | None = None  # with half of each batch
        self._said_at = float("-inf")
        self._find: Callable[[MeasuredSteps], RankLine]

    def forward(self, module: torch.nn.Module, args: Any, kwargs: Any = None) -> None:
        """A module is called; the first that learns is the one whose batches count."""
        if not (module.training and torch.is_grad_enabled()):
            return
        if self._model is None:
            if not any(p.requires_grad for p in module.parameters()):
                return  # a transform of the data set, say
            self._model = module
            module.register_forward_pre_hook(self.forward, with_kwargs=True)
            self._forwards.remove()
        self._batch += batch_of((*args, *(kwargs or {}).values()))

    def watch(self) -> None:
        """Count forwards and optimizer steps from now on."""
        self._forwards = register_module_forward_pre_hook(self.forward)
        register_optimizer_step_post_hook(self.stepped)

    def stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer has made a step."""
        if self._optimizer is None:
            self._optimizer = id(optimizer)
            self._find = partial(self._line, optimizer)
        if id(optimizer) != self._optimizer:
            return
        now = self._clock()
        taken_s, self._last, batch, self._batch = now - self._last, now, self._batch, 0.0
        if self._steps is None:
            self._steps = MeasuredSteps(now, MEASURED_S)
        counted = self._steps if self._halves is None else self._halves
        counted.add(now, taken_s, batch)
        if self._steps.is_enough and now - self._said_at >= AGAIN_S:
            self._said_at = now
            if self._halves is None and self._steps.samples > 1 and notes.batches:
                self._halves = MeasuredSteps(now, HALVES_S)
                for batches in tuple(notes.batches):
                    batches.halve()
            is_open = self._halves is not None and not self._halves.is_enough
            self._say(spell(replace(self._find(self._steps), more=is_open)))

    def end(self) -> None:
        """The script has ended: report the steps measured so far."""
        if self._steps is not None and len(self._steps) >= 3:
            self._say(spell(self._find(self._steps)))

    def _line(self, optimizer: torch.optim.Optimizer, steps: MeasuredSteps) -> RankLine:
        parameters = [p for held in optimizer.param_groups for p in held["params"]]
        way = self._way(optimizer)
        model, ours = self._model, way == "parallel"
        shares = ours and (notes.has_data or notes.asks_shares)
        halves = self._halves
        part = halves if halves is not None and halves.is_enough else None
        return RankLine(
            steps=len(steps),
            step_s=steps.step_s,
            samples=steps.samples,
            gradient_bytes=4 * sum(p.numel() for p in parameters if p.requires_grad),
            memory=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            way=way,
            coded=ours or (way == "ddp" and notes.compresses),
            fixed=notes.fixed if way != "other" else "",
            gradients=notes.gradients if way != "other" else None,
            every=notes.every if ours else None,
            shares=shares,
            shape=shape_of(model.named_parameters()) if model is not None else "",
            data=ours and notes.has_data,
            global_batch=shares or notes.has_batches,
            part_s=0.0 if part is None else part.step_s,
            part_samples=0.0 if part is None else part.samples,
        )

    def _way(self, optimizer: torch.optim.Optimizer) -> Way:
        if MARK in optimizer.__dict__:
            return "parallel"
        modules = () if self._model is None else self._model.modules()
        return "ddp" if any(isinstance(m, DistributedDataParallel) for m in modules) else "other"


def usual(times: list[float]) -> float:
    """The mean step time without outliers."""
    most = _OUTLIER * statistics.median(times)
    return statistics.fmean(taken for taken in times if taken <= most)


def batch_of(values: Iterable[Any]) -> float:
    """The first dimension of the first tensor, in containers too; 0: there is none."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.dim():
            return float(value.shape[0])
        if isinstance(value, dict | list | tuple):
            inside = batch_of(value.values() if isinstance(value, dict) else value)
            if inside:
                return inside
    return 0.0


def reported_samples() -> int:
    """Samples reported so far, by the script or by wide.parallel."""
    words = stats_page().words
    return int(words[stats.SAMPLES]) if words[stats.GIVEN] & stats.GAVE_SAMPLES else 0


def watch() -> None:
    """Measure the steps of this process from now on."""

    def say(line: str) -> None:
        os.write(2, f"{line}\n".encode())  # whole, whatever the script does with sys.stderr

    probe = StepProbe(say, time.monotonic)
    probe.watch()
    atexit.register(probe.end)
