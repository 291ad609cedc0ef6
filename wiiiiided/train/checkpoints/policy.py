"""Where a run saves, how often, and how many steps it keeps."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from wiiiiided.domain.quantities import parse_duration
from wiiiiided.errors import UsageError


class SaveWish(IntEnum):
    """A rank's wish, told to the others in a step; the most that one of them says counts."""

    NO = 0
    DUE = 1  # it is time: written while training goes on
    ASKED = 2  # run.save() where hosts are at different steps: once they meet, and wait for it
    NOW = 3  # a signal came: training waits until all hosts have written it


@dataclass(frozen=True)
class SavePolicy:
    """A user's choices for checkpoints."""

    folder: str | os.PathLike[str]
    every: str | int = "60s"  # a duration, or a number of steps
    keep: int = 3

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike):
            raise UsageError(f"save={self.folder!r} is no folder")
        steps = isinstance(self.every, int) and not isinstance(self.every, bool) and self.every >= 1
        if not steps and not (isinstance(self.every, str) and parse_duration(self.every)):
            raise UsageError(
                f'save_every={self.every!r} is neither a duration ("60s", "10m") nor a number of '
                "steps from 1 on"
            )
        if not isinstance(self.keep, int) or self.keep < 1:
            raise UsageError(f"keep={self.keep!r} is not a number of steps from 1 on")

    @property
    def steps(self) -> int | None:
        """The steps between two saves; None: it goes by time."""
        return self.every if isinstance(self.every, int) else None

    @property
    def seconds(self) -> float:
        """The seconds between two saves that go by time."""
        return (isinstance(self.every, str) and parse_duration(self.every)) or 0.0

    @property
    def path(self) -> Path:
        """The folder: as it was named when the run began, whatever the script changes to."""
        return Path(self.folder).absolute()

    def __str__(self) -> str:
        """The part on which ranks must agree: the folder may be another on each host."""
        return f"save_every={self.every}, keep={self.keep}"
