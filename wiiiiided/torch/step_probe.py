"""A rank of `wiiiiide plan`'s trial watches its own steps, and says what they took on stderr.

    WIIIIIDE_PROBE=1   import torch ──► watch(): two hooks of torch's, on all optimizers and modules
    a forward          of the outermost module that learns: its batch, by its first dimension
    a step             of the first optimizer: the time since the one before
    after 5 s of them  a line (domain/plan), and again every second: the reader sees the last lines

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
LONGEST_S: Final = 20.0  # then fewer have to do
AGAIN_S: Final = 1.0
_OUTLIER: Final = 5.0  # medians


class StepProbe:
    """Watches the steps of this process; `say` gets a line now and then."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._optimizer: int | None = None  # the first that made a step, by its id
        self._model: torch.nn.Module | None = None
        self._batch = 0.0  # samples of forwards since the last step
        self._begun = self._last = clock()
        self._steps = self._warm = 0
        self._times: list[float] = []
        self._samples: list[float] = []
        self._said_samples = 0  # reported by the script before the first counted step
        self._said_at = float("-inf")
        self._find: Callable[[], RankLine]  # what was found so far

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
        """From now on."""
        self._forwards = register_module_forward_pre_hook(self.forward)
        register_optimizer_step_post_hook(self.stepped)

    def stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer has made a step."""
        if self._optimizer is None:
            self._optimizer, self._begun = id(optimizer), self._clock()
        if id(optimizer) != self._optimizer:
            return
        now = self._clock()
        taken_s, self._last, batch, self._batch = now - self._last, now, self._batch, 0.0
        self._steps += 1
        if not self._times and self._is_cold(now):
            self._said_samples = reported_samples()
            return
        self._times.append(taken_s)
        self._samples.append(batch)
        self._find = partial(self._line, optimizer)
        if self._is_enough() and now - self._said_at >= AGAIN_S:
            self._said_at = now
            self._say(spell(self._find()))

    def end(self) -> None:
        """The script has ended: report the steps measured so far."""
        if len(self._times) >= 3:
            self._say(spell(self._find()))

    def _is_cold(self, now: float) -> bool:
        """The steps of the first second, and never fewer than one or more than it takes."""
        return self._steps == 1 or (self._steps <= 3 and now - self._begun < WARM_S)

    def _is_enough(self) -> bool:
        measured_s = sum(self._times)
        return measured_s >= LONGEST_S or (measured_s >= MEASURED_S and len(self._times) >= 3)

    def _line(self, optimizer: torch.optim.Optimizer) -> RankLine:
        parameters = [p for held in optimizer.param_groups for p in held["params"]]
        way = self._way(optimizer)
        fixed = notes.fixed if way != "other" else ""
        model, ours = self._model, way == "parallel"
        shares = ours and (notes.has_data or notes.asks_shares)
        return RankLine(
            steps=len(self._times),
            step_s=usual(self._times),
            samples=self._samples_a_step(),
            gradient_bytes=4 * sum(p.numel() for p in parameters if p.requires_grad),
            memory=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            way=way,
            coded=ours or (way == "ddp" and notes.compresses),
            fixed=fixed,
            shares=shares,
            shape=shape_of(model.named_parameters()) if model is not None else "",
            data=ours and notes.has_data,
            global_batch=shares or notes.has_batches,
        )

    def _samples_a_step(self) -> float:
        reported = reported_samples() - self._said_samples
        if reported > 0:
            return reported / len(self._times)
        return statistics.fmean(self._samples) or 1.0

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
    """Of this process, from now on."""

    def say(line: str) -> None:
        os.write(2, f"{line}\n".encode())  # whole, whatever the script does with sys.stderr

    probe = StepProbe(say, time.monotonic)
    probe.watch()
    atexit.register(probe.end)
