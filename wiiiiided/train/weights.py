"""The weights of a model in the memory that all ranks of a host map, and how they may be written.

A weight that a program changes by itself on every rank is changed as often as the host has ranks;
one whose memory is replaced drifts apart from the others'. Both are noticed at the next step:

    p._version         counts changes in place, of this rank
    probes             some elements of each parameter, compared with what they were
    data_ptr           the memory is still the shared one
    loads              a load on another rank of the host changes all of it, and is no mistake
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from wiiiiided.errors import UsageError
from wiiiiided.train.memory import HostMemory

_PROBES: Final = 8  # elements of a weight that are compared to notice a write from outside


class SharedWeights:
    """The parameters of one model in a host's memory."""

    def __init__(
        self, memory: HostMemory, names: Sequence[str], parameters: Sequence[torch.nn.Parameter]
    ) -> None:
        self._memory, self._names, self._parameters = memory, names, parameters
        self.flat = [memory.weight(i, p.numel(), p.dtype) for i, p in enumerate(parameters)]
        self._views = [
            flat.as_strided(p.shape, p.stride() if _dense(p) else _contiguous(p))
            for flat, p in zip(self.flat, parameters, strict=True)
        ]
        self._addresses = [view.data_ptr() for view in self._views]
        self._probe_at = self._choose_probes()
        self._bytes = memory.weights()

    # -- where parameters point ----

    def fill(self) -> None:
        """Copy the parameters' values to the shared memory."""
        with torch.no_grad():
            for parameter, view in zip(self._parameters, self._views, strict=True):
                view.copy_(parameter)

    def point(self) -> None:
        """Let the parameters be what lies in the shared memory."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.data = view

    def point_at_copies(self) -> None:
        """Let the parameters be copies of it: what is written to them is thrown away."""
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()

    def copied(self) -> list[torch.Tensor]:
        """All weights as they are now, in memory of their own and the parameters' shapes."""
        return [view.clone() for view in self._views]

    # -- writes from outside ----

    def _choose_probes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        chosen = []
        for parameter, at in zip(self._parameters, self._memory.offsets, strict=True):
            count, size = parameter.numel(), parameter.element_size()
            picks = {count * k // _PROBES for k in range(_PROBES)} if count else set()
            chosen += [at + pick * size + byte for pick in sorted(picks) for byte in range(size)]
        return np.array(chosen, np.int64)

    def remember(self) -> None:
        """Remember the weights as they are now: the optimizer, or the user by us, made them so."""
        self._loads = self._memory.loads()  # first: a rank may begin to load at any moment
        self._versions = [parameter._version for parameter in self._parameters]
        self._probes = self._bytes[self._probe_at]

    def loading(self) -> None:
        """This rank is about to load the model, where all ranks of its host see it."""
        self._memory.begin_load()

    def loaded(self) -> None:
        """This rank has loaded the model."""
        self._memory.end_load()
        self._versions = [parameter._version for parameter in self._parameters]

    def written(self) -> None:
        """A step has written them: tell autograd, which may hold on to the old ones."""
        torch.autograd.graph.increment_version(self._parameters)

    def check_memory(self) -> None:
        """Raise if the memory of a parameter was replaced."""
        for i, parameter in enumerate(self._parameters):
            if parameter.data_ptr() != self._addresses[i]:
                raise UsageError(
                    f"the memory of {self._names[i]} was replaced (.to(), share_memory(), "
                    "assign=True, or p.data = …): this rank would drift apart from the others. Do "
                    "that before parallel(), and copy values with: with run.modify(): "
                    "p.copy_(values)"
                )

    def check(self) -> None:
        """Raise if a weight was changed outside the optimizer since `remember`."""
        self.check_own()
        changed = self._changed_probe()
        if changed is None or self._memory.is_loading or self._loads != self._memory.loads():
            return  # looked at after the weights: a rank says that it loads before it writes
        raise _changed_outside(changed)

    def check_own(self) -> None:
        """Check what this rank has changed in place: others may be writing all the time."""
        self.check_memory()
        versions = [parameter._version for parameter in self._parameters]
        if versions != self._versions:
            pairs = zip(self._names, versions, self._versions, strict=True)
            raise _changed_outside(next(name for name, now, before in pairs if now != before))

    def _changed_probe(self) -> str | None:
        now = self._bytes[self._probe_at]
        if now.tobytes() == self._probes.tobytes():
            return None
        at = self._probe_at[np.flatnonzero(now != self._probes)[0]]
        return self._names[int(np.searchsorted(self._memory.offsets, at, "right")) - 1]


def _changed_outside(name: str) -> UsageError:
    return UsageError(
        f"{name} was changed outside the optimizer: all ranks of a host share it, so a change made "
        "on every rank is made several times. Write: with run.modify(): …"
    )


def _dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a stretch of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _contiguous(tensor: torch.Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, device="meta").stride()
