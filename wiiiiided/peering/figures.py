"""A node's figures as they travel to the coordinator: eight ranks in about a kilobyte.

    NodeFigures ── at, cpu, memory, swapping
                └─ AttemptFigures ── job, attempt
                                  ├─ ranks   base 85 of: columns, then a row a rank, as varints
                                  └─ codec   of one rank: it changes seldom, so ranks take turns

     rank  pid  flags  read_ms  operations …  waited_for     a row: whole counters
        0    3      0        0           0 …          21     the next: the difference to it

Ranks of a node do the same operations, so their counters are nearly alike and differences are
short. Counters travel whole in every message, never as what was added since the last one: a message
that is lost costs a second of the picture and nothing else. Times are milliseconds, sizes of memory
KiB, the loss has seven digits. A row may get more columns: who does not know them passes over them,
and who misses some takes them for 0. What scripts report by name is no row of numbers: it travels
beside them, of a few ranks in a message, which take turns.

What arrives is data of somebody else: `unpack` gives only what can be true, or says what is wrong.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from wiiiiided.domain.figures import Metrics, RankSample

LARGEST: Final = 1 << 60  # of a counter: an exabyte, or 36 years in nanoseconds
LARGEST_STEP: Final = 1 << 53  # what JSON's readers hold exactly
LARGEST_MS: Final = 1 << 50
PEERS: Final = 2  # of those a rank waited for, the ones it waited for longest
RANKS: Final = 4096  # in one message
TEXT_MOST: Final = 1 << 20  # characters
VARINT_BYTES: Final = 10
COLUMNS_MOST: Final = 128
METRIC_RANKS: Final = 8  # whose metrics are in one message
MOST_CORES: Final = 1 << 20
MOST_LOSS: Final = 3.4e38  # what four bytes hold
MEASURED, DIVERGED, HAS_LOSS = 1, 2, 4  # bits of the flags

_FLOAT: Final = struct.Struct("<f")
_WORD: Final = struct.Struct("<I")

# Columns of a row; those after the times are one more than what they say, 0: not known.
_COUNTS: Final = (
    *("operations", "failed", "shm_bytes"),
    *("wire_out", "wire_in", "wire_out_raw", "wire_in_raw"),
)
_TIMES: Final = ("exchange_s", "waiting_s", "encode_s", "decode_s")
_HEAD: Final = 4  # rank, pid, flags, read_ms
_SAID_AT: Final = _HEAD + len(_COUNTS) + len(_TIMES)  # step, total, samples, memory, said, lived
_LOSS_AT: Final = _SAID_AT + 6
_PEERS_AT: Final = _LOSS_AT + 1
_CPU_AT: Final = _PEERS_AT + 2 * PEERS  # hundredths of a core, of a second: as the kernel counts
COLUMNS: Final = _CPU_AT + 2


class AttemptFigures(msgspec.Struct, frozen=True, array_like=True):
    job: int
    attempt: int
    ranks: str  # packed
    codec: tuple[int, str, str] | None = None  # of a rank: name and why, untrusted text
    metrics: dict[int, Metrics] = {}  # by rank; untrusted names


class NodeFigures(msgspec.Struct, frozen=True, array_like=True):
    at: float  # monotonic seconds of the node that sends them
    cpu: float | None
    memory_used: float | None
    swapping: bool
    attempts: tuple[AttemptFigures, ...] = ()


class Observed(NamedTuple):
    """A sample, and for how long its rank had lived then: its first counts are from its birth."""

    sample: RankSample
    lived_s: float | None = None  # None: not known


def pack(at: float, found: Sequence[Observed]) -> str:
    """`at` is the moment of the message, by the clock of the samples."""
    data = bytearray()
    _put(data, COLUMNS)
    before = [0] * COLUMNS
    for one in found[:RANKS]:
        row = _row(at, one)
        for value, old in zip(row, before, strict=True):
            difference = value - old
            _put(data, difference * 2 if difference >= 0 else -difference * 2 - 1)
        before = row
    return base64.b85encode(data).decode()


def unpack(at: float, text: str) -> list[Observed]:
    """What `pack` was given, rounded; without codecs. ValueError: it cannot be true, and why."""
    if not math.isfinite(at) or not 0 <= at <= LARGEST_MS / 1000:
        raise ValueError("its clock is beyond any")
    if len(text) > TEXT_MOST:
        raise ValueError("too much of it")
    values = _values(base64.b85decode(text))
    columns = next(values, 0)
    if not 0 < columns <= COLUMNS_MOST:
        raise ValueError(f"rows of {columns} columns")
    return [_observed(at, row) for row in _rows(values, columns)]


# ---- a row


def _row(at: float, one: Observed) -> list[int]:
    sample = one.sample
    flags = MEASURED * sample.measured + DIVERGED * sample.diverged
    flags += HAS_LOSS * (sample.loss is not None)
    said_ms = None if sample.said_at is None else _ms(sample.at - sample.said_at)
    lived_ms = None if one.lived_s is None else _ms(one.lived_s)
    memory = None if sample.memory is None else sample.memory >> 10
    optional = (sample.step, sample.total, sample.samples, memory, said_ms, lived_ms)
    peers = sorted(sample.waited_for.items(), key=lambda peer: -peer[1])[:PEERS]
    waited = [word for peer, seconds in peers for word in (peer + 1, _ms(seconds))]
    return [
        *(sample.rank, sample.pid, flags, _ms(at - sample.at)),
        *(getattr(sample, name) for name in _COUNTS),
        *(_ms(getattr(sample, name)) for name in _TIMES),
        *(0 if value is None else value + 1 for value in optional),
        _loss_word(sample.loss or 0.0),
        *waited,
        *[0] * (2 * PEERS - len(waited)),
        *(0 if value is None else round(100 * value) + 1 for value in (sample.cpu, sample.cpu_s)),
    ]


def _observed(at: float, row: list[int]) -> Observed:
    rank, pid, flags, read_ms = row[:_HEAD]
    operations, failed, shm_bytes, *wire = row[_HEAD : _HEAD + len(_COUNTS)]
    times = [word / 1000 for word in row[_HEAD + len(_COUNTS) : _SAID_AT]]
    step, total, samples, memory, said_ms, lived_ms = (
        word - 1 if word else None for word in row[_SAID_AT:_LOSS_AT]
    )
    _check(row)
    read_at = at - read_ms / 1000
    sample = RankSample(
        rank=rank,
        at=read_at,
        pid=pid,
        operations=operations,
        failed=failed,
        shm_bytes=shm_bytes,
        wire_out=wire[0],
        wire_in=wire[1],
        wire_out_raw=wire[2],
        wire_in_raw=wire[3],
        exchange_s=times[0],
        waiting_s=times[1],
        encode_s=times[2],
        decode_s=times[3],
        waited_for=_waited(row[_PEERS_AT:_CPU_AT]),
        step=step,
        total=total,
        samples=samples,
        loss=_loss(row[_LOSS_AT]) if flags & HAS_LOSS else None,
        memory=None if memory is None else memory << 10,
        measured=bool(flags & MEASURED),
        diverged=bool(flags & DIVERGED),
        said_at=None if said_ms is None else read_at - said_ms / 1000,
        cpu=(row[_CPU_AT] - 1) / 100 if row[_CPU_AT] else None,
        cpu_s=(row[_CPU_AT + 1] - 1) / 100 if row[_CPU_AT + 1] else None,
    )
    return Observed(sample, None if lived_ms is None else lived_ms / 1000)


def _check(row: list[int]) -> None:
    """Every word within what it may be: a rate of nonsense would spoil everybody's picture."""
    counts = row[_HEAD : _HEAD + len(_COUNTS)]
    said = row[_SAID_AT : _SAID_AT + 3]
    times = [row[3], *row[_HEAD + len(_COUNTS) : _SAID_AT], *row[_SAID_AT + 4 : _LOSS_AT]]
    if min(row) < 0:
        raise ValueError("a count below 0")
    if max(counts) > LARGEST or max(said) > LARGEST_STEP + 1 or max(times) > LARGEST_MS:
        raise ValueError("a count beyond any")
    if row[_CPU_AT] > 100 * MOST_CORES or row[_CPU_AT + 1] > LARGEST_MS:
        raise ValueError("a count beyond any")
    if row[_SAID_AT + 3] > LARGEST >> 10 or row[_LOSS_AT] >= 1 << 32:
        raise ValueError("a count beyond any")
    if not 0 < row[1] < 1 << 31 or row[0] >= 1 << 31:
        raise ValueError("no rank and no process")
    if not math.isfinite(_loss(row[_LOSS_AT])):
        raise ValueError("a loss that is no number")


def _waited(words: list[int]) -> dict[int, float]:
    found = zip(words[::2], words[1::2], strict=True)
    return {peer - 1: ms / 1000 for peer, ms in found if 0 < peer <= 1 << 16 and ms <= LARGEST_MS}


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _loss_word(loss: float) -> int:
    """Its bits: those of two like losses are like numbers."""
    (word,) = _WORD.unpack(_FLOAT.pack(max(-MOST_LOSS, min(MOST_LOSS, loss))))
    return int(word)


def _loss(word: int) -> float:
    (loss,) = _FLOAT.unpack(_WORD.pack(word))
    return float(f"{loss:.7g}")


# ---- numbers as bytes: seven bits each, the lowest first, the last without its top bit


def _put(data: bytearray, value: int) -> None:
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)


def _values(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
        elif shift >= 7 * VARINT_BYTES:
            raise ValueError("a number without an end")
    if shift:
        raise ValueError("it ends within a number")


def _rows(values: Iterator[int], columns: int) -> Iterator[list[int]]:
    """Whole rows again, of the columns that are known here."""
    before = [0] * columns
    row: list[int] = []
    rows = 0
    for value in values:
        row.append(before[len(row)] + (-(value + 1) // 2 if value & 1 else value // 2))
        if len(row) < columns:
            continue
        rows += 1
        if rows > RANKS:
            raise ValueError(f"more than {RANKS} ranks")
        yield [*row[:COLUMNS], *[0] * (COLUMNS - columns)]
        before, row = row, []
    if row:
        raise ValueError("it ends within a row")
