"""`wiiiiide check`: right or wrong, without a daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.fake_daemon import FakeDaemon
from tests.ui.cli.kit import Cli

JOB = """
name = "digits"
[run]
command = ["python", "train.py"]
"""


@pytest.fixture
def folder(tmp_path: Path, daemon: FakeDaemon) -> Path:
    daemon.stop()  # none is needed
    made = tmp_path / "job"
    made.mkdir()
    (made / "job.toml").write_text(JOB)
    (made / "train.py").write_text("")
    return made


def test_a_right_file_is_ok_with_its_plan(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    result = cli("check", "job.toml")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "job.toml: ok",
        "  name      digits",
        "  wants     1 worker on 1 node, which it has for itself",
        "  command   python train.py",
        "  python    the daemon's own",
        f"  ships     2 files, {len(JOB)} B from .",
    ]


@pytest.mark.parametrize(
    ("sets", "wants"),
    [
        (("nodes=3", "workers_per_node=2"), "2 workers on each of 3 nodes, which it"),
        (
            ('nodes="2-4"', "cores_per_worker=1"),
            "1 worker on each of 2 to 4 nodes, 1 core a worker",
        ),
        (('nodes="all"', 'workers_per_node="cores"'), "a worker per core on every node, which"),
        (('workers_per_node="gpus"',), "a worker per GPU on 1 node, which"),
    ],
)
def test_what_it_wants_is_in_words(
    cli: Cli, folder: Path, sets: tuple[str, ...], wants: str
) -> None:
    words = [word for one in sets for word in ("--set", f"resources.{one}")]
    assert f"  wants     {wants}" in cli("check", str(folder), *words).out


def test_its_policy_is_in_words(cli: Cli, folder: Path) -> None:
    sets = ("policy.max_time=8h", "policy.restart={max = 3}", "policy.after=[3]")
    words = [word for one in sets for word in ("--set", one)]
    out = cli("check", str(folder), *words, "--set", 'output.collect=["runs/**"]').out
    assert "  after     job 3\n" in out
    assert "  limit     8h00m of running\n" in out
    assert "  restarts  up to 3 times on failure, hang, node-lost\n" in out
    assert "  collects  runs/**\n" in out


def test_everything_that_is_wrong_is_listed(cli: Cli, folder: Path) -> None:
    (folder / "job.toml").write_text(JOB + "[policy]\npriorty = 5\nmax_time = 'soon'\n")
    result = cli("check", str(folder))
    assert (result.code, result.out) == (3, "")
    assert [text.split(": ")[1] for text in result.err.splitlines()] == [
        "policy.priorty",
        "policy.max_time",
    ]


def test_json(cli: Cli, folder: Path) -> None:
    good = cli("check", "--json", str(folder)).json
    assert (good["ok"], good["job"]["name"], good["ships"]["files"]) == (True, "digits", 2)
    bad = cli("check", "--json", str(folder), "--set", "x=1")
    assert (bad.code, bad.json["ok"]) == (3, False)


def test_a_folder_that_cannot_be_shipped_is_wrong(cli: Cli, folder: Path) -> None:
    (folder / "data").symlink_to("/srv/data")
    result = cli("check", str(folder))
    assert result.code == 3
    assert "'data' is a link" in result.err
    assert cli("check", str(folder), "--set", "run.workdir=nowhere").code == 3


def test_restarts_on_several_machines_without_checkpoints_are_a_note(
    cli: Cli, folder: Path
) -> None:
    several, restarts = "resources.nodes=2", "policy.restart={max = 3}"
    result = cli("check", str(folder), "--set", several, "--set", restarts)
    assert result.code == 0
    assert "the others do not find rank 0's files there" in result.err
    assert 'output.checkpoints = ["ckpt/**"]' in result.err
    for sets in ((several,), (restarts,), (several, restarts, 'output.checkpoints=["ckpt/**"]')):
        words = [word for one in sets for word in ("--set", one)]
        assert "rank 0 saves" not in cli("check", str(folder), *words).err


def test_a_variable_that_is_not_set_is_a_note(cli: Cli, folder: Path) -> None:
    result = cli("check", str(folder), "--set", 'run.pass_env=["NOT_SET"]')
    assert result.code == 0
    assert "note: " in result.err
    assert "run.pass_env names NOT_SET, which is not set here" in result.err


def test_untrusted_text_is_harmless(cli: Cli, folder: Path) -> None:
    (folder / "job.toml").write_text('[run]\ncommand = ["echo", "\\u001b[2J\\n"]\n')
    result = cli("check", str(folder))
    assert result.code == 0
    assert "\x1b" not in result.out
    assert "\\x1b[2J" in result.out


def test_a_folder_that_is_not_there_is_told_with_the_rest(cli: Cli, folder: Path) -> None:
    (folder / "job.toml").write_text(JOB + 'workdir = "nowhere"\n[policy]\npriorty = 5\n')
    result = cli("check", str(folder), "--json")
    assert result.code == 3
    first, second = result.json["problems"]
    assert (first["line"], first["key"]) == (5, "run.workdir")
    assert first["message"] == '"nowhere" is not there, or is no folder'
    assert second["key"] == "policy.priorty"
    assert "job.toml:5: run.workdir: " in result.err


def test_what_is_wrong_with_the_folder_is_in_the_json(cli: Cli, folder: Path) -> None:
    (folder / "data").symlink_to("/srv/data")
    for words in (("check",), ("submit", "--dry-run")):
        result = cli(*words, str(folder), "--json")
        assert (result.code, result.json["ok"]) == (3, False)
        assert "'data' is a link" in result.json["problems"][0]["message"]


def test_what_stays_at_home_is_told_in_one_line(cli: Cli, folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".gitignore").write_text("data/\n*.log\n")
    (folder / ".wiiiiideignore").write_text("big\n")
    (folder / "data").mkdir()
    for name in ("big", *(f"{n}.log" for n in range(6))):
        (folder / name).write_text("")
    expected = "0.log, 1.log, 2.log, 3.log and 3 more (.gitignore); big (.wiiiiideignore)"
    for words in (("check",), ("submit", "--dry-run")):
        assert f"  leaves    out {expected}\n" in cli(*words, str(folder)).out
    assert "data/" in cli("check", str(folder), "--json").json["ships"]["left_out"]


@pytest.mark.parametrize("backend", ["gloo", "nccl", "wiiiiide"])
def test_a_backend_that_does_not_count_progress_is_told(
    cli: Cli, folder: Path, backend: str
) -> None:
    words = ("--set", "policy.hang_timeout=5m", "--set", f"network.backend={backend}")
    result = cli("check", str(folder), *words)
    assert result.code == 0
    told = "counts only when the script calls wiiiiided.torch.progress(step)" in result.err
    assert told == (backend != "wiiiiide")


@pytest.mark.parametrize("backend", ["gloo", "nccl", "wiiiiide"])
def test_an_interface_that_nothing_uses_is_a_note(cli: Cli, folder: Path, backend: str) -> None:
    words = ("--set", "network.interface=eth0", "--set", f"network.backend={backend}")
    result = cli("check", str(folder), *words)
    assert result.code == 0
    assert ("network.interface is for gloo and nccl" in result.err) == (backend == "wiiiiide")
