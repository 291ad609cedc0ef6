"""The files of a job that match some patterns, as a tar on a descriptor, for `pull`.

    *  ?  [abc]    within one name, names that begin with a dot included
    **             any number of folders: `runs/**` is everything below runs, `**/*.pt` every .pt
    runs           a folder's plain name stands for everything below it

A job may be writing meanwhile. A file is sent with the length it had when it was opened, filled
with zeros where it shrank; a file that cannot be read is left out and named at the end. Links are
sent as links and never followed. One by full path to something in the working directory
(`runs/latest -> /…/work/runs/9.pt`) is sent as a relative one: for the receiver the full path leads
nowhere. One that leads elsewhere is sent as it is, so that the receiver can name it.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

MAX_PATTERNS = 100
MAX_PATTERN_CHARS = 1000


def tar(directory: str, patterns: list[str], out: IO[bytes], names: bool = False) -> list[str]:
    """Write the tar, `names`: without any content; sentences about what was left out."""
    is_wanted = matcher(patterns)
    roots = {os.path.abspath(directory), os.path.realpath(directory)}  # either may be in a link
    problems: list[str] = []
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path, name, parent in walk(directory, problems):
            if is_wanted(path):
                try:
                    _add(archive, path, name, parent, roots, names)
                except OSError as problem:
                    if problem.filename is None:
                        raise  # of the output, not of a file
                    problems.append(f"{path} was left out: {problem.strerror}")
    return problems


def check(patterns: list[str]) -> str:
    """A sentence about what is wrong with the patterns; empty: nothing."""
    if len(patterns) > MAX_PATTERNS:
        return f"{len(patterns)} patterns are too many; at most {MAX_PATTERNS}"
    for pattern in patterns:
        if not pattern or len(pattern) > MAX_PATTERN_CHARS:
            return f"a pattern has 1 to {MAX_PATTERN_CHARS} characters"
        if pattern.startswith("/") or ".." in pattern.split("/"):
            return f"the pattern {pattern!r} leads out of the job's working directory"
    return ""


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path matches one of them."""
    wanted = [_expression(pattern) for pattern in patterns]
    return lambda path: any(expression.fullmatch(path) for expression in wanted)


def _expression(pattern: str) -> re.Pattern[str]:
    """A pattern as a regular expression that never backtracks over a star.

    The text between two stars is matched where it is first found, and that is final (an atomic
    group): no later place could leave more to the rest. So the time is not exponential.
    """
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    segments: list[list[str]] = [[]]  # the names between the double stars
    for part in parts:
        if part == "**":
            segments.append([])
        else:
            segments[-1].append(_name(part))
    first, *rest = segments
    if not rest:
        plain = not any(char in pattern for char in "*?[")
        return re.compile("/".join(first) + ("(?:/.*)?" if plain else ""), re.DOTALL)
    *middle, last = rest
    text = "".join(f"{name}/" for name in first)
    for names in filter(None, middle):
        text += "(?>(?:[^/]+/)*?" + "".join(f"{name}/" for name in names) + ")"
    text += "(?:[^/]+/)*" + "/".join(last) if last else ".*"
    return re.compile(text, re.DOTALL)


def _name(part: str) -> str:
    """Write one name of a pattern as a regular expression."""
    pieces, index = [""], 0  # the text between the stars
    while index < len(part):
        char = part[index]
        index += 1
        if char == "*":
            pieces.append("")
        elif char == "?":
            pieces[-1] += "[^/]"
        elif char == "[" and (end := part.find("]", index + 1)) > 0:
            pieces[-1] += _choice(part[index:end])
            index = end + 1
        else:
            pieces[-1] += re.escape(char)
    first, *rest = pieces
    if not rest:
        return first
    middle = "".join(f"(?>[^/]*?{piece})" for piece in rest[:-1] if piece)
    return f"{first}{middle}[^/]*{rest[-1]}"


def _choice(inside: str) -> str:
    """[abc], [a-z], [!abc]; a range that runs backwards holds nothing."""
    negated = inside[0] in "!^" and len(inside) > 1
    rest, ranges = inside[negated:], []
    while rest:
        if rest[1:2] == "-" and len(rest) > 2:
            low, high, rest = rest[0], rest[2], rest[3:]
            if low <= high:
                ranges.append(f"{re.escape(low)}-{re.escape(high)}")
        else:
            ranges.append(re.escape(rest[0]))
            rest = rest[1:]
    if not ranges:
        return "[^/]" if negated else "(?!)"
    return f"(?!/)[{'^' if negated else ''}{''.join(ranges)}]"


def walk(directory: str, problems: list[str]) -> Iterator[tuple[str, str, int]]:
    """(path, name, descriptor of its folder) of files and links, sorted by path."""

    def fault(problem: OSError) -> None:
        problems.append(f"{problem.filename} was left out: {problem.strerror}")

    for folder, below, names, fd in os.fwalk(directory, onerror=fault, follow_symlinks=False):
        below.sort()
        front = os.path.relpath(folder, directory)
        links = [name for name in below if _is_link(name, fd)]
        for name in sorted(names + links):
            yield (name if front == "." else f"{front}/{name}"), name, fd


def _is_link(name: str, fd: int) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(name, dir_fd=fd).st_mode)
    except OSError:
        return False


def relative(path: str, target: str, roots: set[str]) -> str:
    """The target of the link at `path`, made relative where it is inside one of `roots`."""
    for root in roots:
        rest = target[len(root) :]
        if target.startswith(root) and rest[:1] in ("", "/") and ".." not in rest.split("/"):
            steps = [step for step in rest.split("/") if step not in ("", ".")]
            return "/".join([*[".."] * path.count("/"), *steps]) or "."
    return target


def _add(
    archive: tarfile.TarFile, path: str, name: str, parent: int, roots: set[str], names: bool
) -> None:
    found = os.lstat(name, dir_fd=parent)
    entry = tarfile.TarInfo(path)
    entry.mtime = int(found.st_mtime)
    entry.mode = stat.S_IMODE(found.st_mode) & 0o777
    if stat.S_ISLNK(found.st_mode):
        target = os.readlink(name, dir_fd=parent)
        entry.type, entry.linkname = tarfile.SYMTYPE, relative(path, target, roots)
        archive.addfile(entry)
    elif stat.S_ISREG(found.st_mode) and names:
        archive.addfile(entry)
    elif stat.S_ISREG(found.st_mode):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        with open(fd, "rb") as file:
            entry.size = os.fstat(fd).st_size
            archive.addfile(entry, _FixedLengthFile(file))  # type: ignore[arg-type]


class _FixedLengthFile:
    """A file that keeps its length while its writer goes on."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        try:
            data: bytes = self._file.read(size)
        except OSError:  # a disk that fails in the middle; the entry's length is already sent
            data = b""
        return data + b"\0" * (size - len(data))


def main(directory: str, patterns: list[str], names: bool = False) -> int:
    """`--tar DIR GLOB...`, `--names DIR GLOB...`: 0, or 1 with sentences on stderr."""
    if sentence := check(patterns):
        print(sentence, file=sys.stderr)
        return 2
    try:
        problems = tar(directory, patterns, sys.stdout.buffer, names)
        sys.stdout.buffer.flush()
    except OSError as problem:
        print(f"{directory} cannot be sent: {problem.strerror}", file=sys.stderr)
        return 1
    except RecursionError:
        print(f"{directory} cannot be sent: its folders are nested too deep", file=sys.stderr)
        return 1
    for sentence in problems[:20]:
        print(sentence, file=sys.stderr)
    return 1 if problems else 0
