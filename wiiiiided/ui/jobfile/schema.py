"""The table of keys as a JSON schema, for editors.

    python -m wiiiiided.ui.jobfile.schema > job.schema.json

It says draft 2020-12 and uses only what draft 4 has, too: that is what the TOML editors know. It
sees less than the checker (nothing between two keys, no order of "4-2"), and never refuses what the
checker accepts.
"""

from __future__ import annotations

import tomllib
from typing import Any

from wiiiiided.ui.jobfile.keys import KEYS, SECTIONS, Key, Section


def schema() -> dict[str, Any]:
    """The whole schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "WIIIIIDE job file",
        **_section(SECTIONS[0]),
    }


def _section(section: Section) -> dict[str, Any]:
    """A table with its keys and the tables inside it."""
    keys = [key for key in KEYS if key.path[:-1] == section.path]
    tables = [one for one in SECTIONS if one.path and one.path[:-1] == section.path]
    made: dict[str, Any] = {
        "type": "object",
        "description": section.meaning,
        "properties": {
            **{key.path[-1]: _key(key) for key in keys},
            **{table.path[-1]: _section(table) for table in tables},
        },
        "additionalProperties": False,
    }
    required = [key.path[-1] for key in keys if key.required]
    required += [table.path[-1] for table in tables if _is_required(table)]
    return made | ({"required": required} if required else {})


def _is_required(section: Section) -> bool:
    return any(key.required and key.path[:-1] == section.path for key in KEYS)


def _key(key: Key) -> dict[str, Any]:
    described = {"description": key.meaning, **key.kind.schema(), "examples": [toml(key.example)]}
    return described | ({"default": toml(key.default)} if key.default else {})


def toml(value: str) -> Any:
    """The value of a TOML text."""
    return tomllib.loads(f"value = {value}")["value"]


def as_text() -> str:
    """The schema as docs/job.schema.json has it."""
    import json

    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(as_text(), end="")
