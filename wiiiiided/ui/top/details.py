"""The page behind Enter: everything that is known of the selected node or job.

A snapshot's values are there at once and go on changing; what the daemon must be asked for (the
job file's settings, the story, a node's address) comes a moment later, as `Scene.detail`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wiiiiided.cluster.rpc.messages import JobDetail, JobRow, StoryLine
from wiiiiided.domain.metrics import METRICS, JobNow, NodeNow, RankNow, Rates
from wiiiiided.metrics.training_words import RankTraining, training_facts
from wiiiiided.text import format_duration, format_size, format_size_compact
from wiiiiided.ui.top import formats, nodes_pane
from wiiiiided.ui.top.jobs_pane import SIGNS, attempts, rate_text, reason, step_text
from wiiiiided.ui.top.marks import Chart, ProgressBar, RowStrip, ShareMeter, TimeBar
from wiiiiided.ui.top.order import main_rate, selected_job, selected_node
from wiiiiided.ui.top.pane import line, words
from wiiiiided.ui.top.ranks_pane import ranks_rows
from wiiiiided.ui.top.ui import Scene

KEY = 11  # columns of the names on the left
CHART = 8  # lines
STORY = 200  # lines at most
ERROR = 30
CODECS = 4  # of a job
Fact = tuple[str, RenderableType]


def heading(scene: Scene) -> tuple[str, str]:
    """The page's subject: the kind, and which one."""
    if scene.ui.focus == "nodes":
        node = selected_node(scene.snapshot, scene.ui)
        return "node", "" if node is None else words(node.name, scene.ui.ascii)
    row = selected_job(scene.snapshot, scene.ui)
    name = "" if row is None else f"{row.job.id} {words(row.job.name, scene.ui.ascii)}"
    return "job", name


def page(scene: Scene, width: int) -> RenderableType:
    """The whole page, as many lines as it needs."""
    if scene.ui.focus == "nodes":
        node = selected_node(scene.snapshot, scene.ui)
        parts = [] if node is None else list(_node(node, scene, width))
    else:
        row = selected_job(scene.snapshot, scene.ui)
        parts = [] if row is None else list(_job(row, scene, width))
    if scene.detail is not None and scene.detail.note:
        parts += [Text(), line((words(scene.detail.note, scene.ui.ascii), "dim"))]
    return Group(*parts) if parts else line("nothing is selected", style="dim")


def _facts(facts: list[Fact], width: int) -> Table:
    made = Table.grid(padding=(0, 1, 0, 0))
    made.add_column(width=KEY, no_wrap=True, style="dim")
    made.add_column(width=max(1, width - KEY - 2), overflow="fold")
    for name, value in facts:
        made.add_row(line(name), value)
    return made


def _part(name: str) -> Iterator[RenderableType]:
    yield Text()
    yield line(name, style="bold")


# ---- a node


def _node(node: NodeNow, scene: Scene, width: int) -> Iterator[RenderableType]:
    ascii_ = scene.ui.ascii
    sign, word, style = nodes_pane.sign_of(node)
    facts: list[Fact] = [("state", Text(f"{sign} {word}", style))]
    if node.note:
        facts.append(("note", Text(words(node.note, ascii_), "wait")))
    facts += _machine(node, scene)
    if nodes_pane.works(node):
        facts += _work(node, scene, width)
    facts.append(("heard", Text(f"{formats.age(node.age_s + scene.since_s)} ago")))
    yield _facts(facts, width)
    here = _ranks_on(node, scene)
    if here:
        yield from _part("ranks")
        yield ranks_rows(here, scene, width)
    if nodes_pane.works(node) and node.history:
        yield from _part(f"{node.unit}, the last {len(node.history)} values")
        yield Chart(node.history, "spark", CHART, low=0.0)


def _machine(node: NodeNow, scene: Scene) -> Iterator[Fact]:
    known = scene.detail.node if scene.detail else None
    if known is not None and known.node.name == node.name:
        yield "why", Text(words(known.why, scene.ui.ascii))
        if known.node.address:
            reached = filter(None, (known.node.interface, known.node.endpoint))
            yield "interface", Text(words(", ".join(reached), scene.ui.ascii))
        if known.node.version:
            yield "version", Text(words(known.node.version, scene.ui.ascii))
    has = [f"{node.cores} cores"] if node.cores else []
    has += [format_size(node.memory)] if node.memory else []
    if has:
        yield "has", Text(", ".join(has))
    if node.state != "lost":
        yield "cpu", RowStrip([(ShareMeter(node.cpu), 25)])
        yield "memory", RowStrip([(ShareMeter(node.memory_used), 25)])
    if node.jobs:
        yield "jobs", Text(" ".join(map(str, node.jobs[:50])))


def _work(node: NodeNow, scene: Scene, width: int) -> Iterator[Fact]:
    rates = node.rates
    yield "throughput", Text(f"{formats.rate(main_rate(node), 9)} {node.unit}")
    if not rates.measured:
        return
    yield from _time(rates, width)
    up, down = formats.byte_rate(rates.wire_out), formats.byte_rate(rates.wire_in)
    yield "network", Text(f"{up} up, {down} down")
    yield "memory bus", Text(f"{formats.byte_rate(rates.shm)} given to collectives")
    if node.codec:
        yield "codec", _codec(node.codec, node.codec_why, scene)
        coding = f"{formats.percent(rates.encode)} % encoding, {formats.percent(rates.decode)} %"
        yield "ratio", Text(f"{formats.times(rates.ratio)}; {coding} decoding")


def _time(rates: Rates, width: int) -> Iterator[Fact]:
    if not rates.measured:
        return
    waits = formats.percent(rates.waiting)
    moves = formats.percent(max(0.0, rates.exchange - rates.waiting))
    yield (
        "time",
        RowStrip([(TimeBar(rates.exchange, rates.waiting), max(1, min(40, width - KEY - 2)))]),
    )
    text = f"{formats.percent(1 - rates.exchange)} % compute, {moves} % exchange, {waits} % waiting"
    yield "", Text(text)


def _ranks_on(node: NodeNow, scene: Scene) -> tuple[RankNow, ...]:
    rows = scene.snapshot.jobs if scene.snapshot else ()
    ranks = [rank for row in rows if row.now for rank in row.now.ranks]
    return tuple(rank for rank in ranks if rank.node == node.name)


# ---- a job


def _job(row: JobRow, scene: Scene, width: int) -> Iterator[RenderableType]:
    found = scene.detail.job if scene.detail else None
    detail = found if found is not None and found.job.id == row.job.id else None
    facts = list(_about(row, scene))
    if row.now is not None:
        facts += _doing(row, row.now, scene, width)
    if detail is not None:
        facts.append(("directory", Text(words(detail.directory, scene.ui.ascii))))
    yield _facts(facts, width)
    if row.now is not None and row.now.ranks:
        yield from _part("ranks")
        yield ranks_rows(row.now.ranks, scene, width)
    if len(losses := scene.losses.get(row.job.id, ())) > 1:
        yield from _part("loss")
        yield Chart(losses, height=CHART)
    if detail is not None:
        yield from _told(detail, scene, width)


def _about(row: JobRow, scene: Scene) -> Iterator[Fact]:
    job, ascii_ = row.job, scene.ui.ascii
    sign, style = SIGNS.get(job.state, ("·", ""))
    yield "state", Text(f"{sign} {words(job.state, ascii_)}", style)
    if text := reason(row, ascii_):
        yield "why", Text(text, "bad" if job.state == "failed" else "")
    if job.apart:
        yield "apart", Text(words(job.apart, ascii_), "warn")
    yield "owner", Text(f"{words(job.owner, ascii_)}, priority {job.priority}")
    on = f" on {' '.join(words(name, ascii_) for name in job.nodes[:20])}" if job.nodes else ""
    yield "workers", Text(f"{job.workers}{on}")
    if job.attempt:
        yield "attempt", Text(attempts(job))
    if job.started_at is not None and scene.snapshot is not None:
        until = scene.snapshot.at + scene.since_s if job.ended_at is None else job.ended_at
        lasted = Text(format_duration(max(0.0, until - job.started_at)))
        yield "runs for" if job.ended_at is None else "ran for", lasted
    if job.sweep:
        setting = ", ".join(f"{key} = {value}" for key, value in job.setting.items())
        yield "sweep", Text(words(f"{job.sweep}: {setting}", ascii_))


def _doing(row: JobRow, now: JobNow, scene: Scene, width: int) -> Iterator[Fact]:
    room = max(1, min(40, width - KEY - 2))
    if now.step is not None and now.total:
        yield "progress", RowStrip([(ProgressBar(now.step / now.total), room)])
    if now.step is not None:
        ends = "" if now.eta_s is None else f", ends in {formats.clock(now.eta_s)}"
        yield "step", Text(f"{step_text(row)}{ends}")
    loss = Text("nan", "bad") if now.diverged else Text(formats.loss(now.loss))
    yield "loss", loss
    yield "rate", Text(rate_text(now.rates))
    yield from _time(now.rates, width)
    if text := nodes_pane.late(now):
        yield "straggler", Text(words(text, scene.ui.ascii), "warn")
    uses = [] if now.cpu is None else [f"{now.cpu:.1f} cores"]
    uses += [] if now.memory is None else [f"{format_size_compact(now.memory)} memory{_each(now)}"]
    if uses:
        yield "uses", Text(", ".join(uses))
    yield from _training(now, scene)
    for name, value in list(now.metrics.items())[:METRICS]:
        shown = Text("nan", "bad") if value is None else Text(formats.figure(value))
        yield words(name, scene.ui.ascii), shown


def _training(now: JobNow, scene: Scene) -> Iterator[Fact]:
    """Measurements of `wide.parallel`, and how gradients travel to other hosts."""
    told = [RankTraining(rank.rank, rank.node, rank.training) for rank in now.ranks]
    rates = now.rates
    samples = rates.samples / rates.steps if rates.samples and rates.steps else None
    for name, text in training_facts(told, samples):
        yield name, Text(words(text, scene.ui.ascii))
    codecs = {rank.codec: rank.codec_why for rank in reversed(now.ranks) if rank.codec}
    for codec, why in list(codecs.items())[::-1][:CODECS]:
        yield "codec", _codec(codec, why, scene)


def _codec(name: str, why: str, scene: Scene) -> Text:
    reason = f": {words(why, scene.ui.ascii)}" if why else ""
    return Text(f"{words(name, scene.ui.ascii)}{reason}")


def _each(now: JobNow) -> str:
    """The memory of the rank with least and of the one with most, where they are several."""
    sizes = [rank.memory for rank in now.ranks if rank.memory is not None]
    if len(sizes) < 2:
        return ""
    return f" ({format_size_compact(min(sizes))} to {format_size_compact(max(sizes))} a rank)"


def _told(detail: JobDetail, scene: Scene, width: int) -> Iterator[RenderableType]:
    """The daemon's record of a job: settings, story, error."""
    ascii_ = scene.ui.ascii
    if detail.error:
        yield from _part("error")
        for text in detail.error.splitlines()[-ERROR:]:
            yield Text(words(text, ascii_), "bad", overflow="fold")
    settings = list(_flat(detail.spec))
    if settings:
        yield from _part("settings")
        for key, value in settings:
            setting = Text.assemble((f"{words(key, ascii_)} = ", "dim"), words(value, ascii_))
            setting.overflow = "fold"
            yield setting
    if detail.story:
        yield from _part("story")
        yield from (_told_line(each, scene) for each in detail.story[-STORY:])


def _told_line(each: StoryLine, scene: Scene) -> Text:
    moment = formats.time_of_day(each.at, scene.offset_s)
    return line((f"{moment} ", "dim"), words(each.text, scene.ui.ascii))


def _flat(spec: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(spec, dict) and spec:
        for key, value in spec.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif path and spec not in (None, "", [], {}):
        yield path, json.dumps(spec, ensure_ascii=False, default=str)
