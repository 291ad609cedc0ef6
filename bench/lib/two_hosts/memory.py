"""Memory for exchange: what ranks hold, shared memory and the kernel's socket buffers included.

It is looked at while operations run, since what is taken and given back counts too. A page of
shared memory counts in parts, one for each process that maps it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Self

from lib.hosts import NetHost
from lib.proc import own_bytes

_LOOK_EVERY_S = 0.02
# r: received and not read; f: set aside; w: written and not confirmed; bl: arrived meanwhile.
_SOCKET = re.compile(r"skmem:\(r(\d+),rb\d+,t\d+,tb\d+,f(\d+),w(\d+),o\d+,bl(\d+)")


def socket_bytes(listing: str) -> int:
    """The buffers in what `ss --memory` says."""
    return sum(int(part) for found in _SOCKET.findall(listing) for part in found)


class Watch:
    """Looks at ranks and hosts again and again, in a thread, and keeps the most it has seen."""

    def __init__(self, pids: Sequence[int], hosts: Sequence[NetHost]) -> None:
        self._pids, self._hosts = pids, hosts
        self.most_own = [0] * len(pids)
        self.most_sockets = [0] * len(hosts)  # of all ranks of a host together
        self._over = threading.Event()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._problem is not None and kind is None:
            raise self._problem

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._look()
                self._over.wait(_LOOK_EVERY_S)
        except Exception as problem:  # raised again where it is seen
            self._problem = problem

    def _look(self) -> None:
        for number, pid in enumerate(self._pids):
            self.most_own[number] = max(self.most_own[number], own_bytes(pid))
        for number, host in enumerate(self._hosts):
            held = socket_bytes(host.space.run("ss --tcp --memory --numeric --no-header"))
            self.most_sockets[number] = max(self.most_sockets[number], held)
