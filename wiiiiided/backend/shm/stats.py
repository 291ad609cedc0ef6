"""A worker's counters, in one page of memory that any process may watch without a lock.

The page is private memory unless WIIIIIDE_STATS names a file to map: then every process that maps
it sees the counters live, without a socket, a lock or a log line. Each counter is one aligned
8-byte word with one writer: a reader may see two counters from different moments, never half a one.

    word 0  magic          4  rank, -1 before the first group    8   nanoseconds with an operation
    word 1  version        5  world size                             in progress (exchange)
    word 2  pid            6  operations finished                9   nanoseconds waiting for peers
    word 3  start, ns      7  bytes of tensors exchanged         10  operations that failed
                                                                 11  messages sent   12  received
    word 13 one more than the step the script reported last; 0: it never reported any
    words 14-17  bytes between hosts: sent, received (as they travelled, headers included), and of
            both the payload before the codec
    words 18, 19  nanoseconds encoding, decoding
    word 20 guards 13 and 21-24, what the script said: odd while they are being written
    word 21 one more than the steps there will be   22 samples so far   23 loss (a float64)
            24  1: samples were given, 2: a loss was given; both add up
    word 25 guards the text that follows: odd while it is being written
    words 26-63   "codec\\nreason" in UTF-8, ended by a zero: what travels to other hosts and why
    words 64-319  nanoseconds waiting for rank 0, 1 … 254; the last is all others
    word 320 monotonic nanoseconds of when the script said its step; guarded by word 20
    words 321-328  numbers the script reports by name (float64); guarded by word 20
    words 329-360  their names, 32 bytes each, ended by a zero; a place without a name is free
    words 361, 362  buffers of DDP and FSDP2 that lie in shared memory since, and their bytes
    words 363-371  what `wide.parallel` measures of a run, a float64 each, 0: not known; in the
            order of TRAINING_METRICS

A guarded part is whole when its guard was even and the same before and after it was read. The
layout only grows; its version changes when a word changes its meaning. docs/metrics.md has units.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from wiiiiided.errors import HostError

MAGIC: Final = 0x5354415453494957  # "WIISTATS" read as a little-endian number
VERSION: Final = 1
PAGE_BYTES: Final = 4096

RANK, WORLD = 4, 5
OPERATIONS, BYTES, EXCHANGE_NS, WAITING_NS, FAILED, SENT, RECEIVED = 6, 7, 8, 9, 10, 11, 12
STEP = 13
WIRE_OUT, WIRE_IN, WIRE_OUT_RAW, WIRE_IN_RAW = 14, 15, 16, 17
ENCODE_NS, DECODE_NS = 18, 19
SAID_GUARD, TOTAL, SAMPLES, LOSS, GIVEN = 20, 21, 22, 23, 24
GAVE_SAMPLES, GAVE_LOSS = 1, 2  # bits of GIVEN
CODEC_GUARD, CODEC_TEXT = 25, 26
PEERS_AT, PEERS = 64, 256  # where the waiting for each peer is, and for how many
SAID_NS = PEERS_AT + PEERS
METRICS = 8
METRICS_AT = SAID_NS + 1
NAMES_AT, NAME_BYTES = METRICS_AT + METRICS, 32
ADOPTED = NAMES_AT + METRICS * NAME_BYTES // 8
ADOPTED_BYTES = ADOPTED + 1
TRAINING_AT = ADOPTED_BYTES + 1
TRAINING_METRICS: Final = (
    *("noise_scale", "noise_batches", "share", "wanted_share", "speed_spread", "balance_gain"),
    *("round_steps", "round_compute", "own_steps"),
)
WORDS = TRAINING_AT + len(TRAINING_METRICS)  # that are in use
METRIC_NAME: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_./-]{{0,{NAME_BYTES - 2}}}")
CODEC_BYTES = (PEERS_AT - CODEC_TEXT) * 8


_WORD, _FLOAT = struct.Struct("=q"), struct.Struct("=d")


@dataclass(frozen=True)
class Stats:
    """The counters at one moment."""

    rank: int
    world_size: int
    operations: int
    failed: int
    sent: int
    received: int
    bytes_shm: int
    exchange_s: float
    waiting_s: float
    wire_out: int  # bytes sent to other hosts as they travelled, headers included
    wire_in: int
    wire_out_raw: int  # the payload of these before the codec
    wire_in_raw: int
    encode_s: float
    decode_s: float
    adopted: int  # buffers of DDP and FSDP2 that were given shared memory
    adopted_bytes: int
    waited_for: dict[int, float]  # seconds by rank of the world; 255 is all from there on


def has_worked(page: bytes) -> bool:
    """Whether a page, as a reader has it, counts an operation, a message or a step."""
    if len(page) < PAGE_BYTES:
        return False
    words = struct.unpack_from(f"={STEP + 1}q", page)
    return any(words[index] for index in (OPERATIONS, SENT, RECEIVED, STEP))


class StatsPage:
    """The page of this process. `words` is written by the progress loop alone."""

    def __init__(self, path: str | None = None) -> None:
        self._map = _map(path)
        self.words = memoryview(self._map).cast("q")
        self.metrics: dict[str, int] = {}  # name → the word of its number
        self.is_scripts = False  # the script itself says how far it is
        self.words[2], self.words[3] = os.getpid(), time.time_ns()
        self.words[RANK] = -1
        for guard in (SAID_GUARD, CODEC_GUARD):  # its owner before may have died inside
            self.words[guard] += self.words[guard] & 1
        for word in range(METRICS_AT, WORDS):
            self.words[word] = 0
        self.words[1] = VERSION
        self.words[0] = MAGIC

    def read(self) -> Stats:
        """A snapshot."""
        w = self.words
        return Stats(
            rank=w[RANK],
            world_size=w[WORLD],
            operations=w[OPERATIONS],
            failed=w[FAILED],
            sent=w[SENT],
            received=w[RECEIVED],
            bytes_shm=w[BYTES],
            exchange_s=w[EXCHANGE_NS] / 1e9,
            waiting_s=w[WAITING_NS] / 1e9,
            wire_out=w[WIRE_OUT],
            wire_in=w[WIRE_IN],
            wire_out_raw=w[WIRE_OUT_RAW],
            wire_in_raw=w[WIRE_IN_RAW],
            encode_s=w[ENCODE_NS] / 1e9,
            decode_s=w[DECODE_NS] / 1e9,
            adopted=w[ADOPTED],
            adopted_bytes=w[ADOPTED_BYTES],
            waited_for={
                peer: w[PEERS_AT + peer] / 1e9 for peer in range(PEERS) if w[PEERS_AT + peer]
            },
        )

    def say(
        self,
        step: int,
        total: int | None,
        loss: float | None,
        samples: int | None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Facts only the script knows. None leaves what was said before, and so do metrics that are
        not named. Their names must have been `admit`ted."""
        w = self.words
        word = None if loss is None else _as_word(loss)
        more = [(self.metrics[name], _as_word(value)) for name, value in (metrics or {}).items()]
        # Nothing may fail from here on: half of it would stay half for good.
        w[SAID_GUARD] += 1
        w[SAID_NS] = time.monotonic_ns()
        w[STEP] = step + 1  # 0 is "never said anything"
        if total is not None:
            w[TOTAL] = total + 1
        if samples is not None:
            w[SAMPLES] += samples
            w[GIVEN] |= GAVE_SAMPLES
        if word is not None:
            w[LOSS] = word
            w[GIVEN] |= GAVE_LOSS
        for place, value in more:
            w[place] = value
        w[SAID_GUARD] += 1

    def admit(self, names: Iterable[str]) -> None:
        """Give each new name a place of its own. ValueError: it is no name, or they are too many;
        none of them has got one then."""
        new = list(dict.fromkeys(name for name in names if name not in self.metrics))
        for name in new:
            if not isinstance(name, str) or METRIC_NAME.fullmatch(name) is None:
                raise ValueError(
                    f"{name!r} is not a name of a metric: a letter or _, then letters, digits and "
                    f"_ . / -, {NAME_BYTES - 1} characters at most"
                )
        if len(self.metrics) + len(new) > METRICS:
            known = ", ".join([*self.metrics, *new][: METRICS + 4])
            raise ValueError(f"a rank reports at most {METRICS} metrics, these are more: {known}")
        for name in new:
            place = len(self.metrics)
            at = (NAMES_AT * 8) + place * NAME_BYTES
            w = self.words
            w[METRICS_AT + place] = _as_word(math.nan)  # until its number is there
            w[SAID_GUARD] += 1
            self._map[at : at + NAME_BYTES] = name.encode().ljust(NAME_BYTES, b"\0")
            w[SAID_GUARD] += 1
            self.metrics[name] = METRICS_AT + place

    def leave_to_script(self) -> None:
        """Let the script say how far it is from now on; take back what was said in its place."""
        if self.is_scripts:
            return
        self.is_scripts = True
        self.metrics.clear()
        w = self.words
        w[SAID_GUARD] += 1
        for word in (STEP, TOTAL, SAMPLES, GIVEN, *range(METRICS_AT, ADOPTED)):
            w[word] = 0
        w[SAID_GUARD] += 1

    def tell(self, **measured: float) -> None:
        """Metrics of a run, by names of TRAINING_METRICS; 0 takes one back.

        Each is a word of its own, so none of them needs a guard.
        """
        for name, value in measured.items():
            self.words[TRAINING_AT + TRAINING_METRICS.index(name)] = _as_word(value)

    def use_codec(self, name: str, why: str) -> None:
        """Show the codec for other hosts, and the sentence that says why."""
        text = f"{name}\n{why}".encode()[: CODEC_BYTES - 1]
        w, at = self.words, CODEC_TEXT * 8
        w[CODEC_GUARD] += 1
        self._map[at : at + CODEC_BYTES] = text.ljust(CODEC_BYTES, b"\0")
        w[CODEC_GUARD] += 1


def _as_word(number: float) -> int:
    (word,) = _WORD.unpack(_FLOAT.pack(number))
    return int(word)


def _map(path: str | None) -> mmap.mmap:
    if path is None:
        return mmap.mmap(-1, PAGE_BYTES)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, PAGE_BYTES)
            return mmap.mmap(fd, PAGE_BYTES)
        finally:
            os.close(fd)
    except OSError as problem:
        raise HostError(
            f"WIIIIIDE_STATS={path!r} cannot be mapped: {problem.strerror}; "
            "it must be an existing file this process may write, or unset"
        ) from problem
