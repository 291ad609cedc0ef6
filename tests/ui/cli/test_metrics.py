"""`wiiiiide metrics`: a page on stdout, or a file that is never half written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.kit.fake_daemon import FakeDaemon, view
from tests.kit.prometheus import parse
from tests.ui.cli.kit import Cli
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.metrics import JobNow, NodeNow, Rates
from wiiiiided.ui.cli import whole_file
from wiiiiided.ui.cli.commands import metrics

UP: tuple[tuple[str, str], ...] = ()


@pytest.fixture(autouse=True)
def figures(daemon: FakeDaemon) -> None:
    now = JobNow(17, Rates(steps=2.0), step=3, loss=0.5)
    jobs = (m.JobRow(view(name="a\x1b[2J"), now),)
    daemon.answers(m.WatchSnapshots, m.Snapshot(1e6, 1.0, "a", (NodeNow("a", "ok"),), jobs))


def up(path: Path) -> float:
    return parse(path.read_text())["wiiiiide_up"].samples[UP]


def test_the_page_goes_to_stdout(cli: Cli, daemon: FakeDaemon) -> None:
    result = cli("metrics")
    assert (result.code, result.err) == (0, "")
    page = parse(result.out)
    (labels,) = page["wiiiiide_job_loss"].samples
    assert dict(labels) == {"job_id": "17", "name": "a?[2J"}
    assert page["wiiiiide_build_info"].kind == "gauge"
    assert daemon.asked(m.WatchSnapshots) == [m.WatchSnapshots(once=True)]


def test_a_file_is_replaced_as_a_whole(cli: Cli, tmp_path: Path) -> None:
    target = tmp_path / "wiiiiide.prom"
    target.write_text("old\n")
    reader = target.open()  # a process that has it open goes on reading the old one
    old = os.umask(0o077)
    try:
        result = cli("metrics", "-o", str(target))
    finally:
        os.umask(old)
    with reader:
        assert reader.read() == "old\n"
    assert (result.code, result.out, result.err) == (0, "", "")
    assert up(target) == 1
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["wiiiiide.prom"]


def test_what_the_collector_may_see_before_the_rename_is_not_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(whole_file.os, "replace", lambda made, path: seen.append(made))
    metrics.replace(str(tmp_path / "x.prom"), "text\n")
    assert not seen[0].endswith(".prom")
    assert Path(seen[0]).parent == tmp_path
    assert Path(seen[0]).read_text() == "text\n"


def test_what_a_killed_one_left_does_not_matter(cli: Cli, tmp_path: Path) -> None:
    left = tmp_path / f".x.prom.{os.getpid()}"
    left.write_text("half")
    assert cli("metrics", "-o", str(tmp_path / "x.prom")).code == 0
    assert not left.exists()


def test_without_a_daemon_the_file_says_so(cli: Cli, daemon: FakeDaemon, tmp_path: Path) -> None:
    target = tmp_path / "x.prom"
    assert cli("metrics", "-o", str(target)).code == 0
    daemon.stop()
    result = cli("metrics", "-o", str(target))
    assert (result.code, result.out) == (4, "")
    assert "no daemon answers" in result.err
    assert up(target) == 0
    assert "wiiiiide_job" not in target.read_text()
    assert cli("metrics").out == ""


@pytest.mark.parametrize("where", ["nowhere/x.prom", ".", "x/y.prom"])
def test_a_place_that_cannot_be_written_is_a_sentence(cli: Cli, tmp_path: Path, where: str) -> None:
    (tmp_path / "x").write_text("a file")
    result = cli("metrics", "-o", str(tmp_path / where))
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"wiiiiide: cannot write {tmp_path / where}: ")
    assert len(result.err.splitlines()) == 1
    assert os.listdir(tmp_path) == ["x"]


def test_a_device_is_not_replaced(cli: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = cli("metrics", "-o", str(tmp_path / "pipe"))
    assert result.code == 1
    assert "it is not a plain file" in result.err
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_full_disk_leaves_the_old_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.prom"
    target.write_text("old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole_file.os, "fsync", full)
    result = cli("metrics", "-o", str(target))
    assert (result.code, target.read_text()) == (1, "old")
    assert result.err == f"wiiiiide: cannot write {target}: No space left on device\n"
    assert os.listdir(tmp_path) == ["x.prom"]
