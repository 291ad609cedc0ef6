"""`wiiiiide submit --sweep`: one job file and its folder become many jobs, all queued or none.

job.toml ──read once for each combination──► specs ───┐
folder ──packed and sent once──────────────► tar ─────┼──► daemon ──► s12 on stdout
environment ───────────────────────────────► secrets ─┘
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import msgspec

from wiiiiided.cluster.archive.pack import Packed
from wiiiiided.cluster.client import Progress
from wiiiiided.cluster.rpc.framing import REQUEST_BYTES
from wiiiiided.cluster.rpc.messages import SweepJob, Swept, encode
from wiiiiided.domain.exit_codes import INVALID
from wiiiiided.domain.sweep import label, sweep_id
from wiiiiided.text import cell, clean, count
from wiiiiided.ui.cli import job_facts, screen
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.loaded_job import LoadedJob, report, surveyed
from wiiiiided.ui.cli.progress import waiting
from wiiiiided.ui.cli.sections import FactSection, put
from wiiiiided.ui.cli.submission import dry_runs, send
from wiiiiided.ui.jobfile.problem import Invalid
from wiiiiided.ui.jobfile.sweeps import combine

SweepCombination = tuple[dict[str, str], LoadedJob]  # a setting, and the job with it


def run(
    sweeps: Sequence[str],
    made: Callable[..., LoadedJob],
    hold: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """All combinations, queued or only listed; every problem of them is told."""
    try:
        with waiting("reading the job file"):
            combinations = combine(sweeps, lambda swept: made(swept=swept))
        secrets = {name: value for _, job in combinations for name, value in job.secrets().items()}
        return (
            _list(combinations, as_json)
            if dry_run
            else _submit(combinations, secrets, hold, as_json)
        )
    except Invalid as invalid:
        return report(invalid, as_json)


def _list(combinations: Sequence[SweepCombination], as_json: bool) -> int:
    first = combinations[0][1]
    ships = surveyed(first)
    dries = dry_runs([job for _, job in combinations])
    if as_json:
        found = job_facts.as_json(first, ships, dries[0])
        made = [
            {"setting": setting, "job": msgspec.to_builtins(job.spec)}
            for setting, job in combinations
        ]
        screen.put_json({**found, "jobs": made})
        return 0
    many = count(len(combinations), "job")
    title = f"{clean(first.file)}: ok; nothing was queued. It would be {many}, the first"
    names = [(cell(_name(setting, job)),) for setting, job in combinations]
    jobs = FactSection("jobs", names, lambda row: f"  {row[0]}")
    put([job_facts.section(title, first, ships, dries[0]), jobs], between=None)
    return 0


def _submit(
    combinations: Sequence[SweepCombination], secrets: dict[str, str], hold: bool, as_json: bool
) -> int:
    jobs = [SweepJob(job.spec, setting) for setting, job in combinations]
    if len(encode(jobs)) > REQUEST_BYTES // 2:
        text = f"{count(len(jobs), 'job')} of this size are more than one request can hold"
        raise CommandFailed(
            INVALID, f"{combinations[0][1].file}: {text}", "sweep fewer values at once"
        )
    client = connect()

    def ask(packed: Packed, progress: Progress) -> Swept:
        return client.submit_sweep(jobs, packed, secrets, hold=hold, progress=progress)

    swept, sent = send(client, combinations[0][1], ask, as_json)
    _tell(swept, combinations, sent, as_json)
    return 0


def _tell(swept: Swept, combinations: Sequence[SweepCombination], sent: int, as_json: bool) -> None:
    name, sweep = combinations[0][1].spec.name, sweep_id(swept.id)
    numbered = list(zip(swept.jobs, combinations, strict=True))
    if as_json:
        made = [{"id": number, "setting": setting} for number, (setting, _) in numbered]
        head = {"sweep": sweep, "name": name, "jobs": made}
        told = {"why": swept.why, "starts": swept.starts, "sent_bytes": sent}
        screen.put_json({**head, **told})
        return
    first, last = swept.jobs[0], swept.jobs[-1]
    numbers = f"job {first}" if first == last else f"jobs {first} to {last}"
    sentence = f"sweep {sweep} ({name}): {numbers}; job {first} {swept.why}"
    if swept.starts.startswith("starts "):  # else `why` of any of them says why not
        sentence += f"; job {last} {swept.starts}"
    if sys.stdout.isatty():
        screen.put(clean(sentence))
        screen.say(f"wiiiiide ps {sweep} lists them, wiiiiide report {sweep} compares them")
    else:
        screen.put(sweep)
        screen.say(sentence)


def _name(setting: dict[str, str], job: LoadedJob) -> str:
    return f"{job.spec.name} {label(setting)}"
