"""A look at a path that a job names, which may be on a file system that does not answer.

    look ─► in a thread ─┬─ within ten seconds ─► what it found
                         └─ later ──────────────► Unanswered, a sentence; the thread goes on waiting

A dead NFS server holds `stat` for ever, and a daemon that waited for it would be restarted by its
watchdog, to wait again. The threads are few, and none keeps the daemon from stopping; one look is
shared by all who want the same. Where all of them hang, nothing is known of any other path: that
may pass, and is an OSError.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from wiiiiided.errors import HostError

WITHIN_S = 10.0
AT_ONCE = 32  # threads that may hang

Result = TypeVar("Result")
Wanted = tuple[object, ...]  # the look and what it is given

_under_way: dict[Wanted, tuple[float, Future[Any]]] = {}  # since when


class Unanswered(HostError):
    """A path is on a file system that does not answer."""


async def look(path: str, work: Callable[..., Result], *given: object) -> Result:
    """Return what `work(*given)` finds about a path; Unanswered after a while, OSError where no
    thread is left to look with."""
    wanted = (work, *given)
    since, found = _under_way.get(wanted) or _begin(wanted)
    try:
        async with asyncio.timeout(max(0.0, since + WITHIN_S - time.monotonic())):
            return await asyncio.shield(asyncio.wrap_future(found))
    except TimeoutError:
        if found.done():  # the look itself said so
            raise
        raise Unanswered(f"{path} is on a file system that does not answer") from None


def _begin(wanted: Wanted) -> tuple[float, Future[Any]]:
    if len(_under_way) >= AT_ONCE:
        raise OSError(errno.EAGAIN, "too many file systems do not answer")
    begun = _under_way[wanted] = (time.monotonic(), Future())
    try:
        threading.Thread(target=_look, args=(wanted, begun[1]), daemon=True).start()
    except RuntimeError as problem:
        del _under_way[wanted]
        raise OSError(errno.EAGAIN, str(problem)) from None
    return begun


def _look(wanted: Wanted, found: Future[Any]) -> None:
    work: Any = wanted[0]
    try:
        result = work(*wanted[1:])
    except BaseException as problem:
        _under_way.pop(wanted, None)
        found.set_exception(problem)
    else:
        _under_way.pop(wanted, None)
        found.set_result(result)
