"""How much of a disk stays free, as the queue's own state may be on it: outputs that are brought
back leave it, and so do the checkpoints that a job's ranks write."""

from __future__ import annotations

import os

ROOM_BYTES, ROOM_SHARE = 512 << 20, 0.1  # the second: of a small disk


def room_on(disk: os.statvfs_result) -> int:
    """Bytes that stay free there."""
    return min(ROOM_BYTES, int(disk.f_blocks * disk.f_frsize * ROOM_SHARE))
