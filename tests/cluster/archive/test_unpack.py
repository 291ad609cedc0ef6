"""Unpacking archives of strangers: what is right arrives whole, what is wrong touches nothing."""

from __future__ import annotations

import contextlib
import io
import os
import random
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.archive.archives import Dribble, Item, directory, entry, link, patched, tar
from tests.kit.examples import examples
from tests.kit.leaks import open_descriptors
from wiiiiided.cluster.archive.unpack import UnpackError, unpack


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory to unpack into, with something beside it that must not change."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("precious")
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def into(place: Path, archive: bytes, limit_bytes: int = 1 << 20, limit_files: int = 100) -> None:
    unpack(io.BytesIO(archive), place, limit_bytes=limit_bytes, limit_files=limit_files)


def refused(place: Path, archive: bytes, sentence: str, **limits: int) -> None:
    """Refused with this sentence; the world outside is as it was."""
    with pytest.raises(UnpackError, match=sentence) as caught:
        into(place, archive, **limits)
    assert "\n" not in str(caught.value)
    outside = place.parent / "outside"
    assert sorted(os.listdir(place.parent)) == ["in", "outside"]
    assert os.listdir(outside) == ["precious"]
    assert (outside / "precious").read_text() == "precious"


# ---- what is right


def test_files_directories_and_links_arrive(place: Path) -> None:
    into(
        place,
        tar(
            directory("empty"),
            ("a.txt", b"one"),
            ("deep/er/b.bin", bytes(100_000)),
            link("deep/up", "../a.txt"),
            link("dangling", "not/there"),
        ),
    )
    assert (place / "empty").is_dir()
    assert (place / "a.txt").read_bytes() == b"one"
    assert (place / "deep/er/b.bin").read_bytes() == bytes(100_000)
    assert os.readlink(place / "deep/up") == "../a.txt"
    assert os.readlink(place / "dangling") == "not/there"


def test_the_directory_is_made_when_it_is_missing(place: Path) -> None:
    into(place / "new", tar(("a", b"x")))
    assert (place / "new" / "a").read_bytes() == b"x"


def test_an_empty_archive_is_an_archive(place: Path) -> None:
    into(place, tar())
    assert os.listdir(place) == []


def test_an_entry_for_the_directory_itself_changes_nothing(place: Path) -> None:
    into(place, tar(directory("."), directory("./"), ("./a", b"x")))
    assert os.listdir(place) == ["a"]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_every_format_of_tar_is_read(place: Path, format: int) -> None:
    name = "/".join(["folder-of-some-length"] * 6) + "/file"  # over 100 bytes: a prefix in ustar
    into(place, tar((name, b"x"), ("ü", b"y"), format=format))
    assert (place / name).read_bytes() == b"x"
    assert (place / "ü").read_bytes() == b"y"


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_very_long_names_and_targets_arrive(place: Path, format: int) -> None:
    name = "/".join(["n" * 250] * 8)
    target = "/".join(["t" * 250] * 8)
    into(place, tar((name, b"x"), link("link", target), format=format))
    assert (place / name).read_bytes() == b"x"
    assert os.readlink(place / "link") == target


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"new\nline", b"tab\t\x1b[2J", b" ", b"\\", b"..."])
def test_names_that_are_not_text_arrive(place: Path, raw: bytes) -> None:
    into(place, tar((raw.decode("utf-8", "surrogateescape"), b"x")))
    assert os.listdir(os.fsencode(place)) == [raw]


def test_a_stream_may_give_little_at_a_time(place: Path) -> None:
    archive = tar(("a" * 150, bytes(1000)), ("b", b"x"))
    unpack(Dribble(archive), place, limit_bytes=1 << 20, limit_files=10)
    assert (place / ("a" * 150)).read_bytes() == bytes(1000)


def test_times_are_kept_and_impossible_ones_are_not(place: Path) -> None:
    far = entry("far", mtime=1 << 40)
    before = entry("before", mtime=-5)
    into(place, tar((entry("a", mtime=1_234_567_890), b""), (far, b""), (before, b"")))
    assert (place / "a").stat().st_mtime == 1_234_567_890
    assert (place / "far").stat().st_mtime == 1 << 33
    assert (place / "before").stat().st_mtime == 0


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1777, 0o777, 0o700, 0o100])
def test_executables_stay_so_without_any_special_bit(place: Path, mode: int) -> None:
    into(place, tar((entry("a", mode=mode, uid=12345, gid=12345), b"")))
    found = (place / "a").stat()
    assert stat.S_IMODE(found.st_mode) & ~0o755 == 0
    assert found.st_mode & 0o100
    assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o000, 0o6644, 0o011])
def test_plain_files_are_never_executable(place: Path, mode: int) -> None:
    into(place, tar((entry("a", mode=mode), b"")))
    assert stat.S_IMODE((place / "a").stat().st_mode) & ~0o644 == 0


def test_descriptors_are_all_closed(place: Path) -> None:
    before = set(open_descriptors())
    into(place, tar(("a/b/c/d", b"x"), ("a/b/e", b"x"), directory("z")))
    with pytest.raises(UnpackError):
        into(place / "other", tar(("a/b/c/d", b"x"), ("a/b/c/d/e", b"x")))
    # Fewer is no fault: what earlier tests left may have been collected meanwhile.
    assert not set(open_descriptors()) - before


# ---- names


@pytest.mark.parametrize(
    "name", ["/etc/x", "//x", "..", "../x", "a/../../x", "a/../b", "./../x", "../outside/precious"]
)
def test_a_name_that_leads_outside_is_refused(place: Path, name: str) -> None:
    refused(place, tar((name, b"x")), "entry outside of its directory")
    refused(place, tar(directory(name)), "entry outside of its directory")


@pytest.mark.parametrize("name", ["", ".", "./", "/"])
def test_a_file_without_a_name_is_refused(place: Path, name: str) -> None:
    refused(place, patched(tar(("x", b"")), _named(name)), "entry outside of its directory")


def _named(name: str):  # type: ignore[no-untyped-def]
    def change(header: bytearray) -> None:
        header[:100] = name.encode().ljust(100, b"\0")

    return change


def test_a_zero_in_a_long_name_is_refused(place: Path) -> None:
    info = entry("x")
    info.pax_headers = {"path": "a\0b"}
    refused(place, tar((info, b"")), "entry outside of its directory")


def test_a_name_the_file_system_does_not_take_is_a_sentence(place: Path) -> None:
    refused(place, tar(("n" * 300, b"x")), "cannot write 'nnn.*: File name too long")


# ---- links


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("l", "/etc"),
        ("l", ".."),
        ("l", "../outside"),
        ("l", "./../outside"),
        ("d/l", "../.."),
        ("d/l", "../../outside"),
        ("l", "d/.."),  # by its letters inside; d may be a link that leads elsewhere
        ("l", "d/../../outside"),
        ("l", ""),
    ],
)
def test_a_link_that_leads_outside_is_refused(place: Path, name: str, target: str) -> None:
    refused(place, tar(link(name, target)), "link that leads outside|entry")


def test_a_chain_of_links_cannot_climb(place: Path) -> None:
    """Each link looks harmless alone: up is inside, and m is "d" by its letters."""
    archive = tar(directory("d"), link("d/up", ".."), link("m", "d/up/.."), ("m/x", b"x"))
    refused(place, archive, "link that leads outside")


@pytest.mark.parametrize(
    "items",
    [
        (link("l", "d"), ("l/x", b"x")),
        (directory("d"), link("l", "d"), ("l/x", b"x")),
        (directory("d"), link("l", "d"), directory("l/x")),
        (directory("d"), link("l", "d"), link("l/x", "y")),
        (directory("d"), link("l", "d"), directory("l")),
        (directory("d"), link("l", "d"), ("l/./x", b"x")),
        (("f", b""), ("f/x", b"x")),
        (link("l", "."), ("l/l/l/x", b"x")),
    ],
)
def test_nothing_is_written_through_a_link_or_a_file(place: Path, items: tuple[Item, ...]) -> None:
    refused(place, tar(*items), "below something that is no directory")


@pytest.mark.parametrize(
    "items",
    [
        (("a", b"1"), ("a", b"2")),
        (("a", b"1"), ("./a", b"2")),
        (link("a", "b"), ("a", b"2")),
        (("a", b"1"), link("a", "b")),
        (link("a", "b"), link("a", "c")),
        (directory("a"), ("a", b"2")),
        (("a", b"1"), (entry("a/"), b"2")),
    ],
)
def test_nothing_is_overwritten(place: Path, items: tuple[Item, ...]) -> None:
    refused(place, tar(*items), "is there twice")


def test_a_link_that_was_made_meanwhile_is_not_followed(place: Path) -> None:
    (place / "a").symlink_to("../outside")
    refused(place, tar(("a/precious", b"changed")), "below something that is no directory")
    (place / "b").symlink_to("../outside/precious")
    refused(place, tar(("b", b"changed")), "is there twice")


def test_a_directory_may_stand_there_twice(place: Path) -> None:
    into(place, tar(directory("a"), ("a/x", b"1"), directory("a"), ("a/y", b"2")))
    assert sorted(os.listdir(place / "a")) == ["x", "y"]


def test_names_that_differ_in_case_are_different_files(place: Path) -> None:
    into(place, tar(directory("A"), link("a", "A"), ("A/x", b"1")))
    assert (place / "A" / "x").read_bytes() == b"1"


# ---- kinds


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a named pipe"),
        (tarfile.CONTTYPE, "of a kind that is never shipped"),
        (tarfile.GNUTYPE_SPARSE, "of a kind that is never shipped"),
        (tarfile.XGLTYPE, "of a kind that is never shipped"),
        (b"?", "of a kind that is never shipped"),
    ],
)
def test_other_kinds_are_refused(place: Path, kind: bytes, what: str) -> None:
    def change(header: bytearray) -> None:
        header[156:157] = kind
        header[157:165] = b"a".ljust(8, b"\0")

    refused(place, patched(tar(("x", b"")), change), f"an entry that is {what}: 'x'")


@pytest.mark.parametrize("target", ["a", "../outside/precious", "l"])
def test_hard_links_are_refused_wherever_they_lead(place: Path, target: str) -> None:
    hard = entry("h", tarfile.LNKTYPE, linkname=target)
    refused(place, tar(("a", b"x"), link("l", "a"), hard), "is a hard link: 'h'")


@pytest.mark.parametrize("key", ["GNU.sparse.major", "GNU.sparse.map", "GNU.sparse.size"])
def test_sparse_files_are_refused(place: Path, key: str) -> None:
    info = entry("x")
    info.pax_headers = {key: "1"}
    refused(place, tar((info, b"123")), "never shipped: 'x'")


def test_a_link_or_directory_with_content_is_refused(place: Path) -> None:
    for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE):

        def change(header: bytearray, kind: bytes = kind) -> None:
            header[156:157] = kind

        refused(place, patched(tar(("x", b"123")), change), "with content")


# ---- limits


def test_more_bytes_than_allowed_are_refused_before_they_are_written(place: Path) -> None:
    archive = tar(("a", bytes(600)), ("b", bytes(600)))
    refused(place, archive, "more than 1000 bytes", limit_bytes=1000)
    assert not (place / "b").exists()


def test_exactly_as_many_bytes_as_allowed_arrive(place: Path) -> None:
    into(place, tar(("a", bytes(600)), ("b", bytes(400))), limit_bytes=1000)
    assert (place / "b").stat().st_size == 400


def test_a_size_that_lies_is_refused_by_the_limit(place: Path) -> None:
    def huge(header: bytearray) -> None:
        header[124:136] = b"\x80" + (1 << 80).to_bytes(11, "big")

    refused(place, patched(tar(("a", b"x")), huge), "more than 1048576 bytes")
    assert os.listdir(place) == []


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, b"L", b"K"])
def test_a_long_header_is_not_kept_in_memory(place: Path, kind: bytes) -> None:
    def long(header: bytearray) -> None:
        header[156:157] = kind
        header[124:136] = b"%011o\0" % (1 << 32)

    refused(place, patched(tar(("a", b"x")), long), "a header of 4294967296 bytes")


def test_more_entries_than_allowed_are_refused(place: Path) -> None:
    archive = tar(*((f"f{n}", b"") for n in range(11)))
    refused(place, archive, "more than 10 entries", limit_files=10)
    assert len(os.listdir(place)) == 10


def test_directories_that_a_name_implies_count_too(place: Path) -> None:
    refused(place, tar(("/".join("d" * 50), b"")), "more than 10 entries", limit_files=10)


# ---- damage


def test_an_archive_cut_anywhere_is_refused(place: Path) -> None:
    archive = tar(("a", bytes(700)), ("n" * 200, b"x"), link("l", "a"))
    end = archive.rstrip(b"\0")
    for length in range(0, len(end) + 511, 61):
        if length % 512 == 0 and length > len(end):
            continue
        here = place / str(length)
        with pytest.raises(UnpackError, match="cut off"):
            into(here, archive[:length])


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 512, b"\x1f\x8b" + bytes(600), b"PK" * 900])
def test_what_is_no_archive_is_refused(place: Path, data: bytes) -> None:
    refused(place, data, "cut off|not a tar archive")


def test_garbage_behind_a_file_is_refused(place: Path) -> None:
    archive = tar(("a", b"x"))[:1024]
    refused(place, archive + b"g" * 1024, "not a tar archive, or a damaged one")


@pytest.mark.parametrize("field", [b"xyz", b"-1", b"\xff" * 11, b"9999"])
def test_a_number_that_is_none_is_refused(place: Path, field: bytes) -> None:
    def change(header: bytearray) -> None:
        header[124:136] = field.ljust(12, b"\0")

    refused(place, patched(tar(("a", b"x")), change), "a number is none")


@pytest.mark.parametrize(
    "record",
    [b"x", b"5 a=", b"99 path=a\n", b"0 path=a\n", b"8 path=a\n", b"10 pathaa\n", b"-9 path=a\n"],
)
def test_a_broken_record_is_refused(place: Path, record: bytes) -> None:
    def change(header: bytearray) -> None:
        header[156:157] = b"x"

    archive = patched(tar(("a", record)), change)
    refused(place, archive, "a header's record is broken")


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 1 << 32), flips=st.integers(1, 20))
def test_a_damaged_archive_is_a_sentence_or_an_archive(
    tmp_path: Path, seed: int, flips: int
) -> None:
    """Whatever bytes change: no other exception, and nothing outside."""
    chance = random.Random(seed)
    archive = bytearray(
        tar(directory("d"), ("d/a", b"x" * 600), link("d/l", "../d/a"), ("n" * 150, b"y"))
    )
    for _ in range(flips):
        archive[chance.randrange(4096)] = chance.choice([0, 32, 47, 46, 48, 55, 255, 128, 61, 10])
    root = tmp_path / f"{seed}-{flips}"
    root.mkdir(exist_ok=True)
    place = root / str(len(os.listdir(root)))
    with contextlib.suppress(UnpackError):
        into(place / "in", bytes(archive))
    assert os.listdir(place) == ["in"]


def test_a_directory_that_cannot_be_made_is_a_sentence(place: Path) -> None:
    (place / "file").write_text("")
    with pytest.raises(UnpackError, match=r"cannot unpack into .*file/x: Not a directory"):
        into(place / "file" / "x", tar())


def test_a_full_disk_is_a_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    refused(place, tar(("a", b"x")), "cannot write 'a': No space left on device")


def test_unpacking_needs_nothing_but_the_standard_library() -> None:
    """The shim runs without site-packages."""
    root = str(Path(__file__).parents[3])
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import wiiiiided.cluster.archive.unpack as unpacking\n"
        "print(*(n for n in sys.modules if n.startswith('wiiiiided')), unpacking.unpack.__name__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, root],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert set(done.stdout.split()) == {
        *(
            "wiiiiided",
            "wiiiiided.cluster",
            "wiiiiided.cluster.archive",
            "wiiiiided.cluster.archive.unpack",
            "wiiiiided.cluster.archive.tar_entries",
        ),
        *("wiiiiided.cluster.archive.safe_paths", "unpack"),
    }


def test_links_that_lead_outside_are_left_out_where_that_is_wanted(place: Path) -> None:
    archive = tar(("a", b"x"), link("bad", "/etc"), link("up", "../x"), link("good", "a"))
    left_out: list[str] = []
    unpack(io.BytesIO(archive), place / "in", limit_bytes=100, limit_files=10, left_out=left_out)
    assert left_out == ["'bad' -> '/etc'", "'up' -> '../x'"]
    assert sorted(os.listdir(place / "in")) == ["a", "good"]
