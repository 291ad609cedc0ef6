"""The name of a user, asked of the machine's directory, which may be a server that is down.

    uid ─► known ─► its name
        └► asked in a thread ─┬─ within a second ─► its name, known from now on
                              └─ later ───────────► the number for now; the name is known then

LDAP that does not answer takes a minute to say so, and a daemon that waited for it would be
restarted by its watchdog, to wait again at the next request. The threads are few, and one
that hangs keeps no daemon from stopping.
"""

from __future__ import annotations

import asyncio
import pwd
import threading
import time
from concurrent.futures import Future

WITHIN_S = 1.0
KNOWN = 1024
AT_ONCE = 8  # threads that may hang

Asked = tuple[float, Future[str]]  # since when

_known: dict[int, str] = {}
_asked: dict[int, Asked] = {}


async def user_of(uid: int) -> str:
    """The user's name; the number where there is none, or none yet."""
    if uid in _known:
        return _known[uid]
    if (asked := _asked.get(uid) or _ask(uid)) is None:
        return str(uid)
    since, name = asked
    try:
        async with asyncio.timeout(max(0.0, since + WITHIN_S - time.monotonic())):
            return await asyncio.shield(asyncio.wrap_future(name))
    except TimeoutError:
        return str(uid)


def _ask(uid: int) -> Asked | None:
    """Ask for a user's name in a thread; None: too many wait already, or no thread can be had."""
    if len(_asked) >= AT_ONCE:
        return None
    name: Future[str] = Future()
    asked = _asked[uid] = (time.monotonic(), name)
    try:
        threading.Thread(target=_look, args=(uid, name), name=f"name of {uid}", daemon=True).start()
    except RuntimeError:
        del _asked[uid]
        return None
    return asked


def _look(uid: int, name: Future[str]) -> None:
    try:
        found = pwd.getpwuid(uid).pw_name
    except (KeyError, OSError):
        found = str(uid)
    if len(_known) >= KNOWN:
        _known.clear()
    _known[uid] = found
    name.set_result(found)
    _asked.pop(uid, None)
