"""The content of a rendezvous Store: keys, queues, and the waiters for them. No I/O.

The semantics are those of torch.distributed's own TCPStore (2.13, its libuv server): a test sends
the same requests to both. A waiter is any object; `waken` has those that may go on.
"""

from __future__ import annotations

import collections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LIMIT_BYTES = 64 << 20  # of keys and values; addresses and counters of 10,000 ranks are 10 MiB
ENTRY_BYTES = 100  # what an entry costs besides its content
INT64 = 1 << 64


class StoreProtocolError(Exception):
    """A request that cannot be answered: its client loses its connection."""


class StoreKeys:
    """The table."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._queues: dict[bytes, collections.deque[bytes]] = {}
        self._waiting: dict[bytes, list[object]] = {}  # by key, first come first
        self._missing: dict[object, int] = {}  # keys a waiter still lacks
        self._bytes = 0
        self.waken: list[object] = []  # waiters that got all they waited for; the server takes them

    def __len__(self) -> int:
        return len(self._values)

    @property
    def waited_for(self) -> bool:
        """Whether a client waits for a key that is not there."""
        return bool(self._missing)

    def names(self) -> list[bytes]:
        return list(self._values)

    def get(self, key: bytes) -> bytes:
        """The value; a missing key has an empty one, as clients wait before they get."""
        return self._values.get(key, b"")

    def set(self, key: bytes, value: bytes) -> None:
        self._keep(key, value)
        self._wake(key)

    def compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        """Set a value when it is as expected, an empty expectation meaning "not there"; the value
        afterwards. A missing key with an expectation answers the expectation."""
        current = self._values.get(key)
        if current is None and expected:
            return expected
        if current is None or current == expected:
            self.set(key, desired)
        return self._values[key]

    def add(self, key: bytes, amount: int) -> int:
        """Count in a key, as decimal text; wraps as 64-bit numbers do."""
        total = self._number(key) + amount
        total = (total + INT64 // 2) % INT64 - INT64 // 2
        self.set(key, b"%d" % total)
        return total

    def append(self, key: bytes, value: bytes) -> None:
        self.set(key, self.get(key) + value)

    def delete(self, key: bytes) -> bool:
        value = self._values.pop(key, None)
        if value is None:
            return False
        self._bytes -= len(key) + len(value) + ENTRY_BYTES
        return True

    def push(self, key: bytes, value: bytes) -> None:
        """Add to a queue, and let one of its waiters go on."""
        self._charge(len(value) + ENTRY_BYTES)
        self._queues.setdefault(key, collections.deque()).append(value)
        for waiter in self._waiting.get(key, ()):
            if self._missing[waiter] == 1:
                self.forget(waiter)
                self.waken.append(waiter)
                break

    def pop(self, key: bytes) -> tuple[int, bytes]:
        """(length before, first value) of a queue."""
        queue = self._queues.get(key)
        if not queue:
            return 0, b""
        length, value = len(queue), queue.popleft()
        self._bytes -= len(value) + ENTRY_BYTES
        if not queue:
            del self._queues[key]
        return length, value

    def length(self, key: bytes) -> int:
        return len(self._queues.get(key, ()))

    def has(self, keys: Iterable[bytes]) -> bool:
        return all(key in self._values or key in self._queues for key in keys)

    def wait(self, keys: Iterable[bytes], waiter: object) -> bool:
        """True when all are there; else the waiter is remembered and woken later."""
        self.forget(waiter)
        missing = {key for key in keys if not self.has((key,))}
        for key in missing:
            self._waiting.setdefault(key, []).append(waiter)
        if missing:
            self._missing[waiter] = len(missing)
        return not missing

    def barrier(self, key: bytes, size: int, waiter: object) -> bool:
        """Count an arrival; True when this was the last one, which also wakes the others."""
        arrived = self._number(key) + 1
        self._keep(key, b"%d" % arrived)
        if arrived >= size:
            self._wake(key)
            return True
        self.forget(waiter)
        self._waiting.setdefault(key, []).append(waiter)
        self._missing[waiter] = 1
        return False

    def forget(self, waiter: object) -> None:
        """Drop a waiter: it gave up, got all its keys, or is gone."""
        if self._missing.pop(waiter, None) is None:
            return
        for key in [key for key, those in self._waiting.items() if waiter in those]:
            those = self._waiting[key]
            those.remove(waiter)
            if not those:
                del self._waiting[key]

    def _number(self, key: bytes) -> int:
        value = self._values.get(key, b"0")
        try:
            return int(value)
        except ValueError as problem:
            raise StoreProtocolError("a value that is no number cannot be counted in") from problem

    def _keep(self, key: bytes, value: bytes) -> None:
        before = self._values.get(key)
        more = len(value) - len(before) if before is not None else len(key) + len(value)
        self._charge(more + (ENTRY_BYTES if before is None else 0))
        self._values[key] = value

    def _charge(self, more: int) -> None:
        if more > 0 and self._bytes + more > LIMIT_BYTES:
            raise StoreProtocolError(f"the store is full: {LIMIT_BYTES >> 20} MiB")
        self._bytes += more

    def _wake(self, key: bytes) -> None:
        for waiter in self._waiting.pop(key, ()):
            self._missing[waiter] -= 1
            if not self._missing[waiter]:
                del self._missing[waiter]
                self.waken.append(waiter)
