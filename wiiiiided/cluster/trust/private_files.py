"""Files of an identity: private from their first moment, and there whole or not at all.

    <state>/cluster.new/   is being built; a crash leaves it, the next start removes it
        │ rename
    <state>/cluster/       is true
        │ rename
    <state>/cluster.gone/  is being removed; the same

Every file and directory is on the disk before the rename that makes it count.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CURRENT, NEW, GONE = "cluster", "cluster.new", "cluster.gone"
PRIVATE: Final = 0o600

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_leftovers(state: Path) -> None:
    """Remove remains of an interrupted init, join or leave: none of it counts."""
    for name in (NEW, GONE):
        if (state / name).exists():
            shutil.rmtree(state / name)


def build(state: Path, contents: Mapping[str, bytes]) -> Path:
    """A directory with these files beside the place where it will count."""
    remove_leftovers(state)
    directory = state / NEW
    directory.mkdir(mode=0o700)
    for name, data in contents.items():
        write(directory / name, data)
    sync(directory)
    return directory


def put_in_place(state: Path) -> Path:
    """Put the new directory in the place of the current one: from the rename on it counts."""
    (state / NEW).rename(state / CURRENT)
    sync(state)
    return state / CURRENT


def take_away(state: Path) -> None:
    """Remove the current directory: from its rename on it does not count."""
    remove_leftovers(state)
    if (state / CURRENT).exists():
        (state / CURRENT).rename(state / GONE)
        sync(state)
        remove_leftovers(state)


def write(path: Path, data: bytes) -> None:
    """A new file, on the disk when this returns."""
    fd = os.open(path, _FLAGS, PRIVATE)
    try:
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
