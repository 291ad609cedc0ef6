"""`--set key=value`: a value from the command line, put over the file's before anything is checked.

--set policy.priority=80                        TOML where it parses: a number
--set 'run.command=["python", "x.py"]'          a list
--set policy.max_time=2h                        not TOML: a text
--set name=17                                   text is wanted here: "17"
--set run.env.LR=0.1                            variables stay as they are, quotes and all
"""

from __future__ import annotations

import tomllib
from typing import Any

from wiiiiided.ui.jobfile.describe import spell
from wiiiiided.ui.jobfile.findings import Findings, Override
from wiiiiided.ui.jobfile.keys import TABLE, TABLES
from wiiiiided.ui.jobfile.locate import scan, split_key

_ENV = ("run", "env")


def apply(document: dict[str, Any], option: Override, findings: Findings) -> None:
    """Change the document as the option says, or note why not."""
    key = split_key(option.text)
    if key is None or not key[1].startswith("="):
        message = "is not key=value"
        findings.add_option(option, message, "for example --set policy.priority=80")
        return
    path, text = key[0], key[1][1:]
    table = _table_for(document, path, option, findings)
    if table is None:
        return
    table[path[-1]] = value_for(path, text)
    findings.places.replace(path, option)


def _table_for(
    document: dict[str, Any], path: tuple[str, ...], option: Override, findings: Findings
) -> dict[str, Any] | None:
    """The table the last part of the path goes into; made where it is not there."""
    table = document
    for length in range(1, len(path)):
        above = path[:length]
        if above[-1] not in table:
            table[above[-1]] = {}
            findings.places.create(above, option)
        table = table[above[-1]]
        if not isinstance(table, dict):
            if above not in TABLES:  # the checker reports a value that should be a table
                findings.add_option(option, f"{spell(above)} is not a table", "")
            return None
    return table


def value_for(path: tuple[str, ...], text: str) -> Any:
    """The text as a value of the type that its key takes."""
    if path[:-1] == _ENV:
        return text
    value = _parsed(text)
    key = TABLE.get(path)
    wants_text = key is not None and key.kind.is_text
    return text if wants_text and not isinstance(value, str) else value


def _parsed(text: str) -> Any:
    """The value it is in TOML, else the text itself."""
    line = f"value = {text}"
    if scan(line).too_deep:
        return text
    try:
        document = tomllib.loads(line)
    except (ValueError, RecursionError):
        return text
    return (
        document["value"] if len(document) == 1 else text
    )  # else the text contained a statement of its own
