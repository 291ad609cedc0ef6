"""Exit codes in words."""

from __future__ import annotations

import pytest

from wiiiiided.domain.exit_codes import code_words


@pytest.mark.parametrize(
    ("code", "words"),
    [(None, "-"), (0, "0"), (1, "1"), (137, "137 (SIGKILL)"), (143, "143 (SIGTERM)"), (255, "255")],
)
def test_a_code_over_128_names_its_signal(code: int | None, words: str) -> None:
    assert code_words(code) == words
