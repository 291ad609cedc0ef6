"""What is filled into notify.command, and what stays."""

from __future__ import annotations

import pytest

from wiiiiided.domain.placeholders import NAMES, TooLong, fill, unknown

VALUES = {"id": "17", "name": "a {id}", "state": "failed", "code": "1", "reason": "rank 1"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("job {id} {state}", "job 17 failed"),
        ('{"text": "{id}"}', '{"text": "17"}'),
        ("${id} ${HOME}", "${id} ${HOME}"),
        ("{}{ id }{0}", "{}{ id }{0}"),
        ("{{id}}", "{17}"),
        ("{name}", "a {id}"),
        ("{other}", "{other}"),
    ],
)
def test_known_words_in_braces_are_filled_in_once(text: str, filled: str) -> None:
    assert fill(["x", text], VALUES, 100) == ["x", filled]


def test_a_command_that_grows_beyond_a_limit_is_not_made() -> None:
    assert fill(["{reason}", "{id}"], VALUES, 8) == ["rank 1", "17"]
    with pytest.raises(TooLong, match="more than 7 characters"):
        fill(["{reason}", "{id}"], VALUES, 7)
    with pytest.raises(TooLong):
        fill(["plain", "words"], VALUES, 9)
    with pytest.raises(TooLong):  # half a gigabyte, if all of it were made
        fill(["{reason}" * (1 << 19)], {"reason": "x" * 1000}, 1 << 22)


def test_every_name_has_its_value() -> None:
    assert set(VALUES) == set(NAMES)


@pytest.mark.parametrize(
    ("text", "strangers"),
    [("{id} {jobid} {x_1}", ["jobid", "x_1"]), ("${x} {} { y } {1}", []), ("{ID}", ["ID"])],
)
def test_unknown_words_in_braces_are_found(text: str, strangers: list[str]) -> None:
    assert unknown(text) == strangers
