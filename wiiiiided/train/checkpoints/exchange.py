"""A file that some hosts have and some have not: the newest is brought to all of them.

    all ranks              tell each other which step their host has, of which attempt of the run:
                           the newest of all is taken
    a host that has it     sends the file, as it is, to place 0 of those that lack it, or have that
                           step of another attempt
    these                  write it to a temporary name, check its digest, and rename it

Hosts that went on apart from each other may both have a step, with other weights: the number alone
does not say that two files are of one state (`file`).

The bytes of `file` travel, tensors as they lie in memory; nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from wiiiiided import log
from wiiiiided.backend.engine.group import Group
from wiiiiided.config import Config
from wiiiiided.errors import HostError, WiiiiideError
from wiiiiided.train.checkpoints.file import NewestFile, check
from wiiiiided.train.checkpoints.writer import make_folder, sync_folder, temporary_name
from wiiiiided.train.residuals import HostNumber
from wiiiiided.train.small_collectives import all_gather_text

_PIECE: Final = 16 << 20  # bytes of a message
CANNOT_SAVE: Final = "save (earlier files are kept)"


class FileExchange:
    """The hosts of a group; a process without a group is a host alone."""

    def __init__(self, process_group: dist.ProcessGroup | None, group: Group | None) -> None:
        """`group`: of all ranks of `process_group`."""
        self._process_group, self._group = process_group, group
        config = Config.read() if group is None else group.driver.config
        self.is_trial = config.probe  # nothing is to stay of it
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
        """Gather every rank's text. A collective call."""
        return [text] if self._process_group is None else all_gather_text(self._process_group, text)

    def raise_any_problem(self, problem: str, what: str) -> None:
        """Raise on all ranks if one of them has a problem. A collective call."""
        for rank, theirs in enumerate(self.tell(problem)):
            if theirs:
                raise HostError(f"rank {rank} cannot {what}: {theirs}")

    def writes(self, path: Path, token: str) -> bool:
        """Whether this rank is to write what all hosts write to `path`: each host's first rank, but
        where hosts see one folder that of the first of them alone. A collective call.

        `token`: the same on all ranks, and of this call alone.
        """
        if len(self.first_ranks) == 1:
            return self.is_first
        probes = [Path(f"{path}.{host}-{token}.tmp") for host in range(self.number.hosts)]
        mine, problem = probes[self.number.host], ""
        if self.is_first:
            try:
                make_folder(path.parent)
                mine.touch(exist_ok=False)
            except OSError as error:
                problem = f"{path}: {error.strerror or error}"
        try:
            self.raise_any_problem(problem, CANNOT_SAVE)
            writes = self.is_first and not any(p.exists() for p in probes[: self.number.host])
            self.tell("")  # all have looked
        finally:
            if self.is_first:
                _remove(mine)
        return writes

    def bring(self, mine: NewestFile, folder: Path, name: str, model: str | None) -> Path | None:
        """Where this host's copy of the newest file lies; None: no host has one.

        `mine`: what this host has, on its first rank. A copy goes to `folder`, under `name`, or
        without one under the name that it has at its source. A collective call.
        """
        said = json.dumps([mine.step, mine.token, mine.path.name if mine.path is not None else ""])
        told = [json.loads(text) for text in self.tell(said)]
        step = max(found for found, *_ in told)
        if not step:
            return None
        source = next(rank for rank, (found, *_) in enumerate(told) if found == step)
        token, its_name = told[source][1:]
        lacking = [rank for rank in self.first_ranks if told[rank][:2] != [step, token]]
        if self.rank in lacking and mine.step == step:
            log.warn(
                self.who,
                f"{mine.path} is of a run that went on apart from rank {source}'s host, whose step "
                f"{step} is taken",
            )
        problem, path = "", mine.path
        if self.rank == source:
            assert path is not None
            problem = self._send(path, lacking)
        elif self.rank in lacking:
            path = folder / (name or its_name)
            problem = self._receive(path, source, model)
        self.raise_any_problem(problem, f"take over the state of step {step}")
        return Path(self.tell(str(path))[self._first])

    def _send(self, path: Path, ranks: list[int]) -> str:
        """Send a file's size and then its bytes to each of them; returns why it cannot be read."""
        assert self._process_group is not None or not ranks
        problem = ""
        for rank in ranks:
            to = dist.get_global_rank(self._process_group, rank)  # type: ignore[arg-type]
            try:
                file = open(path, "rb")  # noqa: SIM115
            except OSError as error:
                problem = str(error)
                dist.send(torch.tensor([0]), to, self._process_group)
                continue
            with file:
                left = os.fstat(file.fileno()).st_size
                dist.send(torch.tensor([left]), to, self._process_group)
                for piece in _pieces(file, left):
                    sent = torch.frombuffer(piece, dtype=torch.uint8)
                    dist.send(sent, to, self._process_group)
        return problem

    def _receive(self, path: Path, rank: int, model: str | None) -> str:
        """Receive a file, all of it in any case; returns why it could not be written."""
        assert self._process_group is not None
        source, problem = dist.get_global_rank(self._process_group, rank), ""
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, source, self._process_group)
        left, temporary = int(size), Path(temporary_name(str(path), self.number.host))
        try:
            make_folder(path.parent)
            temporary.touch(exist_ok=False)
        except OSError as error:
            problem, temporary = str(error), Path(os.devnull)
        try:
            with open(temporary, "wb") as file:
                while left:
                    piece = torch.empty(min(left, _PIECE), dtype=torch.uint8)
                    dist.recv(piece, source, self._process_group)
                    left -= piece.numel()
                    problem = problem or _append(file, piece)
            return problem or _keep(temporary, path, model)
        finally:
            if temporary != Path(os.devnull):
                _remove(temporary)  # it has been renamed, or is of no use


def _first_ranks(group: Group) -> list[int]:
    wide = group.wide
    return [group.team.ranks[0]] if wide is None else [ranks[0] for ranks in wide.hosts]


def _pieces(file: Any, left: int) -> Iterator[bytearray]:
    """Yield as many bytes as were announced; zeros, which a digest sees, for unreadable ones."""
    while left:
        try:
            piece = bytearray(file.read(min(left, _PIECE)))
        except OSError:
            piece = bytearray()
        piece = piece or bytearray(min(left, _PIECE))
        left -= len(piece)
        yield piece


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


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
