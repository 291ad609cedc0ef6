"""This process and those of other hosts: one endpoint, one wide link to each peer, for all groups.

    join ─► expect(peers) ─► endpoint: listen, connect, handshake ─► both halves there ─► WideLink
    WideLink ─► place / arrived ─► the group's `wide` (collectives) or `mailbox` (messages)

Why it is more than a table of links:

- A peer may be faster. Its first frames come before this process has made the group: they are kept
  (`_early`, bounded) and delivered when the group stands.
- A receiver may be slower. A frame without a place stops its link (`data.paused`): the kernel then
  holds the sender back (backpressure, by TCP's flow control), and no memory is spent on what no
  plan has asked for. The link goes on when a place is posted, or when the group is over and its
  frames go nowhere.
- A death has two witnesses. The data connection says that a peer ended, the watch connection why:
  before a link is given up the other connection is read, so the cause is blamed and not its victim.

Nothing here exists in a program whose groups stay on one host: no socket, no certificate.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from wiiiiided import log
from wiiiiided.backend.codec.encoder import Encoder
from wiiiiided.backend.engine.chunks import Chunks
from wiiiiided.backend.engine.fault_payload import read_cause
from wiiiiided.backend.engine.local_link import Card
from wiiiiided.backend.net.acceptor import ConnectAttempt, Endpoint
from wiiiiided.backend.net.handoff_listener import HandoffListener
from wiiiiided.backend.net.link import WideLink, is_silence
from wiiiiided.backend.net.link_monitor import LinkMonitor
from wiiiiided.backend.net.stream import Stream
from wiiiiided.backend.shm import stats
from wiiiiided.backend.wire.handshake import ConnectionClaim
from wiiiiided.backend.wire.header import Header
from wiiiiided.backend.wire.local_frame import Frame, FrameKind
from wiiiiided.config import OnePort
from wiiiiided.errors import BadFrame, HostError

if TYPE_CHECKING:
    from wiiiiided.backend.engine.group import Group
    from wiiiiided.backend.engine.process import RankProcess

MAX_EAGER: Final = 64 * 1024
# Frames of a peer for a group that we have not made yet: its OPEN, a fault, a good-bye.
MAX_EARLY: Final = 4096
MAX_EARLY_FRAMES: Final = 4096
DRAIN_S: Final = 5.0  # at the end: how long a slow link may take without any progress


class LinkReport(NamedTuple):
    """Facts about the link to a process on another host."""

    host: str
    pid: int
    sent: int  # bytes as they travelled, headers included
    received: int
    codec: str  # what is used now, and why: a sentence
    checksum: str  # whether payloads carry a sum, and why
    gradients: str  # how lossy gradients travel: codec, ratio, error; empty: there are none


class Mesh:
    """The wide links of this process. Everything here runs as the loop's driver."""

    def __init__(self, process: RankProcess) -> None:
        self._process = process
        self._poller = process.driver.poller
        self.links: dict[str, WideLink] = {}  # by the peer's uid
        self.endpoint: Endpoint | None = None
        self._known: dict[str, Card] = {}
        # Groups that are being made: a peer may be done with that before we are.
        self._early: dict[int, list[tuple[WideLink, Header, memoryview]]] = {}
        self._halves: dict[str, dict[str, Stream]] = {}  # a link's connections until both are there
        self._open: dict[str, tuple[str, int]] = {}  # where the endpoint listens, by address
        self._monitors: dict[str, LinkMonitor] = {}  # by the peer's uid
        self._chunks: dict[str, Chunks] = {}  # the same
        self._codec_told = ""
        process.driver.add_patrol(self._tell_codec)
        # Descriptors that are paused and have ended: epoll would report the end without pause.
        self._absent: set[int] = set()

    # -- set-up ----

    def listen(self, addresses: list[str]) -> list[tuple[str, int]]:
        """Listen on these addresses; those that are open already stay."""
        endpoint = self._make_endpoint()
        for address in addresses:
            if address not in self._open:
                self._open[address] = endpoint.listen(address)
        return [self._open[address] for address in addresses]

    def listen_behind(self, port: OnePort) -> list[tuple[str, int]]:
        """Take connections handed over by the daemon, which has the machine's one TCP port."""
        if self.endpoint is None:
            uid = self._process.card.uid
            behind = HandoffListener(port.directory, uid, {port.daemon_uid}, port.job, port.attempt)
            self._make_endpoint().listen_behind(behind)
        return [(port.address, port.port)]

    def _make_endpoint(self) -> Endpoint:
        if self.endpoint is None:
            tls = self._process.config.tls
            self.endpoint = Endpoint(self._poller, self._process.card.uid, self._welcome, tls=tls)
            self._process.driver.add_patrol(self.endpoint.tick)
        return self.endpoint

    def expect(self, group: int, generation: int, key: bytes, peers: list[Card]) -> None:
        """Which peers may connect, and with which key."""
        assert self.endpoint is not None
        self._known.update((card.uid, card) for card in peers)
        self.endpoint.expect(group, generation, key)

    def await_group(self, group: int) -> None:
        """Keep what comes for a group that is being made, until it stands."""
        self._early[group] = []

    def enlisted(self, group: int) -> None:
        """Deliver what came for a group before it stood."""
        for link, header, payload in self._early.pop(group, []):
            if not link.gone:
                self.arrived(link, header, payload)

    def connect(
        self, address: str, port: int, key: bytes, claim: ConnectionClaim
    ) -> ConnectAttempt:
        """Begin one of the two connections of a link."""
        assert self.endpoint is not None
        return self.endpoint.connect(address, port, key, claim)

    def _welcome(self, stream: Stream, claim: ConnectionClaim) -> None:
        """Take an authenticated connection, in or out: with its other half it is a link."""
        me = self._process.card.uid
        uid = claim.acceptor_uid if claim.connector_uid == me else claim.connector_uid
        peer = self._known.get(uid)
        if peer is None or uid in self.links:
            stream.close()  # a second try crossed the first
            return
        halves = self._halves.setdefault(uid, {})
        if claim.role in halves:  # the peer tried again and has given the first one up
            halves.pop(claim.role).close()
        halves[claim.role] = stream
        if len(halves) == 2:
            del self._halves[uid]
            self._adopt(peer, halves["data"], halves["watch"])

    def _adopt(self, peer: Card, data: Stream, watch: Stream) -> None:
        config = self._process.config
        link = WideLink(data, watch, peer, self, Encoder(config.codec))
        self.links[peer.uid] = link
        self._chunks[peer.uid] = Chunks(self._process, link)
        self._monitors[peer.uid] = LinkMonitor(link, config.checksum)
        self._poller.add(data.fileno(), lambda events: self._on_data(link, events))
        self._poller.add(watch.fileno(), lambda events: self._on_watch(link, events))
        # TLS may have decrypted the first frames along with the handshake: nothing would tell.
        self._process.driver.soon(lambda: self._go_on(link))
        self._process.driver.soon(lambda: self._on_watch(link, select.EPOLLIN))

    def report(self) -> list[LinkReport]:
        """All links, as `wiiiiided.torch.links` shows them."""
        return [
            LinkReport(
                link.peer.host,
                link.peer.pid,
                link.data.sent_bytes,
                link.data.received_bytes,
                link.encoder.reason,
                self._monitors[uid].checksum.reason,
                link.gradients,
            )
            for uid, link in self.links.items()
        ]

    def _tell_codec(self) -> None:
        """Write the codec in use into the stats page: about once a second, if it changed."""
        # Coded gradients are most of the traffic; a link without any has nothing to say.
        reasons = [link.gradients for link in self.links.values() if link.gradients]
        reasons = reasons or [link.encoder.reason for link in self.links.values()]
        if not reasons or self._codec_told == reasons[0]:
            return
        self._codec_told = reasons[0]
        names = {reason.partition(":")[0] for reason in reasons}
        name = names.pop() if len(names) == 1 else "mixed"
        self._process.driver.page.use_codec(name, reasons[0].partition(": ")[2])

    def chunks(self, link: WideLink) -> Chunks:
        """The carrier of large messages over a link; nothing goes over one that is gone."""
        uid = link.peer.uid
        return self._chunks[uid] if self.links.get(uid) is link else Chunks(self._process, link)

    def on_this_machine(self) -> list[Card]:
        """The peers that are hosts of their own and yet share our kernel: containers."""
        boot = self._process.card.boot
        cards = [self._known[uid] for uid in self.links]
        return [card for card in cards if card.boot == boot]

    def forget(self, group: int) -> None:
        """Forget a group that is closed or was never made."""
        self._early.pop(group, None)
        if self.endpoint is not None:
            self.endpoint.forget(group)
        self.divert(group)

    def divert(self, group: int) -> None:
        """Leave the memory of a failed or closed group alone, and let it hold up no other."""
        for link in list(self.links.values()):
            link.divert(group)
            if link.data.paused is not None and link.data.paused.group == group:
                self._resume(link)

    # -- out ----

    def push(self, link: WideLink) -> None:
        """Something was queued: send what the kernel takes, the loop sends the rest."""
        fd = link.data.stream.fileno()
        # A full socket is not tried again with every frame: that would be a syscall for nothing.
        if fd in self._process.driver.unsent or link.gone:
            return
        self._flush(link)

    def push_watch(self, link: WideLink) -> None:
        """Send a fault that was queued on the watch connection, which is hardly ever full."""
        if not link.gone:
            self._flush_watch(link)

    def _flush_watch(self, link: WideLink) -> None:
        fd = link.watch.stream.fileno()
        try:
            link.watch.flush()
        except OSError:
            return  # reading will say how it ended
        self._poller.interest(fd, reads=True, writes=link.watch.wants_to_write)

    def _flush(self, link: WideLink) -> None:
        before = link.data.sent_bytes
        try:
            link.data.flush()
        except OSError as problem:
            if is_silence(problem):
                self._lose(link, "silent")
            return  # else reading says how it ended, after what the peer said before that
        except BaseException as error:  # Ctrl-C: how much went out is not known any more
            self._process.fail_groups(link, error)
            self._lose(link, "died")
            raise
        words = self._process.driver.page.words  # as they leave: encoded, with headers
        words[stats.WIRE_OUT] += link.data.sent_bytes - before
        words[stats.ENCODE_NS] += link.encoding_ns()
        for change in self._monitors[link.peer.uid].look():
            log.tell(f"pid {self._process.card.pid}", f"{_far(link)}: {change}")
        self._note(link)

    def _note(self, link: WideLink) -> None:
        """Have the loop watch for what the link waits for."""
        fd, unsent = link.data.stream.fileno(), self._process.driver.unsent
        wants = link.wants_to_write
        (unsent.add if wants else unsent.discard)(fd)
        if fd not in self._absent:
            self._poller.interest(fd, reads=link.data.paused is None, writes=wants)

    # -- in ----

    def _on_data(self, link: WideLink, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(link)
        if link.gone or not events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        if link.data.paused is not None:
            # EPOLLHUP cannot be switched off, and bytes before the end have no place yet: the
            # descriptor leaves the poller until `_resume`, or the loop would spin on it.
            if events & (select.EPOLLHUP | select.EPOLLERR):
                self._poller.remove(link.data.stream.fileno())
                self._absent.add(link.data.stream.fileno())
            return
        self._receive(link)

    def _receive(self, link: WideLink) -> None:
        before = link.data.received_bytes
        ended, how = False, "left" if link.said_bye else "died"
        try:
            ended = link.data.receive()
        except HostError as error:  # a frame that is none: nothing on this link can be relied on
            log.warn(f"pid {self._process.card.pid}", f"{_far(link)}: {error}")
            self._process.fail_groups(link, HostError(f"{_far(link)}: {error}"))
            ended = True
        except OSError as problem:
            ended, how = True, "silent" if is_silence(problem) else how
        except BaseException as error:  # Ctrl-C: how much was read is not known any more
            self._process.fail_groups(link, error)
            self._lose(link, "died")
            raise
        words = self._process.driver.page.words
        words[stats.WIRE_IN] += link.data.received_bytes - before
        words[stats.DECODE_NS] += link.decoding_ns()
        if ended:
            # Why it went, if it said so, lies on the other connection: that is the cause, not it.
            self._on_watch(link, select.EPOLLIN)
            self._lose(link, "left" if link.said_bye else how)
        elif not link.gone:
            self._note(link)
            if link.data.paused is None and link.data.stream.pending():
                self._process.driver.soon(lambda: self._go_on(link))

    def _go_on(self, link: WideLink) -> None:
        """Read what is inside the stream already: its descriptor says nothing of it."""
        if not link.gone and link.data.paused is None:
            self._receive(link)

    def _resume(self, link: WideLink) -> None:
        """Read on: the frame that had no place may have one now."""
        link.data.resume()
        fd = link.data.stream.fileno()
        if fd in self._absent:
            self._absent.discard(fd)
            self._poller.add(fd, lambda events: self._on_data(link, events))
        self._receive(link)

    def place_posted(self, link: WideLink) -> None:
        """Read on soon if the link had stopped for want of a place: one was posted."""
        if link.data.paused is not None and not link.gone:
            # Not from here: the plan that posts is in the middle of its own bookkeeping.
            self._process.driver.soon(lambda: self._try_again(link))

    def _try_again(self, link: WideLink) -> None:
        if link.data.paused is not None and not link.gone:
            self._resume(link)

    def _on_watch(self, link: WideLink, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush_watch(link)
        if link.gone or not events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            if not link.watch.receive():
                return
        except HostError as error:
            self._process.fail_groups(link, HostError(f"{_far(link)}: {error}"))
            self._lose(link, "died")
            return
        except OSError as problem:
            if is_silence(problem):
                self._lose(link, "silent")
                return
        # It ended or was reset, as the data connection is or will be: that one says how.
        self._poller.remove(link.watch.stream.fileno())

    # -- Upper: what a link asks ----

    def place(self, link: WideLink, header: Header) -> memoryview | None:
        """Where the payload of a frame goes; see net.link.Upper."""
        group = self._group_of(link, header)
        if group is None or group.problem() is not None:
            # To be kept until the group stands, or nowhere: but a nowhere of its own, because
            # what comes is summed, and two links may be at it.
            return memoryview(bytearray(header.raw))
        match header.kind:
            case FrameKind.OPEN | FrameKind.PIECE:
                assert group.wide is not None
                return group.wide.place_for(header)
            case FrameKind.CHUNK:
                return group.mailbox.place_for(header)
            case FrameKind.EAGER if header.raw <= MAX_EAGER:
                return memoryview(bytearray(header.raw))
            case _ if header.raw == 0:
                return memoryview(bytearray())
        raise BadFrame(f"a frame of kind {header.kind} with {header.raw} bytes")

    def arrived(self, link: WideLink, header: Header, payload: memoryview) -> None:
        """A whole frame is there; see net.link.Upper."""
        self._process.driver.page.words[stats.WIRE_IN_RAW] += header.raw
        if header.kind == FrameKind.BYE:
            link.said_bye = True
            return
        group = self._group_of(link, header)
        if group is None:
            early = self._early.get(header.group)
            if early is not None and len(early) < MAX_EARLY_FRAMES and header.raw <= MAX_EARLY:
                early.append((link, header, payload))
            return
        if header.kind == FrameKind.FAULT:
            group.adopt_far(read_cause(payload))
        elif group.problem() is not None:
            return
        elif header.kind == FrameKind.LEAVE:
            self._on_watch(link, select.EPOLLIN)  # it may have said there why it leaves
            group.member_gone(header.source, "left")
        elif header.kind in (FrameKind.OPEN, FrameKind.PIECE, FrameKind.ENTER_BARRIER):
            assert group.wide is not None
            group.wide.on_frame(header, payload)
        elif header.kind == FrameKind.CHUNK:
            group.mailbox.on_chunk(header, len(payload))
        else:
            group.mailbox.on_frame(link, _as_frame(header, payload))

    def _group_of(self, link: WideLink, header: Header) -> Group | None:
        """The group a frame is for, if it is open here; only its members may speak in it."""
        group = self._process.groups.get(header.group)
        if group is None:
            return None
        if header.generation != group.membership.generation:
            raise BadFrame(
                f"a frame of generation {header.generation} of group {group.membership.name}, "
                f"which is in generation {group.membership.generation}"
            )
        if group.links.get(header.source) is not link:
            raise BadFrame(f"a frame in the name of rank {header.source}, whose link this is not")
        return group

    # -- end ----

    def _lose(self, link: WideLink, how: str) -> None:
        if link.gone:
            return
        link.gone = how
        self._drop(link)
        if self.links.get(link.peer.uid) is link:
            uid = link.peer.uid
            del self.links[uid], self._monitors[uid], self._chunks[uid]
        self._process.members_gone(link, how)

    def _drop(self, link: WideLink) -> None:
        for frames in (link.data, link.watch):
            fd = frames.stream.fileno()
            self._process.driver.unsent.discard(fd)
            self._absent.discard(fd)
            self._poller.remove(fd)
        link.close()

    def close(self) -> None:
        """End the links when the last group is closed, once what we sent has arrived."""
        for link in list(self.links.values()):
            link.send(Header(FrameKind.BYE))
        self._drain()
        for link in list(self.links.values()):
            self._drop(link)
        self.links.clear()
        for halves in self._halves.values():
            for stream in halves.values():
                stream.close()
        if self.endpoint is not None:
            self.endpoint.close()

    def _drain(self) -> None:
        """Wait until the peers' kernels have it all, as long as one of them takes some of it.

        All links at once: peers that end as well read only those that they look at, and of many
        silent ones each would be waited for.
        """
        least, since = float("inf"), time.monotonic()
        while time.monotonic() - since < DRAIN_S:
            left = sum(link.unacknowledged() for link in self.links.values())
            if not left:
                return
            if left < least:
                least, since = left, time.monotonic()
            time.sleep(0.002)

    def abandon(self) -> None:
        """Close the descriptors in a forked child; the links live on in the parent."""
        for link in self.links.values():
            link.close()
        for halves in self._halves.values():
            for stream in halves.values():
                stream.close()
        if self.endpoint is not None:
            self.endpoint.abandon()


def _far(link: WideLink) -> str:
    return f"the link to pid {link.peer.pid} on {link.peer.host}"


def _as_frame(header: Header, payload: memoryview) -> Frame:
    """A message's frame, in the words of the mailbox."""
    return Frame(
        FrameKind(header.kind),
        header.group,
        header.source,
        header.sequence,
        header.extra,
        header.piece,
        bytes(payload),
        header.dtype,
    )
