"""This process among the others of its machine: one loop, one listening socket, one link per peer.

It is made with the first group and ends with the last, so a program without groups has no thread,
no socket and no descriptor of ours.

    uid(a) < uid(b):   a connects to b's abstract socket, sends HELLO with its card and b's token
                       b checks user (SO_PEERCRED) and token before any other byte counts

A forked child (a DataLoader worker) must not keep a link alive nor speak on it: right after the
fork it closes our descriptors, and its copy of every group is closed.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import secrets
import select
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from wiiiiided import log
from wiiiiided.backend.engine.driver import Driver
from wiiiiided.backend.engine.local_link import Card, Link, Then, peer_uid
from wiiiiided.backend.engine.loop import ProgressLoop
from wiiiiided.backend.engine.mesh import LinkReport, Mesh
from wiiiiided.backend.engine.poller import EpollPoller
from wiiiiided.backend.net.link import WideLink
from wiiiiided.backend.shm import board, malloc, stats
from wiiiiided.backend.shm.kernels import DTYPE_NAMES
from wiiiiided.backend.wire.local_frame import HEADER, HEADER_BYTES, Frame, FrameKind
from wiiiiided.config import Config
from wiiiiided.errors import HostError, UsageError

if TYPE_CHECKING:
    from wiiiiided.backend.engine.chunks import Chunks
    from wiiiiided.backend.engine.group import Group
    from wiiiiided.backend.engine.lane import Lanes

MAX_UNAUTHENTICATED: Final = 64  # connections that have not sent HELLO
MAX_GREETING: Final = 16 * 1024
BYE_S: Final = 0.5  # how long the end waits for a peer to take what we still have for it

_current: RankProcess | None = None
_users = 0
_guard = threading.Lock()
_page: stats.StatsPage | None = None
_finalizer: Any = None
_interface: str | None = None  # what the program asked for, in place of WIIIIIDE_INTERFACE


def stats_page() -> stats.StatsPage:
    """The counters of this process; they outlive its groups."""
    global _page
    if _page is None:
        _page = stats.StatsPage(Config.read().stats_file)
    return _page


def set_interface(interface: str) -> None:
    """Which interface, address or network to reach other hosts by; before the first group."""
    global _interface
    with _guard:
        if _current is not None:
            raise UsageError(
                "the interface must be set before the first process group is made: "
                "links to other hosts exist already"
            )
        _interface = interface


def links() -> list[LinkReport]:
    """The links of this process to those of other hosts."""
    process, found = _current, []
    if process is not None:
        process.loop.call(lambda: found.extend(process.mesh.report()))
    return found


def enter() -> RankProcess:
    """The process, for one more group; `leave` when that group ends."""
    global _current, _users, _finalizer
    with _guard:
        if _current is None:
            config = Config.read()
            if _interface is not None:
                config = replace(config, interface=_interface)
            log.set_tier(config.log)
            if config.keep_memory:
                malloc.keep_freed()
            _current = RankProcess(config)
            atexit.register(_at_exit)
            # Children of multiprocessing leave by os._exit, without atexit; these do run there.
            _finalizer = multiprocessing.util.Finalize(None, _at_exit, exitpriority=0)
        _users += 1
        return _current


def leave(process: RankProcess) -> None:
    """Count one group less; the last one ends loop, thread and sockets."""
    global _current, _users, _finalizer
    with _guard:
        if process is not _current:
            return
        _users -= 1
        if _users > 0:
            return
        _current, _users = None, 0
        atexit.unregister(_at_exit)
        if _finalizer is not None:
            _finalizer.cancel()
            _finalizer = None
    process.close()


class RankProcess:
    """Loop, listener and links. Everything below `enter` runs as the loop's driver."""

    def __init__(self, config: Config) -> None:
        uid = secrets.token_hex(8)
        self.config = config
        self.card = Card(
            uid=uid,
            token=secrets.token_hex(16),
            pid=os.getpid(),
            host=socket.gethostname(),
            boot=_boot_id(),
            network=os.readlink("/proc/self/ns/net"),
            cores=sorted(os.sched_getaffinity(0)),
            identity=config.host_id,
        )
        self.dtype_names = DTYPE_NAMES
        self.links: dict[str, Link] = {}
        self.groups: dict[int, Group] = {}  # by nonce
        self.segments: dict[tuple[int, int], int] = {}  # descriptors, by nonce and id
        self._pending: dict[int, _Unauthenticated] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.card.address)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self.driver = Driver(config, stats_page(), EpollPoller())
        self.loop = ProgressLoop(self.driver)
        self.mesh = Mesh(self)
        self.loop.call(
            lambda: self.driver.poller.add(self._listener.fileno(), lambda _: self._accept())
        )

    # -- links ----

    def connect(self, peer: Card) -> None:
        """Make the link if it is ours to make. OSError: it cannot be reached from here."""
        if peer.uid in self.links or self.card.uid > peer.uid:
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(peer.address)
        except OSError:
            sock.close()
            raise
        link = self._adopt(sock, peer)
        hello = Card(**{**self.card.__dict__, "token": peer.token})
        self.send(link, Frame(FrameKind.HELLO, payload=hello.dump()))

    def count_ranks(self) -> None:
        """Tell the loop how many ranks share how many cores here (pinned ranks: their union).

        Those in other containers of this machine are other hosts to us, but want its cores too.
        """
        near = [link.peer for link in self.links.values()]
        cards = [self.card, *near, *self.mesh.on_this_machine()]
        self.driver.set_ranks(len(cards), len({core for card in cards for core in card.cores}))

    def send(
        self, link: Link | WideLink, frame: Frame, descriptor: int = -1, then: Then | None = None
    ) -> None:
        """Send a frame, and have the loop send the rest if the socket is full."""
        if isinstance(link, WideLink):
            self._send_far(link, frame, then)
            return
        busy = link.wants_to_write
        link.send(frame, descriptor, then)
        if link.wants_to_write != busy:
            self._note_unsent(link)

    def _send_far(self, link: WideLink, frame: Frame, then: Then | None) -> None:
        """Send a message's frame to another host, in the words of its header (wire.header)."""
        group = self.groups.get(frame.group)
        if group is None:
            return
        header = group.header(frame.kind, frame.b)
        header.extra, header.piece, header.dtype = frame.c, frame.tag, frame.dtype
        link.send(header, frame.payload, then)
        self.mesh.push(link)

    def lanes(self, link: Link | WideLink) -> Lanes | Chunks:
        """The carrier of a link's large messages."""
        return self.mesh.chunks(link) if isinstance(link, WideLink) else link.lanes

    def place_posted(self, link: Link | WideLink) -> None:
        """Have a link go on that stopped for want of a place: one was posted."""
        if isinstance(link, WideLink):
            self.mesh.place_posted(link)

    def _note_unsent(self, link: Link) -> None:
        self.driver.poller.writes(link.fd, link.wants_to_write)
        (self.driver.unsent.add if link.wants_to_write else self.driver.unsent.discard)(link.fd)

    def _adopt(self, sock: socket.socket, peer: Card) -> Link:
        link = Link(sock, peer, self.send)
        self.links[peer.uid] = link
        self.driver.poller.add(link.fd, lambda events: self._on_link(link, events))
        if link.pidfd >= 0:
            self.driver.poller.add(link.pidfd, lambda _: self._on_link(link, select.EPOLLHUP))
        return link

    def _on_link(self, link: Link, events: int) -> None:
        if events & select.EPOLLOUT:
            link.flush()
            if not link.wants_to_write:
                self._note_unsent(link)
        if not events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            frames, ended = link.receive()  # what it said before it ended still counts
            for frame in frames:
                self._on_frame(link, frame)
        except (HostError, OSError) as error:
            self.fail_groups(link, error)
            ended = True
        except BaseException as error:  # Ctrl-C among frames that are read and not handled
            self.fail_groups(link, error)
            raise
        if ended or events & select.EPOLLHUP:
            self._lose(link, "left" if link.said_bye else "died")

    def fail_groups(self, link: Link | WideLink, error: BaseException) -> None:
        """A frame could not be understood or served: nothing on that link can be relied on."""
        for group in list(self.groups.values()):
            if link in group.links.values():
                group.fail(None, error)

    def _on_frame(self, link: Link, frame: Frame) -> None:
        if frame.kind is FrameKind.BELL:
            return
        if frame.kind is FrameKind.SEGMENT:
            self.segments[frame.group, frame.a] = link.take_descriptor()
        elif frame.kind is FrameKind.BYE:
            link.said_bye = True
        elif frame.kind in (FrameKind.LANE, FrameKind.TAKEN):
            link.lanes.on_frame(link, frame)
        else:
            group = self.groups.get(frame.group)
            if group is None:  # it is closed here
                if frame.kind is FrameKind.CHUNK:
                    link.lanes.take(frame, None)  # the lane is for all groups
                return
            if frame.kind is FrameKind.LEAVE:
                group.member_gone(_rank_of(group, link), "left")
            elif frame.kind is FrameKind.FAULT:
                group.adopt()
            else:
                group.mailbox.on_frame(link, frame)

    def _lose(self, link: Link, how: str) -> None:
        if link.gone:
            return
        link.gone = how
        self._drop(link)
        self.members_gone(link, how)
        if self.links.get(link.peer.uid) is link:
            del self.links[link.peer.uid]

    def members_gone(self, link: Link | WideLink, how: str) -> None:
        """A link has ended: every group with its peer must know."""
        for group in list(self.groups.values()):
            for rank, member in list(group.links.items()):
                if member is link:
                    group.member_gone(rank, how)

    def _drop(self, link: Link) -> None:
        self.driver.unsent.discard(link.fd)
        self.driver.poller.remove(link.fd)
        if link.pidfd >= 0:
            self.driver.poller.remove(link.pidfd)
        link.close()

    # -- connections before their HELLO ----

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        if peer_uid(sock) != os.geteuid():
            sock.close()
            return
        if len(self._pending) >= MAX_UNAUTHENTICATED:  # the oldest silent one goes
            self._forget_pending(next(iter(self._pending)))
        sock.setblocking(False)
        fd = sock.fileno()
        self._pending[fd] = _Unauthenticated(sock)
        self.driver.poller.add(fd, lambda _: self._introduce(fd))

    def _introduce(self, fd: int) -> None:
        """A new connection's first frame must be HELLO with our token; anything else ends it."""
        pending = self._pending[fd]
        try:
            hello = pending.read_greeting()
            if hello is None:
                return
            peer = Card.load(hello)
            if not secrets.compare_digest(peer.token, self.card.token):
                raise HostError("wrong token")
        except (OSError, HostError) as problem:
            log.tell(f"pid {self.card.pid}", f"a connection was refused: {problem}")
            self._forget_pending(fd)
            return
        self.driver.poller.remove(fd)
        del self._pending[fd]
        self._adopt(pending.sock, peer)

    def _forget_pending(self, fd: int) -> None:
        pending = self._pending.pop(fd)
        self.driver.poller.remove(fd)
        pending.sock.close()

    # -- groups ----

    def forget(self, group: Group) -> None:
        """Forget a group that has closed."""
        nonce = group.membership.nonce
        self.groups.pop(nonce, None)
        for link in group.links.values():
            self.lanes(link).withdraw(nonce)
        self.drop_segments(nonce)
        self.mesh.forget(nonce)

    def drop_unclaimed(self) -> None:
        """Close the descriptors that came for groups that were not made."""
        for nonce in {key[0] for key in self.segments} - set(self.groups):
            self.drop_segments(nonce)

    def drop_segments(self, nonce: int | None = None) -> None:
        """Close descriptors that came and were not used, of one group or of all."""
        for key in [key for key in self.segments if nonce in (None, key[0])]:
            os.close(self.segments.pop(key))

    def close(self) -> None:
        """Say good-bye to all peers and end: no group is left."""

        def end() -> None:
            for fd in list(self._pending):
                self._forget_pending(fd)
            for link in list(self.links.values()):
                self.send(link, Frame(FrameKind.BYE))
                link.drain(BYE_S)
                self._drop(link)
            self.links.clear()
            self.mesh.close()
            self.drop_segments()
            self.driver.poller.remove(self._listener.fileno())
            self._listener.close()

        self.loop.call(end)
        self.loop.close()

    def say_bye(self) -> None:
        """Tell peers that we leave, and do not die: the interpreter ends with groups open."""
        with self.loop.final_drive(BYE_S):
            for link in list(self.links.values()):
                link.send(Frame(FrameKind.BYE))
                link.drain(BYE_S)
            self.mesh.close()

    def abandon(self) -> None:
        """Let go, in a forked child, of what lives on in the parent."""
        for group in list(self.groups.values()):
            group.abandon()
        self.loop.abandon()
        self.drop_segments()
        self._listener.close()
        self.mesh.abandon()
        for link in self.links.values():
            link.close()
        for pending in self._pending.values():
            pending.sock.close()


class _Unauthenticated:
    """A connection before its greeting. Exactly the greeting is read: the rest is the link's."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._got = bytearray()

    def read_greeting(self) -> bytes | None:
        """The payload of HELLO, or None while it is not whole. HostError: it will not be one."""
        while True:
            wanted = HEADER_BYTES
            if len(self._got) >= HEADER_BYTES:
                kind, _, length, *_ = HEADER.unpack_from(self._got)
                if kind != FrameKind.HELLO or length > MAX_GREETING:
                    raise HostError("no greeting")
                wanted += length
                if len(self._got) == wanted:
                    return bytes(self._got[HEADER_BYTES:])
            elif self._got and self._got[0] != FrameKind.HELLO:
                raise HostError("no greeting")
            try:
                data = self.sock.recv(wanted - len(self._got))
            except BlockingIOError:
                return None
            if not data:
                raise HostError("it hung up")
            self._got += data


def _rank_of(group: Group, link: Link) -> int:
    return next(rank for rank, member in group.links.items() if member is link)


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _after_fork_in_child() -> None:
    global _current, _users, _guard, _page
    process, _current, _users, _guard, _page = _current, None, 0, threading.Lock(), None
    board.fence_after_fork()
    if process is not None:
        process.abandon()


def _at_exit() -> None:
    if _current is not None and _current.card.pid == os.getpid():
        _current.say_bye()


os.register_at_fork(after_in_child=_after_fork_in_child)
