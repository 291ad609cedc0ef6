"""docs/metrics.md has every field there is, and every word of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wiiiiided.backend.shm import stats
from wiiiiided.cluster.monitoring.prometheus import FAMILIES
from wiiiiided.cluster.rpc.messages import JobRow, Snapshot
from wiiiiided.domain import metrics

TEXT = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()

NOUNS = {
    "RankSample": (metrics.RankSample,),
    "Rates": (metrics.Rates,),
    "Snapshot": (Snapshot, JobRow),
    "NodeNow": (metrics.NodeNow,),
    "JobNow and RankNow": (metrics.JobNow, metrics.RankNow),
    "Straggler": (metrics.Straggler,),
    "RunRecord": (metrics.RunRecord, metrics.Point, metrics.RankRecord),
    "Forecast": (metrics.RunForecast,),
}


def section(title: str) -> str:
    """From its headline to the next."""
    found = re.search(rf"^##+ {title}\b.*?(?=^## |^### |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {title}"
    return found[0]


@pytest.mark.parametrize("title", NOUNS)
def test_every_field_is_described(title: str) -> None:
    words = set(re.findall(r"`([a-z_]+)`", section(title)))
    fields = {name for noun in NOUNS[title] for name in noun.__struct_fields__}
    assert fields <= words, f"{title} lacks {sorted(fields - words)}"


def test_every_word_of_the_page_is_described() -> None:
    described: set[int] = set()
    for cell in re.findall(r"^\| ([0-9, –]+) \|", section("The stats page"), re.MULTILINE):
        for part in cell.split(", "):
            first, _, last = part.partition("–")
            described |= set(range(int(first), int(last or first) + 1))
    assert described == set(range(stats.WORDS))


def test_every_family_of_prometheus_is_described_and_no_other() -> None:
    words = re.findall(r"`([a-z_]+)`", section("Prometheus"))
    families = {word for word in words if word.startswith("wiiiiide_")}
    prefixes = {"wiiiiide_node_", "wiiiiide_job_"}
    endings = [word for word in words if re.search(r"_(per_second|ratio)$", word)]
    rates = {p + word for p in prefixes for word in endings if not word.startswith("wiiiiide_")}
    assert (families - prefixes) | rates == set(FAMILIES)
