"""Which protocol two daemons speak: the highest number both know. Pure.

ours (1, 2)      1 ─── 2
theirs (2, 3)          2 ─── 3        2 is spoken
theirs (3, 4)                3 ─── 4  none: one of them is to be upgraded
"""

from __future__ import annotations

from wiiiiided.cluster.peering.messages import PROTOCOLS


def common_protocol(theirs: tuple[int, int], ours: tuple[int, int] = PROTOCOLS) -> int | None:
    """The number both speak; None when there is none."""
    newest = min(ours[1], theirs[1])
    return newest if newest >= max(ours[0], theirs[0]) else None


def disagreement(
    theirs: tuple[int, int], version: str, own_version: str, ours: tuple[int, int] = PROTOCOLS
) -> str:
    """Why two daemons cannot talk, and which of them is too old."""
    older = "the one that asks" if theirs[1] < ours[0] else "this one"
    return (
        f"wiiiiided {own_version} speaks protocols {ours[0]} to {ours[1]}, wiiiiided {version} "
        f"{theirs[0]} to {theirs[1]}: {older} is too old, upgrade it"
    )
