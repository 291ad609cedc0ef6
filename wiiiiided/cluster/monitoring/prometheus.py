"""A snapshot in Prometheus' text format, for `wiiiiide metrics` and the daemon's /metrics. Pure.

    # HELP wiiiiide_job_loss Loss, the mean over ranks that say one.
    # TYPE wiiiiide_job_loss gauge
    wiiiiide_job_loss{job_id="17",name="digits"} 0.412

FAMILIES is the whole list: what is not in it cannot be written. The rules of the list:

 - base units (seconds, bytes, ratios from 0 to 1), the unit at the end of the name
 - a snapshot has rates, not their counters, so rates are gauges and say "per_second"
 - the label of a job is `job_id`: `job` is Prometheus' own name for what it scrapes
 - what is not known is left out, never 0; of a lost node only that it is lost is known
 - ended jobs are left out and live ones limited, for a series lives as long as its database
 - a member's daemon has no queue: it knows of jobs what the coordinator's snapshot says

The format is 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from wiiiiided.cluster.rpc.messages import DaemonStatus, JobView, Snapshot
from wiiiiided.domain.metrics import METRICS, JobNow, NodeNow, RankNow, Rates
from wiiiiided.domain.states import ENDED, STATES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JOBS = 500  # that have series of their own: those that run come first; all are in wiiiiide_jobs
NODES = 1024  # as many as a job may want
RANKS = 1024  # of all jobs together, that have series of their own
LABEL_CHARS = 128  # a job's name has 64, a host's too

Label = tuple[str, str]
Value = float | bool | None
Sample = tuple[str, tuple[Label, ...], Value]  # a family's name, labels, value

# Of a node and of a job: bytes, samples and operations are sums over ranks, the others means.
_RATES = {
    "samples_per_second": "Samples of training data, as the scripts count them.",
    "steps_per_second": "Steps, as the scripts count them.",
    "operations_per_second": "Collective operations.",
    "shm_bytes_per_second": "Bytes of tensors given to collectives.",
    "wire_sent_bytes_per_second": "Bytes sent to other hosts, as they travelled.",
    "wire_received_bytes_per_second": "Bytes received from other hosts, as they travelled.",
    "wire_sent_raw_bytes_per_second": "Bytes sent to other hosts, before the codec.",
    "wire_received_raw_bytes_per_second": "Bytes received from other hosts, after the codec.",
    "exchange_ratio": "Share of the time with an operation under way (comm %).",
    "waiting_ratio": "Share of the time spent waiting for peers, within the exchange.",
    "encode_ratio": "Share of the time spent encoding.",
    "decode_ratio": "Share of the time spent decoding.",
    "codec_ratio": "How many times smaller the codec makes data.",
}

_OWN = {
    "wiiiiide_up": "Whether the daemon answers.",
    "wiiiiide_build_info": "The daemon's version, as a label.",
    "wiiiiide_daemon_start_time_seconds": "When the daemon was started, since 1970.",
    "wiiiiide_daemon_problem": "Whether something is wrong with the daemon; its log says what.",
    "wiiiiide_snapshot_timestamp_seconds": "When these metrics were put together, since 1970.",
    "wiiiiide_jobs": "Jobs that are not over, by state.",
    "wiiiiide_node_up": "Whether the node is heard of.",
    "wiiiiide_node_state": "The node's state, as a label: ok, slow, idle, drained, lost.",
    "wiiiiide_node_age_seconds": "How old the node's last metrics are.",
    "wiiiiide_node_cores": "Cores the node has.",
    "wiiiiide_node_memory_bytes": "Memory the node has.",
    "wiiiiide_node_memory_used_ratio": "Share of the node's memory that is in use.",
    "wiiiiide_node_cpu_ratio": "Share of all the node's cores that is busy.",
    "wiiiiide_node_jobs": "Jobs that have ranks on the node.",
    "wiiiiide_node_codec": "The codec in use to other hosts, as a label.",
    "wiiiiide_job_state": "A job that is not over; its state and owner as labels.",
    "wiiiiide_job_workers": "Ranks of the job.",
    "wiiiiide_job_attempts_total": "Attempts that were begun.",
    "wiiiiide_job_submitted_timestamp_seconds": "When the job was submitted, since 1970.",
    "wiiiiide_job_started_timestamp_seconds": "When its latest attempt was begun, since 1970.",
    "wiiiiide_job_step": "The step of the rank that is least far.",
    "wiiiiide_job_steps_planned": "Steps there will be.",
    "wiiiiide_job_loss": "Loss, the mean over ranks that say one.",
    "wiiiiide_job_remaining_seconds": "How long it will still take at this rate.",
    "wiiiiide_job_memory_bytes": "Resident memory of all its ranks together.",
    "wiiiiide_job_cpu_cores": "Cores that all its ranks use together.",
    "wiiiiide_job_metric": "A number that the script reports by name, the mean over ranks.",
    "wiiiiide_job_noise_scale_samples": "The batch that gradients want: their noise scale.",
    "wiiiiide_job_speed_spread_ratio": "The fastest rank's speed to the slowest one's.",
    "wiiiiide_job_balance_gain_ratio": "How much longer a step with even parts would take.",
    "wiiiiide_rank_share_ratio": "The rank's part of all samples.",
    "wiiiiide_rank_round_steps": "Steps of its host between two exchanges with other hosts.",
    "wiiiiide_rank_round_compute_ratio": "Share of the time that such a round computes.",
    "wiiiiide_rank_memory_bytes": "Resident memory of the rank's processes.",
    "wiiiiide_rank_cpu_cores": "Cores that the rank's processes use.",
    "wiiiiide_job_straggler_behind_ratio": "How much of a step the named rank is behind the rest.",
}

# Of a job: family → the name of what ranks tell.
_TRAINING = {
    "wiiiiide_job_noise_scale_samples": "noise_scale",
    "wiiiiide_job_speed_spread_ratio": "speed_spread",
    "wiiiiide_job_balance_gain_ratio": "balance_gain",
}

# Name → help.
FAMILIES: dict[str, str] = {
    **_OWN,
    **{f"wiiiiide_node_{name}": f"{text[:-1]}, on the node." for name, text in _RATES.items()},
    **{f"wiiiiide_job_{name}": f"{text[:-1]}, of the job." for name, text in _RATES.items()},
}


def kind(family: str) -> str:
    """The type of a metric, which its name says by convention: only a counter ends in _total."""
    return "counter" if family.endswith("_total") else "gauge"


def exposition(snapshot: Snapshot, status: DaemonStatus) -> str:
    """All that is known, as a page that Prometheus reads."""
    return _page([*_daemon(snapshot, status), *_nodes(snapshot), *_jobs(snapshot)])


def absent() -> str:
    """The page when no daemon answers: a file of yesterday must not pass for today's."""
    return _page([("wiiiiide_up", (), False)])


def _page(samples: list[Sample]) -> str:
    """Lines in the order of FAMILIES: the samples of a family stand together, as they must."""
    grouped: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for name, labels, value in samples:
        if value is not None:
            grouped[name].append(f"{name}{_labels(labels)} {_number(value)}\n")
    return "".join(
        f"# HELP {name} {FAMILIES[name]}\n# TYPE {name} {kind(name)}\n{''.join(lines)}"
        for name, lines in grouped.items()
        if lines
    )


def _labels(labels: tuple[Label, ...]) -> str:
    inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str) -> str:
    """Names come from users: one line, printable, bounded, then escaped."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:LABEL_CHARS])
    return shown.replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    """Write a number as Go reads it, which also has NaN and +Inf: a loss can be either."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value) if isinstance(value, bool) else value)


# ---- the samples of a snapshot


def _daemon(snapshot: Snapshot, status: DaemonStatus) -> Iterator[Sample]:
    yield "wiiiiide_up", (), True
    yield "wiiiiide_build_info", (("version", status.version),), True
    yield "wiiiiide_daemon_start_time_seconds", (), status.started_at
    yield "wiiiiide_daemon_problem", (), bool(snapshot.problem or status.problem)
    yield "wiiiiide_snapshot_timestamp_seconds", (), snapshot.at
    counts = _counts(snapshot, status)
    for state in STATES:
        if state not in ENDED and counts is not None:
            yield "wiiiiide_jobs", (("state", state),), counts.get(state, 0)


def _counts(snapshot: Snapshot, status: DaemonStatus) -> Mapping[str, int] | None:
    """Jobs by state; None where a queue is longer than what is told of it."""
    if status.role != "member":
        return status.counts
    return None if snapshot.more else Counter(row.job.state for row in snapshot.jobs)


def _nodes(snapshot: Snapshot) -> Iterator[Sample]:
    for node in snapshot.nodes[:NODES]:
        me = (("node", node.name),)
        yield "wiiiiide_node_up", me, node.state != "lost"
        yield "wiiiiide_node_state", (*me, ("state", node.state)), True
        yield "wiiiiide_node_age_seconds", me, node.age_s
        if node.state != "lost":
            yield from _node(node, me)


def _node(node: NodeNow, me: tuple[Label, ...]) -> Iterator[Sample]:
    yield "wiiiiide_node_cores", me, node.cores
    yield "wiiiiide_node_memory_bytes", me, node.memory
    yield "wiiiiide_node_memory_used_ratio", me, node.memory_used
    yield "wiiiiide_node_cpu_ratio", me, node.cpu
    yield "wiiiiide_node_jobs", me, len(node.jobs)
    if node.codec:
        yield "wiiiiide_node_codec", (*me, ("codec", node.codec)), True
    yield from _rates("wiiiiide_node_", me, node.rates)


def _jobs(snapshot: Snapshot) -> Iterator[Sample]:
    live = [row for row in snapshot.jobs if row.job.state not in ENDED]
    ranks = RANKS
    for row in live[:JOBS]:
        me = (("job_id", str(row.job.id)), ("name", row.job.name))
        yield from _job(row.job, me)
        if row.now is not None:
            yield from _running(row.now, me)
            yield from _ranks(row.now.ranks[:ranks], me)
            ranks -= len(row.now.ranks[:ranks])


def _job(job: JobView, me: tuple[Label, ...]) -> Iterator[Sample]:
    more = (("owner", job.owner), ("state", job.state))
    yield "wiiiiide_job_state", (*me, *more), True
    yield "wiiiiide_job_workers", me, job.workers
    yield "wiiiiide_job_attempts_total", me, job.attempt
    yield "wiiiiide_job_submitted_timestamp_seconds", me, job.submitted_at
    yield "wiiiiide_job_started_timestamp_seconds", me, job.started_at


def _running(now: JobNow, me: tuple[Label, ...]) -> Iterator[Sample]:
    yield "wiiiiide_job_step", me, now.step
    yield "wiiiiide_job_steps_planned", me, now.total
    yield "wiiiiide_job_loss", me, math.nan if now.diverged else now.loss
    yield "wiiiiide_job_remaining_seconds", me, now.eta_s
    yield "wiiiiide_job_memory_bytes", me, now.memory
    yield "wiiiiide_job_cpu_cores", me, now.cpu
    for name, value in list(now.metrics.items())[:METRICS]:
        yield "wiiiiide_job_metric", (*me, ("metric", name)), math.nan if value is None else value
    yield from _training(now.ranks, me)
    if now.straggler is not None:
        who = (("rank", str(now.straggler.rank)), ("node", now.straggler.node))
        yield "wiiiiide_job_straggler_behind_ratio", (*me, *who), now.straggler.behind
    yield from _rates("wiiiiide_job_", me, now.rates)


def _training(ranks: Sequence[RankNow], me: tuple[Label, ...]) -> Iterator[Sample]:
    """Measurements of `wide.parallel` over all ranks: one tells it as well as another; hosts that
    exchange seldom have noise scales of their own."""
    told = [rank.training for rank in ranks]
    for family, name in _TRAINING.items():
        values = [value for one in told if (value := getattr(one, name)) is not None]
        yield family, me, sum(values) / len(values) if values else None


def _ranks(ranks: Sequence[RankNow], me: tuple[Label, ...]) -> Iterator[Sample]:
    for rank in ranks:
        who = (*me, ("rank", str(rank.rank)), ("node", rank.node))
        yield "wiiiiide_rank_share_ratio", who, rank.training.share
        yield "wiiiiide_rank_round_steps", who, rank.training.round_steps
        yield "wiiiiide_rank_round_compute_ratio", who, rank.training.round_compute
        yield "wiiiiide_rank_memory_bytes", who, rank.memory
        yield "wiiiiide_rank_cpu_cores", who, rank.cpu


def _rates(prefix: str, me: tuple[Label, ...], rates: Rates) -> Iterator[Sample]:
    values = (
        *(rates.samples, rates.steps, rates.operations, rates.shm),
        *(rates.wire_out, rates.wire_in, rates.wire_out_raw, rates.wire_in_raw),
        *(rates.exchange, rates.waiting, rates.encode, rates.decode, rates.ratio),
    )
    known = values if rates.measured else values[:2]
    for name, value in zip(_RATES, known, strict=False):
        yield prefix + name, me, value
