"""Asynchronous updates: each rank applies its own gradient to the shared weights, without waiting.

As Hogwild, with a bound on staleness.

    rank 0   step 7 │ step 8 │ step 9 │ …        all write to the same weights and the same state
    rank 1   step 7     │ step 8     │ …         as they come; what two write at once, one may lose

Gradients are not averaged: N ranks make N small steps where synchronous ones make one large step.
No two runs give the same bits.

staleness   no rank is more than k steps ahead of the slowest of its host: a gradient is at most so
            old. A rank that has left its loop bounds none: it is gone, or waits in a collective
state       the optimizer's is shared too. With one of its own for each rank AdamW reached 1.86 to
            2.15 where shared state reached 1.75 to 1.99 and synchronous steps 1.75 to 1.91
            (docs/training.md has the table)
state_dict  pauses the host: no rank writes while it is copied
death       a rank that is killed is named by all others at their next step; what it was writing
            is half written, and is not given out

The first step is taken one after the other: the first rank's optimizer makes the state, which then
is shared, and the others go on with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from wiiiiided import log
from wiiiiided.backend.engine.operation import Operation, Until
from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.errors import PeerLate, PeerLost, UsageError
from wiiiiided.train.layout import ParameterPart, Row
from wiiiiided.train.memory import host_barrier
from wiiiiided.train.optimizer_state import Piece, SharedState
from wiiiiided.train.shared_model import SharedParameters

_FIRST: Final = CallSignature.of("the first optimizer.step() of wide.parallel")
_LOOK_NS: Final = 50_000_000  # how often sockets are looked at: for ranks that died or left
_NAP_NS: Final = 100_000_000


class AsyncStep:
    """The steps of one `Parallel` whose ranks do not wait for each other."""

    def __init__(self, shared: SharedParameters, staleness: int) -> None:
        """Take over parameters in shared memory. A collective call, if the optimizer has state."""
        self._shared, self._staleness = shared, staleness
        self._memory, self._group = shared.memory, shared.group
        self._place, self._board = self._memory.place, shared.group.team.board
        self._others = [place for place in range(self._memory.places) if place != self._place]
        mine = [] if self._place else enumerate(shared.parameters)
        pieces = [Piece(ParameterPart(i, 0, p.numel()), p, True) for i, p in mine]
        self._state = SharedState(
            shared.group, shared.process_group, shared.optimizer, shared.parameters, pieces, False
        )
        self._has_begun = False
        self._states = 0  # parameters with state at the last look
        self._look_at = 0
        self.number = 0

    @property
    def state(self) -> SharedState:
        """The optimizer's state."""
        return self._state

    # -- calls of the divided optimizer ----

    def step(self, inner: Callable[[], Any]) -> None:
        """Apply this rank's gradients."""
        self._shared.check_groups()
        self._shared.weights.check_own()
        if not self._has_begun:
            self._begin(inner)
        else:
            self._wait_for_the_slowest()
            self._write(inner)
        self._shared.weights.remember()
        self._check_state()
        now = time.monotonic_ns()
        if now >= self._look_at:
            self._look_at = now + _LOOK_NS
            self._look()

    def _check_state(self) -> None:
        """State that comes into being after the first step would be each rank's own."""
        states = self._shared.optimizer.state
        if len(states) == self._states:
            return
        late = [
            name
            for name, p in zip(self._shared.names, self._shared.parameters, strict=True)
            if states.get(p) and not self._state.has(p)
        ]
        self._states = len(states)
        if late:
            raise UsageError(
                f'{late[0]} had no gradient in rank 0\'s first step: with updates="async" ranks '
                "share the optimizer's state that is there after it. Freeze it "
                '(requires_grad_(False)), see that it gets a gradient, or use updates="sync"'
            )

    def _begin(self, inner: Callable[[], Any]) -> None:
        """Make the state, in the first step."""
        host_barrier(self._group, _FIRST)
        if self._place == 0:
            self._write(inner)
        host_barrier(self._group, _FIRST)
        if not self._state.is_shared:
            self._state.share()
        self._has_begun = True
        if self._place:
            self._write(inner)

    def _write(self, inner: Callable[[], Any]) -> None:
        """Make the optimizer's own step, unless a rank copies the weights just now."""
        memory, place, number = self._memory, self._place, self.number + 1
        while True:
            memory.began[place] = number
            memory.fence()
            if not memory.pauses.any():
                break
            memory.began[place] = self.number
            self._wait(lambda: not memory.pauses.any(), self._pausing, "a copy of the weights")
        try:
            inner()
        except BaseException:
            memory.leave(number)
            raise
        memory.completed[place] = number
        self.number = number
        memory.fence()
        if memory.waits.any():
            memory.progress.nudge()

    def state_dict(self, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The optimizer's state, copied while no rank writes."""
        with self.paused():
            self._state.refresh()
            copied: dict[str, Any] = _copied(make())
            return copied

    def check_load(self) -> None:
        """Refuse to load the optimizer: other ranks are using the state it would replace."""
        raise UsageError(
            'with updates="async" load the optimizer before wide.parallel(): from then on the '
            "ranks share its state"
        )

    def loaded_optimizer(self) -> None:
        """Never called: `check_load` refuses."""

    # -- calls of `Parallel` ----

    def count_samples(self, count: float) -> None:
        """Refuse: there is nothing to weight."""
        raise UsageError(
            'run.samples() weights gradients in their average; with updates="async" there is none'
        )

    def clip(self, max_norm: float, kind: float, error_if_nonfinite: bool) -> torch.Tensor:
        """Clip this rank's own gradient."""
        return torch.nn.utils.clip_grad_norm_(
            self._shared.parameters, max_norm, kind, error_if_nonfinite
        )

    def loaded_model(self) -> None:
        """This rank has loaded the model, where all ranks of its host see it."""
        self._shared.weights.loaded()

    def before_forward(self) -> None:
        """Do nothing: each rank keeps its own buffers."""

    def copy_weights(self) -> list[torch.Tensor] | None:
        """The weights at a moment at which no rank writes; raises if a step was interrupted."""
        with self.paused():
            return self._shared.weights.copied()

    # -- waiting ----

    def _wait_for_the_slowest(self) -> None:
        memory, least = self._memory, self.number - self._staleness

        def is_near() -> bool:
            return not self._behind(least)

        if int(memory.completed.min()) < least and not is_near():
            self._wait(is_near, lambda: self._ranks(self._behind(least)), "the slowest rank")

    def _behind(self, least: int) -> list[int]:
        """The ranks that have made fewer steps, and will make more."""
        completed, gone = self._memory.completed, self._group.gone
        return [
            place
            for place in self._others
            if completed[place] < least
            and self._group.team.ranks[place] not in gone
            and not self._board.is_ahead(place)
        ]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep all ranks of the host from writing; raises if one was interrupted while it did."""
        memory = self._memory
        memory.pauses[self._place] = 1
        try:
            memory.fence()
            # Also after a death: what the others have trained may be whole, and worth saving.
            self._wait(lambda: not self._writing(), self._writers, "a written step", raises=False)
            self._check_whole()
            yield
        finally:
            memory.pauses[self._place] = 0
            memory.progress.nudge()

    def _writing(self) -> list[int]:
        """The ranks that are writing, and may still end it."""
        memory = self._memory
        return [
            place
            for place in self._others
            if memory.began[place] != memory.completed[place] and not self._interrupted(place)
        ]

    def _interrupted(self, place: int) -> bool:
        """A rank has said that it will not end its step, or is gone in the middle of it.

        Its link says so too: a group that has failed takes no further note of ranks that go.
        """
        memory, group = self._memory, self._group
        began, rank = memory.began[place], group.team.ranks[place]
        if began == memory.completed[place]:
            return False
        if memory.left[place] == began:
            return True
        return place != self._place and (rank in group.gone or bool(group.links[rank].gone))

    def _check_whole(self) -> None:
        """Raise if a step was interrupted. A mark is not enough: at a pause it is taken back."""
        for place, rank in enumerate(self._group.team.ranks):
            if self._interrupted(place):
                raise UsageError(
                    f"step {int(self._memory.began[place])} of rank {rank} was interrupted while "
                    "it was written: the weights are not given out. Go on from the last checkpoint"
                )

    def _writers(self) -> list[int]:
        return self._ranks(self._writing())

    def _pausing(self) -> list[int]:
        return self._ranks([p for p in self._others if self._memory.pauses[p]])

    def _ranks(self, places: list[int]) -> list[int]:
        return [self._group.team.ranks[place] for place in places]

    def _wait(
        self,
        ready: Callable[[], bool],
        missing: Callable[[], list[int]],
        what: str,
        raises: bool = True,
    ) -> None:
        """Sleep until it is so. A rank that is missing for long is named, in a warning and then
        in an error; one that has died, at once."""
        memory, config = self._memory, self._group.driver.config
        begun_ns = time.monotonic_ns()
        op = Operation(self._group, "optimizer.step()", 0)
        op.wait = Until(ready, missing, what)
        op.start_clock(config.stall_warning_s)
        memory.waits[self._place] = 1
        try:
            while True:
                before = memory.progress.value
                memory.fence()
                if ready():
                    return
                if memory.progress.usable:
                    memory.progress.wait(before, _NAP_NS)
                else:
                    time.sleep(0.001)
                self._look(raises)
                self._complain(op)
        finally:
            memory.waits[self._place] = 0
            words, spent_ns = self._group.driver.page.words, time.monotonic_ns() - begun_ns
            words[stats.EXCHANGE_NS] += spent_ns
            words[stats.WAITING_NS] += spent_ns

    def _complain(self, op: Operation) -> None:
        now = time.monotonic_ns()
        if now >= op.deadline_ns:
            names = ", ".join(f"rank {rank}" for rank in op.missing())
            raise PeerLate(f"{names} did not come before the timeout of {op.timeout_s:g} s ({op})")
        if now >= op.warn_ns and op.missing():
            op.warn_ns = now + 60_000_000_000
            log.warn(self._group.who, self._group.stall_text(op, now))

    def _look(self, raises: bool = True) -> None:
        """Hear of ranks that have died or left."""
        self._group.loop.look()
        if not raises:
            return
        dead = [rank for rank, how in self._group.gone.items() if how != "left"]
        if dead or self._group.problem() is not None:
            op = Operation(self._group, "optimizer.step()", 0)
            if self._group.problem() is None:
                self._group.loop.call(lambda: self._group.lose(op, dead[0]))
            raise self._group.error_for(op, self._group.problem() or PeerLost("a rank died"))


def no_rows(places: int) -> list[Row]:
    """Gradients stay where they are: no rank needs another's."""
    return [Row((), 0, 0)] * places


def _copied(saved: Any) -> Any:
    """A state dictionary with memory of its own."""
    if isinstance(saved, torch.Tensor):
        return saved.clone()
    if isinstance(saved, dict):
        return {key: _copied(value) for key, value in saved.items()}
    if isinstance(saved, list | tuple):
        return type(saved)(_copied(value) for value in saved)
    return saved
