"""Tars of several nodes, made one: nothing is lost, nothing comes twice."""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from wiiiiided.cluster.handlers.merge_tars import END, BadTar, Merge, TarMember, TarReader, header
from wiiiiided.cluster.shim.collect_files import tar

Files = Mapping[str, bytes | str]  # bytes: a file's content; text: where a link leads


def packed(files: Files) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def unpacked(data: bytes) -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for entry in archive:
            assert entry.name not in found, f"{entry.name} comes twice"
            file = archive.extractfile(entry) if entry.isfile() else None
            found[entry.name] = entry.linkname if file is None else file.read()
    return found


def merge_of(tmp_path: Path, nodes: Mapping[str, bytes], piece: int = 1 << 17) -> bytes:
    merge = Merge(tmp_path)
    out = b""
    for node, data in nodes.items():
        merge.begin(node)
        for start in range(0, len(data), piece):
            out += b"".join(merge.feed(data[start : start + piece]))
        merge.finish()
    return out + END


def merged(tmp_path: Path, nodes: Mapping[str, Files], piece: int = 1 << 17) -> Files:
    tars = {node: packed(files) for node, files in nodes.items()}
    return unpacked(merge_of(tmp_path, tars, piece))


def test_what_only_one_node_has_keeps_its_name(tmp_path: Path) -> None:
    found = merged(tmp_path, {"a": {"runs/0.pt": b"zero"}, "b": {"runs/1.pt": b"one"}})
    assert found == {"runs/0.pt": b"zero", "runs/1.pt": b"one"}


def test_the_same_file_comes_once(tmp_path: Path) -> None:
    files = {"train.py": b"import torch", "big": os.urandom(3 << 20), "empty": b""}
    assert merged(tmp_path, {"a": files, "b": files, "c": files}) == files
    assert list(tmp_path.iterdir()) == []


def test_another_content_comes_with_its_nodes_name(tmp_path: Path) -> None:
    found = merged(
        tmp_path,
        {
            "a": {"log": b"of a", "longer": b"1"},
            "b": {"log": b"of b", "longer": b"12"},
            "c": {"log": b"of c", "longer": b"1"},
        },
    )
    assert found == {
        "log": b"of a",
        "log.b": b"of b",
        "log.c": b"of c",
        "longer": b"1",
        "longer.b": b"12",
    }


def test_a_large_file_that_differs_only_at_its_end_comes_whole(tmp_path: Path) -> None:
    begin = os.urandom(5 << 20)
    found = merged(tmp_path, {"a": {"m.pt": begin + b"a"}, "b": {"m.pt": begin + b"b"}})
    assert found == {"m.pt": begin + b"a", "m.pt.b": begin + b"b"}
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_is_made_longer(tmp_path: Path) -> None:
    found = merged(tmp_path, {"a": {"x": b"1", "x.b": b"2"}, "b": {"x": b"3", "x.b": b"4"}})
    assert found == {"x": b"1", "x.b": b"2", "x.b.b": b"3", "x.b.b.b": b"4"}


def test_a_file_where_another_node_has_a_folder_comes_beside_it(tmp_path: Path) -> None:
    found = merged(
        tmp_path,
        {"a": {"out": b"file", "dir/x": b"x"}, "b": {"out/1": b"1", "out/2": b"2", "dir": b"dir"}},
    )
    assert found == {
        "out": b"file",
        "dir/x": b"x",
        "out.b/1": b"1",
        "out.b/2": b"2",
        "dir.b": b"dir",
    }


def test_links_are_compared_by_where_they_lead(tmp_path: Path) -> None:
    found = merged(
        tmp_path,
        {
            "a": {"latest": "1.pt", "same": "x", "mixed": "y"},
            "b": {"latest": "2.pt", "same": "x", "mixed": b""},
        },
    )
    assert found == {
        "latest": "1.pt",
        "same": "x",
        "mixed": "y",
        "latest.b": "2.pt",
        "mixed.b": b"",
    }


@pytest.mark.parametrize("piece", [1, 7, 511, 512, 513, 100_000])
def test_pieces_may_end_anywhere(tmp_path: Path, piece: int) -> None:
    long_name = "/".join(["folder" * 10] * 5) + "/ümläut"
    first: Files = {long_name: b"1" * 1000, "x": b"2" * 512, "l": long_name}
    second: Files = {long_name: b"1" * 1000, "x": b"3" * 512, "y": b""}
    found = merged(tmp_path, {"a": first, "b": second}, piece)
    assert found == {**first, "x.b": b"3" * 512, "y": b""}


def test_what_the_shim_packs_can_be_merged(tmp_path: Path) -> None:
    """Names that are no text, links and modes included."""
    work = tmp_path / "work"
    (work / "runs").mkdir(parents=True)
    (work / "runs" / "1.pt").write_bytes(b"weights")
    (work / "runs" / "1.pt").chmod(0o755)
    (work / "runs" / "latest").symlink_to("1.pt")
    (Path(os.fsdecode(os.fsencode(work) + b"/\xff\xfe"))).write_bytes(b"odd")
    out = io.BytesIO()
    assert tar(str(work), ["**"], out) == []
    data = merge_of(tmp_path, {"a": out.getvalue(), "b": out.getvalue()}, 1000)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        entries = {entry.name: entry for entry in archive}
    assert sorted(map(os.fsencode, entries)) == [b"runs/1.pt", b"runs/latest", b"\xff\xfe"]
    assert entries["runs/1.pt"].mode == 0o755
    assert entries["runs/latest"].linkname == "1.pt"


def test_a_tar_that_ends_in_the_middle_is_noticed(tmp_path: Path) -> None:
    data = packed({"x": b"1" * 5000})
    merge = Merge(tmp_path)
    merge.begin("a")
    _ = list(merge.feed(data[:2000]))
    assert not merge.is_between
    with pytest.raises(BadTar, match="in the middle"):
        merge.finish()


def test_what_comes_after_the_end_is_passed_over_and_not_kept() -> None:
    reader = TarReader()
    assert [found.name for found in reader.feed(packed({"x": b""})) if isinstance(found, TarMember)]
    assert reader.ended
    for _ in range(3):
        assert list(reader.feed(packed({"y": b"more"}))) == []
    assert not reader._buffer


def test_only_files_and_links_pass() -> None:
    for kind in (tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.LNKTYPE):
        entry = tarfile.TarInfo("x")
        entry.type, entry.linkname = kind, "y"
        with pytest.raises(BadTar):
            list(TarReader().feed(entry.tobuf()))


def test_a_header_that_lies_is_refused_and_never_kept_for() -> None:
    huge = tarfile.TarInfo("x")
    huge.type, huge.size = tarfile.XHDTYPE, 1 << 40
    with pytest.raises(BadTar, match="too large"):
        list(TarReader().feed(huge.tobuf(tarfile.GNU_FORMAT)))


def test_garbage_is_refused_whatever_it_is() -> None:
    chance = random.Random(1)
    whole = packed({"folder/" + "n" * 150: b"content" * 300, "l": "t" * 150})
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            found = list(TarReader().feed(bytes(data)))
        except BadTar:
            continue
        assert all(isinstance(one, TarMember | bytes | None) for one in found)


def test_a_header_says_what_the_entry_says() -> None:
    entry = TarMember("a/b", 3, 0o640, 17)
    (found, *_) = TarReader().feed(header(entry) + b"xyz" + bytes(509))
    assert found == entry


def test_more_files_than_can_be_compared_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.merge_tars.MOST_FILES", 10)
    with pytest.raises(BadTar, match="name fewer"):
        merged(tmp_path, {"a": {f"{n}": b"" for n in range(20)}})


def test_a_name_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTar, match="more than 4096"):
        merge_of(tmp_path, {"a": packed({"a/" * 3000: b"deep"})})
    with pytest.raises(BadTar, match="more than 4096"):
        merge_of(tmp_path, {"a": packed({"link": "x" * 5000})})


def test_a_name_that_comes_again_and_again_is_refused(tmp_path: Path) -> None:
    once = packed({"log": b"x"}).rstrip(b"\0").ljust(1024, b"\0")
    many = b"".join(
        header(TarMember("log", 1, 0o644, 0)) + bytes([n]).ljust(512, b"\0") for n in range(200)
    )
    assert unpacked(merge_of(tmp_path, {"a": once + END}))
    with pytest.raises(BadTar, match="too often"):
        merge_of(tmp_path, {"a": many + END})


def test_a_file_too_large_to_be_held_back_passes_under_its_nodes_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wiiiiided.cluster.handlers.merge_tars.HELD_BYTES", 1000)
    same = {"big": bytes(2000), "small": bytes(1000)}
    found = merged(tmp_path, {"a": same, "b": same})
    assert set(found) == {"big", "big.b", "small"}
