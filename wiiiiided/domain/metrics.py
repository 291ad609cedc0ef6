"""The metrics of a job: the counters of a rank, the activity of a node now, the record of
a run.

    stats pages ──sampled──► RankSample ──two of them──► rates ──► NodeNow, JobNow ──► Snapshot
                                  │                                    (top, ps, metrics)
                                  └──thinned──► RunRecord              (report, show, prediction)

A sample is plain counters with the moment they were read, so that nodes can send theirs to
another that puts them together. Seconds are seconds, bytes are bytes, times are seconds since 1970
unless a name says otherwise. None means not known; a number is never invented.
"""

from __future__ import annotations

from typing import Literal

import msgspec

METRICS = 8  # of a job
Metrics = dict[str, float | None]  # by name, eight at most; None: not a finite number


class TrainingMetrics(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measurements of `wide.parallel` as a rank tells them, as far as they are known."""

    noise_scale: float | None = None  # the batch that gradients want, in samples
    noise_batches: float | None = None  # the same in batches of a rank: samples are not counted
    share: float | None = None  # the part of a step's or round's samples that this rank had, 0 to 1
    wanted_share: float | None = None  # what `run.share` says, by measured speeds
    speed_spread: float | None = None  # the fastest rank's speed to the slowest one's
    balance_gain: float | None = None  # how much longer a step with even parts would take
    round_steps: float | None = None  # steps of this host between two exchanges with others
    round_compute: float | None = None  # computing, of the last round's time; 0 to 1
    own_steps: bool = False  # hosts make unequal steps by design: they are not to be compared


class RankSample(msgspec.Struct, frozen=True):
    """A rank's counters at one moment, checked: the page they come from is not trusted."""

    rank: int
    at: float  # monotonic seconds of the node that read them
    pid: int
    operations: int
    failed: int
    shm_bytes: int  # bytes of tensors given to collectives
    wire_out: int  # bytes to other hosts as they travelled, headers included
    wire_in: int
    wire_out_raw: int  # the payload of these before the codec
    wire_in_raw: int
    exchange_s: float  # seconds with an operation under way
    waiting_s: float  # the seconds of these that waited for a peer
    encode_s: float
    decode_s: float
    waited_for: dict[int, float] = {}  # seconds by peer rank; only those above 0
    codec: str = ""  # in use to other hosts: "none", "lz4", "mixed"; empty: there are none
    codec_why: str = ""  # one sentence; untrusted text
    step: int | None = None  # as the script said last; None: it never said
    total: int | None = None  # steps there will be
    samples: int | None = None  # seen so far, by this rank
    loss: float | None = None
    memory: int | None = None  # resident bytes of the rank's processes
    measured: bool = True  # False: no group of this backend, so its counters say nothing
    diverged: bool = False  # the loss it said last is not a finite number
    said_at: float | None = None  # monotonic seconds: when it said its step last
    cpu: float | None = None  # cores that the rank's processes use
    cpu_s: float | None = None  # processor seconds they have used so far
    metrics: Metrics = {}  # what else the script reports
    training: TrainingMetrics = TrainingMetrics()


class Rates(msgspec.Struct, frozen=True):
    """Rates per second, between two samples of a rank, or summed over several."""

    steps: float | None = None
    samples: float | None = None
    operations: float = 0.0
    shm: float = 0.0  # bytes
    wire_out: float = 0.0
    wire_in: float = 0.0
    wire_out_raw: float = 0.0
    wire_in_raw: float = 0.0
    exchange: float = 0.0  # share of the time, 0 to 1: "comm %"
    waiting: float = 0.0  # share of the time, part of `exchange`
    encode: float = 0.0
    decode: float = 0.0
    measured: bool = True  # False: but for steps and samples nothing is known

    @property
    def ratio(self) -> float | None:
        """How much smaller the codec made what travelled; None where nothing did."""
        travelled = self.wire_out + self.wire_in
        return (self.wire_out_raw + self.wire_in_raw) / travelled if travelled > 0 else None


class Straggler(msgspec.Struct, frozen=True):
    """The rank the others wait for, from waiting time alone: it waits least while they wait."""

    rank: int
    node: str
    behind: float  # by how much of a step it is later than the others: 0.41 is +41 %
    why: str  # the sentence: the same in top, the log, the report and the test


class RankNow(msgspec.Struct, frozen=True):
    """A rank of a running job, as it does now."""

    rank: int
    node: str
    rates: Rates
    step: int | None = None
    loss: float | None = None
    memory: int | None = None
    codec: str = ""
    codec_why: str = ""
    diverged: bool = False  # its loss is not a finite number
    cpu: float | None = None  # cores in use
    metrics: Metrics = {}
    waits_for: int | None = None  # the peer it waited for longest of late; None: for no rank
    training: TrainingMetrics = TrainingMetrics()


class JobNow(msgspec.Struct, frozen=True):
    """A running job, as it does now: all its ranks together."""

    id: int
    rates: Rates  # bytes and samples summed over ranks; steps and shares are means
    step: int | None = None  # of the rank that is least far
    total: int | None = None
    loss: float | None = None  # mean over ranks that say one
    eta_s: float | None = None
    memory: int | None = None  # all ranks together
    straggler: Straggler | None = None
    ranks: tuple[RankNow, ...] = ()
    diverged: bool = False  # a rank's loss is not a finite number: shown as nan
    cpu: float | None = None  # cores in use, all ranks together
    metrics: Metrics = {}  # means over ranks that report them
    turns: str = ""  # the sentence when ranks wait notably, and for no one rank; else empty


class NodeNow(msgspec.Struct, frozen=True):
    """A machine, as it does now: what it has, and its ranks of all jobs together."""

    name: str
    state: Literal["ok", "slow", "idle", "drained", "lost"]
    note: str = ""  # "swapping", a drain reason; untrusted text
    coordinator: bool = False
    age_s: float = 0.0  # seconds since the last news of it
    cores: int = 0
    memory: int = 0  # bytes it has
    cpu: float | None = None  # share of all its cores, 0 to 1
    memory_used: float | None = None  # share, 0 to 1
    # Bytes and samples summed over its ranks; steps and shares are means.
    rates: Rates = Rates(measured=False)
    codec: str = ""
    codec_why: str = ""
    jobs: tuple[int, ...] = ()  # those that have ranks on it
    history: tuple[float, ...] = ()  # its main rate, oldest first, one a sample, 60 at most
    unit: Literal["samples/s", "step/s", "op/s"] = "op/s"  # of the history: the best it has


# ---- what stays of a run

POINTS = 512  # at most, of one attempt: when they are full, every two become one


class Point(msgspec.Struct, frozen=True):
    """A stretch of a run: means over it, values at its end."""

    at: float  # its end, seconds since the attempt began
    span: float  # its length in seconds
    rates: Rates
    step: int | None = None
    loss: float | None = None
    memory: int | None = None
    straggler: int | None = None  # the rank that was one for most of it
    cpu: float | None = None  # cores in use, all ranks together
    metrics: Metrics = {}  # at its end, means over ranks


class RankRecord(msgspec.Struct, frozen=True):
    """A rank over a whole attempt."""

    rank: int
    node: str
    totals: RankSample  # its last counters
    memory_peak: int | None = None
    straggled_s: float = 0.0  # for how long it was the one the others waited for


class RunRecord(msgspec.Struct, frozen=True):
    """One attempt of a job, as the report shows it; written while it runs and at its end."""

    job: int
    name: str
    attempt: int
    nodes: tuple[str, ...]
    workers: int
    started_at: float
    ended_at: float | None = None  # None: it runs, or its end was not seen
    state: str = ""  # how it ended: done, failed, cancelled, or why it was stopped
    code: int | None = None
    observed_s: float = 0.0  # for how long a daemon looked: it may have been away
    points: tuple[Point, ...] = ()
    ranks: tuple[RankRecord, ...] = ()
    reason: str = ""  # why it ended, one sentence; untrusted text


class RunForecast(msgspec.Struct, frozen=True):
    """A job's likely needs, by earlier runs of its name; `text` says it all in a sentence."""

    runs: int  # done ones that were looked at; 0: there is no history
    text: str
    memory: int | None = None  # bytes a rank, the most that was seen
    time_s: tuple[float, float] | None = None  # shortest and longest
    wire_bytes: int | None = None  # all ranks together, sent
