"""wiiiiided.toml: defaults without it, every mistake named with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from wiiiiided.cluster.system.settings import BadSettings, Settings, read_settings


def test_no_file_means_the_defaults(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "none.toml") == Settings()


def test_what_the_file_says_holds(tmp_path: Path) -> None:
    path = tmp_path / "wiiiiided.toml"
    limits = 'log = "1MiB"\nkeep = 3\narchive = "2GiB"\noutputs = "1GiB"\n'
    path.write_text(f'log = "verbose"\n[limits]\n{limits}')
    assert read_settings(path) == Settings(
        log="verbose", log_bytes=1 << 20, keep=3, archive_bytes=2 << 30, outputs_bytes=1 << 30
    )


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wiiiiided.toml"
    path.write_text('log = "loud"\nlevel = 3\n[limits]\nkeep = -1\nlog = 5\nqueue = true\n')
    with pytest.raises(BadSettings) as caught:
        read_settings(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert "'loud' is not one of silent, normal, verbose" in lines[0]
    assert "level: unknown; there are log," in lines[1]


@pytest.mark.parametrize("text", [b"log = ", b"\xff\xfe", b"[limits\n"])
def test_what_is_no_toml_is_a_sentence(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "wiiiiided.toml"
    path.write_bytes(text)
    with pytest.raises(BadSettings, match=r"wiiiiided\.toml: "):
        read_settings(path)


def test_a_directory_in_its_place_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="cannot be read"):
        read_settings(tmp_path)
