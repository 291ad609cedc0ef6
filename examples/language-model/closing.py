"""The demo's words when all runs are over: a table, plain words, and the model's text."""

from collections.abc import Sequence

from record import CLOSING_STEPS, SKIPPED_STEPS, Record, largest_difference
from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from view import MAX_WIDTH, difference, number

# The same seed must give the same losses; summing in another order moves the last bits, and
# training carries such a difference on. More than this is not rounding.
LOSS_TOLERANCE = 0.01
UNEQUAL_COMPUTE = 1.1


def summarize(console: Console, records: Sequence[Record]) -> bool:
    """The runs' results and times; False if their losses do not agree.

    The table comes late, so that it is still on a small screen when all is said.
    """
    width = min(console.width, MAX_WIDTH)
    console.print()
    console.print(sample_panel(records, width))
    console.print(Text(explanation(records[0]), style="dim"), width=width)
    console.print(table(records))
    sentences = [disturbance(records) or comparison(records), agreement(records)]
    for record in records:
        sentences += counted(record)
    for sentence in sentences:
        console.print(Text(sentence), width=width)
    return largest_difference(records) <= LOSS_TOLERANCE


def table(records: Sequence[Record]) -> Table:
    result = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    result.add_column("", no_wrap=True)
    for record in records:
        result.add_column(Text(record.way.name), justify="right", no_wrap=True)
    rows = [
        ("samples/s", [number(r.samples_per_second, ".1f") for r in records]),
        ("time per step", [number(r.step_time, ".1f", " ms", 1e3) for r in records]),
        ("outside compute", [difference(r.outside_compute, ".1f", " ms", 1e3) for r in records]),
        ("share of step", [difference(r.share_outside, ".1f", " %", 100) for r in records]),
        ("closing loss", [number(r.closing_loss, ".4f") for r in records]),
        ("whole job", [number(r.wall_s, ".1f", " s") for r in records]),
    ]
    for name, values in rows:
        result.add_row(name, *values)
    return result


def comparison(records: Sequence[Record]) -> str:
    rates = {record.way.name: record.samples_per_second or 0.0 for record in records}
    if not all(rates.values()):
        return "The runs were too short to compare their speed."
    fast, *others = sorted(rates, key=lambda name: -rates[name])
    ratios = [f"{rates[fast] / rates[name]:.2f} times as fast as {name}" for name in others]
    return f"{fast} trains {' and '.join(ratios)}." if ratios else ""


def disturbance(records: Sequence[Record]) -> str:
    """Takes the place of the comparison where other work on the machine has favoured one run."""
    computed = [record.compute for record in records if record.compute is not None]
    if not computed or max(computed) < min(computed) * UNEQUAL_COMPUTE:
        return ""
    return (
        "These speeds cannot be compared: the step without any exchange, the same work in all "
        f"runs, took from {min(computed) * 1e3:.0f} to {max(computed) * 1e3:.0f} ms. Try again "
        "when the machine is quiet."
    )


def agreement(records: Sequence[Record]) -> str:
    apart, steps = largest_difference(records), records[0].steps
    if apart == 0.0:
        return f"The losses of all {steps} steps are equal to the last bit."
    if apart <= LOSS_TOLERANCE:
        return f"The losses of all {steps} steps agree within {apart:.1e}."
    return f"THE LOSSES DIFFER by up to {apart:.3g}: one of the ways computes wrongly."


def counted(record: Record) -> list[str]:
    """The backend's own figures, where it counts; not what the table is made from."""
    if record.counters is None:
        return []
    counters = record.counters
    # wide.parallel gives its gradients to no collective: they are averaged where they lie.
    moved = f"{counters['bytes_shm'] / 1e9:.2f} GB through shared memory, "
    sentence = (
        f"{record.way.name} itself counted on rank 0: {counters['operations']:.0f} operations, "
        f"{moved if counters['bytes_shm'] >= 1e7 else ''}"
        f"{counters['exchange_s']:.1f} s with an operation in progress, "
        f"{counters['waiting_s']:.1f} s waiting."
    )
    return [sentence]


def sample_panel(records: Sequence[Record], width: int) -> Panel:
    first = records[0]
    same = all(record.sample == first.sample for record in records)
    # A model that has learnt little writes bytes that terminals take in different ways.
    signs = (sign if " " <= sign <= "~" or sign == "\n" else "�" for sign in first.sample or "")
    kept = "".join(signs)
    source = "all models write" if same else f"the model of {first.way.name} writes"
    return Panel(Text(kept.strip()), title=Text(source), width=width, box=ROUNDED)


def explanation(record: Record) -> str:
    millions = record.parameters / 1e6
    return (
        f"The model has {millions:.1f} million parameters, so {4 * millions:.1f} MB of gradients "
        "are exchanged in every step. Outside compute is a step minus the same step of a copy of "
        "the model that exchanges nothing (every 5th step), so it includes waiting for the other "
        "rank and DDP's own copying; with wide.parallel the ranks divide the optimizer's work. "
        f"Times are medians by rank 0's clock, without the first {SKIPPED_STEPS} steps; closing "
        "loss is the mean of "
        f"the last {CLOSING_STEPS}."
    )
