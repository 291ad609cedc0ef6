"""A spec that is written down as a job file is read again as the same spec."""

from __future__ import annotations

import tomllib

import pytest

from tests.kit.jobfiles import read
from tests.ui.jobfile.corpus import GOOD
from wiiiiided.ui.jobfile.to_toml import as_toml, toml


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_what_is_written_is_read_again(text: str) -> None:
    spec = read(text, "job.toml")
    assert read(as_toml(spec), "job.toml") == spec


def test_only_what_is_not_by_default_is_written() -> None:
    spec = read('name = "x"\n[run]\ncommand = ["a"]\n[resources]\nnodes = 1\n', "job.toml")
    assert as_toml(spec) == 'name = "x"\n\n[run]\ncommand = ["a"]\n'


@pytest.mark.parametrize(
    "value", ['a "b" \\ \x7f\x1b\n ü 𝄞', ["", "x"], {"odd name": "=", "": ""}, True, 3, 0.5, {}, []]
)
def test_values_come_back(value: object) -> None:
    assert tomllib.loads(f"value = {toml(value)}") == {"value": value}
