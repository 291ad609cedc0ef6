"""What the demo says when both runs are over: a table, plain words, and what the model writes."""

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
    """What both runs made and took; False if their losses do not agree.

    The table comes late, so that it is still on a small screen when all is said.
    """
    width = min(console.width, MAX_WIDTH)
    console.print()
    console.print(sample_panel(records, width))
    console.print(Text(explanation(records[0]), style="dim"), width=width)
    console.print(table(records))
    sentences = [disturbance(*records) or comparison(*records), agreement(*records)]
    for record in records:
        sentences += counted(record)
    for sentence in sentences:
        console.print(Text(sentence), width=width)
    return largest_difference(*records) <= LOSS_TOLERANCE


def table(records: Sequence[Record]) -> Table:
    result = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    result.add_column("", no_wrap=True)
    for record in records:
        result.add_column(Text(record.backend), justify="right", no_wrap=True)
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


def comparison(one: Record, other: Record) -> str:
    if not one.samples_per_second or not other.samples_per_second:
        return "The runs were too short to compare their speed."
    fast, slow = sorted((one, other), key=lambda r: -(r.samples_per_second or 0.0))
    ratio = (fast.samples_per_second or 0.0) / (slow.samples_per_second or 1.0)
    if f"{ratio:.2f}" == "1.00":
        return "Both runs train equally fast."
    return f"The run over {fast.backend} trains {ratio:.2f} times as fast as {slow.backend}."


def disturbance(one: Record, other: Record) -> str:
    """Takes the place of the comparison where other work on the machine has favoured one run."""
    if one.compute is None or other.compute is None:
        return ""
    low, high = sorted((one.compute, other.compute))
    if high < low * UNEQUAL_COMPUTE:
        return ""
    return (
        "These speeds cannot be compared: the pass without exchange, the same work in both runs, "
        f"took {one.compute * 1e3:.0f} ms in the first and {other.compute * 1e3:.0f} ms in the "
        "second. Try again when the machine is quiet."
    )


def agreement(one: Record, other: Record) -> str:
    apart = largest_difference(one, other)
    if apart == 0.0:
        return f"The losses of all {one.steps} steps are equal to the last bit."
    if apart <= LOSS_TOLERANCE:
        return f"The losses of all {one.steps} steps agree within {apart:.1e}."
    return f"THE LOSSES DIFFER by up to {apart:.3g}: one of the backends computes wrongly."


def counted(record: Record) -> list[str]:
    """What the backend says of itself, where it counts; not what the table is made from."""
    if record.counters is None:
        return []
    counters = record.counters
    sentence = (
        f"{record.backend} itself counted on rank 0: {counters['operations']:.0f} operations, "
        f"{counters['bytes_shm'] / 1e9:.2f} GB through shared memory, "
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
    source = "both models write" if same else f"the {first.backend} model writes"
    return Panel(Text(kept.strip()), title=Text(source), width=width, box=ROUNDED)


def explanation(record: Record) -> str:
    millions = record.parameters / 1e6
    return (
        f"The model has {millions:.1f} million parameters, so {4 * millions:.1f} MB of gradients "
        "are exchanged in every step. Outside compute is a forward and backward pass with "
        "exchange minus the same pass without (DDP's no_sync(), every 5th step), so it includes "
        "waiting for the other rank and DDP's own copying. Times are medians by rank 0's clock, "
        f"without the first {SKIPPED_STEPS} steps; closing loss is the mean of "
        f"the last {CLOSING_STEPS}."
    )
