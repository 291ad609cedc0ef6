"""Good files become specs, bad ones are answered word for word; and the schema agrees."""

from __future__ import annotations

import contextlib
import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from tests.kit.jobfiles import read
from tests.ui.jobfile.corpus import BAD, GOOD, LOOKED, Bad, Seen
from wiiiiided.domain.spec import JobSpec
from wiiiiided.ui.cli.loaded_job import Shipped
from wiiiiided.ui.jobfile.problem import Invalid
from wiiiiided.ui.jobfile.read import examine
from wiiiiided.ui.jobfile.schema import schema

VALIDATOR = jsonschema.Draft202012Validator(schema())


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_a_good_file_becomes_a_spec_that_survives_the_wire(text: str) -> None:
    spec = read(text, "job.toml")
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_file_is_answered_word_for_word(bad: Bad) -> None:
    with pytest.raises(Invalid) as caught:
        read(bad.text, "job.toml")
    assert [str(problem) for problem in caught.value.problems] == list(bad.says)


@pytest.mark.parametrize("seen", LOOKED.values(), ids=LOOKED.keys())
def test_a_command_is_looked_for_in_its_folder(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in seen.files:
        name, _, content = entry.lstrip("!").partition("=")
        made = tmp_path / name
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(content or "#!/bin/sh\n")
        made.chmod(0o755 if entry[0] == "!" else 0o644)
    monkeypatch.chdir(tmp_path)
    text = f"[run]\ncommand = {seen.command}\n{seen.more}"
    try:
        said = [f"note: {one}" for one in examine(text, "job.toml", (), Shipped).warnings]
    except Invalid as invalid:
        said = [str(problem) for problem in invalid.problems]
    assert [one.replace("job.toml:2: run.command", "") for one in said] == list(seen.says)


ODD = (
    "\\u0000",
    "a\\u0000b.py",
    "x" * 5000,
    "",
    ".",
    "..",
    "/",
    "-",
    "--",
    "~",
    "a b",
    ".x",
    "é.py",
)


def test_no_word_of_a_command_is_too_odd_to_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ("%", "% x", "./%", "python %", "python -m %", "bash %", "torchrun %")
    for line, odd in itertools.product(lines, ODD):
        command = ", ".join(f'"{word}"'.replace("%", odd) for word in line.split())
        with contextlib.suppress(Invalid):
            examine(f"[run]\ncommand = [{command}]\n", "job.toml", (), Shipped)


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_the_schema_accepts_what_the_checker_accepts(text: str) -> None:
    VALIDATOR.validate(tomllib.loads(text))


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_the_schema_refuses_what_a_schema_can_see(bad: Bad) -> None:
    document: Any = tomllib.loads(bad.text)
    assert VALIDATOR.is_valid(document) is not bad.schema_sees


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.Draft4Validator.check_schema(
        {**schema(), "$schema": "http://json-schema.org/draft-04/schema#"}
    )


def test_every_pattern_of_the_schema_compiles_and_is_anchored() -> None:
    patterns = list(_patterns(schema()))
    assert len(patterns) > 10
    for pattern in patterns:
        re.compile(pattern)
        assert pattern[0] == "^"
        assert pattern[-1] == "$"


def _patterns(node: Any) -> list[str]:
    if isinstance(node, list):
        return [pattern for one in node for pattern in _patterns(one)]
    if not isinstance(node, dict):
        return []
    own = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
    own += list(node.get("patternProperties", {}))
    return own + [pattern for one in node.values() for pattern in _patterns(one)]
