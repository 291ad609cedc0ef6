"""The daemon that a command uses, and its answers as plain values."""

from __future__ import annotations

from typing import Any

import msgspec

from wiiiiided.cluster.client import Client
from wiiiiided.config import Paths
from wiiiiided.ui.cli.screen import say


def connect() -> Client:
    """A client of this person's own daemon where there is one, else of the machine's."""
    return Client(Paths.for_client(), notice=lambda text: say(f"wiiiiide: {text}"))


def fields(message: Any) -> dict[str, Any]:
    """A message as JSON shows it: without the mark that tells messages apart."""
    made: dict[str, Any] = msgspec.to_builtins(message)
    made.pop("type", None)
    return made
