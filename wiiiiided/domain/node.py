"""A machine as the control plane knows it: detected by its daemon, never asked of a person."""

from __future__ import annotations

import msgspec


class Node(msgspec.Struct, frozen=True):
    """What a machine has. `boot_id` changes when it restarts: nothing of before runs any more."""

    name: str
    cores: int
    memory: int  # bytes
    gpus: int = 0
    boot_id: str = ""
