"""Another machine's checkpoints, put into a job's working directory: the whole set, or none of it.

    tar ──► files/work.placing.<pid>/ckpt/new.pt       staged, on the disk
    work/ckpt/old.pt ── not in the set, or different ► files/aside-3/ckpt/old.pt
    staged           ── rename ──────────────────────► work/ckpt/new.pt

A helper does this as the jobs' user, while no process of the job runs. The daemon marks the
directory before and removes the mark after: a set that was cut short is never started from, nor
given to another machine, and placing it again comes to the same end. Only plain files are placed;
links are not followed, and one in the way is moved aside. Files moved aside before are removed: one
earlier set is kept, not one of every attempt.

Files of `wide.parallel` have their step in their names, and no newer one gives way to an older one:

    this machine's newest is newer       nothing is placed, nothing is moved
    as new                               its own stay: what is a host's own is in them
    older                                the set comes, the newest file before anything is moved

They are known to be whole one by one, so that of them it does not matter where a set is cut short.
Those of another job replace what is here; where that job was on this machine, its files here are
copied in the place of the brought ones, if they are as new.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import sys
from dataclasses import dataclass

from wiiiiided.cluster.archive.unpack import unpack
from wiiiiided.cluster.shim import file_trees, kernel, workdir
from wiiiiided.cluster.shim.collect_files import matcher, walk
from wiiiiided.cluster.shim.protocol import LaunchOrder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ASIDE = "aside-"
READ_BYTES = 1 << 20
_SERIES = r"[0-9a-f]{16}(?:\.job-[0-9]+-[0-9a-f]+)?"  # the job: of a file from a folder elsewhere
_WIDE = re.compile(rf"(?:(.*)/)?step-([0-9]{{10}})\.host-[0-9]+\.({_SERIES})\.wide", re.DOTALL)


def newest_steps(paths: Iterable[str]) -> tuple[int, ...]:
    """Find the newest step of each folder and model among files of `wide.parallel`, the highest
    first; (): there are none. Of two machines the one with the greater tuple has gone on
    further."""
    return tuple(sorted((max(steps) for steps in _by_series(paths)), reverse=True))


def newest_files(paths: Iterable[str]) -> list[str]:
    """Find the files that have the newest step of their folder and model."""
    return [path for steps in _by_series(paths) for path in steps[max(steps)]]


def _by_series(paths: Iterable[str]) -> Iterable[dict[int, list[str]]]:
    """Group the files by folder and model, and in each by step."""
    found: dict[tuple[str, str], dict[int, list[str]]] = {}
    for path in paths:
        if name := _WIDE.fullmatch(path):
            steps = found.setdefault((name[1] or "", name[3]), {})
            steps.setdefault(int(name[2]), []).append(path)
    return found.values()


@dataclass(frozen=True)
class Placing:
    """Files to be placed, and where; its JSON is the helper's argument."""

    work: str
    attempt: int
    patterns: list[str]
    limit_bytes: int
    limit_files: int
    archive_bytes: int  # limits of the working directory, where it is to be made first
    archive_files: int
    file_mode: int
    is_other: bool = False  # the set is another job's, and replaces what is here
    other: str = ""  # the working directory of that job on this machine, if it was here


def place(given: Placing, source: int, archive: int) -> tuple[int, int]:
    """(files placed, files moved aside)."""
    files = os.path.dirname(given.work)
    aside = os.path.join(files, f"{ASIDE}{given.attempt}")
    _remove(files, f"{os.path.basename(given.work)}.placing.", but="")
    _remove(files, ASIDE, but=aside)
    if not os.path.isdir(given.work):
        workdir.make(_order(given), archive)
    staging = f"{given.work}.placing.{os.getpid()}"
    try:
        os.lseek(source, 0, os.SEEK_SET)
        with open(source, "rb", closefd=False) as stream:
            limits = {"limit_bytes": given.limit_bytes, "limit_files": given.limit_files}
            unpack(stream, staging, **limits, left_out=[])
        if given.other:
            _copy_own(given, staging)
        kernel.sync_file_system(staging)
        return _CheckpointExchange(given, staging, aside).run()
    finally:
        with contextlib.suppress(file_trees.NotRemoved):
            file_trees.remove(staging)


def _copy_own(given: Placing, staging: str) -> None:
    """Take the other job's own files here in the place of the brought ones, where they are of the
    same newest steps."""
    is_wanted = matcher(given.patterns)
    try:
        own = [path for path in _paths(given.other) if _WIDE.fullmatch(path) and is_wanted(path)]
        own = newest_files(path for path in own if _is_plain(given.other, path))
        size = sum(os.path.getsize(f"{given.other}/{path}") for path in own)
    except OSError:
        return  # what was brought will do
    brought = [path for path in _paths(staging) if _WIDE.fullmatch(path)]
    is_small = size <= given.limit_bytes and len(own) <= given.limit_files
    if not own or not is_small or newest_steps(own) != newest_steps(brought):
        return
    for path in brought:
        os.unlink(f"{staging}/{path}")
    for path in own:
        source, target = f"{given.other}/{path}", f"{staging}/{path}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, target, follow_symlinks=False)
        found = os.stat(source)
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


class _CheckpointExchange:
    """The staged files against those that are there."""

    def __init__(self, given: Placing, staging: str, aside: str) -> None:
        self._work, self._staging, self._aside = given.work, staging, aside
        self._is_wanted = matcher(given.patterns)
        self._is_other = given.is_other
        self._placed = self._moved = 0

    def run(self) -> tuple[int, int]:
        new = {path for path in _paths(self._staging) if _is_plain(self._staging, path)}
        old = [path for path in _paths(self._work) if self._is_wanted(path)]
        if not self._is_other:
            here = newest_steps(path for path in old if _is_plain(self._work, path))
            brought = newest_steps(new)
            if here > brought:
                return 0, 0
            if here == brought:
                new = {path for path in new if not _WIDE.fullmatch(path)}
                old = [path for path in old if not _WIDE.fullmatch(path)]
        self._exchange(new, old)
        kernel.sync_file_system(self._work)
        return self._placed, self._moved

    def _exchange(self, new: set[str], old: list[str]) -> None:
        if (first := _newest(new)) and not os.path.lexists(f"{self._work}/{first}"):
            self._put(first)
            new.discard(first)
        for path in old:
            if path in new and self._is_same(path):
                new.discard(path)
            elif os.path.lexists(f"{self._work}/{path}"):
                self._move_aside(path)
        for path in sorted(new):
            self._put(path)

    def _put(self, path: str) -> None:
        self._clear_the_way(path)
        os.rename(f"{self._staging}/{path}", f"{self._work}/{path}")
        self._placed += 1

    def _is_same(self, path: str) -> bool:
        """Whether both have the same bytes; then the old one gets the new one's time, as scripts
        look for the newest."""
        old, new = f"{self._work}/{path}", f"{self._staging}/{path}"
        if not _is_plain(self._work, path) or os.path.getsize(old) != os.path.getsize(new):
            return False
        with open(old, "rb") as one, open(new, "rb") as other:
            while piece := one.read(READ_BYTES):
                if piece != other.read(READ_BYTES):
                    return False
        found = os.stat(new)
        os.utime(old, ns=(found.st_atime_ns, found.st_mtime_ns))
        return True

    def _move_aside(self, path: str) -> None:
        target, copy = f"{self._aside}/{path}", 1
        while os.path.lexists(target):  # of an exchange that was cut short
            copy += 1
            target = f"{self._aside}/{path}.{copy}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(f"{self._work}/{path}", target)
        self._moved += 1

    def _clear_the_way(self, path: str) -> None:
        """Make real folders above a path, and move aside what is in its place."""
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            whole = f"{self._work}/{folder}"
            if os.path.lexists(whole) and not stat.S_ISDIR(os.lstat(whole).st_mode):
                self._move_aside(folder)
            os.makedirs(whole, 0o755, exist_ok=True)
        if os.path.lexists(f"{self._work}/{path}"):
            self._move_aside(path)


def _is_plain(root: str, path: str) -> bool:
    return stat.S_ISREG(os.lstat(f"{root}/{path}").st_mode)


def _newest(paths: Iterable[str]) -> str:
    """The file of `wide.parallel` with the highest step; "": there is none."""
    found = ((name[2], path) for path in paths if (name := _WIDE.fullmatch(path)))
    return max(found, default=("", ""))[1]


def _paths(root: str) -> Iterator[str]:
    """Everything below that is no folder, links not followed; OSError: a part is unreadable."""
    problems: list[str] = []
    yield from [path for path, _, _ in walk(root, problems)]
    if problems:
        raise OSError(0, problems[0])


def _remove(folder: str, prefix: str, but: str) -> None:
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.startswith(prefix) and path != but:
            file_trees.remove(path)


def _order(given: Placing) -> LaunchOrder:
    """An order with the fields from which `workdir` makes the directory."""
    return LaunchOrder(
        *(0, given.attempt, "", [], given.work, {}, 1, 0, 1, ""),
        archive_bytes=given.archive_bytes,
        archive_files=given.archive_files,
        file_mode=given.file_mode,
    )


def main(argument: str, source: int, archive: int) -> int:
    """`--place JSON TAR ARCHIVE`: {"placed": …, "moved": …} on stdout and 0, or a sentence and 1;
    75 where there is no room."""
    os.umask(0o022)  # the job's files
    try:
        placed, moved = place(Placing(**json.loads(argument)), source, archive)
        print(json.dumps({"placed": placed, "moved": moved}))
        return 0
    except Exception as problem:
        print(workdir.words(problem))
        return workdir.NO_ROOM if workdir.is_no_room(problem) else 1
    finally:
        sys.stdout.flush()
