"""The payload of a FAULT frame: what went wrong, from its first witness to the other hosts."""

from __future__ import annotations

import json

from wiiiiided.backend.net.link import MAX_FAULT
from wiiiiided.errors import BadFrame

MAX_RANK = 1 << 31
MAX_TEXT = 600  # characters; written with six bytes each they still fit MAX_FAULT


def cause_bytes(kind: str, culprit: int, text: str, seen_by: int) -> bytes:
    """The payload of a FAULT frame."""
    cause = {"kind": kind, "culprit": culprit, "text": text[:MAX_TEXT], "seen_by": seen_by}
    raw = json.dumps(cause).encode()
    assert len(raw) <= MAX_FAULT
    return raw


def read_cause(payload: memoryview) -> tuple[str, int, str, int]:
    """(kind, culprit, text, seen by) of a FAULT frame. BadFrame: it is none."""
    try:
        said = json.loads(bytes(payload))
        kind, culprit, seen_by = str(said["kind"]), int(said["culprit"]), int(said["seen_by"])
        if not (-1 <= culprit < MAX_RANK and 0 <= seen_by < MAX_RANK):
            raise ValueError("no rank")
        return kind, culprit, str(said["text"]), seen_by
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise BadFrame("a fault was announced in a way this version does not know") from problem
