"""The few calls of the kernel and the C library that Python's os module does not have."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TFD_TIMER_ABSTIME = 1

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans among this process's descendants become its children, whatever their session."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Have this process killed when its parent ends. The parent may have ended before the call."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def sync_file_system(path: str) -> None:
    """Return when everything written to the file system that holds `path` is on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(fd):
            raise _error()
    finally:
        os.close(fd)


def give_back_memory() -> None:
    """Return freed heap to the system. Other C libraries than glibc have no such call."""
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)


class _Time(ctypes.Structure):
    """struct timespec"""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Times(ctypes.Structure):
    """struct itimerspec"""

    _fields_ = (("interval", _Time), ("value", _Time))


def make_alarm() -> int:
    """A descriptor that becomes readable at a time of CLOCK_BOOTTIME, also one that passes while
    the machine sleeps. Python has this from 3.13 on."""
    fd: int = _libc.timerfd_create(time.CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise _error()
    return fd


def set_alarm(fd: int, at: float) -> None:
    """Set the time at which the timer becomes readable; an earlier alarm is forgotten."""
    seconds = int(at)
    when = _Times(_Time(0, 0), _Time(seconds, int((at - seconds) * 1e9)))
    if _libc.timerfd_settime(fd, _TFD_TIMER_ABSTIME, ctypes.byref(when), None):
        raise _error()


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
