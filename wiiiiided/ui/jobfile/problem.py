"""Problems of a job file, in a form that a person can act upon without searching.

job.toml:7: resources.worker_per_node: unknown key; did you mean workers_per_node?
──────── ─  ─────────────────────────  ───────────  ──────────────────────────────
file     line          key               message              suggestion
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from wiiiiided.errors import UsageError


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong, where, and what to do. All of it is harmless to a terminal."""

    file: str  # as it was named; for a --set, that option
    line: int | None  # from 1; None where no line is to blame: something is missing
    key: str  # empty where the file as a whole is meant
    message: str
    suggestion: str = ""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [place, self.key, self.message] if self.key else [place, self.message]
        return ": ".join(parts) + (f"; {self.suggestion}" if self.suggestion else "")


class Invalid(UsageError):
    """The job file cannot be used. Every problem is in it, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))
