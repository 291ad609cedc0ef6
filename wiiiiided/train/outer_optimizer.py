"""The optimizer that applies what hosts have learnt to the weights on which they agreed.

It is the user's, or SGD with constants by the length of a round. Its parameters are the fragments
of the anchor; each rank of a host updates its share of one, when that has been exchanged. So a
fragment has a state of its own, an Adam's count of steps too.

    state[fragment k]["momentum_buffer"]    saved joined: │ 0 │ 1 │ 2 │    as of one tensor
    state[fragment k]["step"]               saved by fragment, in `numbers`

A state is loaded into any number of fragments: tensors are cut where these lie; where their number
is another, a fragment's other values are those of the one that began before it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from wiiiiided.errors import UsageError
from wiiiiided.train.between import Outer
from wiiiiided.train.checks import ELEMENTWISE
from wiiiiided.train.fragments import Fragment
from wiiiiided.train.group_settings import GroupSettings
from wiiiiided.train.layout import ParameterPart
from wiiiiided.train.optimizer import shown
from wiiiiided.train.optimizer_state import Piece, SharedState
from wiiiiided.train.round_length import outer_constants
from wiiiiided.train.shared_model import SharedModel
from wiiiiided.train.small_collectives import all_gather_rows


class OuterOptimizer:
    """An optimizer of the anchor, divided over the ranks of a host."""

    def __init__(
        self,
        make: Outer | None,
        fragments: Sequence[Fragment],
        shared: SharedModel,
        process_group: dist.ProcessGroup,
    ) -> None:
        """`process_group`: of all hosts. A collective call."""
        self._fragments, self._follows = fragments, make is None
        wholes: list[torch.Tensor] = [fragment.whole for fragment in fragments]
        self._own = torch.optim.SGD(wholes, lr=1.0) if make is None else make(wholes)
        self._check(process_group)
        pieces = [
            Piece(ParameterPart(f.number, *f.share), f.anchor, f.share.begin == 0)
            for f in fragments
            if f.share.size
        ]
        self._state = SharedState(
            shared.group, shared.process_group, self._own, wholes, pieces, True
        )

    def _check(self, process_group: dist.ProcessGroup) -> None:
        if type(self._own) not in ELEMENTWISE:
            raise UsageError(
                f"outer makes a {type(self._own).__name__}, which does not treat each element by "
                "itself: use SGD, or one of the Adam family"
            )
        if [len(held["params"]) for held in self._own.param_groups] != [len(self._fragments)]:
            raise UsageError(
                "outer makes an optimizer of more than the parameters it is given, which are all "
                "weights in one tensor (one for each fragment): write outer=lambda parameters: "
                "torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)"
            )
        settings = GroupSettings(self._own, process_group)
        told = all_gather_rows(process_group, torch.tensor([settings.digest()])).flatten().tolist()
        if len(set(told)) > 1:
            raise settings.difference()

    @property
    def name(self) -> str:
        """The optimizer's class."""
        return type(self._own).__name__

    def step(self, fragment: Fragment, length: int) -> bool:
        """Apply a fragment's mean delta to its anchor, in rounds of so many steps.

        Returns whether there is state now that the ranks of this host do not share yet.
        """
        if self._follows:
            rate, momentum = outer_constants(length)
            for held in self._own.param_groups:
                held.update(lr=rate, momentum=momentum, nesterov=momentum > 0)
        frozen = [s for s in fragment.stretches if not s.parameter.requires_grad]
        # Nor does the outer optimizer change what is frozen, by a weight decay or a momentum.
        untouched = [s.of(fragment.delta) == 0 for s in frozen]
        if fragment.share.size:
            fragment.anchor.grad = fragment.delta
            with shown(self._own, self._state.working, [[fragment.anchor]]):
                self._own.step()
            fragment.anchor.grad = None
        for stretch, same in zip(frozen, untouched, strict=True):
            mine = stretch.of(fragment.anchor)
            mine.copy_(torch.where(same, stretch.weights.float(), mine))
        return self._state.look()

    def share(self) -> None:
        """Put new state where all ranks of this host see it. A collective call of the host."""
        self._state.share()

    # -- saving and loading ----

    def state_dict(self) -> dict[str, Any]:
        """The state as of one parameter, which is the whole anchor."""
        self._state.refresh()
        saved = copy.deepcopy(self._own.state_dict())
        for held in saved["param_groups"]:
            held["params"] = [0]
        return {**saved, "state": self._joined(saved["state"])}

    def _joined(self, state: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        keys = {k: v for held in state.values() for k, v in held.items() if v is not None}
        joined = {key: self._join(key, value, state) for key, value in keys.items()}
        return {0: joined} if joined else {}

    def _join(self, key: str, value: Any, state: Mapping[int, Mapping[str, Any]]) -> Any:
        if not _is_divided(value):
            return next(held[key] for _, held in sorted(state.items()) if key in held)
        parts = [state.get(f.number, {}).get(key) for f in self._fragments]
        counts = [fragment.span.size for fragment in self._fragments]
        return torch.cat(
            [
                torch.zeros(count, dtype=value.dtype) if part is None else part
                for part, count in zip(parts, counts, strict=True)
            ]
        )

    def numbers(self) -> list[dict[str, Any]]:
        """The state of each fragment that is not divided, and the names of what is."""
        self._state.refresh()
        state = copy.deepcopy(self._own.state_dict())["state"]
        return [
            {
                key: None if _is_divided(value) else value
                for key, value in state.get(f.number, {}).items()
                if value is not None
            }
            for f in self._fragments
        ]

    def load(self, saved: Mapping[str, Any], numbers: Sequence[Mapping[str, Any]]) -> None:
        """Take back what `state_dict` and `numbers` gave; these may be of other fragments."""
        whole = saved["state"].get(0, {})
        count = len(self._fragments)
        state = {}
        for fragment in self._fragments:
            known = numbers[fragment.number * len(numbers) // count] if numbers else whole
            if len(numbers) != count:  # of others: each name is there, if it is anywhere
                known = {key: known.get(key, value) for key, value in whole.items()}
            state[fragment.number] = {
                key: whole[key][slice(*fragment.span)] if _is_divided(whole[key]) else value
                for key, value in known.items()
            }
        groups = [{**held, "params": list(range(count))} for held in saved["param_groups"]]
        self._own.load_state_dict({"state": state, "param_groups": groups})
        self._state.take(0)


def _is_divided(value: Any) -> bool:
    """Whether it has an element for each of a fragment."""
    return isinstance(value, torch.Tensor) and value.dim() > 0
