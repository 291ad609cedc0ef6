"""What the benchmarks keep: only what can be repeated, and a verdict only where there is one."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DIRTY = "0123456789ab (dirty)"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The benchmarks' modules, which import each other by their bare names."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    names = ("machine", "measure", "program", "report", "fleet", "hosts")
    return {name: importlib.import_module(f"lib.{name}") for name in names}


# ---- verdicts


@pytest.mark.parametrize(
    ("low", "high", "verdict", "met"),
    [
        (-0.02, 0.004, "met", True),
        (-0.02, 0.02, "not decided", None),
        (0.006, 0.02, "missed", False),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])  # the most that is allowed, and the least
def test_all_of_the_interval_must_keep_to_what_is_asked(
    bench: dict[str, ModuleType], *, low: float, high: float, verdict: str,
    met: bool | None, sign: int,
) -> None:  # fmt: skip
    measure: Any = bench["measure"]
    # Forty rounds: the interval leaves out the outermost ones.
    rounds = [sign * (low + (high - low) * at / 39) for at in range(40)]
    rounds += [sign * -9.0, sign * 9.0]
    unit = measure.MeasureUnit("share", "{:.1%}".format)
    found = measure.Measure("it", unit, rounds, sign * 0.005, sign < 0, by_interval=True)
    ends = sorted(sign * end for end in found.interval)
    assert low < ends[0] < ends[1] < high
    assert found.ask(judged=True).endswith(f": {verdict}")
    assert found.data(judged=True)["met"] is met
    assert ":" not in found.ask(judged=False)


def test_by_the_median_there_is_always_a_verdict(bench: dict[str, ModuleType]) -> None:
    measure: Any = bench["measure"]
    unit = measure.MeasureUnit("share", "{:.1%}".format)
    rounds = [-9.0, 0.004, 9.0]
    assert measure.Measure("it", unit, rounds, 0.005).met is True
    assert measure.Measure("it", unit, rounds, 0.003).met is False


# ---- what is kept


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True)


@pytest.mark.needs("git")
@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("README.md", True),  # it is in the commit
        ("notes.txt", False),
        ("bench/results/idle_groups.md", False),
        ("bench/notes.txt", False),
        ("bench/new.py", True),
        ("wiiiiided/new/deep.py", True),
        ("tests/kit/new.py", True),  # machines and daemons, which benchmarks use too
        ("other/new.py", False),
    ],
)
def test_a_tree_is_dirty_when_a_run_of_its_commit_could_differ(
    bench: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    path: str,
    counts: bool,
) -> None:
    machine: Any = bench["machine"]
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    git(tmp_path, "init")
    assert "clone" in machine.unrepeatable(machine.commit())  # nothing is committed yet
    for file in ("README.md", "bench/results/idle_groups.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("before")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    clean = machine.commit()
    assert machine.unrepeatable(clean) is None

    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("after")
    assert machine.commit() == (f"{clean} (dirty)" if counts else clean)


def test_a_result_of_a_dirty_tree_is_not_written(
    bench: dict[str, ModuleType], tmp_path: Path
) -> None:
    report: Any = bench["report"]

    def result(commit: str) -> Any:
        return report.BenchResult("idle", {"commit": commit}, "", [], [], {})

    with pytest.raises(bench["fleet"].FleetError, match="commit first, or --no-save"):
        report.write(result(DIRTY), tmp_path)
    assert not list(tmp_path.iterdir())
    assert len(report.write(result("0123456789ab"), tmp_path)) == 2


@pytest.mark.parametrize(
    ("saves", "given", "refused"),
    [
        (True, [], True),
        (True, ["--no-save"], False),
        (False, [], False),
        (False, ["--save"], True),
    ],
)
def test_a_run_that_could_not_be_kept_does_not_begin(
    bench: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saves: bool,
    given: list[str],
    refused: bool,
) -> None:
    program: Any = bench["program"]
    monkeypatch.setattr(program, "commit", lambda: DIRTY)
    monkeypatch.setattr(sys, "argv", ["idle_groups.py", *given])
    parser = program.parser("", saves=saves)
    if refused:
        with pytest.raises(SystemExit, match="2"):
            program.arguments(parser)
        assert "commit first, or --no-save" in capsys.readouterr().err
    else:
        assert program.arguments(parser).save is False


def test_a_benchmark_that_cannot_make_machines_says_what_is_missing(
    bench: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts: Any = bench["hosts"]
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosts.shutil, "which", lambda tool: None if "nspawn" in tool else tool)
    hosts.require_hosts()
    lack = r"there is no systemd-nspawn here \(Debian: apt-get install systemd-container\)"
    with pytest.raises(bench["fleet"].FleetError, match=lack):
        hosts.require_hosts({"systemd-nspawn": "systemd-container"})
