"""What this machine has, and what a container leaves of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wiiiiided.cluster.system import probe


def test_this_machine() -> None:
    node = probe.this_node()
    assert 1 <= node.cores <= (os.cpu_count() or 1)
    assert node.memory > 1 << 28
    assert len(node.boot_id) == 36
    assert node.name


def test_affinity_counts() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert probe.cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_tightest_limit_of_all_groups_holds(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    (inner / "memory.max").write_text("1073741824\n")
    groups = [inner, tmp_path, tmp_path / "gone"]
    assert probe.cpu_quota(groups) == 1.5
    assert probe.memory_limit(groups) == 1 << 30
    assert probe.cpu_quota([tmp_path / "gone"]) is None
    assert probe.memory_limit([]) is None


@pytest.mark.parametrize(
    ("host", "name"), [("ada.example.org", "ada"), ("we ird", "weird"), ("…", "localhost")]
)
def test_a_node_has_a_plain_name(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert probe.node_name() == name
