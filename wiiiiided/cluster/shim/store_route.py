"""How the ranks of this allocation reach the job's Store: one of three ways.

    a machine alone           the Store is here, on loopback; ranks connect to it
    the first of several      the Store is here and listens nowhere; the daemon hands over the
                              connections of ranks here, and of the other nodes' shims
    another of several        the daemon hands over the connections of ranks here; each goes on
                              to the first node (`store_proxy`)

So on one of several machines a job listens at unix sockets only. The endpoint appears when there is
a Store, or a proxy to it, and is removed with it.

The supervisor is told of a machine that falls silent while ranks wait in the Store: they would wait
for its ranks until the group's timeout. Where none waits there, the log gets a line, as the backend
watches its own connections. Ranks may begin to wait later, so that is checked again now and then; a
machine that comes back is not silent any more.
"""

from __future__ import annotations

import contextlib
import os

from wiiiiided.cluster.shim import attempt, control, protocol, sockets
from wiiiiided.cluster.shim.fd_receiver import LOCAL, REMOTE, FdReceiver
from wiiiiided.cluster.shim.loop import ShimLoop, Timer
from wiiiiided.cluster.shim.store_server import StoreServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from wiiiiided.cluster.shim.store_proxy import StoreProxy

LOOK_S = 120.0  # between two checks whether a rank waits while a machine is silent


class StoreRoute:
    """`port` is the Store's on loopback; 0 where ranks look for it at the machine's one port.
    OSError or UnreadableFile when there can be no route. `on_silence` gets a sentence."""

    def __init__(
        self,
        loop: ShimLoop,
        order: protocol.LaunchOrder,
        directory: int,
        note: Callable[[str], None],
        on_last_remote: Callable[[], None],
        on_silence: Callable[[str], None],
    ) -> None:
        self._loop, self._directory = loop, directory
        self._note, self._on_silence = note, on_silence
        self._silent: list[str] = []  # addresses of machines
        self._next_look: Timer | None = None
        self._store: StoreServer | None = None
        self._proxy: StoreProxy | None = None
        self._fd_receiver: FdReceiver | None = None
        if order.door and order.node_index:
            # Not at the top: no other shim needs the client's side of port authentication.
            from wiiiiided.cluster.shim.store_proxy import StoreProxy

            self._proxy = StoreProxy(loop, order, attempt.read_key(directory), note)
        else:
            encrypted = None
            if order.door and order.encrypt:
                from wiiiiided.cluster.shim import store_tls  # megabytes that no other shim needs

                encrypted = store_tls.StoreTls(directory, attempt.read_key(directory)).wrap
            self._store = StoreServer(loop, on_last_remote, self._fell_silent, encrypted)
        if order.door:
            listener = control.bind(directory, protocol.ENDPOINT, order.file_mode)
            uids = {0, os.geteuid(), order.listener_uid}
            self._fd_receiver = FdReceiver(loop, listener, uids, self._take)
        elif self._store is not None:
            self._store.listen()

    @property
    def port(self) -> int:
        return 0 if self._store is None else self._store.port

    @property
    def remote_clients(self) -> int:
        """Connections of other nodes' ranks to the Store here."""
        return 0 if self._store is None else self._store.remote_clients

    def close(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        if self._fd_receiver is not None:
            self._fd_receiver.close()
            with contextlib.suppress(OSError):
                os.unlink(protocol.ENDPOINT, dir_fd=self._directory)
        for those in (self._store, self._proxy):
            if those is not None:
                those.close()

    def _take(self, kind: bytes, link: socket.socket) -> bool:
        if kind == LOCAL and sockets.is_of_the_family(link):
            taker = self._store or self._proxy
            return taker is not None and taker.take(link)
        if kind != REMOTE or self._store is None:
            return False
        address = str(link.getpeername()[0])
        if address in self._silent:
            self._silent.remove(address)
        return self._store.take(link, remote=True)

    def _fell_silent(self, address: str, waited_for: bool) -> None:
        if address in self._silent:
            return  # another of its connections
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
