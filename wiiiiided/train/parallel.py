"""`wide.parallel`: the ranks of a host train one copy of the weights, and hosts exchange gradients.

    updates="sync"    a backward lays each rank's gradients where the others can read them; in a
                      step all meet, average and update (`sync_step`)
    updates="async"   each rank applies its own gradients, without waiting (`async_step`)

No bucket, no staging, no gathering: a weight that is written once is there for all. The optimizer's
work and state are divided by the number of ranks.

Rules of this layer: nothing that a user can see may be silently wrong. Where a program does what
cannot work here (reads a gradient that is not averaged, changes a weight on every rank, lets ranks'
learning rates drift apart) it gets a sentence that names what to call instead.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from wiiiiided import log
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.errors import UsageError
from wiiiiided.train import training_metrics
from wiiiiided.train.async_step import AsyncStep, no_rows
from wiiiiided.train.between import Between
from wiiiiided.train.checkpoints.file import model_digest, optimizer_names
from wiiiiided.train.checkpoints.owner import FileOwner
from wiiiiided.train.checkpoints.resuming import Resumer
from wiiiiided.train.checkpoints.safetensors import export, head_of
from wiiiiided.train.checkpoints.saving import Saver
from wiiiiided.train.checks import MARK, agree, check_floats, check_states, refuse
from wiiiiided.train.gradient_store import GradientStore
from wiiiiided.train.loop_step import LoopStep
from wiiiiided.train.memory import host_barrier
from wiiiiided.train.optimizer import divide
from wiiiiided.train.outer_step import OuterStep, broadcast_model
from wiiiiided.train.residuals import HostNumber, Residuals, read_state
from wiiiiided.train.rng import rng_state, set_rng_state
from wiiiiided.train.script_notes import notes
from wiiiiided.train.shared_model import SharedModel, SharedParameters, named_parameters
from wiiiiided.train.small_collectives import all_gather_text
from wiiiiided.train.sync_step import SyncStep
from wiiiiided.train.training_loop import TrainingLoop
from wiiiiided.train.updates import Updates

_MODIFY: Final = CallSignature.of("run.modify() of wide.parallel")
_MODIFIED: Final = CallSignature.of("the end of run.modify() of wide.parallel")
_START: Final = CallSignature.of("wide.parallel()")
_RESUMED: Final = CallSignature.of("run.resume() of wide.parallel")


class Parallel:
    """A model and its optimizer, trained by all ranks of a group. Made by `wide.parallel`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        process_group: dist.ProcessGroup,
        group: Group,
        updates: Updates,
        between: Between,
        loop: TrainingLoop,
    ) -> None:
        refuse(model, optimizer, updates, group)
        training_metrics.begin()
        if not updates.sync:
            loop.refuse_async()
        agree(process_group, named_parameters(model), optimizer, updates, between, loop)
        if not between.is_plain and group.wide is None and process_group.rank() == 0:
            log.warn(group.who, f"{between} does nothing: all ranks are on one host")
        states = all_gather_text(process_group, "1" if optimizer.state else "0")
        self._model, self._group = model, group
        notes.has_data |= loop.data is not None
        self._loop, self._rank = loop, process_group.rank()
        self._loop_step: LoopStep | None = None
        self._saver: Saver | None = None
        self._optimizer = optimizer
        self._gradients: GradientStore | None = None
        self._shared: SharedParameters
        self._steps: SyncStep | AsyncStep | OuterStep
        if updates.sync:
            if group.wide is not None:
                loop.refuse_between(between)
            if between.is_seldom and group.wide is not None:
                check_floats(named_parameters(model))
                check_states(states, group)
                broadcast_model(model, process_group)
                self._steps = OuterStep(
                    model,
                    optimizer,
                    process_group,
                    group,
                    between=between,
                    loop=loop,
                    on_skipped_step=self._on_skipped_step,
                )
                shared = self._steps.shared
            else:
                shared = SharedModel(
                    model,
                    optimizer,
                    process_group,
                    group,
                    between=between,
                    on_skipped_step=self._on_skipped_step,
                )
                self._steps = SyncStep(shared, model)
            self._group = shared.group
            self._shared, self._gradients, state = shared, shared.gradients, shared.state
            if not loop.is_empty:
                if loop.save is not None:
                    digest, job = model_digest(model, optimizer), group.driver.config.job
                    owner = FileOwner.of(digest, loop.save.path, job)
                    self._saver = Saver(loop.save, owner, process_group, group, self._collect)
                    self._resumer = Resumer(self._saver.folder, owner, process_group, group)
                self._loop_step = LoopStep(
                    self._steps,
                    loop,
                    self._saver,
                    optimizer,
                    functools.partial(_say, process_group, group),
                )
        else:
            self._shared = SharedParameters(model, optimizer, process_group, group)
            self._shared.lay_down(no_rows(group.team.size))
            self._steps = AsyncStep(self._shared, updates.staleness)
            state = self._steps.state
        self._memory = self._shared.memory
        self._hook(model)
        divide(optimizer, self._loop_step or self._steps)
        if "1" in states:
            state.take(0)
        self._shared.weights.remember()
        host_barrier(group, _START)

    # -- calls of users ----

    def samples(self, count: float) -> None:
        """This rank's batch had so many samples: the next step weights its gradient by them.

        All ranks say it, or none; without it all count alike.
        """
        if not (isinstance(count, int | float) and math.isfinite(count) and count >= 0):
            raise UsageError(f"samples({count!r}): a number of samples is 0 or more")
        self._steps.count_samples(float(count))

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing, for scripts that call it: gradients are exchanged in `step` alone."""
        return contextlib.nullcontext()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip the averaged gradient and return its norm, as torch.nn.utils.clip_grad_norm_ does.

        All ranks call it, after the last backward and before the step.
        """
        if self._loop_step is not None:
            self._loop_step.weigh()
        return self._steps.clip(float(max_norm), float(norm_type), error_if_nonfinite)

    @contextlib.contextmanager
    def modify(self) -> Iterator[None]:
        """Change weights outside the optimizer: every rank runs the block, one a host writes.

        The others work on copies, which are thrown away. On several hosts rank 0's host wins.
        """
        if isinstance(self._steps, OuterStep):
            raise UsageError(
                "run.modify() is not there with between.every: hosts have weights of their own "
                "between two exchanges. Change them before wide.parallel()"
            )
        weights, number = self._shared.weights, self._steps.number
        host_barrier(self._group, _MODIFY)
        writer = self._memory.place == 0
        if not writer:
            weights.point_at_copies()
        self._memory.begin(number + 1)
        host_barrier(self._group, _MODIFY)  # all copies are made before the first write
        try:
            yield
        finally:
            if not writer:
                weights.point()
        if writer:
            weights.check_memory()
        host_barrier(self._group, _MODIFIED)
        self._memory.begin(number)
        self._shared.broadcast_weights(0)
        weights.remember()

    @property
    def noise_scale(self) -> float | None:
        """The batch that the gradients want, in samples: below it a larger one is worth it.

        Measured now and then from the norms of ranks' gradients and of their average; in samples if
        ranks say how many they have (`samples`), else in batches of one rank. None: not known yet,
        of one rank, of parameters that are not all float32, or with gradients="topk:…". With
        `every` it is that of this host, whose ranks exchange in every step: with one rank a host
        there is one gradient and nothing to compare it with, so it stays None.
        """
        found = None if isinstance(self._steps, AsyncStep) else self._steps.noise
        return None if found is None else found.value

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of a global batch each rank should take, by its measured speed; their sum is 1.

        The same on all ranks. Even until ranks have said for a minute how many samples they had
        (`samples`, or data=); they change seldom, after a step, and rank 0 says why.
        """
        notes.asks_shares = True
        if not isinstance(self._steps, AsyncStep):
            return self._steps.shares
        ranks = self._shared.process_group.size()
        return (1 / ranks,) * ranks

    @property
    def share(self) -> float:
        """The part of a global batch this rank should take (`shares`)."""
        return self.shares[self._rank]

    @property
    def _residuals(self) -> Residuals | None:
        return None if self._gradients is None else self._gradients.residuals

    def state_dict(self) -> dict[str, Any]:
        """This host's state besides model and optimizer: the residuals of lossy gradients, and
        with `every` the weights on which all hosts agreed last and the outer optimizer's state.

        Where `wide.parallel` was given data or a scheduler also their states, the number of the
        last step, and this rank's random generators. Any rank gives out all of its host, but for
        the other ranks' generators; each host saves its own. Raises if a step was interrupted.
        """
        saved = self._host_state()
        if self._loop_step is not None:
            saved |= {"step": self._loop_step.number, **self._loop.state()}
            saved |= self._loop_step.noise_state()
            saved["rng"] = {self._rank: rng_state()}
        return saved

    def _host_state(self) -> dict[str, Any]:
        if isinstance(self._steps, OuterStep):
            return self._steps.outer_state()
        if self._residuals is None:
            return HostNumber.of(self._group).state({})
        self._memory.whole()
        return self._residuals.state_dict()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, on all ranks, before a step and after the model.

        Residuals that another host saved, or of another number of hosts, count as nothing: they
        begin at zero. With `every` a round begins anew if a host has another's state. Random
        generators go on as those of the rank with this number did, if the state has them.
        """
        self._loop.check(saved)
        self._load_host_state(saved)
        if self._loop_step is not None:
            self._loop.load(saved)
            self._loop_step.load_noise(saved)
            self._loop_step.go_on_after(saved.get("step", 0))
            if (mine := saved.get("rng", {}).get(self._rank)) is not None:
                set_rng_state(mine)

    def _load_host_state(self, saved: Mapping[str, Any]) -> None:
        if isinstance(self._steps, OuterStep):
            self._steps.load_outer_state(saved)
            return
        read_state(saved)
        if self._residuals is not None:
            self._residuals.load_state_dict(saved)

    def agree(self) -> None:
        """End the round now, on all ranks, after a step. For runs with `every`.

        All hosts exchange what they have, and have the same weights afterwards. Without `every`
        they have them after every step.
        """
        if isinstance(self._steps, OuterStep):
            if self._steps.saves_at_exchange:
                raise UsageError(
                    "run.agree(): hosts are at different steps of a round; call it when the loop "
                    "over the data has ended, which is at the end of one on all hosts"
                )
            self._steps.end_round()

    # -- checkpoints ----

    def save(self) -> None:
        """Save now, on all ranks, after a step; returns when all hosts have written it.

        With `every` this ends the round: hosts exchange what they have. Where they make different
        numbers of steps, a call in the loop over the data returns at once, and the save comes with
        the round's end; a loop that is left before that has none. A file that cannot be written
        is a warning.
        """
        saver, loop_step = self._savers("save")
        if isinstance(self._steps, OuterStep) and self._steps.saves_at_exchange:
            saver.ask(loop_step.number)
            return
        self.agree()
        saver.save(loop_step.number, True)

    def resume(self, dcp: str | os.PathLike[str] | None = None) -> int:
        """Go on from the newest step that any host has saved, on all ranks, before the first step.

        Returns its number; 0: nothing was there. The number of ranks and hosts may be another.
        Where nothing was there, training begins with the model and the optimizer of `dcp`, a
        folder that torch.distributed.checkpoint has written.
        """
        saver, loop_step = self._savers("resume")
        found = self._resumer.find()
        if found is not None:
            self._load(found)
            loop_step.go_on_after(found["step"])
        elif dcp is not None:
            self._load(self._resumer.take(Path(dcp).absolute(), self._read_dcp))
        saver.begin_after(loop_step.number)
        return loop_step.number

    def export(self, path: str | os.PathLike[str]) -> None:
        """The model's tensors as a .safetensors file, on one rank alone; none in a trial of
        `wiiiiide plan`."""
        state, path = self._model.state_dict(), Path(path)
        if self._group.driver.config.probe:
            head_of(state)
        else:
            export(state, path)

    def _savers(self, name: str) -> tuple[Saver, LoopStep]:
        if self._saver is None or self._loop_step is None:
            raise UsageError(f'run.{name}() needs a folder: wide.parallel(…, save="ckpt/")')
        return self._saver, self._loop_step

    def _collect(self) -> dict[str, Any]:
        """The state that a host saves, but for its ranks' random generators."""
        assert self._loop_step is not None
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "optimizer_names": optimizer_names(self._model, self._optimizer),
            "run": {
                **self._host_state(),
                **self._loop.state(),
                **self._loop_step.noise_state(),
            },
        }

    def _read_dcp(self, path: Path) -> dict[str, Any]:
        from wiiiiided.train.checkpoints.dcp import read_dcp  # DCP takes a second to import

        found = read_dcp(path, self._model, self._optimizer)
        return {**found, "run": HostNumber.of(self._group).state({}), "rng": {}}

    def _load(self, saved: Mapping[str, Any]) -> None:
        """Load a state that all ranks have before them. One rank of a host writes the weights."""
        assert self._loop_step is not None
        self._loop.check(saved["run"])
        model, writes = saved["model"], self._memory.place == 0
        if not writes:  # buffers are each rank's own
            shared = dict(self._model.named_parameters(remove_duplicate=False))
            model = {name: value for name, value in model.items() if name not in shared}
        self._model.load_state_dict(model, strict=writes)
        if self._shared.process_group.rank() == 0:
            self._optimizer.load_state_dict(saved["optimizer"])
        assert not isinstance(self._steps, AsyncStep)
        self._steps.take_loaded()
        if isinstance(self._steps, OuterStep) and "outer" not in saved["run"]:
            self._steps.begin_round()  # it was saved where there was one host
        else:
            self._load_host_state(saved["run"])
        self._loop.load(saved["run"])
        self._loop_step.load_noise(saved["run"])
        host_barrier(self._group, _RESUMED)
        self._shared.weights.remember()
        if (mine := saved["rng"].get(self._rank)) is not None:
            set_rng_state(mine)

    # -- hooks ----

    def _hook(self, model: torch.nn.Module) -> None:
        handle = _Handle(self)
        self._copy: _CopiedWeights | None = None
        setattr(model, MARK, handle)
        model.register_forward_pre_hook(handle.before_forward)
        for module in model.modules():
            module.register_state_dict_pre_hook(handle.before_state_dict)  # type: ignore[no-untyped-call]
            # torch puts a mark on the hook, which a method cannot carry.
            module.register_state_dict_post_hook(functools.partial(handle.after_state_dict))  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(handle.before_load)  # type: ignore[no-untyped-call]
            module.register_load_state_dict_post_hook(handle.after_load)  # type: ignore[no-untyped-call]
        self._unhooked = dict(enumerate(self._shared.parameters))
        self._hook_gradients()

    def _hook_gradients(self) -> None:
        """Take gradients as they come; a frozen parameter is looked at again at each forward."""
        if self._gradients is None:  # each rank uses its own: they may stay where they are
            self._unhooked.clear()
        for i, parameter in list(self._unhooked.items()):
            if parameter.requires_grad and parameter.is_leaf:
                del self._unhooked[i]
                parameter.register_post_accumulate_grad_hook(self._gradients.gradient_hook(i))  # type: ignore[no-untyped-call,union-attr]

    def before_forward(self) -> None:
        """A training forward begins."""
        if self._unhooked:
            self._hook_gradients()
        if self._model.training and torch.is_grad_enabled():
            if self._loop_step is not None:
                self._loop_step.between_steps()
            self._steps.before_forward()

    def before_state_dict(self, prefix: str) -> None:
        """A program saves the model: raise if a step was interrupted.

        Where ranks may be writing at any moment, what it gets is a copy (`after_state_dict`). An
        outermost call has no prefix, or no copy is there yet.
        """
        if not prefix or self._copy is None:
            copied = self._steps.copy_weights()
            if copied is not None:
                ids = map(id, self._shared.parameters)
                self._copy = _CopiedWeights(prefix, dict(zip(ids, copied, strict=True)))

    def after_state_dict(self, module: torch.nn.Module, saved: dict[str, Any], prefix: str) -> None:
        """Put the copies of a module's own parameters in place of what others may be writing."""
        if self._copy is None:
            return
        for name, parameter in module._parameters.items():
            if prefix + name in saved and id(parameter) in self._copy.weights:
                saved[prefix + name] = self._copy.weights[id(parameter)]
        if prefix == self._copy.prefix:
            self._copy = None

    def _on_skipped_step(self) -> None:
        """GradScaler skips a step."""
        assert not isinstance(self._steps, AsyncStep)
        (self._loop_step or self._steps).skipped()

    def loading_model(self) -> None:
        """This rank begins to load the model, or a part of it."""
        self._shared.weights.loading()

    def loaded_model(self) -> None:
        """This rank has loaded the model, where all ranks of its host see it."""
        self._steps.loaded_model()


def _say(process_group: dist.ProcessGroup, group: Group, text: str) -> None:
    """Write a line into the log, by one rank."""
    if process_group.rank() == 0:
        log.tell(group.who, text)


class _CopiedWeights(NamedTuple):
    """The weights at one moment, for one call of `state_dict`."""

    prefix: str
    weights: dict[int, torch.Tensor]  # by the parameter's id


class _Handle:
    """The mark on the model. A copy of the model (deepcopy, pickle) is an ordinary model.

    It keeps the run: as long as the weights are shared, they are looked after.
    """

    def __init__(self, run: Parallel | None = None) -> None:
        self._run = run

    @property
    def in_use(self) -> bool:
        """Whether this model's weights are shared."""
        return self._run is not None

    def before_forward(self, module: torch.nn.Module, args: Any) -> None:
        if self._run is not None:
            self._run.before_forward()

    def before_state_dict(self, module: torch.nn.Module, prefix: str, keep_vars: bool) -> None:
        if self._run is not None:
            self._run.before_state_dict(prefix)

    def after_state_dict(
        self, module: torch.nn.Module, saved: dict[str, Any], prefix: str, metadata: Any
    ) -> None:
        if self._run is not None:
            self._run.after_state_dict(module, saved, prefix)

    def before_load(self, module: torch.nn.Module, *_: Any) -> None:
        if self._run is not None:
            self._run.loading_model()

    def after_load(self, module: torch.nn.Module, incompatible: Any) -> None:
        if self._run is not None:
            self._run.loaded_model()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Handle:
        return _Handle()

    def __reduce__(self) -> Any:
        return (_Handle, ())
