"""No text and no option makes the reader raise anything but Invalid, or say what is unprintable."""

from __future__ import annotations

import tomllib
from typing import Any

import jsonschema
import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from tests.kit.jobfiles import read
from tests.ui.jobfile.corpus import BAD, COMPLETE, GOOD
from tests.ui.jobfile.toml_documents import documents, value
from wiiiiided.domain.limits import problems_of
from wiiiiided.domain.spec import JobSpec
from wiiiiided.ui.jobfile.keys import KEYS
from wiiiiided.ui.jobfile.problem import Invalid, Problem
from wiiiiided.ui.jobfile.schema import schema

VALIDATOR = jsonschema.Draft202012Validator(schema())
SLOW = settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

TEXTS = [text for text in (*GOOD.values(), *(bad.text for bad in BAD.values())) if len(text) < 2000]
WORDS = sorted({word for text in TEXTS for word in text.split()})

keys = st.sampled_from(
    [key.name for key in KEYS] + ["run", "policy", "policy.restart", "run.env.A"]
)


def read_safely(text: str, *sets: str) -> None:
    """A spec that travels, and that the daemon takes and the schema, too; or printable problems."""
    spec, problems = _read(text, sets)
    for problem in problems:
        assert str(problem).isprintable()
        assert problem.line is None or 1 <= problem.line <= text.count("\n") + 1
    if spec is None:
        assert problems
        return
    assert msgspec.json.decode(msgspec.json.encode(spec), type=JobSpec) == spec
    assert problems_of(spec) == []
    if not sets:
        document: Any = tomllib.loads(text)
        VALIDATOR.validate(document)


def _read(text: str, sets: tuple[str, ...]) -> tuple[JobSpec | None, tuple[Problem, ...]]:
    try:
        return read(text, "job.toml", sets), ()
    except Invalid as invalid:
        return None, invalid.problems


@SLOW
@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    read_safely(text)


@SLOW
@given(documents())
def test_any_document(text: str) -> None:
    read_safely(text)


@SLOW
@given(st.sampled_from(TEXTS), st.data())
def test_a_file_with_characters_changed(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 4))
        new = data.draw(st.one_of(st.text(max_size=4), st.sampled_from(WORDS)))
        text = text[:at] + new + text[at + cut :]
    read_safely(text)


@SLOW
@given(st.data())
def test_a_file_with_lines_moved_and_left_out(data: st.DataObject) -> None:
    lines = COMPLETE.splitlines()
    kept = data.draw(st.lists(st.sampled_from(lines), unique=True, max_size=12))
    read_safely("\n".join(kept))


@SLOW
@given(keys, value)
def test_any_value_for_any_key(key: str, toml: str) -> None:
    read_safely(f'{key} = {toml}\nrun.command = ["x"]\n')
    read_safely(f"{key} = {toml}\n")


@SLOW
@given(st.lists(st.tuples(keys, st.one_of(st.text(max_size=20), value)), max_size=4))
def test_any_options_over_a_good_file(options: list[tuple[str, str]]) -> None:
    read_safely(COMPLETE, *(f"{key}={text}" for key, text in options))


@SLOW
@given(st.text(max_size=40))
def test_any_option(option: str) -> None:
    read_safely(COMPLETE, option)


@SLOW
@given(st.text(alphabet=st.characters(categories=("Cs", "Cc", "Lu")), max_size=20))
def test_options_with_bytes_that_are_no_text(text: str) -> None:
    for key in ("name", "run.workdir", "run.env.A", "network.interface", "policy.grace", "zzz"):
        read_safely(COMPLETE, f"{key}={text}", text)
    read_safely(text)
