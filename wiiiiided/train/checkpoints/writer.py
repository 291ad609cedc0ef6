"""Writes a checkpoint from memory to the disk, as a process of its own.

    step-…wide.tmp    written, with its first 40 bytes zero ─ digest into them ─ fsync
    step-…wide        rename ─ fsync of the folder ─ old files are removed

A kill at any moment leaves the file before this one, or both. Training goes on meanwhile: the
process has an interpreter of its own, and memory that no rank writes to.

Run by its path, with nothing but the standard library (`python -I -S`: 15 ms), it starts without
importing the package. A forked child was the alternative: it would keep the rank's sockets open, so
that its peers could not see it die.
"""

import contextlib
import hashlib
import mmap
import os
import re
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

MAGIC = b"wideCKP1"
DIGESTED_FROM = len(MAGIC) + 32  # behind the magic: the sha256 of all from here on
CHUNK = 4 << 20
NAME = re.compile(r"step-(\d{10})\.host-(\d+)\.([0-9a-f]{16})\.wide")


def write(path: str, chunks: Iterable[bytes | memoryview], keep: int | None) -> None:
    """Write these bytes as a checkpoint; the first chunk has at least the digest's place.

    `keep`: of the steps in its folder so many stay; None: all others are left alone.
    """
    temporary = f"{path}.{os.getpid()}.tmp"  # a writer of a run that was killed may still be there
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        digest, skip = hashlib.sha256(), DIGESTED_FROM
        for chunk in chunks:
            view = memoryview(chunk)
            for at in range(0, view.nbytes, CHUNK):
                piece = view[at : at + CHUNK]
                digest.update(piece[skip:])
                skip = 0
                while piece:
                    piece = piece[os.write(fd, piece) :]
        os.pwrite(fd, MAGIC + digest.digest(), 0)
        os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    os.replace(temporary, path)
    sync_folder(os.path.dirname(path))
    if keep is not None:
        prune(Path(path), keep)


def sync_folder(folder: str) -> None:
    """What has been renamed there stays so."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def prune(newest: Path, keep: int) -> None:
    """Remove what is older than the `keep` newest steps up to this one, and this host's half files.

    Of the same model only. A writer whose half file goes gives up.
    """
    mine = NAME.fullmatch(newest.name)
    assert mine is not None
    found = [(NAME.fullmatch(name), name) for name in os.listdir(newest.parent)]
    older = [(int(m[1]), name) for m, name in found if m and m[3] == mine[3] and m[1] <= mine[1]]
    kept = sorted({step for step, _ in older})[-keep:]
    gone = [newest.parent / name for step, name in older if step not in kept]
    for path in (*gone, *newest.parent.glob(f"step-*.host-{mine[2]}.{mine[3]}.wide.*.tmp")):
        with contextlib.suppress(OSError):  # another host's writer was first
            os.unlink(path)


def main(fd: int, nbytes: int, path: str, keep: int) -> None:
    """Write the memory behind a descriptor; what went wrong is said on standard output."""
    for number in (signal.SIGINT, signal.SIGTERM):  # for the ranks; this ends by itself
        signal.signal(number, signal.SIG_IGN)
    os.nice(19)  # with 5, beside two ranks on two cores, a save took a tenth of a minute's steps
    try:
        write(path, [memoryview(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ))], keep)
    except OSError as problem:
        sys.stdout.write(problem.strerror or str(problem))
        sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
