"""What the server tells the client about a test it has run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How long a test took and, when it failed, what went wrong and what its ranks printed."""

    test: str
    seconds: float
    failure: str | None = None
