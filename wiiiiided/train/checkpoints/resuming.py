"""The place that a run goes on from: the newest step any host has whole, or another checkpoint.

    each host's place 0    looks through its folder, newest first, and checks digests
    the newest of all      is brought to the hosts that lack it (`exchange`)
    every rank             maps its host's file

A host that has its own file of that step, of the same attempt of the run, takes that one: what is a
host's own is in there.

A checkpoint of torch's is read by one host that has it, written as one of ours, and brought to the
others in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from wiiiiided import log
from wiiiiided.backend.engine.group import Group
from wiiiiided.errors import UsageError, WiiiiideError
from wiiiiided.train.checkpoints.exchange import FileExchange
from wiiiiided.train.checkpoints.file import FileHead, FileImage, NewestFile, load, newest
from wiiiiided.train.checkpoints.owner import FileOwner
from wiiiiided.train.checkpoints.writer import make_folder, taken_name, temporary_name, write


class Resumer:
    """Finds what a run goes on from."""

    def __init__(
        self, folder: Path, owner: FileOwner, process_group: dist.ProcessGroup, group: Group
    ) -> None:
        """`group`: of all ranks."""
        self._folder, self._owner = folder, owner
        self._exchange = FileExchange(process_group, group)

    def find(self) -> dict[str, Any] | None:
        """The newest state, on all ranks; None: there is none. A collective call."""
        mine, problem = NewestFile(), ""
        if self._exchange.is_first:
            try:
                mine = newest(self._folder, self._owner, self._exchange.number.host)
            except UsageError as error:
                problem = str(error)
            for why in mine.passed_over:
                log.warn(self._exchange.who, why)
        self._exchange.raise_any_problem(problem, "look for checkpoints")
        path = self._exchange.bring(mine, self._folder, "", self._owner.model)
        return None if path is None else load(path)

    def take(self, path: Path, read: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """The result of `read(path)` on one host that has the path, on all ranks. Collective."""
        exchange = self._exchange
        told = exchange.tell("1" if exchange.is_first and path.exists() else "")
        if "1" not in told:
            raise UsageError(f"no host has {path}")
        named = temporary_name(taken_name(self._owner.series), exchange.number.host)
        here, problem, mine = self._folder / named, "", NewestFile()
        if exchange.rank == told.index("1"):
            try:
                self._write(here, read(path))
                mine = NewestFile(here, 1)
            except (OSError, WiiiiideError) as error:
                problem = str(error)
        exchange.raise_any_problem(problem, f"start from {path}")
        found = exchange.bring(mine, self._folder, "", self._owner.model)
        assert found is not None
        value = load(found)
        exchange.tell("")  # all ranks have mapped it
        if exchange.is_first:
            found.unlink(missing_ok=True)  # another host was first, in a folder that they share
        return value

    def _write(self, path: Path, value: dict[str, Any]) -> None:
        make_folder(path.parent)
        head = FileHead(1, *self._exchange.number, self._exchange.ranks, self._owner.model)
        write(str(path), FileImage.of(head, value).chunks(), head.host, None)
