"""The program's other modes: deleting a job's files, and sending some of them."""

from __future__ import annotations

import fnmatch
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.shims import PROGRAM, helper
from wiiiiided.cluster.shim import collect_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What a job may leave behind."""
    root = tmp_path / "tree"
    for folder in ("runs/a/b", "ckpt", "empty", "locked/inside"):
        (root / folder).mkdir(parents=True)
    for name in (
        "log.txt",
        "model.pt",
        "runs/1.pt",
        "runs/a/2.pt",
        "runs/a/b/3.txt",
        "ckpt/last.pt",
    ):
        (root / name).write_text(name)
    (root / "runs" / ".hidden").write_text("h")
    (root / "locked" / "inside" / "file").write_text("x")
    (root / "link").symlink_to("log.txt")
    (root / "runs" / "link-to-folder").symlink_to("../ckpt")
    (root / "broken").symlink_to("/no/such/file")
    return root


def names(directory: Path, *patterns: str) -> list[str]:
    answer = helper("--tar", str(directory), *patterns)
    assert (answer.returncode, answer.stderr) == (0, b"")
    with tarfile.open(fileobj=io.BytesIO(answer.stdout)) as tar:
        return tar.getnames()


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*.pt"], ["model.pt"]),
        (["**/*.pt"], ["model.pt", "ckpt/last.pt", "runs/1.pt", "runs/a/2.pt"]),
        (["runs/**"], ["runs/.hidden", "runs/1.pt", "runs/link-to-folder", "runs/a/2.pt"]),
        (["runs/*"], ["runs/.hidden", "runs/1.pt", "runs/link-to-folder"]),
        (["runs/a"], ["runs/a/2.pt", "runs/a/b/3.txt"]),
        (["./ckpt/"], ["ckpt/last.pt"]),
        (["ckpt/last.pt", "*.txt"], ["log.txt", "ckpt/last.pt"]),
        (["runs/**/b/*"], ["runs/a/b/3.txt"]),
        (["**/b/**"], ["runs/a/b/3.txt"]),
        (["runs/?.pt", "l[a-o]g.*"], ["log.txt", "runs/1.pt"]),
        (["[!l]*.pt"], ["model.pt"]),
        (["link", "broken"], ["broken", "link"]),
        (["link-to-folder/last.pt", "nothing*", "r[z-a]ns/1.pt"], []),
        (["*"], ["broken", "link", "log.txt", "model.pt"]),
    ],
)
def test_patterns_choose_files(tree: Path, patterns: list[str], expected: list[str]) -> None:
    found = names(tree, *patterns)
    if patterns == ["runs/**"]:
        expected = [*expected, "runs/a/b/3.txt"]
    assert found == expected


def test_files_and_links_arrive_as_they_are(tree: Path) -> None:
    (tree / "model.pt").write_bytes(os.urandom(100_000))
    (tree / "model.pt").chmod(0o750)
    os.utime(tree / "model.pt", (1000, 1000))
    answer = helper("--tar", str(tree), "**")
    with tarfile.open(fileobj=io.BytesIO(answer.stdout)) as tar:
        entry = tar.getmember("model.pt")
        assert (entry.mode, entry.mtime, entry.uid, entry.uname) == (0o750, 1000, 0, "")
        stream = tar.extractfile(entry)
        assert stream is not None
        assert stream.read() == (tree / "model.pt").read_bytes()
        assert tar.getmember("runs/link-to-folder").linkname == "../ckpt"
        assert tar.getmember("runs/link-to-folder").issym()
        assert not [n for n in tar.getnames() if n.startswith("runs/link-to-folder/")]


def test_odd_names_arrive_as_they_are(tmp_path: Path) -> None:
    odd = [b"\xff\xfe", "ü☃".encode(), b"new\nline", b"-rf", b"x" * 200, b"*"]
    for name in odd:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("1")
    assert sorted(map(os.fsencode, names(tmp_path, "**"))) == sorted(odd)


def test_what_is_no_file_is_left_out(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    assert names(tree, "pipe", "empty", "model.pt") == ["model.pt"]


def test_a_file_that_shrinks_while_it_is_sent_is_filled_up() -> None:
    steady = collect_files._FixedLengthFile(io.BytesIO(b"abc"))
    assert steady.read(2) == b"ab"
    assert steady.read(4) == b"c\0\0\0"


@pytest.mark.needs("root")
def test_what_cannot_be_read_is_named(tree: Path) -> None:
    (tree / "model.pt").chmod(0)
    for parent in (tree, *tree.parents[:-2]):
        parent.chmod(0o755)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import os, wiiiiided.cluster.shim.collect_files as collect, encodings.idna\n"
        "os.setuid(12345); sys.exit(collect.main(sys.argv[2], ['*.pt', '*.txt']))"
    )
    root = str(Path(PROGRAM).parents[3])
    command = [sys.executable, "-c", program, root, str(tree)]
    answer = subprocess.run(command, capture_output=True, check=False)
    assert answer.returncode == 1
    assert answer.stderr == b"model.pt was left out: Permission denied\n"
    with tarfile.open(fileobj=io.BytesIO(answer.stdout)) as tar:
        assert tar.getnames() == ["log.txt"]


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "a/../../b", "", "x" * 1001])
def test_a_pattern_that_leads_out_is_refused(tree: Path, pattern: str) -> None:
    answer = helper("--tar", str(tree), pattern)
    assert (answer.returncode, answer.stdout) == (2, b"")
    assert answer.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "pattern", ["*" * 500 + "b", "*a" * 200 + "b", "**/a/" * 90 + "b", "?*" * 99]
)
def test_a_malicious_pattern_does_not_take_for_ever(tmp_path: Path, pattern: str) -> None:
    (tmp_path / ("a" * 98)).touch()
    deep = tmp_path.joinpath(*["a"] * 100)
    deep.mkdir(parents=True)
    (deep / "c").touch()
    assert names(tmp_path, pattern) == []


@given(st.lists(st.sampled_from("ab*?/"), max_size=8), st.lists(st.sampled_from("ab/"), max_size=8))
def test_patterns_mean_what_a_slow_reading_says(pattern: list[str], path: list[str]) -> None:
    wanted = [part for part in "".join(pattern).split("/") if part]
    parts = [part for part in "".join(path).split("/") if part]
    text = "".join(pattern)
    if not wanted or not parts or not set(text) & set("*?"):
        return
    found = collect_files._expression(text).fullmatch("/".join(parts)) is not None
    assert found == slowly(wanted, parts)


def slowly(wanted: list[str], parts: list[str]) -> bool:
    """The rules of patterns, one after the other, however long it takes."""
    if not wanted or not parts:
        return not wanted and not parts
    if wanted[0] == "**":
        rest = wanted[1:]
        if not rest:
            return True
        return any(slowly(rest, parts[skipped:]) for skipped in range(len(parts)))
    return fnmatch.fnmatchcase(parts[0], wanted[0]) and slowly(wanted[1:], parts[1:])


def test_a_tree_is_removed_whatever_its_modes(tree: Path) -> None:
    (tree / "locked" / "inside").chmod(0)
    (tree / "locked").chmod(0o100)
    (tree / "ckpt").chmod(0o400)
    outside = tree.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    (tree / "escape").symlink_to(outside)
    answer = helper("--remove", str(tree))
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert not tree.exists()
    assert (outside / "precious").exists()


@pytest.mark.needs("root")
def test_a_user_can_remove_what_it_locked_itself_out_of(tree: Path) -> None:
    for folder, _, files in os.walk(tree):
        for path in (folder, *(f"{folder}/{file}" for file in files)):
            os.lchown(path, 12345, 12345)
    (tree / "locked" / "inside").chmod(0)
    (tree / "locked").chmod(0)
    (tree / "ckpt").chmod(0o400)
    tree.chmod(0o500)
    for parent in tree.parents[:-2]:
        parent.chmod(0o755)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import os, wiiiiided.cluster.shim.file_trees as trees\n"
        "os.setuid(12345); trees.remove(sys.argv[2])"
    )
    root = str(Path(PROGRAM).parents[3])
    subprocess.run([sys.executable, "-c", program, root, str(tree)], check=True)
    # Its parent is another's: the folder itself is left, empty.
    assert os.listdir(tree) == []


def test_folders_nested_deeper_than_descriptors_go_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "deep"
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    answer = helper("--remove", str(root))
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert not root.exists()


def test_a_link_is_removed_and_not_what_it_leads_to(tree: Path) -> None:
    link = tree.parent / "link"
    link.symlink_to(tree)
    assert helper("--remove", str(link)).returncode == 0
    assert not link.is_symlink()
    assert (tree / "model.pt").exists()


def test_what_is_not_there_is_removed_already(tmp_path: Path) -> None:
    assert helper("--remove", str(tmp_path / "none" / "at all")).returncode == 0
    assert helper("--remove", str(tmp_path / "none")).returncode == 0


@pytest.mark.needs("root", "mount")
def test_a_file_system_mounted_inside_is_not_emptied(tree: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tree / "empty"], check=True)
    try:
        (tree / "empty" / "precious").write_text("x")
        answer = helper("--remove", str(tree))
        assert answer.returncode == 1
        assert b"has another file system mounted at 'empty'" in answer.stderr
        assert (tree / "empty" / "precious").exists()
    finally:
        subprocess.run(["umount", tree / "empty"], check=True)


def test_a_link_by_full_path_into_the_folder_is_sent_as_a_relative_one(
    tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to(tmp_path)
    (tree / "runs" / "latest").symlink_to(tree / "runs" / "a" / "2.pt")
    (tree / "top").symlink_to(tree)
    (tree / "runs" / "other").symlink_to(f"{tree}-other/x")
    (tree / "runs" / "tricky").symlink_to(f"{tree}/runs/../../x")
    for directory in (tree, tmp_path / "alias" / "tree"):
        answer = helper("--tar", str(directory), "runs/*", "top")
        with tarfile.open(fileobj=io.BytesIO(answer.stdout)) as tar:
            assert tar.getmember("runs/latest").linkname == "../runs/a/2.pt"
            assert tar.getmember("top").linkname == "."
            assert tar.getmember("runs/other").linkname == f"{tree}-other/x"
            assert tar.getmember("runs/tricky").linkname == f"{tree}/runs/../../x"
