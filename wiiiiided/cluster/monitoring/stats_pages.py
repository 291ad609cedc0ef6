"""The ranks' stats pages, read as what they are: memory that an untrusted process writes to.

    <attempt>/stats-0 …        backend/shm/stats draws the words

Read by pread, never mapped: a job that truncates its page would kill the daemon by SIGBUS. A
figure that cannot be true (below 0, beyond any, smaller than before) is refused with its sample;
a loss that is no number is not known; text is cut, decoded and cleaned. A guarded part is taken
when its guard was even and the same before and after; else it stays what it was.

A rank that never writes to its page (another backend, a script that reports nothing) has a sample
as well, once its processes were looked at: what they use, and nothing else.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from msgspec.structs import replace

from wiiiiided.backend.shm import stats
from wiiiiided.cluster.allocation.job_dirs import JobDirs, open_untrusted
from wiiiiided.cluster.monitoring.host_stats import Usage
from wiiiiided.cluster.peering.metrics_codec import LARGEST, LARGEST_STEP, LARGEST_TRAINING
from wiiiiided.domain.metrics import Metrics, RankSample, TrainingMetrics
from wiiiiided.errors import HostError
from wiiiiided.metrics.rates import fell
from wiiiiided.text import plain

WORDS: Final = stats.WORDS
TRIES: Final = 3  # to find a guarded part at rest; it is written within microseconds
CODEC_CHARS, WHY_CHARS = 16, 300

# Counters that move when a rank does something: operations, failures, messages, steps.
PROGRESS: Final = (stats.OPERATIONS, stats.FAILED, stats.SENT, stats.RECEIVED, stats.STEP)
_COUNTERS: Final = (
    *(stats.OPERATIONS, stats.FAILED, stats.BYTES),
    *(stats.WIRE_OUT, stats.WIRE_IN, stats.WIRE_OUT_RAW, stats.WIRE_IN_RAW),
    *(stats.EXCHANGE_NS, stats.WAITING_NS, stats.ENCODE_NS, stats.DECODE_NS),
)
_GUARDS_AT: Final = stats.SAID_GUARD * 8
_unpack_page: Final = struct.Struct(f"={WORDS}q").unpack_from
_unpack_guards: Final = struct.Struct(f"={stats.CODEC_GUARD - stats.SAID_GUARD + 1}q").unpack
_GUARDS_BYTES: Final = (stats.CODEC_GUARD - stats.SAID_GUARD + 1) * 8

Words = tuple[int, ...]


class ScriptReport(NamedTuple):
    """The script's last word."""

    step: int | None = None
    total: int | None = None
    samples: int | None = None
    loss: float | None = None
    diverged: bool = False
    at_ns: int = 0
    metrics: Metrics = {}  # noqa: RUF012  replaced, never changed


class CodecWords(NamedTuple):
    name: str = ""
    why: str = ""


NO_REPORT: Final = ScriptReport()
NO_TRAINING: Final = TrainingMetrics()
NO_CODEC: Final = CodecWords()


@dataclass(frozen=True)
class Reading:
    """One page at one moment."""

    rank: int
    progress: Words  # PROGRESS, as they are: whatever changes there is a sign of life
    born: float  # when the page was made, by the clock of the samples
    sample: RankSample | None  # None: it says what cannot be


@dataclass
class _Known:
    """The last values read of a rank."""

    report: ScriptReport = NO_REPORT
    codec: CodecWords = NO_CODEC
    codec_guard: int = -1
    sample: RankSample | None = None
    pid: int | None = None  # of its first process, as its shim says
    memory: int | None = None
    cpu: float | None = None
    cpu_s: float | None = None
    looked: tuple[float, float] | None = None  # when, and the processor seconds then

    def uses(self, at: float, usage: Usage) -> None:
        self.memory = usage.memory
        if self.looked is None:
            self.cpu_s = usage.cpu_s
        elif at > self.looked[0]:
            # A child that was not waited for takes its seconds along: no reason to count backwards.
            more = max(0.0, usage.cpu_s - self.looked[1])
            self.cpu = more / (at - self.looked[0])
            self.cpu_s = (self.cpu_s or 0.0) + more
        self.looked = at, usage.cpu_s

    def rests(self) -> None:
        """Its process has ended: what it used in all stays."""
        self.memory = self.cpu = None


class StatsPageReader:
    """Reads pages, and remembers of each what a torn or hostile one is compared with."""

    def __init__(
        self, job_dirs: JobDirs, monotonic: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._job_dirs = job_dirs
        self._monotonic = monotonic
        self._clock = clock
        self._known: dict[tuple[int, int], dict[int, _Known]] = {}

    def read(self, job: int, attempt: int, ranks: Sequence[int]) -> list[Reading]:
        """The pages of an attempt. Of a rank that has not written its own yet, what its processes
        use; where that is not known it is left out."""
        try:
            directory = self._job_dirs.open_attempt(job, attempt)
        except OSError:
            return []
        known = self._known.setdefault((job, attempt), {})
        try:
            found = [self._one(directory, rank, known) for rank in ranks]
        finally:
            os.close(directory)
        silent = (
            self._without_page(rank, known.get(rank))
            for rank, reading in zip(ranks, found, strict=True)
            if reading is None
        )
        return [reading for reading in (*found, *silent) if reading is not None]

    def forget(self, job: int, attempt: int) -> None:
        self._known.pop((job, attempt), None)

    def _one(self, directory: int, rank: int, known: dict[int, _Known]) -> Reading | None:
        owners = {self._job_dirs.user.uid, os.getuid()}
        try:
            fd = open_untrusted(directory, f"stats-{rank}", owners)
        except (OSError, HostError):
            return None
        try:
            last = known.setdefault(rank, _Known())
            words = _read(fd, last)
        except OSError:
            return None
        finally:
            os.close(fd)
        if words is None:
            return None
        at = self._monotonic()
        sample = self._sample(rank, at, words, last)
        born = at - (self._clock() - words[3] / 1e9)
        return Reading(rank, tuple(words[index] for index in PROGRESS), born, sample)

    def _without_page(self, rank: int, last: _Known | None) -> Reading | None:
        if last is None or last.pid is None or last.sample is not None:
            return None
        at = self._monotonic()
        nothing = RankSample(rank, at, last.pid, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0)
        use = {"memory": last.memory, "cpu": last.cpu, "cpu_s": last.cpu_s}
        return Reading(rank, (), 0.0, replace(nothing, measured=False, **use))

    def _sample(self, rank: int, at: float, words: Words, last: _Known) -> RankSample | None:
        counters = [words[index] for index in _COUNTERS]
        if min(counters) < 0 or max(counters) > LARGEST or not 0 < words[2] < 1 << 31:
            return None
        sample = RankSample(
            rank=rank,
            at=at,
            pid=words[2],
            operations=words[stats.OPERATIONS],
            failed=words[stats.FAILED],
            shm_bytes=words[stats.BYTES],
            wire_out=words[stats.WIRE_OUT],
            wire_in=words[stats.WIRE_IN],
            wire_out_raw=words[stats.WIRE_OUT_RAW],
            wire_in_raw=words[stats.WIRE_IN_RAW],
            exchange_s=words[stats.EXCHANGE_NS] / 1e9,
            waiting_s=words[stats.WAITING_NS] / 1e9,
            encode_s=words[stats.ENCODE_NS] / 1e9,
            decode_s=words[stats.DECODE_NS] / 1e9,
            waited_for=_waited(words),
            codec=last.codec.name,
            codec_why=last.codec.why,
            step=last.report.step,
            total=last.report.total,
            samples=last.report.samples,
            loss=last.report.loss,
            memory=last.memory,
            measured=words[stats.WORLD] > 0,
            diverged=last.report.diverged,
            said_at=_report_time(last.report.at_ns / 1e9, at),
            cpu=last.cpu,
            cpu_s=last.cpu_s,
            metrics=last.report.metrics,
            training=_training(words),
        )
        if last.sample is not None and fell(last.sample, sample):
            return None
        last.sample = sample
        return sample

    def weigh(self, job: int, attempt: int, rank: int, pid: int, usage: Usage | None) -> None:
        """Count, from here on, the use of the rank's processes in its samples; None: they have
        ended."""
        last = self._known.setdefault((job, attempt), {}).setdefault(rank, _Known())
        last.pid = pid
        if usage is None:
            last.rests()
        else:
            last.uses(self._monotonic(), usage)


def _read(fd: int, last: _Known) -> Words | None:
    """The words of a page, with what is guarded put into `last`; None: it is no page of ours."""
    words: Words | None = None
    for _ in range(TRIES):
        before = _guards(fd)
        page = os.pread(fd, stats.PAGE_BYTES, 0)
        after = _guards(fd)
        if before is None or after is None or len(page) < stats.PAGE_BYTES:
            return None
        words = _unpack_page(page)
        if words[0] != stats.MAGIC or words[1] != stats.VERSION:
            return None
        said = _take_said(words, page, last, before[0], after[0])
        codec = _take_codec(page, last, before[-1], after[-1])
        if said and codec:
            break
    return words


def _guards(fd: int) -> Words | None:
    data = os.pread(fd, _GUARDS_BYTES, _GUARDS_AT)
    return _unpack_guards(data) if len(data) == _GUARDS_BYTES else None


def _take_said(words: Words, page: bytes, last: _Known, before: int, after: int) -> bool:
    if before % 2 or before != after:
        return False
    last.report = _script_report(words, page)
    return True


def _script_report(words: Words, page: bytes) -> ScriptReport:
    given = words[stats.GIVEN]
    loss = _as_float(words[stats.LOSS])
    return ScriptReport(
        step=_from_one(words[stats.STEP]),
        total=_from_one(words[stats.TOTAL]),
        samples=_from_one(words[stats.SAMPLES] + 1) if given & stats.GAVE_SAMPLES else None,
        loss=loss if given & stats.GAVE_LOSS and math.isfinite(loss) else None,
        diverged=bool(given & stats.GAVE_LOSS) and not math.isfinite(loss),
        at_ns=words[stats.SAID_NS],
        metrics=_metrics(words, page) if words[stats.NAMES_AT] else {},
    )


def _metrics(words: Words, page: bytes) -> Metrics:
    """Read the metrics of a page, but for those whose name is none."""
    found: Metrics = {}
    for place in range(stats.METRICS):
        at = stats.NAMES_AT * 8 + place * stats.NAME_BYTES
        name = page[at : at + stats.NAME_BYTES].partition(b"\0")[0].decode("ascii", "replace")
        if stats.METRIC_NAME.fullmatch(name):
            value = _as_float(words[stats.METRICS_AT + place])
            found[name] = value if math.isfinite(value) else None
    return found


def _training(words: Words) -> TrainingMetrics:
    """Training metrics of a page; values that are not above 0 are left out."""
    told = words[stats.TRAINING_AT : stats.TRAINING_AT + len(stats.TRAINING_METRICS)]
    if not any(told):
        return NO_TRAINING
    values = zip(stats.TRAINING_METRICS, map(_as_float, told), strict=True)
    found = {name: value for name, value in values if 0 < value <= LARGEST_TRAINING}
    own_steps = found.pop("own_steps", None) is not None
    return TrainingMetrics(**found, own_steps=own_steps)


def _as_float(word: int) -> float:
    (number,) = struct.unpack("=d", struct.pack("=q", word))
    return float(number)


def _report_time(said: float, at: float) -> float | None:
    """Check the time of a script's report: by our clock, and not in the future."""
    return said if 0 < said <= at else None


def _from_one(word: int) -> int | None:
    """A word that is one more than its number; 0 is none."""
    return word - 1 if 0 < word <= LARGEST_STEP else None


def _take_codec(page: bytes, last: _Known, before: int, after: int) -> bool:
    if before % 2 or before != after:
        return False
    if before != last.codec_guard:
        text = page[stats.CODEC_TEXT * 8 : stats.PEERS_AT * 8].partition(b"\0")[0]
        name, _, why = text.decode("utf-8", "replace").partition("\n")
        last.codec = CodecWords(plain(name, CODEC_CHARS), plain(why, WHY_CHARS))
        last.codec_guard = before
    return True


def _waited(words: Words) -> dict[int, float]:
    """Read the waits for as many peers as there are: to look at 256 would be half of all the work
    here."""
    size = words[stats.WORLD]
    most = size if 0 < size < stats.PEERS else stats.PEERS
    peers = words[stats.PEERS_AT : stats.PEERS_AT + most]
    if not any(peers):
        return {}
    return {peer: word / 1e9 for peer, word in enumerate(peers) if 0 < word <= LARGEST}
