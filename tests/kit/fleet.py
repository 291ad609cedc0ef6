"""Several real machines on one switch: what tests of a cluster, and its benchmark, run on.

    with Fleet("abc", rate="1gbit") as fleet:          # 10.44.0.1, .2, .3
        fleet["a"].wiiiiide("init")
        fleet.cut("b"); fleet.heal("b")                # its cable
        fleet["c"].crash(); fleet["c"].boot()

        tests.kit.machines.Machine ── boots in ──► a host of tests.kit.networks.Network

They boot at the same time, and go together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from tests.kit.machines import Machine
from tests.kit.networks import Network

ADDRESSES = "10.44.0.{}/24"


class Fleet:
    """A machine for each letter. Use it as a context."""

    def __init__(
        self,
        letters: str = "abc",
        rate: str = "",
        disk: Sequence[str] = (),
        debian: bool = False,
    ) -> None:
        self.letters = letters
        self._rate, self._disk, self._debian = rate, disk, debian
        self._stack = contextlib.ExitStack()
        self._machines: dict[str, Machine] = {}

    def __enter__(self) -> Self:
        with self._stack:
            self.network = self._stack.enter_context(Network(self.letters, ADDRESSES))
            if self._rate:
                self.network.shape(self._rate)
            for letter in self.letters:
                host = self.network.hosts[letter]
                machine = Machine(letter, self._disk, host, self._debian)
                self._machines[letter] = machine
                self._stack.callback(machine.close)
            with ThreadPoolExecutor(len(self.letters)) as pool:
                list(pool.map(Machine.__enter__, self._machines.values()))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, letter: str) -> Machine:
        return self._machines[letter]

    def __iter__(self) -> Iterator[Machine]:
        return iter(self._machines.values())

    def address(self, letter: str) -> str:
        return self.network.address(letter)

    def cut(self, letter: str) -> None:
        """Nothing gets through its cable any more, and no process is told."""
        self.network.silence(letter)

    def heal(self, letter: str) -> None:
        self.network.heal(letter)
