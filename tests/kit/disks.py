"""Disks that are small enough to be full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(place: Path, kibibytes: int) -> Iterator[Path]:
    """A file system of its own at `place`. Needs root and mount."""
    place.mkdir()
    options = f"size={kibibytes}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> Path:
    """Take all the room that is left; the file that does."""
    filler = place / "filler"
    with open(filler, "ab", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"x" * size) == size:
                    pass
            except OSError:
                continue
    return filler
