"""The board: where the ranks of a group tell each other how far they are, and what went wrong.

Every word has one writer, and ranks' blocks share no cache line, so there are no locks:

    byte 0        group block    magic, version, nonce, size          (written once, by rank 0)
    byte 2048     completed[2]   the last even and odd step that all have arrived at, written where
                                 a rank sleeps on it
    4096 + r·1024 block of rank r
      +0    arrived    the last step rank r has done its part of
      +64   awaited    0: awake; q+1: asleep until rank q arrives: q must ring the doorbell;
                       -s: asleep on `completed` of step s: the last to arrive must wake it
      +128  barriers   monitored barriers rank r has entered
      +136  held       rank of another host that keeps r waiting: milliseconds · 2^20 + rank + 1
      +192  call[2]    digest of what rank r called, for even and odd operations; its lowest bit
                       says that the rank's tensor lies in shared memory
      +208  place[2]   segment id and offset of that tensor, if it does (even, odd)
      +240  ahead[2]   small operations rank r has queued behind this one (even, odd)
      +256  text[2]    the call in words, 128 bytes each: what a mismatch shows
      +512  fault      time (0: none), kind, culprit+1, length, text (≤ 440 bytes)

Steps. All ranks run the same sequence of steps. A rank does its part of step s (writes its slot),
then `arrive(s)`; a rank that sees `arrived[r] ≥ s` may read what r wrote for s. Two ranks are never
more than one operation apart (every operation begins with a wait for all), so what belongs to an
operation needs two copies, even and odd, and nothing is overwritten while a peer may read it.

Memory order, for each hand-over (`fence()` is a full barrier, see below):
    data before flag           writer: data, fence, arrived      reader: arrived, fence, data
    sleep without a lost wake  writer: arrived, fence, awaited?  sleeper: awaited, fence, arrived?
                               (two that arrive last may both wake; the word is the step's
                               number, written before its writer arrives at the next step: it
                               never goes back)
    fault text before time     writer: text, fence, time         reader: time, fence, text
x86 needs the fence only in the second line; ARM in all. A word is 8 bytes and aligned, so a load or
store of it is single on every 64-bit CPU.

The fence, a full memory barrier. Python has no such instruction, but releasing a held lock and
taking it again is one: CPython's lock is a POSIX semaphore, sem_post is an atomic read-modify-write
with release order and sem_trywait one with acquire order. On x86 both are LOCK-prefixed, each a
full barrier by itself. On ARMv8 nothing before moves below the release, nothing after moves above
the acquire, and the architecture keeps an acquire behind an earlier release (RCsc). It costs 0.12
µs; a syscall would cost more, and a semaphore inside the segment could not be polled together with
sockets.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

from wiiiiided.backend.shm.futex import FutexWord
from wiiiiided.backend.shm.segment import PAGE, Segment, page_up
from wiiiiided.errors import HostError

MAGIC: Final = 0x45444949494957  # "WIIIIDE" read as a little-endian number
VERSION: Final = 2

HEAD_BYTES: Final = PAGE
RANK_BYTES: Final = 1024
_WORDS: Final = RANK_BYTES // 8
_ARRIVED, _AWAITED, _BARRIERS, _HELD, _CALL, _PLACE, _AHEAD = 0, 8, 16, 17, 24, 26, 30
_COMPLETED: Final = (2048, 2112)  # bytes
_HELD_BITS: Final = 20
_HELD_MS: Final = 2500  # it is said about once a second: what is older is not so any more
CALL_BYTES: Final = 128  # a call in words
_TEXT = 256
_FAULT, _FAULT_HEAD, _FAULT_TEXT_BYTES = 512, 32, 472

FAULT_KINDS: Final = ("died", "left", "late", "mismatch", "failed")

_fence_lock = threading.Lock()
_fence_lock.acquire()


def fence(_release=_fence_lock.release, _acquire=_fence_lock.acquire) -> None:  # type: ignore[no-untyped-def]
    """A full memory barrier (the module's docstring says why it is one).

    Only one thread at a time may run it (the driver of the progress loop): two would race for the
    same lock and one might sleep. An interrupt (Ctrl-C) may have come between the two halves.
    """
    try:
        _release()
    except RuntimeError:
        _acquire()
        _release()
    _acquire()


def fence_after_fork() -> None:
    """Take the fence's lock in a forked child: the parent's driver may have been inside `fence`."""
    _fence_lock.acquire(blocking=False)


@dataclass(frozen=True)
class Fault:
    """Why a group cannot go on, as the first rank that saw it wrote it down."""

    kind: str  # one of FAULT_KINDS
    culprit: int  # the rank to blame, or -1
    text: str
    seen_by: int
    time_ns: int


@dataclass(frozen=True)
class CallSignature:
    """One operation as its caller described it: equal digests on all ranks, or a mismatch."""

    text: str
    digest: int
    raw: bytes

    @classmethod
    def of(cls, text: str) -> CallSignature:
        raw = text.encode()[: CALL_BYTES - 1]
        digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
        return cls(text, digest << 1, raw + b"\0" * (CALL_BYTES - len(raw)))


def board_bytes(size: int) -> int:
    """How much of a segment the board of a group of `size` ranks takes."""
    return page_up(HEAD_BYTES + size * RANK_BYTES)


class Board:
    """One rank's view of the board."""

    def __init__(self, segment: Segment, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.peers = [r for r in range(size) if r != rank]
        self._bytes = memoryview(segment.map)[: board_bytes(size)]
        self.words = self._bytes.cast("q")
        first = HEAD_BYTES // 8
        self._base = [first + r * _WORDS for r in range(size)]
        self._mine = self._base[rank]
        # For the hot paths: (peer, word) pairs.
        self._peer_arrived = [(r, self._base[r] + _ARRIVED) for r in self.peers]
        self._peer_awaited = [(r, self._base[r] + _AWAITED) for r in self.peers]
        self._arrived_at = self._mine + _ARRIVED
        self.to_ring: list[int] = []  # ranks found asleep until I arrive
        self._awaited_at = self._mine + _AWAITED
        self.completed = [FutexWord(segment.map, at) for at in _COMPLETED]
        self._announced: list[CallSignature | None] = [None, None]
        self._peer_calls = [self._base[r] + _CALL for r in self.peers]
        self.step = 0

    # -- set-up ----

    def found(self, nonce: int) -> None:
        """Write the group block: rank 0 does, once, before it hands the segment out."""
        self.words[0], self.words[1] = MAGIC, VERSION
        self.words[2], self.words[3] = nonce, self.size

    def check(self, nonce: int) -> None:
        """Verify that this is the board that was promised, as the other ranks do."""
        magic, version, there, size = self.words[:4].tolist()
        if (magic, version, there, size) != (MAGIC, VERSION, nonce, self.size):
            raise HostError(
                f"the shared memory of this group is not as agreed: version {version} "
                f"against {VERSION}, nonce {there:x} against {nonce:x}, {size} ranks against "
                f"{self.size}; all ranks must run the same version of wiiiiided"
            )

    def release(self) -> None:
        """Let go of the memory; nothing else may be called after this."""
        for word in self.completed:
            word.release()
        self.words.release()
        self._bytes.release()

    # -- steps ----

    def arrive(self) -> int:
        """My part of the next step is done: tell all. Then ring, and clear, those in `to_ring`."""
        words, me = self.words, self.rank + 1
        self.step = step = self.step + 1
        fence()
        words[self._arrived_at] = step
        fence()
        asleep = False
        for r, at in self._peer_awaited:
            if awaited := words[at]:
                if awaited == me:
                    self.to_ring.append(r)
                elif awaited == -step:
                    asleep = True
        if asleep and self.lagging(step) < 0:
            self.completed[step & 1].wake(step & 0xFFFFFFFF)
        return step

    def lagging(self, step: int) -> int:
        """A rank that has not arrived at `step`, or -1. Call `fence` before reading its data."""
        words = self.words
        for r, at in self._peer_arrived:
            if words[at] < step:
                return r
        return -1

    def is_ahead(self, place: int) -> bool:
        """Whether a rank has arrived at a step that I have not: it waits for me in a collective."""
        return self.words[self._base[place] + _ARRIVED] > self.step

    def missing(self, step: int) -> list[int]:
        """All ranks that have not arrived at `step`."""
        return [r for r, at in self._peer_arrived if self.words[at] < step]

    @property
    def sleeps(self) -> bool:
        """Whether `sleep` can be used on this machine."""
        return self.completed[0].usable

    def sleep(self, step: int, timeout_ns: int) -> int:
        """Sleep until all have arrived at `step`; a rank that has not, or -1.

        It may return early. For a while in which no socket need be looked at.
        """
        word = self.completed[step & 1]
        before = word.value
        self.words[self._awaited_at] = -step
        try:
            fence()
            late = self.lagging(step)
            if late < 0:
                return late
            word.wait(before, timeout_ns)
            return self.lagging(step)
        finally:
            self.words[self._awaited_at] = 0

    def nudge(self) -> None:
        """Wake those that sleep, to look again. Any thread may call it."""
        for word in self.completed:
            word.nudge()

    def doze(self, rank: int) -> None:
        """Announce a sleep until `rank` arrives; look at `lagging` again before sleeping."""
        self.words[self._awaited_at] = rank + 1
        fence()

    def wake(self) -> None:
        """Announce that this rank is awake: no more bells."""
        self.words[self._awaited_at] = 0

    def hold(self, rank: int) -> None:
        """Let those beside me know that I wait for a rank of another host."""
        now_ms = time.monotonic_ns() // 1_000_000
        self.words[self._mine + _HELD] = now_ms << _HELD_BITS | (rank + 1)

    def held(self, place: int) -> int:
        """The rank of another host that keeps a rank waiting now, or -1."""
        word = self.words[self._base[place] + _HELD]
        age_ms = time.monotonic_ns() // 1_000_000 - (word >> _HELD_BITS)
        return (word & ((1 << _HELD_BITS) - 1)) - 1 if age_ms < _HELD_MS else -1

    # -- calls ----

    def announce(self, call: CallSignature, parity: int, segment: int = 0, offset: int = 0) -> None:
        """Write down what I call and where my tensor lies (segment 0: in private memory)."""
        words, mine = self.words, self._mine
        if segment:
            words[mine + _PLACE + 2 * parity] = segment
            words[mine + _PLACE + 2 * parity + 1] = offset
        words[mine + _CALL + parity] = call.digest | (segment != 0)
        if self._announced[parity] is not call:  # a training loop calls the same again and again
            self._announced[parity] = call
            at = HEAD_BYTES + self.rank * RANK_BYTES + _TEXT + parity * CALL_BYTES
            self._bytes[at : at + CALL_BYTES] = call.raw

    def announce_ahead(self, parity: int, ahead: int) -> None:
        """Write down how many small operations I have queued behind this one."""
        self.words[self._mine + _AHEAD + parity] = ahead

    def least_ahead(self, parity: int) -> int:
        """Small operations that all have queued behind this one, after all have arrived."""
        return min(self.words[base + _AHEAD + parity] for base in self._base)

    def same_calls(self, call: CallSignature, parity: int) -> bool:
        """Whether all others called the same with a tensor in private memory (the usual case)."""
        words, digest = self.words, call.digest
        for at in self._peer_calls:  # noqa: SIM110 - a generator would cost 0.3 µs here
            if words[at + parity] != digest:
                return False
        return True

    def dissenter(self, call: CallSignature, parity: int) -> int:
        """The first rank that called something else, or -1."""
        words, digest = self.words, call.digest
        for r in self.peers:
            if words[self._base[r] + _CALL + parity] & ~1 != digest:
                return r
        return -1

    def call_of(self, rank: int, parity: int) -> str:
        """The call of `rank`, in its words."""
        at = HEAD_BYTES + rank * RANK_BYTES + _TEXT + parity * CALL_BYTES
        return bytes(self._bytes[at : at + CALL_BYTES]).rstrip(b"\0").decode(errors="replace")

    def place_of(self, rank: int, parity: int) -> tuple[int, int]:
        """Where `rank` says its tensor lies: (segment id, offset); id 0 is private memory."""
        base = self._base[rank]
        if not self.words[base + _CALL + parity] & 1:
            return 0, 0
        at = base + _PLACE + 2 * parity
        return self.words[at], self.words[at + 1]

    # -- monitored barrier ----

    def enter_monitored_barrier(self) -> int:
        """Enter the next monitored barrier; returns its number."""
        at = self._mine + _BARRIERS
        self.words[at] += 1
        return self.words[at]

    def not_in_monitored_barrier(self, number: int) -> list[int]:
        """The ranks that have not entered monitored barrier `number`."""
        return [r for r in self.peers if self.words[self._base[r] + _BARRIERS] < number]

    # -- faults ----

    def record(self, kind: str, culprit: int, text: str) -> None:
        """Write down why the group cannot go on, if no rank has yet. Only my first word counts."""
        if self.cause() is not None:
            return
        at = HEAD_BYTES + self.rank * RANK_BYTES + _FAULT
        raw = text.encode()[: _FAULT_TEXT_BYTES - _FAULT_HEAD]
        struct.pack_into(
            "<qqq", self._bytes, at + 8, FAULT_KINDS.index(kind), culprit + 1, len(raw)
        )
        self._bytes[at + _FAULT_HEAD : at + _FAULT_HEAD + len(raw)] = raw
        fence()
        self.words[at // 8] = time.monotonic_ns()  # one clock for all processes of a machine

    def cause(self) -> Fault | None:
        """The earliest fault a rank has written down: the one every rank reports."""
        earliest: Fault | None = None
        for r in range(self.size):
            at = HEAD_BYTES + r * RANK_BYTES + _FAULT
            when = self.words[at // 8]
            if when and (earliest is None or when < earliest.time_ns):
                fence()
                kind, culprit, length = struct.unpack_from("<qqq", self._bytes, at + 8)
                start = at + _FAULT_HEAD
                raw = bytes(self._bytes[start : start + min(length, _FAULT_TEXT_BYTES)])
                text = raw.decode(errors="replace")
                earliest = Fault(FAULT_KINDS[kind], culprit - 1, text, r, when)
        return earliest
