"""`wiiiiide new`: a job file for the script that is here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.jobfiles import read
from tests.ui.cli.kit import Cli


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "digits"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


MAIN = 'if __name__ == "__main__":\n    pass\n'


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"train.py": "", "main.py": "", "a.py": ""}, ("python", "train.py")),
        ({"a.py": "", "main.py": ""}, ("python", "main.py")),
        ({"only.py": "", "setup.py": MAIN, "test_only.py": MAIN}, ("python", "only.py")),
        ({"model.py": "", "go.py": MAIN, "data.py": ""}, ("python", "go.py")),
        ({"all.sh": "", "README": ""}, ("bash", "all.sh")),
        ({"train.py": "", "mine.py": "", ".git/HEAD": "", ".gitignore": "train.py"}, None),
    ],
)
def test_the_likely_script_is_found(
    cli: Cli, folder: Path, files: dict[str, str], command: tuple[str, ...] | None
) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    result = cli("new")
    assert (result.code, result.out) == (0, "")
    assert "wiiiiide submit -f job.toml" in result.err
    spec = read((folder / "job.toml").read_text(), "job.toml")
    assert (spec.name, spec.run.command) == ("digits", command or ("python", "mine.py"))
    assert cli("check", "job.toml").code == 0


def test_a_script_can_be_named(cli: Cli, folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src/fit.py").write_text("")
    assert cli("new", "./src/fit.py").code == 0
    assert 'command = ["python", "src/fit.py"]' in (folder / "job.toml").read_text()


def test_nothing_is_replaced(cli: Cli, folder: Path) -> None:
    (folder / "train.py").write_text("")
    (folder / "job.toml").symlink_to("nowhere")
    result = cli("new")
    assert result.code == 1
    assert "is here already, and is not replaced" in result.err
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize(
    ("names", "words", "said"),
    [
        ((), (), "there is no script in this folder"),
        (("a.py", "b.py"), (), "several scripts could be meant: a.py, b.py"),
        (("a.py", "b.py"), (), "wiiiiide new a.py"),
        (("a.py",), ("b.py",), '"b.py" is not in the working directory; did you mean "a.py"?'),
    ],
)
def test_where_there_is_no_telling_nothing_is_written(
    cli: Cli, folder: Path, names: tuple[str, ...], words: tuple[str, ...], said: str
) -> None:
    for name in names:
        (folder / name).write_text("")
    result = cli("new", *words)
    assert (result.code, (folder / "job.toml").exists()) == (3, False)
    assert said in result.err


def test_a_problem_names_no_line_of_a_file_that_is_not_written(cli: Cli, folder: Path) -> None:
    result = cli("new", "nosuch.py")
    assert result.err.startswith('wiiiiide new: "nosuch.py" is not in the working directory')


def test_a_home_is_no_place_for_a_job(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "train.py").write_text("")
    monkeypatch.setenv("HOME", str(folder))
    assert cli("new").code == 3
    assert not (folder / "job.toml").exists()


def test_every_key_in_a_comment_is_right(cli: Cli, folder: Path) -> None:
    (folder / "train.py").write_text("")
    assert cli("new").code == 0
    text = (folder / "job.toml").read_text()
    open_text, changed = re.subn(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert changed == text.count("\n# ") - 1  # one is a sentence
    assert max(map(len, text.splitlines())) <= 100
    read(open_text, "job.toml")
