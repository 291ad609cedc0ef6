"""A spec written down as a job file; reading it gives the same spec.

JobSpec(name="digits", run=Run(("python", "train.py")), …)   ─►   name = "digits"

                                                                  [run]
                                                                  command = ["python", "train.py"]

The values of a spec are shown in the words of a file too: policy.max_time_s = 28800.0 is
policy.max_time = "8h", resources.nodes = [2, 4] is "2-4".
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from wiiiiided.domain.quantities import write_duration, write_size
from wiiiiided.domain.spec import JobSpec
from wiiiiided.ui.jobfile.keys import KEYS, SECTIONS, Key
from wiiiiided.ui.jobfile.kinds import Duration, NodeCount, Size

COMPANION = "policy.restart.max"  # without it the others of its table are refused

_BY_FIELD = {".".join((*key.path[:-1], key.field)): key for key in KEYS}


def as_toml(spec: JobSpec) -> str:
    """The whole file: the keys of each table that differ from their defaults."""
    parts = []
    for section in SECTIONS:
        given: Any = spec
        for name in section.path:
            given = getattr(given, name)
        usual = {one.name: one.default for one in msgspec.structs.fields(section.struct)}
        keys = [key for key in KEYS if key.path[:-1] == section.path]
        values = {key: getattr(given, key.field) for key in keys}
        # The default of env, {}, is made anew each time.
        changed = [key for key in keys if values[key] not in ({}, usual[key.field])]
        if not changed:
            continue
        written = [key for key in keys if key in changed or key.name == COMPANION]
        lines = [f"{key.path[-1]} = {toml(spoken(key, values[key]))}\n" for key in written]
        parts.append((f"[{section.name}]\n" if section.name else "") + "".join(lines))
    return "\n".join(parts)


def toml(value: object) -> str:
    """A value as TOML."""
    match value:
        case str():
            # JSON's strings are TOML's but for halves of characters, and for DEL.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            inside = ", ".join(f"{toml(name)} = {toml(one)}" for name, one in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case _:
            return json.dumps(value)


def as_in_file(field: str, value: object) -> tuple[str, str]:
    """The key of a spec's field, dotted, and its value. A newer daemon's field stays as it is."""
    key = _BY_FIELD.get(field)
    if key is None:
        return field, json.dumps(value, ensure_ascii=False)
    return key.name, json.dumps(spoken(key, value), ensure_ascii=False)


def spoken(key: Key, value: object) -> object:
    """The value as its key has it in a file."""
    match key.kind, value:
        case Duration(), int() | float():
            return write_duration(value)
        case Size(), int():
            return write_size(value)
        case NodeCount(), (int(least), int() | None as most):
            return "all" if most is None else least if least == most else f"{least}-{most}"
    return value
