"""The work of `wiiiiide plan`: choose machines, run the trial on them, print and keep what it
says."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType
from typing import Final

import typer

from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.cluster.control import placement
from wiiiiided.cluster.rpc.messages import NodeView
from wiiiiided.domain.exit_codes import FAILED, NEVER, NO_SUCH
from wiiiiided.domain.plan import KeptPlan, PlanRow, TrialMeasures
from wiiiiided.errors import HostError
from wiiiiided.metrics import kept_plan
from wiiiiided.metrics.plan import plan_rows
from wiiiiided.text import count
from wiiiiided.ui.cli import plan_lines, screen
from wiiiiided.ui.cli.command_failed import CommandFailed
from wiiiiided.ui.cli.daemon import connect
from wiiiiided.ui.cli.job_lines import put_table
from wiiiiided.ui.cli.loaded_job import LoadedJob, packed_folder, read, report
from wiiiiided.ui.cli.progress import waiting
from wiiiiided.ui.cli.trial import TrialRun
from wiiiiided.ui.jobfile.edit import NotEditable, changed
from wiiiiided.ui.jobfile.problem import Invalid
from wiiiiided.ui.jobfile.to_toml import toml

ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)


def plan(file: str, nodes: str | None, apply: bool, yes: bool, as_json: bool) -> int:
    """Run the trial, print what it says, and write what is recommended; the exit code."""
    try:
        job = read(file, None)
        client = connect()
        chosen, away = machines_for(job, client.nodes().nodes, nodes)
        for note in away:  # before the trial, while other machines can still be chosen
            screen.say(f"note: {note}")
        if not _may_run(job, chosen, yes):
            return FAILED
        probe = _probe(client, job, chosen)
    except Invalid as invalid:
        return report(invalid, as_json)
    rows = plan_rows(probe)
    row = next(row for row in rows if row.recommended)
    kept = kept_plan.keep(probe, rows, time.time())
    _keep(client, job, kept)
    auto = plan_lines.auto_stays(job.spec, kept, row)
    _show(probe, rows, away, [*plan_lines.notes(probe), *([auto] if auto else [])], as_json)
    usual = _usual(job, client)
    return _write(job, plan_lines.wanted_keys(job.spec, probe, row, usual), apply, as_json)


def machines_for(
    job: LoadedJob, views: Sequence[NodeView], wanted: str | None
) -> tuple[list[NodeView], list[str]]:
    """The machines to try, and why others are not among them."""
    spec, here = job.spec, {view.node.name: view for view in views}
    names = _names(wanted)
    if unknown := [name for name in names if name not in here]:
        raise CommandFailed(
            NO_SUCH, f"there is no machine {unknown[0]}", "wiiiiide nodes lists them"
        )
    fit, away = [], []
    for name in names or here:
        view = here[name]
        problem = placement.unfit(spec, view.node)
        if view.state in ("lost", "drained"):
            problem = f"{name} is {'away' if view.state == 'lost' else 'drained'}: {view.why}"
        if problem and names:
            raise CommandFailed(NEVER, f"{job.file}: {problem}")
        if problem:
            away.append(f"left out: {problem}")
        else:
            fit.append(view)
    if not fit:
        raise CommandFailed(NEVER, f"{job.file}: no machine can run it: {'; '.join(away)}")
    _, most = placement.wanted_nodes(spec, [view.node for view in fit])
    most = _count(wanted, len(fit)) if wanted else most
    if wanted is None and most == 1 and len(fit) > 1:
        away.append(f"the job asks for one machine; --nodes all tries {len(fit)}")
    if len(here) == 1:
        away.append(
            "there is no other machine, so the trial says how fast this one is, and no more: "
            "wiiiiide init and wiiiiide join make a cluster of several"
        )
    return fit[: max(1, most)], away


def _names(wanted: str | None) -> list[str]:
    """The machine names in --nodes; a number or `all` has none."""
    if wanted is None or wanted == "all" or wanted.isdecimal():
        return []
    return [*dict.fromkeys(name.strip() for name in wanted.split(",") if name.strip())]


def _count(wanted: str, fit: int) -> int:
    if not wanted.isdecimal():
        return fit
    if not 1 <= int(wanted) <= fit:
        can = "one machine" if fit == 1 else f"{fit} machines"
        raise CommandFailed(
            NEVER, f"--nodes {wanted}: {can} can run the job; wiiiiide nodes lists them"
        )
    return int(wanted)


def _usual(job: LoadedJob, client: Client) -> tuple[str, ...]:
    """The machines that the scheduler would choose without --nodes."""
    try:
        layout = placement.plan(job.spec, [view.node for view in client.nodes().nodes])
    except placement.NeverRuns:
        return ()
    return tuple(one.node for one in layout.allocations)


def _may_run(job: LoadedJob, chosen: Sequence[NodeView], yes: bool) -> bool:
    """Say what will run, and ask on a terminal."""
    names = " ".join(view.node.name for view in chosen)
    if not yes and not screen.can_ask():
        raise typer.BadParameter("there is no terminal to ask on: --yes runs the trial")
    screen.say(
        f"plan runs {toml(list(job.spec.run.command))} on {names}, some seconds on each machine "
        f"alone, in copies of {job.directory} of which nothing stays"
    )
    return yes or screen.agreed("run it? [y/N]")


def _probe(client: Client, job: LoadedJob, chosen: Sequence[NodeView]) -> TrialMeasures:
    nodes = [view.node for view in chosen]
    try:
        with (
            packed_folder(job) as packed,
            _interrupted_by_any_end(),
            closing(TrialRun(client, job.spec, packed)) as trial,
        ):
            with waiting(f"running the script on {count(len(nodes), 'machine')}"):
                machines, script = trial.machines(nodes)
                trial.close()
            with waiting("timing the links"):
                pairs = trial.links(nodes, script.gradient_bytes)
    except KeyboardInterrupt:
        screen.say("\nthe trial was ended; nothing of it is left")
        raise
    return TrialMeasures(tuple(machines), tuple(pairs), script)


@contextmanager
def _interrupted_by_any_end() -> Iterator[None]:
    """Treat a kill, or a terminal that goes away, as Ctrl-C: else jobs of the trial would stay."""
    heard = [number for number in ENDINGS if signal.getsignal(number) != signal.SIG_IGN]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in heard:  # signals come together, and none may disturb the removal of the jobs
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keep(client: Client, job: LoadedJob, plan: KeptPlan) -> None:
    """Keep the plan for the next run; a failure is only a note."""
    if not plan.shape:
        return
    try:
        client.keep_plan(job.spec.name, plan)
    except ClientError as problem:
        screen.say(f"note: the plan is not kept for the next run: {problem}")


def _show(
    probe: TrialMeasures,
    rows: Sequence[PlanRow],
    away: Sequence[str],
    notes: Sequence[str],
    as_json: bool,
) -> None:
    """Print the rows and notes; `away` was said before the trial."""
    if as_json:
        screen.put_json(plan_lines.as_json(probe, rows, [*away, *notes]))
        return
    screen.say(plan_lines.measured(probe))
    put_table(plan_lines.COLUMNS, plan_lines.table(rows))
    for note in notes:
        screen.say(f"note: {note}")


def _write(job: LoadedJob, keys: dict[tuple[str, str], object], apply: bool, as_json: bool) -> int:
    """Write the recommended keys into the job file, if that is wanted."""
    said = ", ".join(f"{table}.{key} = {toml(value)}" for (table, key), value in keys.items())
    if not keys:
        if apply:
            screen.say(f"{job.file} has the recommended values already")
        return 0
    if not apply:
        asked = sys.stdin and sys.stdin.isatty() and sys.stdout.isatty() and not as_json
        if not asked:
            screen.say(f"for {job.file}: {said}")
            return 0
        screen.say(said)
        if not screen.agreed(f"write this to {job.file}? [y/N]"):
            return 0
    try:
        with open(job.file, encoding="utf-8", newline="") as source:
            text = source.read()
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        edited = mark + changed(text.removeprefix(mark), keys)
        with open(job.file, "w", encoding="utf-8", newline="") as target:
            target.write(edited)
    except NotEditable as problem:
        raise HostError(f"{job.file} was left as it is: {problem}; write it by hand") from problem
    except OSError as problem:
        raise HostError(f"cannot write {job.file}: {problem.strerror}") from problem
    screen.say(f"{job.file}: written: {said}")
    return 0
