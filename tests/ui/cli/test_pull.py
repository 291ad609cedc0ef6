"""`wiiiiide pull`: files arrive, and nothing else happens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cluster.archive.archives import Item, directory, link, tar
from tests.kit.fake_daemon import FakeConnection, FakeDaemon
from tests.ui.cli.kit import Cli
from wiiiiided.cluster.archive.scan import survey
from wiiiiided.cluster.rpc import messages as m


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that must not keep anything hidden."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def sends(daemon: FakeDaemon, *items: Item, data: bytes | None = None) -> None:
    def send(_: m.Pull, link: FakeConnection) -> None:
        link.send_blob(tar(*items) if data is None else data)
        link.say(m.EndOfAnswers())

    daemon.does(m.Pull, send)


def test_files_arrive_in_a_folder_named_after_the_job(
    cli: Cli, daemon: FakeDaemon, here: Path
) -> None:
    sends(daemon, directory("runs"), ("runs/a", b"12345"), ("b", b""), link("runs/last", "a"))
    result = cli("pull", "17")
    assert (result.code, result.out) == (0, "job-17/b\njob-17/runs/a\njob-17/runs/last\n")
    assert result.err == "3 files, 6 B, in job-17\n"
    assert (here / "job-17/runs/a").read_bytes() == b"12345"
    assert os.readlink(here / "job-17/runs/last") == "a"
    assert os.listdir(here) == ["job-17"]
    assert (here / "job-17").stat().st_mode & 0o777 == 0o777 & ~_umask()
    assert daemon.requests == [m.Pull(17)]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_globs_and_the_place_are_passed_on(cli: Cli, daemon: FakeDaemon, here: Path) -> None:
    sends(daemon, ("a", b"1"))
    assert cli("pull", "17", "runs/**", "*.pt", "-o", "some/where").code == 0
    assert (here / "some/where/a").exists()
    assert os.listdir(here / "some") == ["where"]
    assert daemon.requests == [m.Pull(17, ("runs/**", "*.pt"))]


def test_a_machine_that_did_not_answer_is_named_and_the_code_says_so(
    cli: Cli, daemon: FakeDaemon, here: Path
) -> None:
    sends(daemon, ("a", b"1"), ("missing-from-c.txt", b"c does not answer"))
    result = cli("pull", "17")
    assert result.code == 1
    assert "the files of c are missing" in result.err
    assert (here / "job-17/a").exists()
    shown = cli("pull", "17", "--force", "--json")
    assert (shown.code, json.loads(shown.out)["missing"]) == (1, ["c"])


def test_nothing_is_overwritten_without_force(cli: Cli, daemon: FakeDaemon, here: Path) -> None:
    sends(daemon, ("a", b"new"), ("b", b"new"), ("new", b""))
    (here / "job-17").mkdir()
    (here / "job-17/a").write_text("old")
    (here / "job-17/b").write_text("old")
    result = cli("pull", "17")
    assert (result.code, result.out) == (1, "")
    assert "job-17/a and 1 more file would be overwritten. --force does it" in result.err
    assert sorted(os.listdir(here / "job-17")) == ["a", "b"]
    assert os.listdir(here) == ["job-17"]
    assert cli("pull", "17", "--force").code == 0
    assert (here / "job-17/a").read_text() == "new"


def test_files_join_those_that_are_there(cli: Cli, daemon: FakeDaemon, here: Path) -> None:
    sends(daemon, ("runs/new", b"2"))
    (here / "job-17/runs").mkdir(parents=True)
    (here / "job-17/runs/old").write_text("1")
    assert cli("pull", "17").code == 0
    assert sorted(os.listdir(here / "job-17/runs")) == ["new", "old"]


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_link_in_the_target_is_not_followed(
    cli: Cli, daemon: FakeDaemon, here: Path, tmp_path: Path, force: tuple[str, ...]
) -> None:
    (tmp_path / "outside").mkdir()
    (here / "job-17").mkdir()
    (here / "job-17/runs").symlink_to(tmp_path / "outside")
    sends(daemon, ("runs/a", b"x"))
    result = cli("pull", "17", *force)
    assert result.code == 1
    assert "job-17/runs is in the way" in result.err
    assert os.listdir(tmp_path / "outside") == []


def test_a_link_with_a_files_name_is_replaced_not_written_through(
    cli: Cli, daemon: FakeDaemon, here: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious")
    (here / "job-17").mkdir()
    (here / "job-17/a").symlink_to(tmp_path / "precious")
    sends(daemon, ("a", b"new"))
    assert cli("pull", "17").code == 1
    assert cli("pull", "17", "--force").code == 0
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (here / "job-17/a").is_symlink()


def test_a_hostile_archive_leaves_nothing(cli: Cli, daemon: FakeDaemon, here: Path) -> None:
    sends(daemon, ("ok", b""), ("../../escaped", b"x"))
    result = cli("pull", "17")
    assert result.code == 1
    assert "the archive from the daemon cannot be used" in result.err
    assert os.listdir(here) == []
    assert sorted(os.listdir(here.parent)) == ["here"]


def test_names_are_harmless(cli: Cli, daemon: FakeDaemon, here: Path) -> None:
    sends(daemon, ("\x1b[2J\nforged", b""))
    assert cli("pull", "17").out == "job-17/\\x1b[2J\\x0aforged\n"


def test_nothing_that_matches_makes_no_folder(cli: Cli, daemon: FakeDaemon, here: Path) -> None:
    sends(daemon)
    result = cli("pull", "17", "*.pt")
    assert (result.code, result.out) == (1, "")
    assert result.err == "no file of job 17 matches *.pt\n"
    assert cli("pull", "17").err == "no file of job 17 matches its output.collect\n"
    assert os.listdir(here) == []


@pytest.mark.parametrize("glob", ["/etc/passwd", "../*", "runs/../../x", ""])
def test_a_glob_that_leads_out_is_usage(cli: Cli, daemon: FakeDaemon, glob: str) -> None:
    result = cli("pull", "17", glob)
    assert result.code == 2
    assert "GLOB" in result.err
    assert daemon.requests == []


def test_a_link_that_leads_out_is_named_and_the_rest_arrives(
    cli: Cli, daemon: FakeDaemon, here: Path
) -> None:
    bad = [link(f"l{n:02}", "/srv/data") for n in range(12)]
    sends(daemon, ("runs/a", b"12345"), link("runs/last", "a"), *bad)
    result = cli("pull", "17")
    assert (result.code, result.out) == (0, "job-17/runs/a\njob-17/runs/last\n")
    first, *_, more, last = result.err.splitlines()
    assert first == (
        "note: left out 'l00' -> '/srv/data': the link leads out of the job's working directory"
    )
    assert (more, last) == ("note: and 2 more links", "2 files, 6 B, in job-17")


def test_results_do_not_travel_with_the_next_job(cli: Cli, daemon: FakeDaemon, here: Path) -> None:
    sends(daemon, ("a", b"1"))
    (here / "job-18").mkdir()
    for words in (("17",), ("18",), ("19", "-o", "data")):
        assert cli("pull", *words).code == 0
    found = [item.name for item in survey(str(here)).found]
    assert found == ["data", "data/a", "job-18", "job-18/a"]  # only what pull itself called so
    assert cli("pull", "17", "--force").code == 0


def test_what_the_daemon_says_behind_the_archive_counts(
    cli: Cli, daemon: FakeDaemon, here: Path
) -> None:
    def send(_: m.Pull, link: FakeConnection) -> None:
        link.send_blob(tar(("a", b"x"))[:600])
        link.say(m.Refusal(1, "a file could not be read"))

    daemon.does(m.Pull, send)
    result = cli("pull", "17")
    assert (result.code, result.err) == (1, "wiiiiide: a file could not be read\n")
    assert os.listdir(here) == []


def test_a_refusal_has_its_code(cli: Cli, daemon: FakeDaemon, here: Path) -> None:
    daemon.answers(m.Pull, m.Refusal(2, "job 17 names no output.collect", "say which files"))
    assert cli("pull", "17").code == 2
    assert os.listdir(here) == []


def test_json(cli: Cli, daemon: FakeDaemon, here: Path) -> None:
    sends(daemon, ("runs/a", b"12345"))
    result = cli("pull", "17", "--json", "-o", str(here / "x"))
    assert result.json == {
        "id": 17,
        "directory": str(here / "x"),
        "files": [{"name": "runs/a", "bytes": 5}],
        "missing": [],
    }


def test_a_place_that_cannot_be_written_is_a_sentence(
    cli: Cli, daemon: FakeDaemon, here: Path
) -> None:
    sends(daemon, ("a", b""))
    (here / "file").write_text("")
    result = cli("pull", "17", "-o", "file/x")
    assert result.code == 1
    assert "cannot write into" in result.err
