"""`wiiiiide pull`: files that a job made, brought here.

    daemon ──tar──► a hidden folder beside the target ──► checked ──► moved into the target

Nothing is in the target before everything has arrived, and nothing there is overwritten without
--force. A job's files are untrusted: `archive.unpack` lets nothing out of the hidden folder; no
link in the target is followed when files are moved. Links that lead out of the job's folder are
named and left out. A folder job-ID that is made here gets the mark that `archive.ignore` looks for:
the results of one job do not travel with the next.

A machine that did not answer is a file in the archive, missing-from-NODE.txt: what came is kept,
and the exit code says that it is not all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from typing import Annotated, Protocol

import typer

from wiiiiided.cluster.archive.ignore import PULLED
from wiiiiided.cluster.archive.unpack import UnpackError, unpack
from wiiiiided.cluster.client import Progress
from wiiiiided.errors import HostError
from wiiiiided.text import clean, count, format_size
from wiiiiided.ui.cli import screen
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.option_values import job_id
from wiiiiided.ui.cli.options import Id, Json
from wiiiiided.ui.cli.progress import counted

LIMIT_BYTES = 1 << 40  # results may be large; the disk is the true limit
LIMIT_FILES = 1_000_000
NOT_ALL = 1  # exit code, for scripts that would go on with files that are not there
MISSING = re.compile(r"missing-from-([^/]+)\.txt")  # the daemon's word about a machine
NAMED = 10  # links that were left out; more are counted


def command(
    job: Id,
    globs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GLOB",
            help="Which files: 'runs/**'. Without it, the job file's output.collect.",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="DIR", help="Where to; else job-ID.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files that are there already.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Fetch files of a job's working directory, while it runs or afterwards."""
    number = job_id(job)
    for glob in globs or ():
        check_glob(glob)
    target = output or f"job-{number}"
    left_out: list[str] = []
    with connect().pull(number, globs or ()) as blob, counted(f"pulling job {number}") as tell:
        files = fetch(Counted(blob, tell), target, force, left_out, mark=output is None)
    _say_left_out(left_out)
    away = [found[1] for name, _ in files if (found := MISSING.fullmatch(name))]
    code = 0 if files and not away else NOT_ALL
    if as_json:
        listed = [{"name": name, "bytes": size} for name, size in files]
        screen.put_json({"id": number, "directory": target, "files": listed, "missing": away})
        return code
    for name, _ in files:
        screen.put(clean(os.path.join(target, name)))
    total = format_size(sum(size for _, size in files))
    if files:
        screen.say(f"{count(len(files), 'file')}, {total}, in {target}")
    else:
        wanted = " ".join(globs or ()) or "its output.collect"
        screen.say(f"no file of job {number} matches {wanted}")
    _say_missing(away)
    return code


class Source(Protocol):
    """The source of the archive."""

    def read(self, size: int) -> bytes: ...


class Counted:
    """An archive whose bytes are told as they come."""

    def __init__(self, source: Source, tell: Progress) -> None:
        self._source = source
        self._tell = tell
        self._bytes = 0

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._bytes += len(data)
        self._tell(self._bytes, 0)
        return data


def check_glob(glob: str) -> None:
    """Refuse a GLOB that the daemon would refuse later."""
    if not glob:
        raise typer.BadParameter("an empty GLOB matches nothing; '**' is everything")
    if glob.startswith("/") or ".." in glob.split("/"):
        raise typer.BadParameter(
            f"{glob!r} leads out of the job's working directory; a GLOB is relative to it, "
            "as in 'runs/**'"
        )


def _say_left_out(links: list[str]) -> None:
    for link in links[:NAMED]:
        screen.say(f"note: left out {link}: the link leads out of the job's working directory")
    if len(links) > NAMED:
        screen.say(f"note: and {count(len(links) - NAMED, 'more link')}")


def _say_missing(nodes: list[str]) -> None:
    for node in map(clean, nodes):
        screen.say(
            f"wiiiiide: the files of {node} are missing: missing-from-{node}.txt says why. "
            "Pull again with --force when it answers"
        )


def fetch(
    blob: Source, target: str, force: bool, left_out: list[str], mark: bool = False
) -> list[tuple[str, int]]:
    """Bring the files of the archive to `target`; their names and sizes.

    Links that cannot come along are added to `left_out`.
    """
    parent = os.path.dirname(os.path.abspath(target))
    try:
        os.makedirs(parent, exist_ok=True)
        staging = tempfile.mkdtemp(prefix=".wiiiiide-pull-", dir=parent)
    except OSError as problem:
        raise HostError(f"cannot write into {parent}: {problem.strerror}") from problem
    try:
        _unpack(blob, staging, left_out)
        files = [(name, info.st_size) for name, info in _walk(staging) if not _is_dir(info)]
        if files:
            _check(staging, target, force)
            mark = mark and not os.path.lexists(target)
            _move(staging, target)
            if mark:
                _mark(target)
        return files
    except OSError as problem:
        raise HostError(f"cannot write into {target}: {problem.strerror}") from problem
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _unpack(blob: Source, staging: str, left_out: list[str]) -> None:
    try:
        limits = {"limit_bytes": LIMIT_BYTES, "limit_files": LIMIT_FILES}
        unpack(blob, staging, **limits, left_out=left_out)
        problem = None
    except UnpackError as error:
        problem = error
    while blob.read(1 << 20):  # behind the archive, the daemon may say what is wrong with it
        pass
    if problem is not None:
        raise HostError(f"the archive from the daemon cannot be used: {problem}") from problem


def _walk(directory: str, prefix: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Every file and folder below, by relative name; a folder before its contents."""
    for name in sorted(os.listdir(os.path.join(directory, prefix))):
        relative = os.path.join(prefix, name)
        info = os.lstat(os.path.join(directory, relative))
        yield relative, info
        if _is_dir(info):
            yield from _walk(directory, relative)


def _is_dir(info: os.stat_result) -> bool:
    return stat.S_ISDIR(info.st_mode)


def _check(staging: str, target: str, force: bool) -> None:
    """Refuse what is in the way: a file that would be overwritten, a link, a folder."""
    there = []
    for name, info in _walk(staging):
        try:
            old = os.lstat(os.path.join(target, name))
        except (FileNotFoundError, NotADirectoryError):
            continue
        if _is_dir(info) != _is_dir(old):
            raise HostError(
                f"{os.path.join(target, name)} is in the way: a folder on one side, none on the "
                "other. Move it, or choose another place with -o"
            )
        if not _is_dir(info):
            there.append(name)
    if there and not force:
        more = f" and {count(len(there) - 1, 'more file')}" if len(there) > 1 else ""
        raise HostError(
            f"{os.path.join(target, there[0])}{more} would be overwritten. --force does it; "
            "-o DIR chooses another place"
        )


def _mark(target: str) -> None:
    with contextlib.suppress(FileExistsError), open(os.path.join(target, PULLED), "x") as file:
        file.write("made by wiiiiide pull; without this file, wiiiiide submit ships the folder\n")


def _move(staging: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    for name, info in _walk(staging):
        place = os.path.join(target, name)
        if _is_dir(info):
            os.makedirs(place, exist_ok=True)
        else:
            os.replace(os.path.join(staging, name), place)
