"""A parsed document against the table of keys: problems are noted, right values are converted.

Key by key, and nothing stops at the first problem. `cross_field` checks several keys together.
"""

from __future__ import annotations

from typing import Any

from wiiiiided.ui.jobfile.describe import describe
from wiiiiided.ui.jobfile.findings import Findings
from wiiiiided.ui.jobfile.keys import KEYS, TABLE, TABLES, Key, Section, inside
from wiiiiided.ui.jobfile.locate import Path

# Path of a key → its value as a JobSpec has it. A list with one bad element is in it, too.
Values = dict[tuple[str, ...], Any]


def check(document: dict[str, Any], findings: Findings) -> Values:
    """The values of all keys that are there and right enough for the checks that follow."""
    values: Values = {}
    _table(document, (), findings, values)
    for key in KEYS:
        if key.required and _is_missing(document, key.path):
            _missing(key, findings)
    return values


def _table(
    content: dict[str, Any], path: tuple[str, ...], findings: Findings, values: Values
) -> None:
    for name, value in content.items():
        here = (*path, name)
        if key := TABLE.get(here):
            _key(key, value, findings, values)
        elif here not in TABLES:
            _unknown(here, value, findings)
        elif isinstance(value, dict):
            _table(value, here, findings, values)
        else:
            _no_table(TABLES[here], value, findings)


def _key(key: Key, value: object, findings: Findings, values: Values) -> None:
    def note(message: str, suggestion: str = "", at: str | int | None = None) -> None:
        path: Path = key.path if at is None else (*key.path, at)
        findings.add(path, message, suggestion or f"for example {key.path[-1]} = {key.example}")

    converted = key.kind.convert(value, note)
    if converted is not None:
        values[key.path] = converted


def _no_table(section: Section, value: object, findings: Findings) -> None:
    name = section.name
    if _are_tables(value):
        findings.add(
            section.path, "there is only one such table", f"write [{name}], not [[{name}]]"
        )
    else:
        message = f"expected a table, found {describe(value)}"
        findings.add(section.path, message, f"write {section.example}")


def _are_tables(value: object) -> bool:
    """Whether the value was written as [[table]]."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _is_missing(document: dict[str, Any], path: tuple[str, ...]) -> bool:
    """Whether the key is not there, in a table that is right or not there either."""
    content: Any = document
    for name in path:
        if not isinstance(content, dict):
            return False  # a problem about the table is noted already
        if name not in content:
            return True
        content = content[name]
    return False


def _missing(key: Key, findings: Findings) -> None:
    line = f"{key.path[-1]} = {key.example}"
    findings.missing(key.path, "missing; every job needs it", f"add {line} to [{key.path[0]}]")


def _unknown(path: tuple[str, ...], value: object, findings: Findings) -> None:
    what = "table" if isinstance(value, dict) or _are_tables(value) else "key"
    findings.add(path, f"unknown {what}", lambda: suggest(path))


def suggest(path: tuple[str, ...]) -> str:
    """The known key that an unknown key was probably meant to be."""
    name = path[-1].lower().replace("-", "_")
    everything = [*TABLE, *(table for table in TABLES if table)]
    same = [known for known in everything if known[-1] == name]
    other = [key.path for key in KEYS if name in key.also]
    here = _close(name, [known for known in everything if known[:-1] == path[:-1]])
    found = same or other or here or _close(name, everything)
    if not found:
        return "known here: " + ", ".join(inside(path[:-1]))
    return f"did you mean {_spelled(found[0], path)}?"


def _close(name: str, paths: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    if len(name) > 64:  # no slip of the pen, and comparing it would take long
        return []
    from difflib import get_close_matches  # only for problems

    names = get_close_matches(name, [path[-1] for path in paths], 1, 0.7)
    return [path for path in paths if path[-1] in names]


def _spelled(known: tuple[str, ...], path: tuple[str, ...]) -> str:
    """The known path, as short as it can be said from where the unknown one stands."""
    if known in TABLES:
        return f"[{'.'.join(known)}]"
    if known[:-1] == path[:-1]:
        return known[-1]
    return ".".join(known) if len(known) > 1 else f"{known[0]}, above the first [table]"
