"""The table of keys against the spec: nothing is missing, and every default is the spec's."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.kit.jobfiles import read
from tests.ui.jobfile.corpus import RUN
from wiiiiided.domain import spec
from wiiiiided.ui.jobfile.keys import KEYS, SECTIONS, TABLE, TABLES, Key, Section
from wiiiiided.ui.jobfile.schema import toml

IDS = [key.name for key in KEYS]


def refuse(message: str, suggestion: str = "", at: str | int | None = None) -> None:
    raise AssertionError(f"{message}; {suggestion}")


def part(job: spec.JobSpec, section: Section) -> Any:
    value: Any = job
    for name in section.path:
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("section", SECTIONS, ids=[section.name for section in SECTIONS])
def test_a_section_has_exactly_the_fields_of_its_part_of_the_spec(section: Section) -> None:
    keys = {key.field for key in KEYS if key.path[:-1] == section.path}
    tables = {one.path[-1] for one in SECTIONS if one.path and one.path[:-1] == section.path}
    assert keys | tables == {field.name for field in msgspec.structs.fields(section.struct)}
    assert not keys & tables


@pytest.mark.parametrize("key", KEYS, ids=IDS)
def test_the_example_of_a_key_is_right(key: Key) -> None:
    key.kind.convert(toml(key.example), refuse)


OPTIONAL = [key for key in KEYS if not key.required and key.name != "name"]


@pytest.mark.parametrize("key", OPTIONAL, ids=[key.name for key in OPTIONAL])
def test_the_default_of_a_key_is_that_of_the_spec(key: Key) -> None:
    wanted = getattr(part(read(RUN, "job.toml"), TABLES[key.path[:-1]]), key.field)
    if key.default:
        assert key.kind.convert(toml(key.default), refuse) == wanted
    else:
        assert wanted in (None, ())
        assert key.absent


@pytest.mark.parametrize("key", KEYS, ids=IDS)
def test_a_key_is_described_in_a_sentence(key: Key) -> None:
    assert key.meaning.endswith(".")
    assert key.kind.words
    assert len(key.meaning) < 150


def test_no_other_name_of_a_key_is_a_key_itself() -> None:
    also = [name for key in KEYS for name in key.also]
    assert len(also) == len(set(also))
    assert not set(also) & {path[-1] for path in (*TABLE, *filter(None, TABLES))}


def test_choices_are_those_of_the_spec() -> None:
    """A choice that the spec does not know would fail only on the wire."""
    for key in KEYS:
        kind = key.kind
        inner = getattr(kind, "item", kind)
        for option in getattr(inner, "options", ()) or getattr(inner, "instead", ()):
            value = f'["{option}"]' if inner is not kind else f'"{option}"'
            extra = ["policy.restart.max=1", 'notify.command=["x"]']
            job = read(RUN, "job.toml", [f"{key.name}={value}", *extra])
            assert msgspec.json.decode(msgspec.json.encode(job), type=spec.JobSpec) == job
