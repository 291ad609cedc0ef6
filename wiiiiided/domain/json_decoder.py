"""JSON of others becomes what it should be, or a DecodeError: there is no third way.

msgspec lets two more through: UnicodeDecodeError for a string that is not UTF-8, RecursionError for
lists in lists in lists. A caller that expects JSON of strangers forgets them, so nothing in this
package decodes JSON by other means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import msgspec

Kind = TypeVar("Kind")
Data = bytes | str | msgspec.Raw


@overload
def json_decoder(kind: type[Kind]) -> Callable[[Data], Kind]: ...
@overload
def json_decoder(kind: Any) -> Callable[[Data], Any]: ...
def json_decoder(kind: Any) -> Callable[[Data], Any]:
    """Make the function that reads one of `kind`, a type or a union of them; of all that is wrong
    with its bytes it raises msgspec.DecodeError."""
    decode = msgspec.json.Decoder(kind).decode

    def read(data: Data) -> Any:
        try:
            return decode(data)
        except UnicodeDecodeError as problem:
            raise msgspec.DecodeError(f"JSON is malformed: {problem.reason}, not UTF-8") from None
        except RecursionError:
            raise msgspec.DecodeError("JSON is malformed: nested too deeply") from None

    return read
