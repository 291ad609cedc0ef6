"""docs/job-file.md and docs/job.schema.json: up to date, complete, and their examples work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.jobfiles import read
from tests.kit.made_docs import job_file_page
from wiiiiided.ui.jobfile import schema
from wiiiiided.ui.jobfile.keys import KEYS, SECTIONS
from wiiiiided.ui.jobfile.problem import Invalid

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/job-file.md").read_text(encoding="utf-8")
# A TOML block, and what stands between it and the next block of any kind.
BLOCK = re.compile(r"^```toml\n(.*?)^```$(.*?)(?=^```)", re.DOTALL | re.MULTILINE)

MADE_ANEW = "run python -m tests.kit.made_docs"


def test_the_schema_in_docs_is_up_to_date() -> None:
    assert (ROOT / "docs/job.schema.json").read_text() == schema.as_text(), MADE_ANEW


def test_the_tables_and_answers_in_docs_are_up_to_date() -> None:
    assert job_file_page(PAGE) == PAGE, MADE_ANEW


def test_every_key_is_in_a_table_of_its_section() -> None:
    for section in SECTIONS:
        mark = f"<!-- keys of {section.name or 'the file'} -->"
        assert PAGE.count(mark) == 1, f"{mark} is missing"
        table = PAGE.partition(mark)[2].partition("<!-- end -->")[0]
        for key in KEYS:
            if key.path[:-1] == section.path:
                assert f"\n| `{key.path[-1]}` |" in table, key.name


def test_every_section_has_an_example_with_its_keys() -> None:
    examples = "\n".join(text for text, _ in BLOCK.findall(PAGE))
    for key in KEYS:
        assert re.search(rf"\b{key.path[-1]}\s*=", examples), key.name
    for section in SECTIONS:
        assert f"[{section.name}]" in examples or not section.name


def test_every_example_is_right_or_shown_with_its_problems() -> None:
    right = [text for text, below in BLOCK.findall(PAGE) if "<!-- problems" not in below]
    assert len(right) > 10
    for text in right:
        whole = text if re.search("^.run]", text, re.MULTILINE) else f'run.command = ["x"]\n{text}'
        try:
            read(whole, "job.toml")
        except Invalid as invalid:
            pytest.fail(f"{invalid}\nin\n{text}")


def test_the_page_says_how_to_check_and_what_the_code_is() -> None:
    assert "wiiiiide check job.toml" in PAGE
    assert "#:schema ./job.schema.json" in PAGE
    assert "code 3" in PAGE


def test_the_schema_is_printed_by_its_module() -> None:
    made = _python("-m", "wiiiiided.ui.jobfile.schema", cwd=ROOT)
    assert made.stdout == schema.as_text()
    assert not made.stderr


def test_one_command_makes_them_anew(tmp_path: Path) -> None:
    stale = re.sub(r"\| `command`.*", "| old |", PAGE)
    (tmp_path / "job-file.md").write_text(stale, encoding="utf-8")
    _python("-m", "tests.kit.made_docs", str(tmp_path), cwd=ROOT)
    assert (tmp_path / "job-file.md").read_text(encoding="utf-8") == PAGE
    assert (tmp_path / "job.schema.json").read_text(encoding="utf-8") == schema.as_text()


def test_reading_a_job_file_imports_nothing_heavy() -> None:
    code = "import wiiiiided.ui.jobfile.read, sys; print(*sys.modules)"
    loaded = set(_python("-c", code, cwd=ROOT).stdout.split())
    assert "msgspec" in loaded
    assert not loaded & {"torch", "numpy", "jsonschema", "difflib", "ipaddress", "shlex", "typer"}


def _python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
