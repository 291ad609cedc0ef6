"""Which lossy codecs there are, by the name that a user writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wiiiiided.backend.lossy.bf16 import Bf16
from wiiiiided.backend.lossy.interface import GradientCodec
from wiiiiided.backend.lossy.scaled import Int4, Int8
from wiiiiided.backend.lossy.topk import MOST, TopK
from wiiiiided.errors import UsageError

EXACT: Final = "exact"
_CODECS: Final[dict[str, Callable[[], GradientCodec]]] = {
    codec.name: codec for codec in (Bf16, Int8, Int4)
}
NAMES: Final = (EXACT, *_CODECS, "topk:0.01")  # as they are shown; topk with any part


def by_name(name: str) -> GradientCodec | None:
    """A new codec; None: gradients travel as they are."""
    if name == EXACT:
        return None
    if isinstance(name, str) and name in _CODECS:
        return _CODECS[name]()
    kind, _, part = name.partition(":") if isinstance(name, str) else ("", "", "")
    if kind == "topk":
        return TopK(name, _part(name, part))
    known = ", ".join(f'"{known}"' for known in NAMES)
    raise UsageError(f"there is no gradient codec {name!r}; use one of {known}")


def _part(name: str, text: str) -> float:
    try:
        part = float(text)
    except ValueError:
        part = 0.0
    if not 0 < part <= MOST:
        raise UsageError(
            f"{name!r} does not say which part of the gradients is sent: a number above 0 and at "
            f'most {MOST}, such as "topk:0.01"'
        )
    return part
