"""The picture of a result: the same numbers as in the table, for the eye.

matplotlib is wanted for this only, so its absence costs the picture and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.cells import Value, size_text
from lib.machine import scrub

COLOURS = {
    "gloo": "#7f7f7f",
    "Open MPI": "#1f77b4",
    "wiiiiide": "#d62728",
    "shared_empty": "#ff7f0e",
    "memcpy": "#bcbd22",
}
_OTHER_COLOUR = "#9467bd"


@dataclass(frozen=True)
class Curves:
    """Times by size for each label, and the factors over the baseline that are aimed at."""

    title: str
    times: dict[str, dict[int, Value]]
    targets: list[tuple[str, int, float]]


@dataclass(frozen=True)
class Bars:
    """A few single times by label."""

    title: str
    times: Mapping[str, Value]


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_curves(panels: Sequence[Curves], about: Mapping[str, str], path: Path) -> bool:
    """Above: time over size. Below: how many times as fast as gloo, targets as open rings."""
    pyplot = _pyplot()
    if pyplot is None or not panels:
        return False
    figure, axes = pyplot.subplots(
        2, len(panels), figsize=(5.0 * len(panels), 8.4), squeeze=False, sharex="col"
    )
    for column, panel in enumerate(panels):
        _draw_times(axes[0][column], panel)
        _draw_factors(axes[1][column], panel)
    _finish(pyplot, figure, about, path)
    return True


def _draw_times(axis: Any, panel: Curves) -> None:
    for label, by_size in panel.times.items():
        sizes = sorted(by_size)
        colour = COLOURS.get(label, _OTHER_COLOUR)
        medians = [by_size[size].median for size in sizes]
        axis.plot(sizes, medians, marker="o", markersize=3, label=label, color=colour)
        low, high = [by_size[s].low for s in sizes], [by_size[s].high for s in sizes]
        axis.fill_between(sizes, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.set(title=panel.title, ylabel="seconds per call", xscale="log", yscale="log")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _draw_factors(axis: Any, panel: Curves) -> None:
    baseline = panel.times.get("gloo", {})
    for label, by_size in panel.times.items():
        sizes = [size for size in sorted(by_size) if size in baseline]
        if label in ("gloo", "memcpy") or not sizes:
            continue
        factors = [baseline[size].median / by_size[size].median for size in sizes]
        colour = COLOURS.get(label, _OTHER_COLOUR)
        axis.plot(sizes, factors, marker="o", markersize=3, label=label, color=colour)
    for label, size, factor in panel.targets:
        colour = COLOURS.get(label, _OTHER_COLOUR)
        axis.plot([size], [factor], marker="o", markersize=9, fillstyle="none", color=colour)
    axis.axhline(1.0, color=COLOURS["gloo"], linewidth=1)
    axis.set(ylabel="times as fast as gloo (ring: target)", xscale="log", yscale="log")
    measured = sorted({size for by_size in panel.times.values() for size in by_size})
    axis.set_xticks(measured, [size_text(size) for size in measured], rotation=60, fontsize=8)
    axis.minorticks_off()
    axis.grid(alpha=0.3)


def draw_bars(panels: Sequence[Bars], about: Mapping[str, str], path: Path) -> bool:
    """One bar per label, with the spread over rounds."""
    pyplot = _pyplot()
    if pyplot is None:
        return False
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4.8 * len(panels), 4.6), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        for label, value in panel.times.items():
            # A difference of two times may come out below nothing; the bar then just ends there.
            below, above = max(value.median - value.low, 0), max(value.high - value.median, 0)
            colour = COLOURS.get(label, _OTHER_COLOUR)
            axis.bar([label], [value.median], yerr=[[below], [above]], color=colour, capsize=4)
        axis.set(title=panel.title, ylabel="seconds")
        axis.grid(alpha=0.3, axis="y")
    _finish(pyplot, figure, about, path)
    return True


def draw_rates(
    title: str, rates: Mapping[str, Value], about: Mapping[str, str], path: Path
) -> bool:
    """One bar per label, the first on top, long labels beside them; rates of any magnitude."""
    pyplot = _pyplot()
    if pyplot is None:
        return False
    figure, axis = pyplot.subplots(figsize=(9.0, 1.2 + 0.42 * len(rates)))
    for label, value in rates.items():
        spread = [[value.median - value.low], [value.high - value.median]]
        bar = axis.barh([label], [value.median], xerr=spread, color=_OTHER_COLOUR, capsize=3)
        axis.bar_label(bar, [f"{value.median:,.0f}"], padding=8, fontsize=8)
    axis.invert_yaxis()
    axis.set(title=title, xscale="log")
    axis.margins(x=0.15)
    axis.grid(alpha=0.3, axis="x")
    _finish(pyplot, figure, about, path)
    return True


def _finish(pyplot: Any, figure: Any, about: Mapping[str, str], path: Path) -> None:
    machine = f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}"
    source = f"torch {about['torch']}, commit {about['commit']}: {about['command']}"
    figure.text(0.01, 0.01, scrub(f"{machine}\n{source}"), fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without this, the picture's own metadata would differ between machines for no reason.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
