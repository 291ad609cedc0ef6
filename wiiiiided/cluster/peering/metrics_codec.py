"""A node's metrics as they travel to the coordinator: eight ranks in about a kilobyte.

    NodeMetrics ── at, cpu, memory, swapping
                └─ PackedMetrics ── job, attempt
                                  ├─ ranks   base 85 of: columns, then a row a rank, as varints
                                  └─ codec   of one rank: it changes seldom, so ranks take turns

     rank  pid  flags  read_ms  operations …  waited_for     a row: whole counters
        0    3      0        0           0 …          21     the next: the difference to it

Ranks of a node do the same operations, so their counters are nearly alike and differences are
short: eight ranks take 779 bytes, as rows of msgpack 1,430. Counters travel whole in every message,
never as what was added since the last one: a lost message costs the coordinator one second.
Times are milliseconds, memory is in KiB, the loss has seven digits. A row may get more columns:
msgspec passes over those a `RankRow` does not have, and takes its defaults for those that are
missing. Metrics that scripts name are no row of numbers: they travel beside it, of a few ranks in
a message, which take turns.

A message is data of another machine: `unpack` gives only what can be true, or says what is wrong.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from wiiiiided.domain.metrics import Metrics, RankSample, TrainingMetrics

LARGEST: Final = 1 << 60  # of a counter: an exabyte, or 36 years in nanoseconds
LARGEST_STEP: Final = 1 << 53  # what JSON's readers hold exactly
LARGEST_MS: Final = 1 << 50
PEERS: Final = 2  # of those a rank waited for, the ones it waited for longest
RANKS: Final = 4096  # in one message
TEXT_MOST: Final = 1 << 20  # characters
VARINT_BYTES: Final = 10
COLUMNS_MOST: Final = 128
METRIC_RANKS: Final = 8  # with metrics in one message
MOST_LOSS: Final = 3.4e38  # what four bytes hold
LARGEST_TRAINING: Final = 1e9  # of those that training measures
MEASURED, DIVERGED, HAS_LOSS, OWN_STEPS = 1, 2, 4, 8  # bits of the flags
MICRO: Final = 1_000_000  # training's metrics travel in millionths
TRAINING_METRICS: Final = tuple(
    name for name in TrainingMetrics.__struct_fields__ if name != "own_steps"
)

_FLOAT: Final = struct.Struct("<f")
_WORD: Final = struct.Struct("<I")

Id = Annotated[int, Meta(ge=0, lt=1 << 31)]
Pid = Annotated[int, Meta(gt=0, lt=1 << 31)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Ms = Annotated[int, Meta(ge=0, le=LARGEST_MS)]
Step = Annotated[int, Meta(ge=0, le=LARGEST_STEP + 1)]
Micro = Annotated[int, Meta(ge=0, le=int(LARGEST_TRAINING) * MICRO)]
Kib = Annotated[int, Meta(ge=0, le=LARGEST >> 10)]


class RankRow(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a row in their order on the wire, each with its bounds: one absurd count would
    spoil the sums of a whole job. A name that ends in 1 holds one more than the value, or 0 where
    it is not known. New columns go to the end, with a default."""

    rank: Id
    pid: Pid
    flags: Count
    read_ms: Ms
    operations: Count = 0
    failed: Count = 0
    shm_bytes: Count = 0
    wire_out: Count = 0
    wire_in: Count = 0
    wire_out_raw: Count = 0
    wire_in_raw: Count = 0
    exchange_ms: Ms = 0
    waiting_ms: Ms = 0
    encode_ms: Ms = 0
    decode_ms: Ms = 0
    step1: Step = 0
    total1: Step = 0
    samples1: Step = 0
    memory1: Kib = 0
    said_ms1: Ms = 0
    lived_ms1: Ms = 0
    loss_bits: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    peer1: Id = 0
    waited_ms: Ms = 0
    other_peer1: Id = 0
    other_waited_ms: Ms = 0
    cpu1: Annotated[int, Meta(ge=0, le=100 << 20)] = 0  # hundredths of a core
    cpu_s1: Ms = 0  # hundredths of a second: as the kernel counts
    # What training measures, in the order of TRAINING_METRICS; 0: not known.
    noise_scale: Micro = 0
    noise_batches: Micro = 0
    share: Micro = 0
    wanted_share: Micro = 0
    speed_spread: Micro = 0
    balance_gain: Micro = 0
    round_steps: Micro = 0
    round_compute: Micro = 0


COLUMNS: Final = len(RankRow.__struct_fields__)


class PackedMetrics(msgspec.Struct, frozen=True, array_like=True):
    job: int
    attempt: int
    ranks: str  # packed
    codec: tuple[int, str, str] | None = None  # of a rank: name and why, untrusted text
    metrics: dict[int, Metrics] = {}  # by rank; untrusted names


class NodeMetrics(msgspec.Struct, frozen=True, array_like=True):
    at: float  # monotonic seconds of the node that sends them
    cpu: float | None
    memory_used: float | None
    swapping: bool
    attempts: tuple[PackedMetrics, ...] = ()


class Observed(NamedTuple):
    """A sample, and for how long its rank had lived then: its first counts are from its birth."""

    sample: RankSample
    lived_s: float | None = None  # None: not known


def pack(at: float, found: Sequence[Observed]) -> str:
    """`at` is the moment of the message, by the clock of the samples."""
    data = bytearray()
    _put(data, COLUMNS)
    before: tuple[int, ...] = (0,) * COLUMNS
    for one in found[:RANKS]:
        row = msgspec.structs.astuple(_row(at, one))
        for value, old in zip(row, before, strict=True):
            difference = value - old
            _put(data, difference * 2 if difference >= 0 else -difference * 2 - 1)
        before = row
    return base64.b85encode(data).decode()


def unpack(at: float, text: str) -> list[Observed]:
    """The input of `pack`, rounded; without codecs. ValueError: it cannot be true, and why."""
    if not math.isfinite(at) or not 0 <= at <= LARGEST_MS / 1000:
        raise ValueError("its clock is beyond any")
    if len(text) > TEXT_MOST:
        raise ValueError("too much of it")
    values = _values(base64.b85decode(text))
    columns = next(values, 0)
    if not 0 < columns <= COLUMNS_MOST:
        raise ValueError(f"rows of {columns} columns")
    return [_observed(at, msgspec.convert(row, RankRow)) for row in _rows(values, columns)]


# ---- a row


def _row(at: float, one: Observed) -> RankRow:
    sample = one.sample
    flags = MEASURED * sample.measured + DIVERGED * sample.diverged
    flags += HAS_LOSS * (sample.loss is not None) + OWN_STEPS * sample.training.own_steps
    peers = sorted(sample.waited_for.items(), key=lambda peer: -peer[1])[:PEERS]
    waited = [word for peer, seconds in peers for word in (peer + 1, _ms(seconds))]
    times = (sample.exchange_s, sample.waiting_s, sample.encode_s, sample.decode_s)
    optional = (
        *(sample.step, sample.total, sample.samples),
        None if sample.memory is None else sample.memory >> 10,
        None if sample.said_at is None else _ms(sample.at - sample.said_at),
        None if one.lived_s is None else _ms(one.lived_s),
    )
    words = [
        *(sample.rank, sample.pid, flags, _ms(at - sample.at)),
        *(sample.operations, sample.failed, sample.shm_bytes),
        *(sample.wire_out, sample.wire_in, sample.wire_out_raw, sample.wire_in_raw),
        *map(_ms, times),
        *(0 if value is None else value + 1 for value in optional),
        _loss_word(sample.loss or 0.0),
        *[*waited, 0, 0, 0, 0][: 2 * PEERS],
        *(0 if value is None else round(100 * value) + 1 for value in (sample.cpu, sample.cpu_s)),
        *(round(MICRO * (getattr(sample.training, name) or 0.0)) for name in TRAINING_METRICS),
    ]
    return RankRow(*words)


def _observed(at: float, row: RankRow) -> Observed:
    said_ms, lived_ms, memory = map(_known, (row.said_ms1, row.lived_ms1, row.memory1))
    cpu, cpu_s = map(_known, (row.cpu1, row.cpu_s1))
    read_at, loss = at - row.read_ms / 1000, _loss(row.loss_bits)
    peers = ((row.peer1, row.waited_ms), (row.other_peer1, row.other_waited_ms))
    sample = RankSample(
        *(row.rank, read_at, row.pid, row.operations, row.failed, row.shm_bytes),
        *(row.wire_out, row.wire_in, row.wire_out_raw, row.wire_in_raw),
        *(row.exchange_ms / 1000, row.waiting_ms / 1000, row.encode_ms / 1000),
        row.decode_ms / 1000,
        waited_for={peer - 1: ms / 1000 for peer, ms in peers if 0 < peer <= 1 << 16},
        step=_known(row.step1),
        total=_known(row.total1),
        samples=_known(row.samples1),
        loss=loss if row.flags & HAS_LOSS else None,
        memory=None if memory is None else memory << 10,
        measured=bool(row.flags & MEASURED),
        diverged=bool(row.flags & DIVERGED),
        said_at=None if said_ms is None else read_at - said_ms / 1000,
        cpu=None if cpu is None else cpu / 100,
        cpu_s=None if cpu_s is None else cpu_s / 100,
        training=_training(row),
    )
    return Observed(sample, None if lived_ms is None else lived_ms / 1000)


def _training(row: RankRow) -> TrainingMetrics:
    told = {name: word / MICRO for name in TRAINING_METRICS if (word := getattr(row, name))}
    return TrainingMetrics(**told, own_steps=bool(row.flags & OWN_STEPS))


def _known(word: int) -> int | None:
    return word - 1 if word else None


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _loss_word(loss: float) -> int:
    """Its bits: those of two like losses are like numbers."""
    (word,) = _WORD.unpack(_FLOAT.pack(max(-MOST_LOSS, min(MOST_LOSS, loss))))
    return int(word)


def _loss(word: int) -> float:
    (loss,) = _FLOAT.unpack(_WORD.pack(word))
    if not math.isfinite(loss):
        raise ValueError("a loss that is no number")
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
    """Whole rows again."""
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
        yield row
        before, row = row, []
    if row:
        raise ValueError("it ends within a row")
