"""Whatever bytes come: the thing they should be, or one kind of error."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import wiiiiided
from wiiiiided.domain.json_decoder import json_decoder


class Note(msgspec.Struct, frozen=True):
    text: str


SPOILED = {
    "no JSON": b"\xff",
    "a string that is not UTF-8": b'{"text": "\xff\xfe"}',
    "a deep nest": b'{"more": ' + b"[" * 100_000,
    "half a character": b'{"text": "\\ud800"}',
    "another kind": b"[]",
}


@pytest.mark.parametrize("data", SPOILED.values(), ids=SPOILED)
def test_all_that_is_wrong_with_bytes_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as caught:
        json_decoder(Note)(data)
    assert str(caught.value).isprintable()


def test_bytes_that_are_right_become_what_they_should_be() -> None:
    assert json_decoder(Note)(b'{"text": "\xc3\xa4", "later": 1}') == Note("ä")
    assert json_decoder(Note | None)("null") is None


def test_nothing_decodes_json_by_other_means() -> None:
    package = Path(wiiiiided.__file__).parent
    others = ("msgspec.json.decode(", "msgspec.json.Decoder(")
    texts = {path.name: path.read_text() for path in package.rglob("*.py")}
    assert [name for name, text in texts.items() if any(word in text for word in others)] == [
        "json_decoder.py"
    ]
