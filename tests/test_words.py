"""Sentences have nouns: a docstring or a comment says which rank, peer or user it means."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.kit.source import parse

ROOT = Path(__file__).parents[1]
NO_NOUN = re.compile(r"\b(?:whoever|somebody|nobody)\b|(?:^|[.:;?!)*] +|\n\n)Who ", re.IGNORECASE)
WHAT = re.compile(r"(?:^|[.?!] +|\n\n)(?:What|Whose) ")


def docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(parse(source)):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                if text := ast.get_docstring(node):
                    yield re.sub(r"(?<!\n)\n *(?!\n)", " ", text)


def comments(source: str) -> Iterator[str]:
    """Lines of comment that stand below each other are one."""
    text, row = "", -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.string.lstrip("#: ")
        if token.start[0] != row + 1 or not token.line.lstrip().startswith("#"):
            yield text
            text = line
        else:
            text = f"{text} {line}"
        row = token.start[0]
    yield text


@cache
def texts(path: Path) -> list[str]:
    source = path.read_text()
    return [*docstrings(source), *comments(source)]


def found(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {text[:100]}"
        for path in paths
        for text in texts(path)
        if pattern.search(text)
    ]


@pytest.mark.parametrize("folder", ["wiiiiided", "bench", "examples"])
def test_a_subject_is_a_noun(folder: str) -> None:
    """Not who or nobody. Texts that a program prints are not looked at: some are data."""
    assert not found(NO_NOUN, sorted((ROOT / folder).rglob("*.py")))


def test_no_sentence_begins_with_what() -> None:
    """In the benchmarks some still do."""
    assert not found(WHAT, sorted((ROOT / "wiiiiided").rglob("*.py")))
