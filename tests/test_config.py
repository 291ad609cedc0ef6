"""The environment variables: read once, and refused by name when they make no sense."""

from __future__ import annotations

import pytest

from wiiiiided.config import Config
from wiiiiided.errors import UsageError


def test_an_empty_environment_gives_the_defaults() -> None:
    assert Config.read({}) == Config()
    empty = dict.fromkeys(
        ["WIIIIIDE_STALL_WARNING_S", "WIIIIIDE_SPIN", "WIIIIIDE_STATS", "WIIIIIDE_LOG"], ""
    )
    assert Config.read(empty) == Config()


def test_every_variable_is_read() -> None:
    read = Config.read(
        {
            "WIIIIIDE_STALL_WARNING_S": "0.25",
            "WIIIIIDE_SPIN": "never",
            "WIIIIIDE_STATS": "/some/file",
            "WIIIIIDE_LOG": "verbose",
        }
    )
    assert read == Config(
        stall_warning_s=0.25, spin="never", stats_file="/some/file", log="verbose"
    )


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIIIIIDE_SPIN", "always")
    assert Config.read().spin == "always"


@pytest.mark.parametrize("text", ["0", "-1", "five", "nan", "inf", "1e12", "5 s", " "])
def test_a_number_of_seconds_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=f"WIIIIIDE_STALL_WARNING_S='{text}'"):
        Config.read({"WIIIIIDE_STALL_WARNING_S": text})


@pytest.mark.parametrize("name", ["WIIIIIDE_SPIN", "WIIIIIDE_LOG"])
def test_a_word_that_is_no_choice_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}='often' is not one of \w+, \w+, \w+"):
        Config.read({name: "often"})
