"""Plans of `wiiiiide plan`, by a job's name and its model's shape: one row of the table `facts`.

    plan-<shape>-<name of the job>  │  the KeptPlan, JSON

A later plan of the same job and model takes its place. A row that this version cannot read counts
as not there.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Final

import msgspec

from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.domain.plan import KeptPlan
from wiiiiided.errors import WiiiiideError

KEPT: Final = 1000  # plans in all; the oldest go
SHAPES: Final = 4  # of one name that are told, the latest
_PREFIX: Final = "plan-"
_SHAPE_CHARS: Final = 16
_SHAPE: Final = re.compile(rf"[0-9a-f]{{{_SHAPE_CHARS}}}")
_encode = msgspec.json.Encoder().encode
_decode = json_decoder(KeptPlan)


class PlansUnwritable(WiiiiideError):
    """There is no room for a plan, or no right to write it."""


class Plans:
    """Used from the store's one thread."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    @staticmethod
    def is_shape(text: str) -> bool:
        """Whether it is a digest of a model's shape."""
        return _SHAPE.fullmatch(text) is not None

    def keep(self, name: str, plan: KeptPlan) -> None:
        """Keep a plan in place of an earlier one of this name and shape."""
        row = (f"{_PREFIX}{plan.shape}-{name}", _encode(plan).decode())
        try:
            with self._db:
                self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", row)
                self._db.execute(
                    "DELETE FROM facts WHERE name IN (SELECT name FROM facts WHERE name GLOB ? "
                    "ORDER BY json_extract(value, '$.at') DESC LIMIT -1 OFFSET ?)",
                    (f"{_PREFIX}*", KEPT),
                )
        except sqlite3.Error as problem:
            raise PlansUnwritable(f"the plan cannot be kept: {problem}") from problem

    def of(self, name: str) -> list[KeptPlan]:
        """The latest of a job's name, of several shapes; the latest first."""
        place = len(_PREFIX) + _SHAPE_CHARS + 2
        rows = self._db.execute(
            "SELECT value FROM facts WHERE name GLOB ? AND substr(name, ?) = ?",
            (f"{_PREFIX}*", place, name),
        )
        found = []
        for (text,) in rows:
            try:
                found.append(_decode(text))
            except msgspec.DecodeError:
                continue
        return sorted(found, key=lambda plan: -plan.at)[:SHAPES]
