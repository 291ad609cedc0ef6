"""How the ranks of this share find the job's Store: three ways, and which of them it is.

    a machine alone           the Store is here, on loopback; ranks connect to it
    the first of several      the Store is here and listens nowhere; the daemon hands over the
                              connections of ranks here, and of the other nodes' shims
    another of several        the daemon hands over the connections of ranks here; each goes on
                              to the first node (`passages`)

So on one of several machines nothing of a job listens but at unix sockets. A door that is there
serves: it appears when there is a Store behind it, and goes with it.

A machine that falls silent while ranks wait in the Store is told to the supervisor: whoever waits
for its ranks would do so until the group's timeout. Later the backend watches, or does not care:
then nobody waits in the Store, and the log has a line. Ranks may come to wait only after that, so
it is looked at again, now and then; a machine that comes back is not silent any more.
"""

from __future__ import annotations

import contextlib
import os

from wiiiiided.shim import attempt, control, files, sockets
from wiiiiided.shim.handover import LOCAL, REMOTE, Handover
from wiiiiided.shim.loop import Loop, Timer
from wiiiiided.shim.rendezvous import Rendezvous

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from wiiiiided.shim.passages import Passages

LOOK_S = 120.0  # between two looks whether somebody waits while a machine is silent


class Meeting:
    """`port` is the Store's on loopback; 0 where ranks look for it at the machine's one port.
    OSError or files.Unreadable when it cannot be. `on_silence` gets a sentence."""

    def __init__(
        self,
        loop: Loop,
        order: files.Order,
        directory: int,
        note: Callable[[str], None],
        on_last_guest: Callable[[], None],
        on_silence: Callable[[str], None],
    ) -> None:
        self._loop, self._directory = loop, directory
        self._note, self._on_silence = note, on_silence
        self._silent: list[str] = []  # addresses of machines
        self._next_look: Timer | None = None
        self._store: Rendezvous | None = None
        self._passages: Passages | None = None
        self._handover: Handover | None = None
        if order.door and order.node_index:
            # Not at the top: every other shim can do without what it takes to knock.
            from wiiiiided.shim.passages import Passages

            self._passages = Passages(loop, order, attempt.read_key(directory), note)
        else:
            self._store = Rendezvous(loop, on_last_guest, self._fell_silent)
            if order.door and order.encrypt:
                from wiiiiided.shim import tls

                self._store.encrypted = tls.Store(directory, attempt.read_key(directory)).wrap
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
        if self._next_look is not None:
            self._next_look.cancel()
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
        if kind != REMOTE or self._store is None:
            return False
        address = str(link.getpeername()[0])
        if address in self._silent:
            self._silent.remove(address)
        return self._store.take(link, guest=True)

    def _fell_silent(self, address: str, waited_for: bool) -> None:
        if address in self._silent:
            return  # the next of its connections
        self._silent.append(address)
        self._note(f"the machine at {address} has not answered for {sockets.SILENT_S} s")
        self._look(waited_for)

    def _look(self, waited_for: bool) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        if self._silent and waited_for:
            self._on_silence(
                f"the machine at {self._silent[0]} has not answered for {sockets.SILENT_S} s while "
                "the ranks were finding each other"
            )
        elif self._silent and self._store is not None:
            store = self._store
            self._next_look = self._loop.after(LOOK_S, lambda: self._look(store.waited_for))
