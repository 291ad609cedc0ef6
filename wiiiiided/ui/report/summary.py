"""The few lines at the top of a report, and the sentences that explain its charts.

They are the same on the page, on the terminal and in `wiiiiide show`, so they are made once.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from wiiiiided.cluster.rpc.messages import JobRecords
from wiiiiided.domain.exit_codes import code_words
from wiiiiided.domain.metrics import RankRecord, RunRecord
from wiiiiided.metrics.straggler import of_run, turns_of_run
from wiiiiided.metrics.training_words import RankTraining, training_facts
from wiiiiided.text import listed
from wiiiiided.ui.report import formats, ranks
from wiiiiided.ui.report.run_history import is_running, length_of

Pair = tuple[str, str]
NOT_MEASURED = (
    "exchange and waiting are not measured: the job uses no group of the backend wiiiiide"
)
NAN = "nan at last"
# The beginning of a job's sentence in some states, which would repeat the state.
_REPEATS = {
    "running": "runs",
    "starting": "is being started",
    "stopping": "is being stopped",
    "hung": "hangs",
    "held": "is held",
}


def facts(records: JobRecords) -> Iterator[Pair]:
    """The facts of the job, and how its latest attempt went."""
    job = records.job
    yield "state", job.state + beyond_state(job.state, job.why)
    if command := command_of(records):
        yield "command", command
    yield "submitted", formats.moment(job.submitted_at)
    yield from _times(records)
    run = latest(records)
    nodes = run.nodes if run is not None and run.nodes else job.nodes
    yield "nodes", listed(nodes) if nodes else "none yet"
    yield "workers", formats.number(run.workers if run is not None else job.workers)
    if job.attempt:
        yield "attempts", _attempts(records)
    if job.apart and job.apart not in job.why:
        yield "steps", job.apart
    if run is not None:
        yield from metric_rows(run)


def command_of(records: JobRecords) -> str:
    """The command of the job, as typed; empty where that is not told."""
    run = records.spec.get("run")
    argv = run.get("command") if isinstance(run, dict) else None
    return shlex.join(map(str, argv)) if isinstance(argv, list | tuple) else ""


def beyond_state(state: str, why: str) -> str:
    """The part of a job's sentence beyond its state, to stand right behind it:
    `cancelled` + ` by ada`, `running` + ` on a`, `failed` + `: rank 1 ended with exit code 1`."""
    for lead in (state, _REPEATS.get(state, state)):
        rest = why.removeprefix(lead)
        if rest != why and rest[:1] in ("", " ", ":", ";", ","):
            return rest
    return f": {why}" if why else ""


def is_loud(title: str, text: str) -> bool:
    """A fact that must not be overlooked."""
    return title == "loss" and text.startswith(NAN)


def _times(records: JobRecords) -> Iterator[Pair]:
    job = records.job
    if job.started_at is None:
        yield "started", "never"
    else:
        first = records.runs[0].started_at if records.runs else job.started_at
        yield "started", formats.moment(first)
    if job.ended_at is not None:
        code = "" if job.code is None else f", exit code {code_words(job.code)}"
        yield "ended", formats.moment(job.ended_at) + code
    if records.runs:
        ran = sum(map(length_of, records.runs))
        last = records.runs[-1]
        so_far = "" if last.ended_at is not None else ", as far as it was seen"
        so_far = " so far" if is_running(records, last) else so_far
        yield "ran for", formats.duration(ran) + so_far
    elif job.started_at is not None and job.ended_at is not None:
        yield "ran for", formats.duration(job.ended_at - job.started_at)


def _attempts(records: JobRecords) -> str:
    made = records.job.attempt
    seen = len(records.runs)
    return str(made) if made <= seen else f"{made}; metrics of {seen or 'none'}"


def latest(records: JobRecords) -> RunRecord | None:
    """The attempt that counts: the last with metrics, else the last."""
    told = [run for run in records.runs if has_metrics(run)]
    return (told or records.runs)[-1] if records.runs else None


def has_metrics(run: RunRecord) -> bool:
    """Whether its ranks counted or reported anything; an untouched stats page does not."""
    said = any(
        ranks.operations_of(r) or r.totals.step is not None or r.totals.samples is not None
        for r in run.ranks
    )
    return said or any(
        (p.rates.measured and p.rates.operations) or p.step is not None for p in run.points
    )


def metric_rows(run: RunRecord) -> Iterator[Pair]:
    """An attempt in a few numbers; metrics that its ranks never reported are left out."""
    length = length_of(run)
    step, total, samples = ranks.steps_of(run), ranks.total_steps_of(run), ranks.samples_of(run)
    if step is not None:
        of = "" if total is None else f" of {total:,}"
        yield "steps", f"{step:,}{of}" + _pace(run, "steps", step)
    if samples is not None:
        yield "samples", f"{samples:,}" + _pace(run, "samples", samples)
    elif step is None and (operations := sum(ranks.operations_of(r) or 0 for r in run.ranks)):
        told = f"{operations:,}" + _pace(run, "operations", operations)
        yield "operations", told + ("" if len(run.ranks) == 1 else ", all ranks together")
    if said := loss_words(run):
        yield "loss", said
    if run.ranks and length > 0 and has_metrics(run):
        yield "time", split_words(run)
    if sentence := wire_words(run):
        yield "wire", sentence
    if (memory := ranks.memory_of(run)) is not None:
        yield "memory", f"{formats.size(memory)} at most in a rank"
    if (cores := ranks.cpu_of(run)) is not None:
        yield (
            "cpu",
            f"{cores:.2f} cores in the mean"
            + ("" if len(run.ranks) == 1 else ", all ranks together"),
        )
    trained = [RankTraining(rank.rank, rank.node, rank.totals.training) for rank in run.ranks]
    yield from training_facts(trained, samples / step if samples and step else None)
    if metrics := ranks.metrics_of(run):
        yield "metrics", ", ".join(f"{name} {metric_words(v)}" for name, v in metrics.items())
    if slowest := slowest_of(run):
        yield "slowest", straggler_words(run, slowest)
    elif turns := turns_of_run(run, length):
        yield "slowest", f"none: {turns}"


def _pace(run: RunRecord, name: str, many: int) -> str:
    """Such things per second while it trained; where only the whole is known, that is said."""
    pace, length = pace_of(run, name), length_of(run)
    if pace is not None:
        return f", {formats.number(pace)}/s"
    return f", {formats.number(many / length)}/s, start-up included" if length > 0 else ""


def pace_of(run: RunRecord, name: str) -> float | None:
    """The mean of a rate, from the first point in which it moved to the last: the level of its
    chart. The first itself counts only where there is little else: most of it may be start-up."""
    seen = [(getattr(point.rates, name), point.span) for point in run.points]
    moved = [at for at, (rate, _) in enumerate(seen) if rate]
    if not moved:
        return None
    first = moved[0] + (len(moved) > 2)
    known = [(rate, span) for rate, span in seen[first : moved[-1] + 1] if rate is not None]
    whole = sum(span for _, span in known)
    return sum(rate * span for rate, span in known) / whole if whole > 0 else None


def loss_words(run: RunRecord) -> str:
    """The last loss; that it is no number any more is said first. Empty where none was said."""
    loss = ranks.loss_of(run)
    if ranks.diverged(run):
        return NAN + ("" if loss is None else f" ({formats.number(loss)} before)")
    return "" if loss is None else f"{formats.number(loss)} at last"


def metric_words(value: float | None) -> str:
    return "nan" if value is None else formats.number(value)


def split_words(run: RunRecord) -> str:
    """Where the ranks' time went, in the mean."""
    length = length_of(run)
    whole = ranks.mean_split([ranks.split_of(rank, length) for rank in ranks.measured(run)])
    if whole is None:
        return NOT_MEASURED
    compute, exchange, waiting = map(formats.share, whole.shares)
    return f"{compute} compute, {exchange} exchange, {waiting} waiting for others"


def wire_words(run: RunRecord) -> str:
    """The codec's saving, in a sentence; empty where nothing went to another host."""
    nodes = ranks.nodes_of(run)
    raw, wire = sum(node.raw for node in nodes), sum(node.wire for node in nodes)
    if not wire:
        return ""
    names = listed(tuple(name for name, _ in ranks.codecs_of(run)))
    told = f"{formats.size(raw)} sent to other hosts travelled as {formats.size(wire)}"
    if raw <= 0 or wire >= raw:
        return told + ", headers included"
    return f"{told}: {formats.share(1 - wire / raw)} saved" + (f" by {names}" if names else "")


def codec_words(run: RunRecord) -> str:
    """Sentences on why each codec was in use; of lossy gradients, how much they lose."""
    return "".join(f" {name}: {reason}." for name, reason in ranks.codecs_of(run) if reason)


def slowest_of(run: RunRecord) -> RankRecord | None:
    """The one rank that held the others up, if there was one over the whole run."""
    slowest = of_run(run)
    return next((rank for rank in run.ranks if rank.rank == slowest), None)


def straggler_words(run: RunRecord, rank: RankRecord) -> str:
    """For how long the rank was the slowest, and what that cost the others: two different times."""
    length = length_of(run)
    part = f" ({formats.share(rank.straggled_s / length)} of the time)" if length > 0 else ""
    told = (
        f"rank {rank.rank} on {rank.node} was the slowest for {formats.duration(rank.straggled_s)}"
    )
    waited = ranks.waited_for(run, rank.rank)
    cost = "" if waited is None else f"; the others waited {formats.duration(waited)} for it"
    return told + part + cost


def why_nothing(records: JobRecords) -> str:
    """The sentence of a report without metrics; empty where there are some."""
    if any(map(has_metrics, records.runs)):
        return ""
    if not records.job.attempt:
        return "This job has not run: there are no metrics."
    if not records.runs:
        return "No daemon looked at this job while it ran: no metrics were kept."
    return (
        "This job's ranks counted nothing: they neither used the wiiiiide backend nor called "
        "wiiiiided.torch.progress(…). All that is known without them is below."
    )


def ending(run: RunRecord, running: bool = False) -> str:
    """How an attempt ended, in a word or two."""
    if running:
        return "running"
    if run.ended_at is None:
        return run.state or "no end seen"
    code = "" if run.code in (None, 0) else f", exit code {code_words(run.code)}"
    return (run.state or "ended") + code
