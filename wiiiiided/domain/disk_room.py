"""How much of a disk stays free, as the queue's own state may be on it: outputs that are brought
back leave it, and so do the checkpoints that a job's ranks write."""

from __future__ import annotations

import os

ROOM_BYTES, ROOM_SHARE = 512 << 20, 0.1  # of a small disk, a share of it


def room_on(disk: os.statvfs_result) -> int:
    """The bytes that are to stay free on this disk."""
    return min(ROOM_BYTES, int(disk.f_blocks * disk.f_frsize * ROOM_SHARE))
