"""Sends and receives of one group.

    small   EAGER carries the message; the sender is done when the kernel has it
    large   OFFER ──► (a receive is posted) ──► WANT ──► the lane carries it in chunks

(MPI calls these the eager and the rendezvous protocol.)

A message matches a receive with its source (or any) and tag, in the order they were sent; what
comes before its receive is posted waits here. An offer waits at no cost; eager messages are limited
by a window for each pair of ranks, beyond which even small messages are offered, so a receiver that
is behind holds at most EAGER_WINDOW bytes for each peer. Of messages and offers that no receive has
asked for it keeps WAITING for each peer: one that sends more, or announces another size than it
sends, is broken, and the group fails with a sentence that names it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from wiiiiided.backend.engine.lane import Transfer
from wiiiiided.backend.engine.local_link import Link
from wiiiiided.backend.engine.operation import Operation
from wiiiiided.backend.net.link import WideLink
from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.slots import Array
from wiiiiided.backend.wire.header import Header
from wiiiiided.backend.wire.local_frame import Frame, FrameKind
from wiiiiided.errors import BadFrame, HostError, Mismatch

if TYPE_CHECKING:
    from wiiiiided.backend.engine.group import AnyLink, Group

ANY: Final = -1
EAGER_BYTES: Final = 16 * 1024
EAGER_WINDOW: Final = 1024 * 1024
WAITING: Final = 65_536  # messages of one peer; far beyond what a program has under way


@dataclass(slots=True, eq=False)
class _Send:
    op: Operation
    data: Array


@dataclass(slots=True, eq=False)
class _Receive:
    op: Operation
    source: int  # or ANY
    tag: int
    dtype: int
    data: Array
    order: int
    at: int = 0


@dataclass(slots=True, eq=False)
class _Arrived:
    source: int
    number: int
    dtype: int
    nbytes: int
    payload: bytes | None  # None: only offered
    order: int


class Mailbox:
    """This rank's messages in one group, both ways. Bytes only: dtypes are compared as codes."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._numbers = itertools.count(1)
        self._orders = itertools.count(1)
        self._offered: dict[int, _Send] = {}
        self._posted: defaultdict[tuple[int, int], deque[_Receive]] = defaultdict(deque)
        self._arrived: defaultdict[tuple[int, int], deque[_Arrived]] = defaultdict(deque)
        self._coming: dict[tuple[int, int], _Receive] = {}
        self._window = [EAGER_WINDOW] * group.size
        self._owed = [0] * group.size  # eager bytes taken and not yet credited back
        self._held = [0] * group.size  # eager bytes come and not yet credited back
        self._waiting = [0] * group.size  # messages in _arrived

    # -- calls ----

    def send(self, op: Operation, to: int, tag: int, dtype: int, data: Array) -> None:
        """Send bytes; the operation is done when `data` may be changed again."""
        group, number = self._group, next(self._numbers)
        op.peers, op.late = [to], to
        nonce, me, nbytes = group.membership.nonce, group.rank, data.size
        if to == me:
            order = next(self._orders)
            self._deliver(_Arrived(to, number, dtype, nbytes, data.tobytes(), order), tag)
            self._sent(op)
        elif to in group.gone:
            group.lose(op, to)
        elif nbytes <= min(EAGER_BYTES, self._window[to]):
            self._window[to] -= nbytes
            frame = Frame(FrameKind.EAGER, nonce, me, number, nbytes, tag, data.tobytes(), dtype)
            self._frame(to, frame, lambda: self._sent(op))
        else:
            self._offered[number] = _Send(op, data)
            self._frame(to, Frame(FrameKind.OFFER, nonce, me, number, nbytes, tag, b"", dtype))

    def receive(self, op: Operation, source: int, tag: int, dtype: int, data: Array) -> None:
        """Receive into `data`; the operation is done when it is all there."""
        group = self._group
        op.peers = [source] if source != ANY else [r for r in range(group.size) if r != group.rank]
        post = _Receive(op, source, tag, dtype, data, next(self._orders))
        arrived = self._earliest(source, tag)
        if arrived is not None:
            self._match(post, arrived, tag)
        elif source in group.gone:
            group.lose(op, source)
        elif source == ANY and self._hopeless():
            group.lose(op, next(iter(group.gone)))
        else:
            self._posted[source, tag].append(post)

    def withdraw(self, op: Operation) -> None:
        """Withdraw a message that gave up waiting, so that it is not matched any more."""
        for posts in self._posted.values():
            for post in [p for p in posts if p.op is op]:
                posts.remove(post)
        for number in [n for n, send in self._offered.items() if send.op is op]:
            del self._offered[number]
        for source, number in [k for k, post in self._coming.items() if post.op is op]:
            del self._coming[source, number]  # what is still on its way is thrown away
            link = self._group.links[source]
            if isinstance(link, WideLink):
                link.let_go_of_message(self._group.membership.nonce, source, number)
        for link in self._group.links.values():
            self._group.process.lanes(link).detach(op)

    def lose(self, rank: int) -> None:
        """Fail what needs a member that is gone."""
        group = self._group
        mine = [op for op in group.driver.messages if op.group is group]
        needing = [op for op in mine if op.name == "send" and op.peers == [rank]]
        needing += [post.op for post in self._coming.values() if post.op.source == rank]
        for (source, _), posts in self._posted.items():
            if source == rank or (source == ANY and self._hopeless()):
                needing += [post.op for post in posts]
        if needing:
            group.lose(needing[0], rank)

    def _hopeless(self) -> bool:
        """Whether a receive from any rank can no longer be relied on: one died, or all left."""
        gone = self._group.gone
        return any(how != "left" for how in gone.values()) or len(gone) == self._group.size - 1

    # -- frames ----

    def on_frame(self, link: AnyLink, frame: Frame) -> None:
        """Handle a frame of this group's messages, from an authenticated peer."""
        source, number = frame.a, frame.b
        match frame.kind:
            case FrameKind.EAGER | FrameKind.OFFER:
                payload = frame.payload if frame.kind is FrameKind.EAGER else None
                self._admit(link, frame)
                order = next(self._orders)
                arrived = _Arrived(source, number, frame.dtype, frame.c, payload, order)
                self._deliver(arrived, frame.tag)
            case FrameKind.WANT:
                self._on_wanted(link, number)
            case FrameKind.CHUNK if isinstance(link, Link):
                self._chunk(link, frame)
            case FrameKind.WITHDRAWN:
                post = self._coming.pop((source, number), None)
                if post is not None:
                    self._post_again(post)
            case FrameKind.CREDIT:
                self._window[source] += frame.c
            case _:
                pass  # not a message: no other kind comes here

    def _on_wanted(self, link: AnyLink, number: int) -> None:
        """The receiver is ready for a message we offered."""
        nonce, me = self._group.membership.nonce, self._group.rank
        send = self._offered.pop(number, None)
        if send is None:  # it gave up waiting
            self._group.process.send(link, Frame(FrameKind.WITHDRAWN, nonce, me, number))
            return
        op = send.op
        try:
            transfer = Transfer(nonce, me, number, send.data, lambda: self._sent(op), op)
            self._group.process.lanes(link).carry(transfer)
        except (HostError, OSError) as error:  # no memory for a lane
            self._group.fail(op, error)

    def _post_again(self, post: _Receive) -> None:
        """Post a receive again whose message does not come: with the next one, or first in line."""
        arrived = self._earliest(post.source, post.tag)
        if arrived is not None:
            self._match(post, arrived, post.tag)
        else:
            self._posted[post.source, post.tag].appendleft(post)

    def _deliver(self, arrived: _Arrived, tag: int) -> None:
        candidates = [
            posts[0]
            for key in ((arrived.source, tag), (ANY, tag))
            if (posts := self._posted.get(key))
        ]
        if not candidates:
            self._keep(arrived, tag)
            return
        post = min(candidates, key=lambda p: p.order)
        key = (post.source, tag)
        self._posted[key].popleft()
        if not self._posted[key]:
            del self._posted[key]
        self._match(post, arrived, tag)

    def _earliest(self, source: int, tag: int) -> _Arrived | None:
        sources = range(self._group.size) if source == ANY else (source,)
        heads = [queue[0] for s in sources if (queue := self._arrived.get((s, tag)))]
        if not heads:
            return None
        first = min(heads, key=lambda a: a.order)
        queue = self._arrived[first.source, tag]
        queue.popleft()
        self._waiting[first.source] -= 1
        if not queue:
            del self._arrived[first.source, tag]
        return first

    def _match(self, post: _Receive, arrived: _Arrived, tag: int) -> None:
        group, op, source = self._group, post.op, arrived.source
        op.source = op.late = source
        if (arrived.nbytes, arrived.dtype) != (post.data.size, post.dtype):
            names = group.process.dtype_names
            group.fail(
                op,
                Mismatch(
                    f"a message does not fit its receive (group {group.membership.name}, "
                    f"tag {tag}): rank {source} sent {arrived.nbytes} bytes of "
                    f"{names[arrived.dtype]}; "
                    f"rank {group.rank} receives {post.data.size} bytes of {names[post.dtype]}"
                ),
            )
            return
        if arrived.payload is not None:
            post.data[:] = memoryview(arrived.payload)
            if source != group.rank:
                self._credit(source, arrived.nbytes)
            self._received(op)
            return
        if source in group.gone:
            group.lose(op, source)
            return
        self._coming[source, arrived.number] = post
        op.peers = [source]
        self._frame(source, Frame(FrameKind.WANT, group.membership.nonce, source, arrived.number))

    def _chunk(self, link: Link, frame: Frame) -> None:
        key = (frame.a, frame.b)
        post = self._coming.get(key)
        if post is None:
            link.lanes.take(frame, None)
            return
        link.lanes.take(frame, post.data[post.at :])
        post.at += frame.c
        if post.at >= post.data.size:
            del self._coming[key]
            self._received(post.op)

    def place_for(self, header: Header) -> memoryview:
        """Where a chunk from another host goes: into the tensor that waits for it."""
        post = self._coming.get((header.source, header.sequence))
        if post is None:  # it gave up waiting: thrown away
            return memoryview(bytearray(header.raw))
        if header.extra != post.at or post.at + header.raw > post.data.size:
            raise BadFrame(
                f"rank {header.source} sent bytes {header.extra} to {header.extra + header.raw} of "
                f"a message of {post.data.size}, of which {post.at} are there"
            )
        return post.data.data[post.at : post.at + header.raw]

    def on_chunk(self, header: Header, nbytes: int) -> None:
        """A chunk from another host is in its place."""
        key = (header.source, header.sequence)
        post = self._coming.get(key)
        if post is None:
            return
        post.at += nbytes
        self._group.driver.moved(post.op)
        if post.at >= post.data.size:
            del self._coming[key]
            self._received(post.op)

    def _admit(self, link: AnyLink, frame: Frame) -> None:
        """Raise if a member sends more than it was given: that would fill our memory."""
        source, came = frame.a, len(frame.payload)
        if self._group.links.get(source) is not link:
            raise BadFrame(f"a message in the name of rank {source}, whose link this is not")
        if came != (frame.c if frame.kind is FrameKind.EAGER else 0):
            raise BadFrame(f"rank {source} sent {came} bytes as a message of {frame.c}")
        if frame.dtype >= len(self._group.process.dtype_names):
            raise BadFrame(f"rank {source} sent a message of dtype {frame.dtype}: there is none")
        self._held[source] += came
        if self._held[source] > EAGER_WINDOW:
            raise BadFrame(
                f"rank {source} sent {self._held[source]} bytes that were not received yet; "
                f"it may send {EAGER_WINDOW}"
            )

    def _keep(self, arrived: _Arrived, tag: int) -> None:
        """Keep a message until a receive asks for it."""
        source = arrived.source
        self._waiting[source] += 1
        if self._waiting[source] > WAITING:
            raise BadFrame(
                f"rank {source} sent {self._waiting[source]} messages that were not received "
                f"yet; {WAITING} may wait"
            )
        self._arrived[source, tag].append(arrived)

    def _credit(self, source: int, nbytes: int) -> None:
        self._owed[source] += nbytes
        if self._owed[source] >= EAGER_WINDOW // 4:
            nonce, rank = self._group.membership.nonce, self._group.rank
            self._frame(source, Frame(FrameKind.CREDIT, nonce, rank, 0, self._owed[source]))
            self._held[source] -= self._owed[source]
            self._owed[source] = 0

    def _frame(self, to: int, frame: Frame, then: Callable[[], None] | None = None) -> None:
        self._group.process.send(self._group.links[to], frame, then=then)

    def _sent(self, op: Operation) -> None:
        self._group.driver.page.words[stats.SENT] += 1
        self._group.driver.finish(op)

    def _received(self, op: Operation) -> None:
        self._group.driver.page.words[stats.RECEIVED] += 1
        self._group.driver.finish(op)
