"""The last block of an array may not be full: it is encoded from a copy, with zeros behind it."""

from __future__ import annotations

from collections.abc import Callable

from wiiiiided.backend.lossy.interface import Floats


def encode_padded(
    values: Floats,
    residual: Floats,
    into: tuple[Floats, Floats],
    encode: Callable[[Floats, Floats], None],
) -> None:
    """Encode copies in `into`, which is larger, and take back what `encode` made of them."""
    count = values.size
    padded, left = into
    padded[count:], left[count:] = 0, 0
    padded[:count], left[:count] = values, residual
    encode(padded, left)
    values[:], residual[:] = padded[:count], left[:count]
