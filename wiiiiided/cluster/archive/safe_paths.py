"""Which names and links of an archive stay inside the directory it is unpacked into.

A link is followed by the kernel, one step after the other, so a look at its text is enough only
under one rule: ".." stands at the beginning and nowhere else.

    d/up  -> ..          stays: d is a real directory, its parent is inside
    d/x   -> ../e/f      stays: whatever e/f is, it is below, and a link there obeys the same rule
    m     -> d/up/..     leaves! by its letters it is "d", but up leads out of d first

Standard library only: the shim uses it too.
"""

from __future__ import annotations


def parts_of(name: bytes) -> tuple[bytes, ...] | None:
    """The components of a relative name, without "" and "."; None when it is absolute or climbs."""
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    return None if name.startswith(b"/") or b".." in parts or b"\0" in name else parts


def link_stays(parts: tuple[bytes, ...], target: bytes) -> bool:
    """Whether a link at `parts`, below real directories only, leads to something inside."""
    if not target or target.startswith(b"/") or b"\0" in target:
        return False
    steps = [step for step in target.split(b"/") if step not in (b"", b".")]
    climbs = 0
    while climbs < len(steps) and steps[climbs] == b"..":
        climbs += 1
    return climbs < len(parts) and b".." not in steps[climbs:]
