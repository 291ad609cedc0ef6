"""Writes a checkpoint from memory to the disk, as a process of its own.

    step-…wide.HOST-RANDOM.tmp   written, with its first 40 bytes zero ─ digest into them ─ fsync
    step-…wide                   rename ─ fsync of the folder ─ old files are removed

A kill at any moment leaves the file before this one, or both. Training goes on meanwhile: the
process has an interpreter of its own, and memory that no rank writes to.

It works at a low priority, so that it takes what the ranks leave of the cores, until ranks wait for
it: then its standard input says so, and the rest is written at theirs (`yielding`).

Half files. Hosts may share a folder, and processes of two containers may have one number, so names
are drawn. A killed writer's half file goes with the next file of its host; that of another host,
which may be at work, once nothing has been written to it for an hour.

Run by its path, with nothing but the standard library (`python -I -S`: 15 ms), it starts without
importing the package. A forked child was the alternative: it would keep the rank's sockets open, so
that its peers could not see it die.
"""

import contextlib
import hashlib
import mmap
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

MAGIC = b"wideCKP1"
DIGESTED_FROM = len(MAGIC) + 32  # behind the magic: the sha256 of all from here on
CHUNK = 4 << 20
# The step, the host, and the series: the model's digest, and a job's name if it shares the folder.
NAME = re.compile(r"step-(\d{10})\.host-(\d+)\.([0-9a-f]{16}(?:\.job-\d+-[0-9a-f]+)?)\.wide")
NOW = "now"  # on standard input: ranks wait

# Of a file by its whole name, and the host that writes it; old ones have a process's number.
_HALF = re.compile(r"(.+?)\.(?:(\d+)-[0-9a-f]{16}|\d+)\.tmp")
_LEFT_S = 3600.0
# At 5, beside two ranks on two cores, a save took a tenth of a minute's steps; at 19, which is a
# seventieth of a core that others want, it did not end.
_NICE = 10


def temporary_name(path: str, host: int) -> str:
    """Where this host writes what is to be a file: a name that no process has."""
    return f"{path}.{host}-{os.urandom(8).hex()}.tmp"


def write(path: str, chunks: Iterable[bytes | memoryview], host: int, keep: int | None) -> None:
    """Write these bytes as a checkpoint; the first chunk has at least the digest's place.

    `keep`: of the steps in its folder so many stay; None: all others are left alone.
    """
    for _ in _writing(path, chunks, host, keep):
        pass


def _writing(
    path: str, chunks: Iterable[bytes | memoryview], host: int, keep: int | None
) -> Iterator[None]:
    """`write`, a piece at a time: any thread may go on with it."""
    temporary = temporary_name(path, host)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
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
                    yield
            os.pwrite(fd, MAGIC + digest.digest(), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))
    if keep is not None:
        prune(Path(path), host, keep)


def sync_folder(folder: str) -> None:
    """Files that have been renamed there stay so."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Have a folder that stays: its parent knows it after a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # one that may be searched, and not read
            sync_folder(str(folder.parent))


def taken_name(series: str) -> str:
    """The name, as of a half file, of what torch's checkpoint gave, while ranks read it."""
    return f".taken.{series}.wide"


def prune(newest: Path, host: int, keep: int) -> None:
    """Remove what is older than the `keep` newest steps up to this one, damaged files but for the
    newest, and half files. Of the same series only."""
    mine = NAME.fullmatch(newest.name)
    assert mine is not None
    names = os.listdir(newest.parent)
    found = [(NAME.fullmatch(name), name) for name in names]
    older = [(int(m[1]), name) for m, name in found if m and m[3] == mine[3] and m[1] <= mine[1]]
    kept = sorted({step for step, _ in older})[-keep:]
    _remove(newest.parent, [name for step, name in older if step not in kept])
    whole = [(NAME.fullmatch(name.removesuffix(".damaged")), name) for name in names]
    damaged = [name for m, name in whole if m and m[3] == mine[3] and name.endswith(".damaged")]
    _remove(newest.parent, sorted(damaged)[:-1])

    def is_ours(name: str) -> bool:
        m = NAME.fullmatch(name)
        return name.startswith(taken_name(mine[3])) or (m is not None and m[3] == mine[3])

    remove_left(newest, host, is_ours)


def remove_left(beside: Path, host: int, is_ours: Callable[[str], bool]) -> None:
    """Remove half files of dead writers in the folder of a file that has just been written.

    `is_ours`: of the names that they were to have. A writer whose half file goes gives up.
    """
    gone = []
    with contextlib.suppress(OSError):  # another host was first
        now = beside.stat().st_mtime  # by the clock of the disk, as those of the others
        for name in os.listdir(beside.parent):
            half = _HALF.fullmatch(name)
            if half is None or not is_ours(half[1]):
                continue
            said = NAME.fullmatch(half[1])
            theirs = half[2] or (said[2] if said else None)
            if theirs == str(host) or now - (beside.parent / name).stat().st_mtime > _LEFT_S:
                gone.append(name)
    _remove(beside.parent, gone)


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):  # another host's writer was first
            os.unlink(folder / name)


def yielding(pieces: Iterator[None], told: int) -> None:
    """Make all pieces at a low priority, and from the moment that there is something to read from
    the descriptor `told` those that are left at the caller's.

    A process must be privileged to raise its priority again. But Linux has one for each thread: a
    thread with a low one makes the pieces, and leaves the rest to this one, which has kept its own.
    """
    is_told, problems = threading.Event(), list[BaseException]()
    ended, end = os.pipe()

    def work() -> None:
        try:
            os.nice(_NICE)
            for _ in pieces:
                if is_told.is_set():
                    break
        except BaseException as problem:
            problems.append(problem)
        finally:
            os.close(end)

    thread = threading.Thread(target=work)
    thread.start()
    select.select([told, ended], [], [])
    is_told.set()
    thread.join()
    os.close(ended)
    if problems:
        raise problems[0]
    for _ in pieces:
        pass


def main(fd: int, nbytes: int, path: str, host: int, keep: int) -> None:
    """Write the memory behind a descriptor; what went wrong is said on standard output."""
    for number in (signal.SIGINT, signal.SIGTERM):  # for the ranks; this ends by itself
        signal.signal(number, signal.SIG_IGN)
    memory = memoryview(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ))
    try:
        yielding(_writing(path, [memory], host, keep), sys.stdin.fileno())
    except OSError as problem:
        sys.stdout.write(problem.strerror or str(problem))
        sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
