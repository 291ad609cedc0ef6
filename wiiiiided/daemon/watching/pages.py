"""The ranks' stats pages, read as what they are: memory that somebody we do not trust writes to.

    <attempt>/stats-0 …        shm/stats draws the words

Read by pread, never mapped: a job that truncates its page would kill the daemon by SIGBUS. What
cannot be true (below 0, beyond any number, smaller than before) is refused and the sample with it;
a loss that is no number is not known; text is cut, decoded and cleaned. A guarded part is taken
when its guard was even and the same before and after; else it stays what it was.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from wiiiiided.daemon.shares.runs import Runs, open_untrusted
from wiiiiided.domain.figures import RankSample
from wiiiiided.errors import HostError
from wiiiiided.figures.rates import fell
from wiiiiided.peering.figures import LARGEST, LARGEST_STEP
from wiiiiided.shm import stats
from wiiiiided.text import plain

WORDS: Final = stats.SAID_NS + 1
TRIES: Final = 3  # to find a guarded part at rest; it is written within microseconds
CODEC_CHARS, WHY_CHARS = 16, 300

# What moves when a rank does something: operations, failures, messages, steps.
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


class Said(NamedTuple):
    """What the script said last."""

    step: int | None = None
    total: int | None = None
    samples: int | None = None
    loss: float | None = None
    diverged: bool = False
    at_ns: int = 0


class Codec(NamedTuple):
    name: str = ""
    why: str = ""


NOTHING_SAID: Final = Said()
NO_CODEC: Final = Codec()


@dataclass(frozen=True)
class Reading:
    """One page at one moment."""

    rank: int
    progress: Words  # PROGRESS, as they are: whatever changes there is a sign of life
    born: float  # when the page was made, by the clock of the samples
    sample: RankSample | None  # None: it says what cannot be


@dataclass
class _Known:
    """What was last read of a rank."""

    said: Said = NOTHING_SAID
    codec: Codec = NO_CODEC
    codec_guard: int = -1
    memory: int | None = None
    sample: RankSample | None = None


class Pages:
    """Reads pages, and remembers of each what a torn or hostile one is compared with."""

    def __init__(
        self, runs: Runs, monotonic: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._runs = runs
        self._monotonic = monotonic
        self._clock = clock
        self._known: dict[tuple[int, int], dict[int, _Known]] = {}

    def read(self, job: int, attempt: int, ranks: Iterable[int]) -> list[Reading]:
        """The pages of an attempt; those that nobody has written yet are left out."""
        try:
            directory = self._runs.open_attempt(job, attempt)
        except OSError:
            return []
        known = self._known.setdefault((job, attempt), {})
        try:
            found = [self._one(directory, rank, known) for rank in ranks]
        finally:
            os.close(directory)
        return [reading for reading in found if reading is not None]

    def forget(self, job: int, attempt: int) -> None:
        self._known.pop((job, attempt), None)

    def _one(self, directory: int, rank: int, known: dict[int, _Known]) -> Reading | None:
        owners = {self._runs.user.uid, os.getuid()}
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
            step=last.said.step,
            total=last.said.total,
            samples=last.said.samples,
            loss=last.said.loss,
            memory=last.memory,
            measured=words[stats.WORLD] > 0,
            diverged=last.said.diverged,
            said_at=_heard(last.said.at_ns / 1e9, at),
        )
        if last.sample is not None and fell(last.sample, sample):
            return None
        last.sample = sample
        return sample

    def weigh(self, job: int, attempt: int, memory: dict[int, int]) -> None:
        """From here on a rank's samples carry so much memory."""
        known = self._known.setdefault((job, attempt), {})
        for rank, size in memory.items():
            known.setdefault(rank, _Known()).memory = size


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
        said = _take_said(words, last, before[0], after[0])
        codec = _take_codec(page, last, before[-1], after[-1])
        if said and codec:
            break
    return words


def _guards(fd: int) -> Words | None:
    data = os.pread(fd, _GUARDS_BYTES, _GUARDS_AT)
    return _unpack_guards(data) if len(data) == _GUARDS_BYTES else None


def _take_said(words: Words, last: _Known, before: int, after: int) -> bool:
    if before % 2 or before != after:
        return False
    last.said = _said(words)
    return True


def _said(words: Words) -> Said:
    given = words[stats.GIVEN]
    (loss,) = struct.unpack("=d", struct.pack("=q", words[stats.LOSS]))
    return Said(
        step=_from_one(words[stats.STEP]),
        total=_from_one(words[stats.TOTAL]),
        samples=_from_one(words[stats.SAMPLES] + 1) if given & stats.GAVE_SAMPLES else None,
        loss=loss if given & stats.GAVE_LOSS and math.isfinite(loss) else None,
        diverged=bool(given & stats.GAVE_LOSS) and not math.isfinite(loss),
        at_ns=words[stats.SAID_NS],
    )


def _heard(said: float, at: float) -> float | None:
    """When it said that, if it can be: by our clock, and not in the future."""
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
        last.codec = Codec(plain(name, CODEC_CHARS), plain(why, WHY_CHARS))
        last.codec_guard = before
    return True


def _waited(words: Words) -> dict[int, float]:
    """Only as many peers as there are: to look at 256 would be half of all the work here."""
    size = words[stats.WORLD]
    most = size if 0 < size < stats.PEERS else stats.PEERS
    peers = words[stats.PEERS_AT : stats.PEERS_AT + most]
    if not any(peers):
        return {}
    return {peer: word / 1e9 for peer, word in enumerate(peers) if 0 < word <= LARGEST}
