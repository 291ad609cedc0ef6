"""The newest step that any host has whole, brought to the hosts that have not.

    each host's place 0    looks through its folder, newest first, and checks digests
    all ranks              tell each other which step that is: the newest of all is taken
    a host that has it     sends the file, as it is, to place 0 of those that lack it
    these                  write it to their folders, and check its digest
    every rank             maps its host's file

A host that has its own file of that step takes that one: what is a host's own is in there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from wiiiiided import log
from wiiiiided.backend.engine.group import Group
from wiiiiided.errors import HostError, WiiiiideError
from wiiiiided.train.agreement import tell_all
from wiiiiided.train.checkpoints.file import NewestFile, check, load, newest
from wiiiiided.train.checkpoints.writer import sync_folder
from wiiiiided.train.residuals import HostNumber

_PIECE: Final = 16 << 20  # bytes of a message


class Resumer:
    """Finds what a run goes on from."""

    def __init__(self, folder: Path, model: str, face: dist.ProcessGroup, group: Group) -> None:
        """`group`: of all ranks."""
        self._folder, self._model, self._face, self._group = folder, model, face, group

    def find(self) -> dict[str, Any] | None:
        """The newest state, on all ranks; None: there is none. A collective call."""
        rank = self._face.rank()
        mine = NewestFile(None, 0, [])
        if self._group.team.rank == 0:
            mine = newest(self._folder, self._model, HostNumber.of(self._group).host)
            for why in mine.passed_over:
                log.warn(self._group.who, why)
        name = mine.path.name if mine.path is not None else ""
        told = [json.loads(text) for text in tell_all(self._face, json.dumps([mine.step, name]))]
        step = max(found for found, _ in told)
        if not step:
            return None
        source = next(r for r, (found, _) in enumerate(told) if found == step)
        problem, path = "", mine.path
        if rank == source:
            assert path is not None
            self._send(path, [r for r in self._first_ranks() if told[r][0] != step])
        elif rank in self._first_ranks() and mine.step != step:
            path = self._folder / told[source][1]
            problem = self._receive(path, source)
        return load(self._agree(path, problem, step))

    def _agree(self, path: Path | None, problem: str, step: int) -> Path:
        """Where this host's file is; raises on all ranks if a host could not take it."""
        told = [json.loads(text) for text in tell_all(self._face, json.dumps([problem, str(path)]))]
        for rank, (theirs, _) in enumerate(told):
            if theirs:
                raise HostError(f"rank {rank} cannot take over the state of step {step}: {theirs}")
        return Path(told[self._group.team.ranks[0]][1])

    def _first_ranks(self) -> list[int]:
        """Of each host."""
        wide = self._group.wide
        return [self._group.team.ranks[0]] if wide is None else [ranks[0] for ranks in wide.hosts]

    def _send(self, path: Path, ranks: list[int]) -> None:
        size = path.stat().st_size
        for rank in ranks:
            to = dist.get_global_rank(self._face, rank)
            dist.send(torch.tensor([size]), to, self._face)
            with open(path, "rb") as file:
                while piece := file.read(_PIECE):
                    dist.send(torch.frombuffer(bytearray(piece), dtype=torch.uint8), to, self._face)

    def _receive(self, path: Path, rank: int) -> str:
        """Why it could not be written; all of it is taken from the link in any case."""
        source, problem = dist.get_global_rank(self._face, rank), ""
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, source, self._face)
        left, temporary = int(size), path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.touch()
        except OSError as error:
            problem, temporary = str(error), Path(os.devnull)
        with open(temporary, "wb") as file:
            while left:
                piece = torch.empty(min(left, _PIECE), dtype=torch.uint8)
                dist.recv(piece, source, self._face)
                left -= piece.numel()
                problem = problem or _append(file, piece)
        return problem or self._keep(temporary, path)

    def _keep(self, temporary: Path, path: Path) -> str:
        try:
            check(temporary, self._model)
            temporary.replace(path)
            sync_folder(str(path.parent))
        except (OSError, WiiiiideError) as error:
            return str(error)
        return ""


def _append(file: Any, piece: torch.Tensor) -> str:
    try:
        file.write(piece.numpy())
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
        return str(error)
    return ""
