"""A value of a spec in the words of a job file, so that what is shown can be written.

policy.max_time_s = 28800.0   ─►   policy.max_time = "8h"
resources.nodes = [2, 4]      ─►   resources.nodes = "2-4"
"""

from __future__ import annotations

import json

from wiiiiided.jobfile.keys import KEYS, Key
from wiiiiided.jobfile.kinds import Duration, Nodes, Size
from wiiiiided.jobfile.values import spoken_duration, spoken_size

_BY_FIELD = {".".join((*key.path[:-1], key.field)): key for key in KEYS}


def as_in_file(field: str, value: object) -> tuple[str, str]:
    """The key of a spec's field, dotted, and its value. What a newer daemon adds stays as it is."""
    key = _BY_FIELD.get(field)
    if key is None:
        return field, json.dumps(value, ensure_ascii=False)
    return key.name, json.dumps(spoken(key, value), ensure_ascii=False)


def spoken(key: Key, value: object) -> object:
    """The value as its key has it in a file."""
    match key.kind, value:
        case Duration(), int() | float():
            return spoken_duration(value)
        case Size(), int():
            return spoken_size(value)
        case Nodes(), (int(least), int() | None as most):
            return "all" if most is None else least if least == most else f"{least}-{most}"
    return value
