"""Whether a link's payloads carry a checksum: where it takes each end less than about 3 %.

TCP's own checksum has sixteen bits and is computed, on most machines, by the card: what a broken
card or switch changes in memory passes it. Our sum (xxh3, wire.header) is made at one end and again
at the other, at 22 to 26 GB/s each (bench/results/codec.md): next to nothing beside a gigabit link,
and not beside a bus in memory.

    slower than 0.6 GB/s   on: it takes each end less than 3 % of a payload's time on the wire
    faster than 0.8 GB/s   off: there it would take each end more than 3 %
    between                as it was

Where the ends do not overlap a payload bears both, twice as much.

Every frame says for itself whether it has one, so the two ends need not agree.
"""

from __future__ import annotations

from typing import Final, NamedTuple

ON_BELOW: Final = 0.6e9  # bytes a second
OFF_ABOVE: Final = 0.8e9


class ChecksumChoice(NamedTuple):
    """Whether payloads are summed, and why."""

    summed: bool
    reason: str


def judge(setting: str, rate: float | None, now: bool = True) -> ChecksumChoice:
    """`setting` is auto, on or off; `rate` the link's, in bytes a second, once it is known."""
    if setting != "auto":
        return ChecksumChoice(setting == "on", f"WIIIIIDE_CHECKSUM={setting}")
    if rate is None:
        return ChecksumChoice(True, "on until the link's rate is known")
    speed = f"the link does {rate / 1e9:.2f} GB/s"
    if rate > OFF_ABOVE or (rate >= ON_BELOW and not now):
        return ChecksumChoice(
            False, f"off: {speed}, where a sum would cost each end about 3 % or more"
        )
    return ChecksumChoice(True, f"on: {speed}, where a sum costs each end about 3 % or less")
