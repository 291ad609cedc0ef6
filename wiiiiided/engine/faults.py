"""The payload of a FAULT frame: what went wrong, from the first who saw it to the other hosts."""

from __future__ import annotations

import json

from wiiiiided.errors import BadFrame
from wiiiiided.net.link import MAX_FAULT

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
        kind, culprit = str(said["kind"]), int(said["culprit"])
        return kind, culprit, str(said["text"]), int(said["seen_by"])
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise BadFrame("a fault was announced in a way this version does not know") from problem
