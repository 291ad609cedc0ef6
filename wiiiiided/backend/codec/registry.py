"""Which codecs there are, by number (in a frame) and by name (in a setting).

A number is for ever: it stands in frames between versions. Every call makes a codec of its own,
since a codec may keep state for the direction of the link it serves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wiiiiided.backend.codec.interface import BadPayload, Codec
from wiiiiided.backend.codec.lz4 import Lz4
from wiiiiided.backend.codec.raw import Raw
from wiiiiided.errors import UsageError

_CODECS: Final[tuple[Callable[[], Codec], ...]] = (Raw, Lz4)
_BY_NUMBER: Final = {make().number: make for make in _CODECS}
_BY_NAME: Final = {make().name: make for make in _CODECS}

NAMES: Final = tuple(_BY_NAME)


def by_number(number: int) -> Codec:
    """A codec for a number that a peer has sent."""
    make = _BY_NUMBER.get(number)
    if make is None:
        raise BadPayload(
            f"a payload in codec {number}, which is not known here: "
            "does every host run the same wiiiiided?"
        )
    return make()


def by_name(name: str) -> Codec:
    """A codec for a name that a user has written."""
    make = _BY_NAME.get(name)
    if make is None:
        raise UsageError(f"there is no codec {name!r}; use auto or one of {', '.join(NAMES)}")
    return make()
