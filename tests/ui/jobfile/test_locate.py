"""The key locator against tomllib: every key that it has, none besides, and where it stands."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from tests.ui.jobfile.toml_documents import documents, is_toml
from wiiiiided.ui.jobfile.locate import DEPTH, Location, Path, locate, scan, split_key

SLOW = settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def paths(value: Any, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every path of a parsed document, with what is there."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for part, inner in items:
        yield (*above, part), inner
        if isinstance(inner, dict | list):
            yield from paths(inner, (*above, part))


def text_at(text: str, place: Location) -> str:
    """The text from a place on, by counting lines the plain way."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join([lines[place.line - 1][place.column - 1 :], *lines[place.line :]])


def assert_located(text: str) -> None:
    document = tomllib.loads(text)
    found = locate(text)
    expected = dict(paths(document))
    assert found.keys() == expected.keys()
    for path, place in found.items():
        part, here = path[-1], text_at(text, place)
        if isinstance(part, str):
            key = split_key(here)
            assert key is not None, (path, here)
            assert key[0][0] == part, (path, here)
        else:
            assert_element(expected[path], here)


def assert_element(value: Any, here: str) -> None:
    """An element begins here; a table of an array of tables has its key here."""
    match value:
        case dict():
            assert here[0] == "{" or split_key(here) is not None
        case list():
            assert here[0] == "["
        case str():
            assert here[0] in "\"'"
            inside = here.lstrip("\"'\n")
            assert not value[:1].isdigit() or inside[0] in (value[0], "\\")
        case _:
            assert here[0] not in " \t\n,#=]}\"'"


@SLOW
@given(documents())
def test_every_key_that_tomllib_has_is_found_where_it_stands_and_none_besides(text: str) -> None:
    assert_located(text)


@SLOW
@given(documents(), st.data())
def test_a_document_with_a_slip_is_understood_as_tomllib_does(
    text: str, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 2))
        new = data.draw(
            st.sampled_from(("", "\n", "]", "[", "{", "}", '"', "'", "#", ".", "=", ","))
        )
        text = text[:at] + new + text[at + cut :]
    if is_toml(text):
        assert_located(text)
    else:
        locate(text)


@SLOW
@given(st.text(alphabet="ab.=[]{}\"'#,\n\r\\ 1-", max_size=60))
@example('a."""b"""=1')
@example("a = ''''''")
@example('a = """"""""')
def test_any_text_is_understood_as_tomllib_does(text: str) -> None:
    if is_toml(text):
        assert_located(text)
    else:
        locate(text)


@given(st.text(max_size=200))
def test_no_text_makes_it_raise(text: str) -> None:
    scan(text)
    split_key(text)


def test_lines_and_columns_count_from_one() -> None:
    text = (
        'name = "x"\n\n[run]\n  env = { A = "1" }\ncommand = [\n    "python",  # a\n    "b",\n]\n'
    )
    assert locate(text) == {
        ("name",): (1, 1),
        ("run",): (3, 2),
        ("run", "env"): (4, 3),
        ("run", "env", "A"): (4, 11),
        ("run", "command"): (5, 1),
        ("run", "command", 0): (6, 5),
        ("run", "command", 1): (7, 5),
    }


def test_a_header_is_the_place_of_its_table_even_after_an_earlier_mention() -> None:
    found = locate("[a.b]\nx = 1\n[a]\ny = 2\n")
    assert found[("a",)].line == 3
    assert found[("a", "b")].line == 1


def test_a_dotted_key_gives_a_place_to_each_part() -> None:
    found = locate("run . env.'A B' = 1")
    assert found == {("run",): (1, 1), ("run", "env"): (1, 7), ("run", "env", "A B"): (1, 11)}


def test_tables_of_an_array_are_numbered_and_the_latest_one_is_entered() -> None:
    found = locate("[[a]]\nx = 1\n[[a]]\nx = 2\n[a.b]\ny = 3\n[[a.c]]\n")
    assert found[("a", 0, "x")].line == 2
    assert found[("a", 1, "x")].line == 4
    assert found[("a", 1, "b", "y")].line == 6
    assert found[("a", 1, "c", 0)].line == 7


def test_a_key_after_a_string_of_many_lines_has_its_own_line() -> None:
    assert locate('a = """\none\ntwo"""\nb = 1')[("b",)] == (4, 1)
    assert locate("a = '''\r\none\r\n'''\r\nb = 1")[("b",)] == (4, 1)


def test_what_comes_before_nonsense_is_found() -> None:
    assert locate("a = 1\nb = ] 2\nc = 3\n").keys() == {("a",), ("b",)}


DEEP = {
    "open arrays": "a = " + "[" * 200_000,
    "arrays": "a = " + "[" * 200_000 + "]" * 200_000,
    "inline tables": "a = " + "{a=" * 100_000,
    "key": ".".join("a" * 500_000) + " = 1",
    "header": f"[{'.'.join('a' * 500_000)}]",
    "key in a table": "[" + ".".join("a" * DEPTH) + "]\nb = 1",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP.keys())
def test_a_text_that_is_too_deep_is_noticed_at_once(text: str) -> None:
    deep = scan("\n" + text).too_deep
    assert deep is not None
    assert deep.line in (2, 3)


def test_the_allowed_depth_is_located() -> None:
    text = "a = " + "[" * (DEPTH - 1) + "1" + "]" * (DEPTH - 1)
    assert scan(text).too_deep is None
    assert_located(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a.b=1", (("a", "b"), "=1")),
        (' "a.b" . c = x', (("a.b", "c"), "= x")),
        ("'a=b'=c", (("a=b",), "=c")),
        ("a", (("a",), "")),
        ("", None),
        ("=1", None),
        ("a..b=1", None),
        ('"\\q"=1', None),
    ],
)
def test_a_dotted_key_is_split_from_what_follows(text: str, key: object) -> None:
    assert split_key(text) == key
