"""A file that some hosts have and some have not: the newest is brought to all of them.

    all ranks              tell each other which step their host has: the newest of all is taken
    a host that has it     sends the file, as it is, to place 0 of those that lack it
    these                  write it to a temporary name, check its digest, and rename it

What travels are the bytes of `file`, tensors as they lie in memory; nothing is unpickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from wiiiiided.backend.engine.group import Group
from wiiiiided.errors import HostError, WiiiiideError
from wiiiiided.train.agreement import tell_all
from wiiiiided.train.checkpoints.file import NewestFile, check
from wiiiiided.train.checkpoints.writer import sync_folder
from wiiiiided.train.residuals import HostNumber

_PIECE: Final = 16 << 20  # bytes of a message


class FileExchange:
    """The hosts of a group; a process without a group is a host alone."""

    def __init__(self, process_group: dist.ProcessGroup | None, group: Group | None) -> None:
        """`group`: of all ranks of `process_group`."""
        self._process_group, self._group = process_group, group
        self.who = f"pid {os.getpid()}" if group is None else group.who
        self.number = HostNumber(0, 1) if group is None else HostNumber.of(group)
        self.rank, self.ranks = (
            (0, 1) if process_group is None else (process_group.rank(), process_group.size())
        )
        self.first_ranks = [0] if group is None else _first_ranks(group)  # of each host
        self._first = 0 if group is None else group.team.ranks[0]  # of this host

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that reads and writes files for its host."""
        return self.rank == self._first

    def tell(self, text: str) -> list[str]:
        """Every rank's text. A collective call."""
        return [text] if self._process_group is None else tell_all(self._process_group, text)

    def settle(self, problem: str, what: str) -> None:
        """Raise on all ranks if one of them has a problem. A collective call."""
        for rank, theirs in enumerate(self.tell(problem)):
            if theirs:
                raise HostError(f"rank {rank} cannot {what}: {theirs}")

    def bring(self, mine: NewestFile, folder: Path, name: str, model: str | None) -> Path | None:
        """Where this host's copy of the newest file lies; None: no host has one.

        `mine`: what this host has, on its first rank. A copy goes to `folder`, under `name`, or
        without one under the name that it has at its source. A collective call.
        """
        said = json.dumps([mine.step, mine.path.name if mine.path is not None else ""])
        told = [json.loads(text) for text in self.tell(said)]
        step = max(found for found, _ in told)
        if not step:
            return None
        source = next(rank for rank, (found, _) in enumerate(told) if found == step)
        lacking = [rank for rank in self.first_ranks if told[rank][0] != step]
        problem, path = "", mine.path
        if self.rank == source:
            assert path is not None
            problem = self._send(path, lacking)
        elif self.rank in lacking:
            path = folder / (name or told[source][1])
            problem = self._receive(path, source, model)
        self.settle(problem, f"take over the state of step {step}")
        return Path(self.tell(str(path))[self._first])

    def _send(self, path: Path, ranks: list[int]) -> str:
        """To each of them its size, and then its bytes; where it cannot be read, why not."""
        assert self._process_group is not None or not ranks
        problem = ""
        for rank in ranks:
            to = dist.get_global_rank(self._process_group, rank)  # type: ignore[arg-type]
            try:
                left = path.stat().st_size
            except OSError as error:
                problem, left = str(error), 0
            dist.send(torch.tensor([left]), to, self._process_group)
            for piece in _pieces(path, left):
                dist.send(torch.frombuffer(piece, dtype=torch.uint8), to, self._process_group)
        return problem

    def _receive(self, path: Path, rank: int, model: str | None) -> str:
        """Why it could not be written; all of it is taken from the link in any case."""
        assert self._process_group is not None
        source, problem = dist.get_global_rank(self._process_group, rank), ""
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, source, self._process_group)
        left, temporary = int(size), path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch()
        except OSError as error:
            problem, temporary = str(error), Path(os.devnull)
        with open(temporary, "wb") as file:
            while left:
                piece = torch.empty(min(left, _PIECE), dtype=torch.uint8)
                dist.recv(piece, source, self._process_group)
                left -= piece.numel()
                problem = problem or _append(file, piece)
        problem = problem or _keep(temporary, path, model)
        if problem and temporary != Path(os.devnull):
            temporary.unlink(missing_ok=True)
        return problem


def _first_ranks(group: Group) -> list[int]:
    wide = group.wide
    return [group.team.ranks[0]] if wide is None else [ranks[0] for ranks in wide.hosts]


def _pieces(path: Path, left: int) -> Iterator[bytearray]:
    """As many bytes as were announced; zeros, which a digest sees, for what cannot be read."""
    with open(path if left else os.devnull, "rb") as file:
        while left:
            try:
                piece = bytearray(file.read(min(left, _PIECE)))
            except OSError:
                piece = bytearray()
            piece = piece or bytearray(min(left, _PIECE))
            left -= len(piece)
            yield piece


def _append(file: Any, piece: torch.Tensor) -> str:
    try:
        file.write(piece.numpy())
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        return str(error)
    return ""


def _keep(temporary: Path, path: Path, model: str | None) -> str:
    try:
        check(temporary, model)
        temporary.replace(path)
        sync_folder(str(path.parent))
    except (OSError, WiiiiideError) as error:
        return str(error)
    return ""
