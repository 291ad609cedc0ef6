"""The files of a working directory that would travel: found before a byte of it is read.

So limits are told with the names of what is too large, and `submit --dry-run` can say what it would
ship. Names are text with surrogate escapes, as Python gives them; the order is that of their bytes.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from wiiiiided.cluster.archive.ignore import OURS, BadRules, Rules, is_daemons
from wiiiiided.cluster.archive.safe_paths import link_stays
from wiiiiided.cluster.archive.tar_entries import BLOCK
from wiiiiided.errors import WiiiiideError
from wiiiiided.text import format_size

LIMIT_BYTES = 512 << 20
LIMIT_FILES = 100_000


class PackError(WiiiiideError):
    """The working directory cannot be shipped; the sentence says why and what to do."""


@dataclass(frozen=True)
class Found:
    """One thing to be shipped."""

    name: str  # relative
    path: str
    info: os.stat_result
    target: str | None = None  # of a link


@dataclass(frozen=True)
class Survey:
    directory: str
    found: tuple[Found, ...]
    notes: tuple[str, ...]  # what was left out for a reason a person may not expect
    ignored: tuple[tuple[str, str], ...] = ()  # at the top: a name, and the file that ignores it

    @property
    def files(self) -> int:
        return sum(not stat.S_ISDIR(item.info.st_mode) for item in self.found)

    @property
    def bytes(self) -> int:
        return sum(item.info.st_size for item in self.found if stat.S_ISREG(item.info.st_mode))


@dataclass(frozen=True)
class Limits:
    bytes: int = LIMIT_BYTES
    files: int = LIMIT_FILES


def survey(directory: str, limits: Limits | None = None) -> Survey:
    """Everything below `directory` that is shipped. Raises PackError."""
    limits = limits or Limits()
    if not os.path.isdir(directory):
        raise PackError(f"the working directory {directory} is not there, or is no directory")
    found: list[Found] = []
    notes: list[str] = []
    ignored: list[tuple[str, str]] = []
    sizes: Counter[str] = Counter()
    total = 0
    try:
        for item in _walk(directory, notes, ignored):
            found.append(item)
            total += _archived(item)
            sizes[item.name.partition("/")[0]] += _archived(item)
            # Enough is seen: twice the limit also names what is large, not only what is first.
            if total > 2 * limits.bytes or len(found) > 2 * limits.files:
                break
    except BadRules as problem:
        raise PackError(str(problem)) from problem
    if total > limits.bytes:
        raise PackError(_too_large(directory, limits, sizes))
    if len(found) > limits.files:
        raise PackError(_too_many(directory, limits, found))
    return Survey(directory, tuple(found), tuple(notes), tuple(ignored))


def _archived(item: Found) -> int:
    """Bytes it takes in the archive: a header, and its content in whole blocks."""
    size = item.info.st_size if stat.S_ISREG(item.info.st_mode) else 0
    return BLOCK + size + -size % BLOCK


def _walk(directory: str, notes: list[str], ignored: list[tuple[str, str]]) -> Iterator[Found]:
    """Depth first, each directory before what it holds. A stack: paths may be 2,000 deep."""
    stack = [(iter(_listing(directory)), "", Rules.of(directory))]
    while stack:
        names, prefix, rules = stack[-1]
        name = next(names, None)
        if name is None:
            stack.pop()
            continue
        item = _look(directory, prefix + name, rules, notes, ignored)
        if item is None:
            continue
        yield item
        if stat.S_ISDIR(item.info.st_mode):
            inner = rules.below(os.path.abspath(item.path))
            stack.append((iter(_listing(item.path)), item.name + "/", inner))


def _listing(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path), key=os.fsencode)
    except OSError as problem:
        raise PackError(_unreadable(path, problem)) from problem


def _look(
    directory: str, name: str, rules: Rules, notes: list[str], ignored: list[tuple[str, str]]
) -> Found | None:
    """The entry to be shipped for this name; None when it is excluded."""
    path = os.path.join(directory, name)
    try:
        info = os.lstat(path)
        is_link = stat.S_ISLNK(info.st_mode)
        full = os.path.join(os.path.abspath(directory), name)
        # git asks a link's own name, without a slash; a venv behind a link is one all the same.
        is_directory = stat.S_ISDIR(info.st_mode)
        by = rules.ignored_by(full, is_directory)
        if by and "/" not in name:
            ignored.append((name + "/" * is_directory, by))
        if by == "" and is_directory and is_daemons(full):
            notes.append(f"{name!r} is where a daemon keeps its state and keys: left out")
        if by is not None or (is_link and _leads_to_venv(path)):
            return None
        target = os.readlink(path) if is_link else None
    except FileNotFoundError:
        notes.append(f"{name!r} went away meanwhile: left out")
        return None
    except OSError as problem:
        raise PackError(_unreadable(path, problem)) from problem
    if target is not None:
        _check_link(name, target)
    elif not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
        notes.append(f"{name!r} is no file, directory or link: left out")
        return None
    return Found(name, path, info, target)


def _leads_to_venv(path: str) -> bool:
    return os.path.exists(os.path.join(path, "pyvenv.cfg"))


def _check_link(name: str, target: str) -> None:
    parts = tuple(os.fsencode(part) for part in name.split("/"))
    if link_stays(parts, os.fsencode(target)):
        return
    raise PackError(
        f"{name!r} is a link to {target!r}, which is not shipped: only relative links that stay "
        f"inside the working directory are (with '..' at their beginning only). Add the line "
        f"{'/' + name!r} to {OURS} to leave it out"
    )


def _unreadable(path: str, problem: OSError) -> str:
    return (
        f"cannot read {path!r}: {problem.strerror}. Make it readable, or add it to {OURS} to "
        "leave it out"
    )


def _too_large(directory: str, limits: Limits, sizes: Counter[str]) -> str:
    largest = ", ".join(f"{name!r} {format_size(size)}" for name, size in sizes.most_common(3))
    return (
        f"the working directory {directory} is too large: more than {format_size(limits.bytes)} "
        f"would be shipped. Largest: {largest}. List what the job does not need in "
        f"{os.path.join(directory, OURS)}"
    )


def _too_many(directory: str, limits: Limits, found: list[Found]) -> str:
    largest = ", ".join(f"{name!r} {count:,}" for name, count in _fullest(found))
    return (
        f"the working directory {directory} has too many files: more than {limits.files:,} files "
        f"and folders would be shipped. Most are in: {largest}. List what the job does not need "
        f"in {os.path.join(directory, OURS)}"
    )


def _fullest(found: list[Found]) -> list[tuple[str, int]]:
    """The three folders at the top that hold most; deeper ones where nearly all is in those."""
    counts: Counter[str] = Counter()
    inner: dict[str, set[str]] = {"": set()}
    for item in found:
        folder = os.path.dirname(item.name)
        if not folder and not stat.S_ISDIR(item.info.st_mode):
            counts["."] += 1
        while folder:
            counts[folder] += 1
            above = os.path.dirname(folder)
            inner.setdefault(above, set()).add(folder)
            folder = above
    top = sorted({*inner[""], "."}, key=lambda name: (-counts[name], name))[:3]
    named = [_narrowed(name, counts, inner) for name in top]
    return [(name, counts[name]) for name in named if counts[name]]


def _narrowed(name: str, counts: Counter[str], inner: dict[str, set[str]]) -> str:
    """The deepest folder below this one that has nearly all of it."""
    while name in inner:
        best = max(inner[name], key=counts.__getitem__)
        if counts[best] < 0.9 * counts[name]:
            break
        name = best
    return name
