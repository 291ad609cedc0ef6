"""The words a job file has for numbers: "1h30m", "8GiB", "2-4".

A number without a unit is refused where a unit is possible: `max_time = 8` means eight hours to one
reader and eight seconds to another. Each word has a guess that goes with its refusal.

    duration   1d 2h 30m 15s 500ms, the greatest first, each at most once, without blanks
    size       B, KB MB GB TB (thousands), KiB MiB GiB TiB (1024)
    nodes      3, "2-4", "all"
"""

from __future__ import annotations

import re

_UNIT_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_UNIT_BYTES = {"B": 1} | {
    f"{letter}{middle}B": base**power
    for power, letter in enumerate("KMGT", start=1)
    for middle, base in (("", 1000), ("i", 1024))
}

# Nine digits and three after the point are more than any limit allows, and no float overflows.
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,3})?"

_PARTS = "".join(f"({_NUMBER}{unit})?" for unit in _UNIT_S)
DURATION_PATTERN = f"^(?=.*[1-9]){_PARTS}$"  # for editors: zero is refused there, too
SIZE_PATTERN = f"^({_NUMBER})({'|'.join(_UNIT_BYTES)})$"
NODES_PATTERN = "^(all|[0-9]{1,4}-[0-9]{1,4})$"

_DURATION = re.compile(f"(?=.){_PARTS}")
_SIZE = re.compile(SIZE_PATTERN)

# How people write units, for the guess only.
_SPOKEN = {
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), "h"),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), "m"),
    **dict.fromkeys(("second", "seconds", "sec", "secs"), "s"),
    **dict.fromkeys(("millisecond", "milliseconds", "msec"), "ms"),
}
_GUESSED = 40  # characters; what is longer was no slip of the pen


def parse_duration(text: str) -> float | None:
    """The seconds of a duration; None when the text is none."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    parts = zip(_UNIT_S.items(), match.groups(), strict=True)
    return sum(float(part[: -len(unit)]) * unit_s for (unit, unit_s), part in parts if part)


def guess_duration(value: object) -> str:
    """The duration that was probably meant; empty when there is no telling."""
    text = re.sub(r"and|,", "", _squeezed(value).lower())
    text = re.sub(r"[a-z]+", lambda unit: _SPOKEN.get(unit[0], unit[0]), text)
    if re.fullmatch(_NUMBER, text):
        text += "s"
    return text if parse_duration(text) else ""


def parse_size(text: str) -> int | None:
    """The bytes of a size; None when the text is none."""
    match = _SIZE.fullmatch(text)
    return None if match is None else round(float(match[1]) * _UNIT_BYTES[match[2]])


def guess_size(value: object) -> str:
    """The size that was probably meant: a small number is taken for GiB, a large one for bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and 4096 <= value < 1 << 60:
        return write_size(value)
    if isinstance(value, int | float) and re.fullmatch(_NUMBER, _squeezed(value)):
        return f"{value}GiB"
    match = re.fullmatch(rf"({_NUMBER})([kmgt]?)(i?)b?(?:ytes?)?", _squeezed(value).lower())
    if match is None:
        return ""
    binary = "i" if match[3] or not _squeezed(value).lower().endswith("b") else ""
    return f"{match[1]}{match[2].upper()}{binary}B" if match[2] else f"{match[1]}B"


def parse_nodes(value: object) -> tuple[int, int | None] | None:
    """The least and the most nodes; None when it is neither a number, a range nor "all"."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    if value == "all":
        return 1, None
    if not isinstance(value, str) or not re.fullmatch(NODES_PATTERN, value):
        return None
    low, high = value.split("-")
    return int(low), int(high)


def guess_nodes(value: object) -> str:
    """The number of nodes that was probably meant, as the file would have it."""
    text = _squeezed(value).strip('"').lower().replace("..", "-").replace("to", "-")
    text = re.sub("[\u2010-\u2015]", "-", text)
    if re.fullmatch("[1-9][0-9]{0,3}", text):
        return text
    if text in ("all", "*", "any"):
        return '"all"'
    if re.fullmatch(NODES_PATTERN, text):
        low, high = sorted(int(end) for end in text.split("-"))
        return f'"{low}-{high}"'
    return ""


def _squeezed(value: object) -> str:
    """The value's text without blanks; empty where it is too long to be guessed at."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if isinstance(value, int) and value.bit_length() > _GUESSED:
        return ""
    text = str(value)
    return "".join(text.split()) if len(text) <= _GUESSED else ""


def write_duration(seconds: float) -> str:
    """Seconds as a duration of the file: 5400 is "1h30m"."""
    text = ""
    for unit, unit_s in _UNIT_S.items():
        count = int((seconds + 1e-9) / unit_s)
        seconds -= count * unit_s
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def write_size(count: int) -> str:
    """Bytes as a size of the file: 8589934592 is "8GiB"."""
    for unit, unit_bytes in reversed(_UNIT_BYTES.items()):
        if count and count % unit_bytes == 0 and count // unit_bytes < 10**9:
            return f"{count // unit_bytes}{unit}"
    return f"{count / _UNIT_BYTES['GiB']:.3f}GiB" if count else "0B"
