"""Packing a working directory: the same bytes for the same content, and a sentence for the rest."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import socket
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wiiiiided.cluster.archive import pack as module
from wiiiiided.cluster.archive.ignore import left_out
from wiiiiided.cluster.archive.pack import Packed, pack
from wiiiiided.cluster.archive.scan import Limits, PackError, survey
from wiiiiided.cluster.archive.unpack import unpack


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Archives are made here; a test leaves none behind that it did not ask for."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert os.listdir(folder) == []


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def write(work: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


@contextlib.contextmanager
def packed(work: Path, limits: Limits | None = None) -> Iterator[Packed]:
    made = pack(str(work), limits)
    try:
        yield made
    finally:
        made.remove()


def names(work: Path) -> list[str]:
    """What is shipped, directories with a slash."""
    with packed(work) as made, tarfile.open(made.path) as archive:
        return [info.name + "/" * info.isdir() for info in archive]


def digest(work: Path) -> str:
    with packed(work) as made:
        return made.sha256


# ---- the archive


def test_a_directory_comes_out_of_the_archive_as_it_went_in(work: Path, tmp_path: Path) -> None:
    write(work, {"a/b/c": "deep", "top": "top", "empty": ""})
    (work / "void").mkdir()
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o700)
    (work / "link").symlink_to("a/b/c")
    (work / "dangling").symlink_to("not/there")
    (work / "a" / "up").symlink_to("../top")
    with packed(work) as made:
        data = Path(made.path).read_bytes()
    unpack(io.BytesIO(data), tmp_path / "out", limit_bytes=1 << 20, limit_files=100)
    out = tmp_path / "out"
    assert (out / "a/b/c").read_text() == "deep"
    assert (out / "empty").read_bytes() == b""
    assert (out / "void").is_dir()
    assert (out / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (out / "top").stat().st_mode & 0o777 == 0o644
    assert (out / "top").stat().st_mtime == int((work / "top").stat().st_mtime)
    assert [os.readlink(out / n) for n in ("link", "dangling", "a/up")] == [
        "a/b/c",
        "not/there",
        "../top",
    ]


def test_what_is_said_of_the_archive_is_true(work: Path) -> None:
    write(work, {"a": "12345", "b/c": "6"})
    with packed(work) as made:
        data = Path(made.path).read_bytes()
        assert made.sha256 == hashlib.sha256(data).hexdigest()
        assert (made.bytes, made.files, made.notes) == (len(data), 2, ())
        assert os.stat(made.path).st_mode & 0o777 == 0o600


def test_equal_content_gives_an_equal_hash(work: Path, tmp_path: Path) -> None:
    write(work, {"z": "1", "a/b": "2"})
    before = digest(work)
    other = tmp_path / "other"
    other.mkdir()
    write(other, {"a/b": "2", "z": "1", "a/__pycache__/x": "left out", ".git/HEAD": "left out"})
    for name in ("z", "a/b"):  # the same time in whole seconds, another fraction
        at = (work / name).stat().st_mtime_ns // 10**9
        os.utime(other / name, ns=(5, at * 10**9 + 123))
        (other / name).chmod(0o600)
    os.utime(other / "a", (1, 1))
    assert digest(other) == before


@pytest.mark.parametrize("change", ["content", "name", "mode", "time", "link"])
def test_other_content_gives_another_hash(work: Path, change: str) -> None:
    write(work, {"a": "1"})
    os.utime(work / "a", (1000, 1000))
    (work / "l").symlink_to("a")
    before = digest(work)
    match change:
        case "content":
            (work / "a").write_text("2")
            os.utime(work / "a", (1000, 1000))
        case "name":
            (work / "a").rename(work / "b")
        case "mode":
            (work / "a").chmod(0o755)
        case "time":
            os.utime(work / "a", (1001, 1001))
        case "link":
            (work / "l").unlink()
            (work / "l").symlink_to("b")
    assert digest(work) != before


def test_entries_carry_no_owner(work: Path) -> None:
    write(work, {"a": "1"})
    with packed(work) as made, tarfile.open(made.path) as archive:
        info = archive.getmember("a")
    assert (info.uid, info.gid, info.uname, info.gname) == (0, 0, "", "")


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"new\nline", b"\x1b[2J", b"n" * 255])
def test_any_name_travels(work: Path, tmp_path: Path, raw: bytes) -> None:
    (Path(os.fsdecode(os.path.join(os.fsencode(work), raw)))).write_text("x")
    with packed(work) as made, open(made.path, "rb") as file:
        unpack(file, tmp_path / "out", limit_bytes=1 << 20, limit_files=10)
    assert os.listdir(os.fsencode(tmp_path / "out")) == [raw]


def test_a_very_deep_directory_travels(work: Path, tmp_path: Path) -> None:
    deep = work / "/".join(["d" * 100] * 30)
    deep.mkdir(parents=True)
    (deep / "x").write_text("x")
    with packed(work) as made, open(made.path, "rb") as file:
        unpack(file, tmp_path / "out", limit_bytes=1 << 20, limit_files=100)
    assert (tmp_path / "out" / deep.relative_to(work) / "x").read_text() == "x"


# ---- what stays at home


def test_repositories_caches_and_environments_always_stay(work: Path) -> None:
    write(work, {"a": "1", "node_modules/x": "1", "sub/node_modules/x": "1", ".git/HEAD": "1"})
    write(work, {"__pycache__/x": "1", ".hg/x": "1", ".venv/x": "1", ".mypy_cache/x": "1"})
    write(work, {".pytest_cache/x": "1", ".ruff_cache/x": "1", "sub/.git": "gitdir: x"})
    write(work, {"env311/pyvenv.cfg": "1", "venv/x": "no environment at all"})
    assert names(work) == ["a", "sub/", "venv/", "venv/x"]


def test_an_environment_behind_a_link_stays_without_a_word(work: Path, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "pyvenv.cfg").write_text("")
    (work / "venv").symlink_to(tmp_path / "torch")
    (work / ".venv").symlink_to("/nowhere")
    write(work, {"a": "1"})
    assert names(work) == ["a"]


@pytest.mark.needs("git")
def test_gitignore_holds_as_in_git(work: Path) -> None:
    write(
        work,
        {
            ".gitignore": "*.pt\n!keep.pt\n/data/\nlogs\n# no\n\\#yes\n",
            "sub/.gitignore": "*.txt\n!a.pt\n",
        },
    )
    write(
        work,
        {
            "m.pt": "1",
            "keep.pt": "1",
            "data/x": "1",
            "sub/data/x": "1",
            "logs/x": "1",
            "sub/logs": "1",
        },
    )
    write(work, {"sub/b.txt": "1", "b.txt": "1", "sub/a.pt": "1", "sub/c.pt": "1"})
    (work / "#yes").write_text("1")
    # Without the ignore rules in the git configuration of the user that runs the tests.
    env = {"PATH": os.environ["PATH"], "HOME": str(work.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "-q"], cwd=work, env=env, check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=work,
        env=env,
        check=True,
        capture_output=True,
    ).stdout.decode()
    files = [name for name in names(work) if not name.endswith("/")]
    assert sorted(files) == sorted(filter(None, listed.split("\0")))
    assert "sub/data/x" in files
    assert "data/x" not in files


def test_our_own_ignore_file_is_heard_first(work: Path) -> None:
    write(work, {".gitignore": "data/\n*.log\n", ".wiiiiideignore": "!data/\nbig\n"})
    write(work, {"data/x": "1", "big": "1", "a": "1", "sub/big": "1"})
    write(work, {"data/x.log": "1", "b.log": "1"})
    shipped = [name for name in names(work) if not name.startswith(".")]
    assert shipped == ["a", "data/", "data/x", "data/x.log", "sub/"]


def test_a_daemons_state_and_keys_never_travel(work: Path) -> None:
    for home in ("home/state", "xdg/wiiiiide/daemon", "bare"):
        write(work, {f"{home}/{name}": "" for name in ("state.sqlite", "lock", "node.key")})
    write(work, {"home/jobs/1/order": "", "a": "1", "mine/state.sqlite": "1"})
    assert names(work) == ["a", "mine/", "mine/state.sqlite", "xdg/"]
    assert survey(str(work)).notes == tuple(
        f"'{name}' is where a daemon keeps its state and keys: left out"
        for name in ("bare", "home", "xdg/wiiiiide")
    )


def test_what_stays_can_be_asked_of_each_path_with_its_rule(work: Path) -> None:
    write(work, {".gitignore": "# no\n\n*.pt\n/gen/\n", "sub/.gitignore": "!a.pt\n"})
    write(work, {".wiiiiideignore": "big\n", "job-1/.wiiiiide-pulled": "", "env/pyvenv.cfg": ""})
    write(work, {"sub/a.pt": "", "sub/b.pt": "", "gen/x/y.py": "", "sub/big": "", "a": ""})
    write(work, {"job-1/x": "", "env/bin/python": "", ".venv/x": "", "sub/gen/x": ""})
    files = [str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()]
    shipped = set(names(work))
    found = {name: left_out(str(work), name) for name in files}
    assert {name for name, why in found.items() if why is None} == shipped & set(files)
    assert found["sub/b.pt"] == ("sub/b.pt", ".gitignore", "*.pt")
    assert found["gen/x/y.py"] == ("gen/", ".gitignore", "/gen/")
    assert found["sub/big"] == ("sub/big", ".wiiiiideignore", "big")
    assert found["job-1/x"] == ("job-1/", ".wiiiiide-pulled", "")
    assert found["env/bin/python"] == ("env/", "", "")


def test_a_repositorys_ignore_files_hold_in_its_folders(work: Path) -> None:
    (work / ".git").mkdir()
    write(work, {".gitignore": "*.pt\n/exp/b/secret\n", "exp/.gitignore": "*.txt\n"})
    write(work, {"exp/b/x": "1", "exp/b/m.pt": "1", "exp/b/t.txt": "1", "exp/b/secret": "1"})
    assert names(work / "exp" / "b") == ["x"]


def test_ignore_files_above_without_a_repository_do_not_hold(work: Path) -> None:
    write(work, {".gitignore": "*\n"})
    write(work, {"exp/x": "1"})
    assert names(work / "exp") == ["x"]


def test_an_ignored_folder_that_is_submitted_is_shipped(work: Path) -> None:
    (work / ".git").mkdir()
    write(work, {"scratch/x": "1", "scratch/y": "1", ".gitignore": "/scratch/\ny\n"})
    assert names(work / "scratch") == ["x", "y"]


def test_a_broken_ignore_file_is_named(work: Path) -> None:
    write(work, {".wiiiiideignore": "ok\n!\n"})
    with pytest.raises(PackError, match=r"\.wiiiiideignore has a pattern .*'!'"):
        pack(str(work))


def test_an_ignore_file_that_is_none_is_named(work: Path) -> None:
    write(work, {".gitignore": "x" * ((1 << 20) + 1)})
    with pytest.raises(PackError, match=r"\.gitignore has more than"):
        pack(str(work))


def test_sockets_and_pipes_stay_with_a_note(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work, {"a": "1"})
    os.mkfifo(work / "pipe")
    monkeypatch.chdir(work)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
    with packed(work) as made:
        assert made.files == 1
        assert made.notes == (
            "'pipe' is no file, directory or link: left out",
            "'sock' is no file, directory or link: left out",
        )


# ---- what cannot be shipped


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "sub/../../x", "sub/../a"])
def test_a_link_that_leads_outside_is_named_with_the_way_out(work: Path, target: str) -> None:
    write(work, {"a": "1", "sub/b": "1"})
    (work / "sub" / "data").symlink_to("../" + target if target[0] != "/" else target)
    with pytest.raises(PackError, match="'sub/data' is a link to") as caught:
        pack(str(work))
    assert "Add the line '/sub/data' to .wiiiiideignore" in str(caught.value)
    (work / ".wiiiiideignore").write_text("/sub/data\n")
    assert "sub/data" not in names(work)


def test_too_large_names_the_largest_and_the_ignore_file(work: Path) -> None:
    write(
        work,
        {
            "small": "1",
            "data/a": "x" * 90000,
            "data/b": "x" * 90000,
            "ckpt": "x" * 30000,
            "c": "x" * 20,
        },
    )
    with pytest.raises(PackError) as caught:
        pack(str(work), Limits(bytes=100_000))
    sentence = str(caught.value)
    assert "more than 97.7 KiB would be shipped" in sentence
    assert sentence.index("'data'") < sentence.index("'ckpt'") < sentence.index("'c'")
    assert "'small'" not in sentence
    assert f"{work}/.wiiiiideignore" in sentence


def test_too_many_files_name_where_most_are(work: Path) -> None:
    write(work, {"a": "1", "b/x": "1", **{f"many/{n}": "" for n in range(12)}})
    with pytest.raises(
        PackError, match=r"more than 10 files and folders .*'many' 12, '.' 1, 'b' 1"
    ):
        pack(str(work), Limits(files=10))


def test_a_directory_far_over_the_limit_is_not_searched_to_its_end(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, {**{f"d{n}/x": "" for n in range(50)}})
    seen: list[str] = []
    really = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: seen.append(path) or really(path))  # type: ignore[func-returns-value]
    with pytest.raises(PackError, match="too many files"):
        survey(str(work), Limits(files=10))
    assert len(seen) < 20


def test_a_directory_that_is_not_there_is_a_sentence(work: Path) -> None:
    for path in (work / "no", work / "file"):
        (work / "file").write_text("")
        with pytest.raises(PackError, match="is not there, or is no directory"):
            pack(str(path))


def test_what_may_not_be_read_is_named_with_the_way_out(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so the refusal is made up."""
    write(work, {"secret": "1"})
    really = os.open

    def refuse(path: str, *rest: object, **more: object) -> int:
        if str(path).endswith("secret"):
            raise PermissionError(13, "Permission denied", path)
        return really(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PackError, match=r"cannot read .*secret': Permission denied\. .*ignore"):
        pack(str(work))


def test_a_folder_that_may_not_be_read_is_named(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, {"closed/x": "1"})
    really = os.listdir

    def refuse(path: str) -> list[str]:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return really(path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(PackError, match=r"cannot read .*closed': Permission denied"):
        pack(str(work))


def test_a_full_disk_is_a_sentence_and_leaves_nothing(
    work: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, {"a": "1"})

    def full(self: object, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module._Hashed, "write", full)
    with pytest.raises(PackError, match=f"into {temporary}: No space left on device"):
        pack(str(work))


# ---- files that change meanwhile


def _meanwhile(monkeypatch: pytest.MonkeyPatch, path: Path, change: str) -> None:
    """Something happens to a file after it was found, when it is opened."""
    really = os.open

    def opened(name: str, *rest: object, **more: object) -> int:
        if str(name) == str(path) and change == "vanish":
            path.unlink()
        elif str(name) == str(path) and change == "pipe":
            path.unlink()
            os.mkfifo(path)
        return really(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", opened)


def test_a_file_that_went_away_is_left_out_with_a_note(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, {"a": "1", "b": "1"})
    _meanwhile(monkeypatch, work / "a", "vanish")
    with packed(work) as made, tarfile.open(made.path) as archive:
        assert archive.getnames() == ["b"]
        assert made.notes == ("'a' went away meanwhile: left out",)


def test_a_file_that_became_a_pipe_does_not_block(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, {"a": "1"})
    _meanwhile(monkeypatch, work / "a", "pipe")
    with pytest.raises(PackError, match="was replaced while it was read: try again"):
        pack(str(work))


def _while_reading(monkeypatch: pytest.MonkeyPatch, path: Path, size: int) -> None:
    really = module._WholeFile.read

    def read(self: module._WholeFile, wanted: int) -> bytes:
        os.truncate(path, size)
        return really(self, wanted)

    monkeypatch.setattr(module._WholeFile, "read", read)


def test_a_file_that_grows_is_cut_with_a_note(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work, {"a": "12345", "b": "6"})
    _while_reading(monkeypatch, work / "a", 100_000)
    with packed(work) as made, tarfile.open(made.path) as archive:
        assert [info.size for info in archive] == [5, 1]
        content = archive.extractfile("a")
        assert content is not None
        assert content.read() == b"12345"
        assert made.notes == ("'a' changed while it was read: shipped as it was found",)


def test_a_file_that_shrinks_is_an_error(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work, {"a": "12345"})
    _while_reading(monkeypatch, work / "a", 2)
    with pytest.raises(PackError, match="shrank while it was read: try again"):
        pack(str(work))


# ---- the survey


def test_a_survey_reads_no_content(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(work, {"a": "12345", "b/c": "67"})
    (work / "l").symlink_to("a")
    monkeypatch.setattr(module, "_add_file", None)
    found = survey(str(work))
    assert (found.files, found.bytes, found.notes) == (3, 7, ())


def test_too_many_files_name_the_folder_deep_inside_that_has_them(work: Path) -> None:
    write(work, {"data/README": "", **{f"data/raw/images/{n}": "" for n in range(30)}})
    write(work, {f"top{n}": "" for n in range(3)})
    with pytest.raises(PackError, match=r"Most are in: 'data/raw/images' \d+"):
        survey(str(work), Limits(files=15))


def test_what_pull_made_stays_at_home(work: Path) -> None:
    write(work, {"a": "1", "job-3/.wiiiiide-pulled": "", "job-3/model.pt": "1", "job-4/x": "1"})
    assert names(work) == ["a", "job-4/", "job-4/x"]
    assert ("job-3/", ".wiiiiide-pulled") in survey(str(work)).ignored
