"""One line of `wiiiiide doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """How it is, and what to do where it is not ok."""

    level: Literal["ok", "warn", "fail"]
    title: str
    sentence: str
    do: str = ""
