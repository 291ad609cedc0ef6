"""Removing a tree of a job's files, in a helper that runs as the jobs' user.

A job can leave anything behind: modes may be odd, folders deep, names any bytes; links are never
followed. Two descriptors are open however deep it goes; on the way up ".." is compared with the
folder that was passed on the way down.
"""

from __future__ import annotations

import contextlib
import os
import stat

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotRemoved(Exception):
    """A sentence about the first thing that could not be removed."""


def remove(path: str) -> None:
    """Remove a directory and all below it. Where only its last, empty folder must stay, because
    its parent is another user's, that is success: the parent's owner can remove it.
    """
    try:
        parent = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            _empty(parent, os.path.basename(os.path.abspath(path)), path)
            with contextlib.suppress(PermissionError):
                os.rmdir(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as problem:
        raise NotRemoved(f"{path} cannot be removed: {problem.strerror}") from problem
    finally:
        os.close(parent)


class _Level:
    """A folder on the way down: its identity, and the folders in it that are still to remove."""

    def __init__(self, fd: int, name: str) -> None:
        found = os.fstat(fd)
        self.name = name
        self.identity = (found.st_dev, found.st_ino)
        self.folders: list[str] = []


def _empty(parent: int, name: str, shown: str) -> None:
    """Remove everything below a folder."""
    current = _enter(parent, name)
    try:
        levels = [_Level(current, name)]
        levels[0].folders = _unlink_files(current)
        while levels:
            if levels[-1].folders:
                name = levels[-1].folders.pop()
                below = _enter(current, name)
                os.close(current)
                current = below
                levels.append(_Level(current, name))
                if levels[-1].identity[0] != levels[0].identity[0]:
                    raise NotRemoved(f"{shown} has another file system mounted at {name!r}")
                levels[-1].folders = _unlink_files(current)
            else:
                done = levels.pop()
                if levels:
                    current = _leave(current, levels[-1])
                    os.rmdir(done.name, dir_fd=current)
    finally:
        os.close(current)


def _enter(parent: int, name: str) -> int:
    try:
        fd = os.open(name, DIRECTORY, dir_fd=parent)
    except PermissionError:
        # chmod by name would follow a link put there meanwhile; O_PATH needs no permission.
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
        finally:
            os.close(handle)
        fd = os.open(name, DIRECTORY, dir_fd=parent)
    if os.fstat(fd).st_mode & 0o700 != 0o700:
        with contextlib.suppress(PermissionError):
            os.fchmod(fd, 0o700)
    return fd


def _leave(current: int, level: _Level) -> int:
    above = os.open("..", DIRECTORY, dir_fd=current)
    found = os.fstat(above)
    if (found.st_dev, found.st_ino) != level.identity:
        os.close(above)
        raise NotRemoved("a folder was moved while it was being removed")
    os.close(current)
    return above


def _unlink_files(fd: int) -> list[str]:
    """Remove everything that is no folder; the names of the folders."""
    folders = []
    with os.scandir(fd) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in names:
        if is_folder:
            folders.append(name)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
    return folders
