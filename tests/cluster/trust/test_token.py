"""Tokens: what is printed comes back, what is no token is told so, and no secret gets out."""

from __future__ import annotations

import re

import pytest

from wiiiiided.cluster.trust.token import PREFIX, Token
from wiiiiided.errors import UsageError

TOKEN = Token(bytes(range(32)), b"\xff" * 6, bytes(range(100, 116)))


def test_a_token_comes_back_from_its_text() -> None:
    assert Token.parse(TOKEN.text) == TOKEN
    assert Token.parse(f"  {TOKEN.text}\n") == TOKEN


def test_a_token_is_one_word_of_a_shell() -> None:
    assert re.fullmatch(r"wiiiiide1\.[A-Za-z0-9_-]{72}", TOKEN.text)


def test_no_two_tokens_are_alike() -> None:
    digest = bytes(32)
    made = [Token.create(digest) for _ in range(50)]
    assert len({one.id for one in made}) == 50
    assert len({one.secret for one in made}) == 50
    assert {one.digest for one in made} == {digest}


def test_the_secret_is_not_in_what_is_printed_of_a_token() -> None:
    for shown in (repr(TOKEN), str(TOKEN), f"{TOKEN!r:>10}"):
        assert repr(TOKEN.secret) not in shown
        assert TOKEN.secret.hex() not in shown
        assert TOKEN.text[-20:] not in shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret-that-is-no-token",
        PREFIX,
        PREFIX + "x" * 71,
        PREFIX + "x" * 73,
        PREFIX + "x" * 76,
        PREFIX + "!" * 72,
        PREFIX + "é" * 72,
        PREFIX + "x" * 70 + "==",
        PREFIX + "x" * 36 + "\n" + "x" * 36,
        "wiiiiide2." + "x" * 72,
        PREFIX + "x" * 1_000_000,
    ],
)
def test_what_is_no_token_is_told_so_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Token.parse(text)
    assert "token" in str(caught.value)
    rest = text.removeprefix(PREFIX)
    assert len(rest) < 5 or rest not in str(caught.value)
    assert caught.value.__cause__ is None


def test_every_changed_character_makes_another_token_or_none() -> None:
    for at in range(len(TOKEN.text)):
        changed = TOKEN.text[:at] + ("A" if TOKEN.text[at] != "A" else "B") + TOKEN.text[at + 1 :]
        try:
            assert Token.parse(changed) != TOKEN
        except UsageError:
            assert at < len(PREFIX)
