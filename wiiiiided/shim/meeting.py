"""How the ranks of this share find the job's Store: three ways, and which of them it is.

    a machine alone           the Store is here, on loopback; ranks connect to it
    the first of several      the Store is here and listens nowhere; the daemon hands over the
                              connections of ranks here, and of the other nodes' shims
    another of several        the daemon hands over the connections of ranks here; each goes on
                              to the first node (`passages`)

So on one of several machines nothing of a job listens but at unix sockets. A door that is there
serves: it appears when there is a Store behind it, and goes with it.
"""

from __future__ import annotations

import contextlib
import os

from wiiiiided.shim import attempt, control, files, sockets
from wiiiiided.shim.handover import LOCAL, REMOTE, Handover
from wiiiiided.shim.loop import Loop
from wiiiiided.shim.rendezvous import Rendezvous

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from wiiiiided.shim.passages import Passages


class Meeting:
    """`port` is the Store's on loopback; 0 where ranks look for it at the machine's one port.
    OSError or files.Unreadable when it cannot be."""

    def __init__(
        self,
        loop: Loop,
        order: files.Order,
        directory: int,
        note: Callable[[str], None],
        on_last_guest: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._store: Rendezvous | None = None
        self._passages: Passages | None = None
        self._handover: Handover | None = None
        if order.door and order.node_index:
            # Not at the top: every other shim can do without what it takes to knock.
            from wiiiiided.shim.passages import Passages

            self._passages = Passages(loop, order, attempt.read_key(directory), note)
        else:
            self._store = Rendezvous(loop, on_last_guest)
        if order.door:
            listener = control.bind(directory, files.DOOR, order.file_mode)
            uids = {0, os.geteuid(), order.listener_uid}
            self._handover = Handover(loop, listener, uids, self._take)
        elif self._store is not None:
            self._store.listen()

    @property
    def port(self) -> int:
        return 0 if self._store is None else self._store.port

    @property
    def guests(self) -> int:
        """Connections of other nodes' ranks to the Store here."""
        return 0 if self._store is None else self._store.guests

    def close(self) -> None:
        if self._handover is not None:
            self._handover.close()
            with contextlib.suppress(OSError):
                os.unlink(files.DOOR, dir_fd=self._directory)
        for those in (self._store, self._passages):
            if those is not None:
                those.close()

    def _take(self, kind: bytes, link: socket.socket) -> bool:
        if kind == LOCAL and sockets.is_of_the_family(link):
            those = self._store or self._passages
            return those is not None and those.take(link)
        return kind == REMOTE and self._store is not None and self._store.take(link, guest=True)
