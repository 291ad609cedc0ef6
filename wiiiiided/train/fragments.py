"""A model's weights in fragments: what hosts exchange of each, at once or while ranks compute on.

The latter hides the exchange behind computation, as Streaming DiLoCo does.

    fragments   │      0      │      1      │      2      │   of all elements, over all parameters
    shares      │  r0  │  r1  │  r0  │  r1  │  r0  │  r1  │   rank r of a host has share r of each

    at once     delta := weight · (anchor - weights) ── sum over hosts ── anchor := outer(anchor)
                                                                          weights := anchor
    meanwhile   sent := weights, delta as above ─────── sum over hosts ── anchor := outer(anchor)
                └ this host makes steps ─────────────────────────────┘    weights += anchor - sent

A host's progress while a fragment was under way stays in its weights, and is part of the next
delta. One fragment is under way at a time.

The host's memory   │ delta │ sent │ arrived: a word for each rank │   of the longest fragment

is shared so that any rank of the host can give out what is under way: `arrived` is the number of
the last exchange that has come to its end on a rank, written by the thread that moves it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import torch

from wiiiiided.backend.collectives.pieces import share_bounds
from wiiiiided.backend.collectives.wide.coded_all_reduce import shared_stretches
from wiiiiided.backend.collectives.wide.segment_exchange import (
    HostSegment,
    count_pieces,
    exchange_segments,
)
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import Operation, Plan
from wiiiiided.backend.lossy.interface import GradientCodec
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.errors import PeerLate, PeerLost
from wiiiiided.train.data.places import IndexRange
from wiiiiided.train.memory import MappedMemory, run_plan
from wiiiiided.train.residuals import Residuals

_EXCHANGE: Final = "the exchange of weights in optimizer.step()"
_NAME: Final = "the exchange of weights"
_BLOCK: Final = 64 * 1024  # elements that are worked on while they are in the L2 cache
_LOOK_S: Final = 0.001


class WeightStretch(NamedTuple):
    """Elements of one parameter in a rank's share of a fragment."""

    at: int  # in the share
    weights: torch.Tensor  # flat: where the host's weights lie
    parameter: torch.Tensor

    def of(self, share: torch.Tensor) -> torch.Tensor:
        """The same elements of a tensor as long as the share."""
        return share[self.at : self.at + self.weights.numel()]


class Fragment:
    """This rank's share of a fragment."""

    def __init__(
        self,
        number: int,
        span: IndexRange,
        share: IndexRange,
        whole: torch.Tensor,
        buffers: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """`span`: among all elements, as `whole` is; `share`: in the fragment; delta and sent."""
        self.number, self.span, self.share = number, span, share
        self.whole = torch.nn.Parameter(whole, requires_grad=False)
        self.anchor = whole[share.begin : share.end]
        self.delta, self.sent = (b[share.begin : share.end] for b in buffers)
        self.stretches: list[WeightStretch] = []
        self.segments: list[HostSegment] = []

    def blocks(self) -> Iterator[tuple[torch.Tensor, slice]]:
        """The weights in blocks, and where each lies in the share."""
        for at, weights, _ in self.stretches:
            for low in range(0, weights.numel(), _BLOCK):
                here = weights[low : low + _BLOCK]
                yield here, slice(at + low, at + low + here.numel())

    def fill_delta(self, weight: float, keep: bool) -> None:
        """Write the change of this host's weights, as far as this host counts.

        `keep`: also the weights as they are, since they may change before the others' are there.
        """
        for here, where in self.blocks():
            if keep:
                self.sent[where] = here
            torch.sub(self.anchor[where], here, out=self.delta[where])
            self.delta[where].mul_(weight)

    def take_anchor(self) -> None:
        """Weights are the anchor."""
        for here, where in self.blocks():
            here.copy_(self.anchor[where])

    def add_anchor(self) -> None:
        """Weights are the anchor, and what they have changed by since they were sent."""
        for here, where in self.blocks():
            sent = self.sent[where]  # not needed any more: no memory is made for the sum
            torch.sub(here, sent, out=sent)
            here.copy_(sent.add_(self.anchor[where]))


class _PendingExchange:
    """An exchange on this rank. `op` is None where it ended before the state was saved."""

    def __init__(self, fragment: Fragment, op: Operation | None) -> None:
        self.fragment, self._op = fragment, op

    def wait(self) -> None:
        """Wait until this rank's part has ended; raises what it failed with."""
        if self._op is None:
            return
        self._op.group.loop.wait(self._op)
        if self._op.error is not None:
            raise self._op.error


class Fragments:
    """All fragments of a model, and the one that is under way."""

    def __init__(
        self,
        group: Group,
        parameters: Sequence[torch.Tensor],
        anchor: torch.Tensor,
        count: int,
        residuals: Residuals | None,
        codec: GradientCodec | None,
    ) -> None:
        """`group`: in which exchanges are made. A collective call of the host's ranks."""
        assert group.wide is not None
        self._group, self._wide, self._codec = group, group.wide, codec
        self._calls = {
            chosen: CallSignature.of(_EXCHANGE if chosen is None else f"{_EXCHANGE}, {chosen.name}")
            for chosen in (None, codec)
        }
        spans = [IndexRange(*bounds) for bounds in share_bounds(anchor.numel(), count)]
        longest = max(span.size for span in spans)
        team = group.team
        held = longest if count > 1 else 0
        self._memory = MappedMemory(group, _NAME, 8 * team.size + 4 * (longest + held))
        self._arrived = self._memory.bytes[: 8 * team.size].view(np.int64)
        floats = torch.from_numpy(self._memory.bytes[8 * team.size :].view(np.float32))
        buffers = floats[:longest], floats[longest:]
        self.all = [
            Fragment(
                number,
                span,
                share=IndexRange(*share_bounds(span.size, team.size)[team.rank]),
                whole=anchor[span.begin : span.end],
                buffers=buffers,
            )
            for number, span in enumerate(spans)
        ]
        self._buffers = buffers
        for fragment in self.all:
            fragment.stretches += _stretches(fragment, parameters)
            fragment.segments += self._segments(fragment, residuals)
        self._number = 0  # of the last exchange
        self._pending: _PendingExchange | None = None
        self.waited_s = self.link_s = 0.0  # for exchanges, and what they took, since `begin_times`

    def _segments(self, fragment: Fragment, residuals: Residuals | None) -> Iterator[HostSegment]:
        first, delta = 0, fragment.delta.numpy()
        for begin, end, members in shared_stretches(fragment.span.size, self._wide.hosts):
            if members[self._wide.host] == self._group.rank:
                left = None
                if residuals is not None:
                    left = residuals.stretch(fragment.span.begin + begin, end - begin)
                values = delta[begin - fragment.share.begin : end - fragment.share.begin]
                yield HostSegment(values, members, first, left)
            first += count_pieces(end - begin, 4)

    def begin_times(self) -> None:
        """Count times anew."""
        self.waited_s = self.link_s = 0.0

    # -- exchanges ----

    def send(self, fragment: Fragment, weight: float, exact: bool) -> None:
        """Begin the sum of a fragment over all hosts; no other may be under way."""
        assert self._pending is None
        fragment.fill_delta(weight, keep=True)
        problem = self._group.problem()
        op = Operation(self._group, _NAME, fragment.delta.numel() * 4, self._plan(fragment, exact))
        if problem is not None:
            raise self._group.error_for(op, problem)
        self._pending = _PendingExchange(fragment, op)
        self._group.loop.submit(op)

    def exchange(self, fragment: Fragment, weight: float, exact: bool) -> None:
        """Sum a fragment over all hosts, and wait for it; no other may be under way."""
        assert self._pending is None
        fragment.fill_delta(weight, keep=False)
        begun = time.monotonic()
        run_plan(self._group, _NAME, self._plan(fragment, exact), fragment.delta.numel() * 4)
        self.waited_s += time.monotonic() - begun

    def _plan(self, fragment: Fragment, exact: bool) -> Plan:
        self._number += 1
        codec = None if exact else self._codec
        plan = exchange_segments(self._group, self._calls[codec], fragment.segments, codec)
        return self._watched(plan, self._number)

    def _watched(self, plan: Plan, number: int) -> Plan:
        begun = time.monotonic()
        yield from plan
        self.link_s += time.monotonic() - begun
        self._arrived[self._group.team.rank] = number

    def arrive(self) -> Fragment | None:
        """Wait for the fragment that is under way, and return it; None: there is none."""
        if self._pending is None:
            return None
        begun = time.monotonic()
        self._pending.wait()
        self.waited_s += time.monotonic() - begun
        fragment, self._pending = self._pending.fragment, None
        return fragment

    # -- saving and loading what is under way ----

    def state(self) -> dict[str, object] | None:
        """The fragment under way, with the parts of all ranks of this host; None: there is none."""
        if self._pending is None:
            return None
        self._pending.wait()
        self._wait_for_host()
        count = self._pending.fragment.span.size
        mean, sent = (buffer[:count].clone() for buffer in self._buffers)
        return {"fragment": self._pending.fragment.number, "mean": mean, "sent": sent}

    def _wait_for_host(self) -> None:
        """Wait until every rank of this host has its part of the exchange."""
        group, until = self._group, time.monotonic() + self._group.timeout_s
        while int(self._arrived.min()) < self._number:
            rank = group.team.ranks[int(self._arrived.argmin())]
            group.loop.look()
            if rank in group.gone:
                raise PeerLost(f"rank {rank} is gone, and with it a part of the exchange")
            if (problem := group.problem()) is not None:
                raise problem
            if time.monotonic() > until:
                raise PeerLate(
                    f"rank {rank} has not had its part of the exchange of weights for "
                    f"{group.timeout_s:g} s"
                )
            time.sleep(_LOOK_S)

    def load(self, fragment: int, mean: torch.Tensor, sent: torch.Tensor) -> None:
        """Go on with what `state` gave; nothing is under way."""
        mine = self.all[fragment]
        share = slice(*mine.share)
        mine.delta.copy_(mean[share])
        mine.sent.copy_(sent[share])
        self._number += 1
        self._arrived[self._group.team.rank] = self._number
        self._pending = _PendingExchange(mine, None)


def _stretches(fragment: Fragment, parameters: Sequence[torch.Tensor]) -> Iterator[WeightStretch]:
    """Where this rank's share lies in the parameters."""
    first = fragment.span.begin + fragment.share.begin
    last = fragment.span.begin + fragment.share.end
    ends = np.cumsum([0, *(p.numel() for p in parameters)]).tolist()
    for parameter, (begin, end) in zip(parameters, pairwise(ends), strict=True):
        low, high = max(begin, first), min(end, last)
        if low < high:
            flat = parameter.detach().as_strided((parameter.numel(),), (1,))
            yield WeightStretch(low - first, flat[low - begin : high - begin], parameter)
