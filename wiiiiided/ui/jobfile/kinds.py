"""The kinds of values a key can have: each checks, converts, and describes itself to editors.

Here are those that are one value; lists and tables are in `compounds`.

A kind never raises and never stops: it notes what is wrong, as often as it finds something, and
goes on. It returns a value for the checks that follow, None where there is none; a JobSpec is made
only when nothing was noted in the whole file.

They are Structs because a command line waits for their import: a dataclass takes ten times longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import msgspec

from wiiiiided.domain import quantities
from wiiiiided.ui.jobfile import rules
from wiiiiided.ui.jobfile.describe import describe, quoted, show
from wiiiiided.ui.jobfile.rules import Complaint


class Note(Protocol):
    """Notes one problem of a value, or of a part `at` some place inside it."""

    def __call__(self, message: str, suggestion: str = "", at: str | int | None = None) -> None: ...


class ValueKind(Protocol):
    """The type of value that a key takes."""

    @property
    def words(self) -> str:
        """The expected value, with its article."""

    @property
    def is_text(self) -> bool:
        """Whether only a string will do: --set then takes 80 for "80"."""

    def convert(self, value: object, note: Note) -> Any:
        """The value as a JobSpec has it; None when it is no use."""

    def schema(self) -> dict[str, Any]:
        """The kind in JSON Schema; only keywords of draft 4, for editors know no more."""


def expected(kind: ValueKind, value: object, note: Note, suggestion: str = "") -> None:
    note(f"expected {kind.words}, found {describe(value)}", suggestion)


def did_you_mean(guess: str) -> str:
    return f"did you mean {guess}?" if guess else ""


_YES = ("true", "yes", "on", "1")
_NO = ("false", "no", "off", "0")


class Flag(msgspec.Struct, frozen=True):
    """The value true or false."""

    words: ClassVar[str] = "true or false"
    is_text: ClassVar[bool] = False

    def convert(self, value: object, note: Note) -> bool | None:
        if isinstance(value, bool):
            return value
        word = show(value).strip('"').lower()
        guess = "true" if word in _YES else "false" if word in _NO else ""
        expected(self, value, note, did_you_mean(guess))
        return None

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


class Whole(msgspec.Struct, frozen=True):
    """A whole number within bounds, or one of a few words instead."""

    least: int
    most: int
    instead: tuple[str, ...] = ()
    counted: str = ""  # what it is, where its bounds are not worth a word
    is_text: ClassVar[bool] = False

    @property
    def words(self) -> str:
        if self.counted:
            return f"{self.counted}, {self.least} or more"
        choices = "".join(f' or "{word}"' for word in self.instead)
        return f"a whole number from {self.least} to {self.most}{choices}"

    def convert(self, value: object, note: Note) -> int | str | None:
        if isinstance(value, str) and value in self.instead:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            expected(self, value, note, did_you_mean(self._guess(value)))
        elif value < self.least:
            note(f"{show(value)} is less than {self.least}", self._bounds())
        elif value > self.most:
            note(f"{show(value)} is more than {self.most}", self._bounds())
        else:
            return value
        return None

    def _bounds(self) -> str:
        return "" if self.counted else f"choose {self.least} to {self.most}"

    def _guess(self, value: object) -> str:
        if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
            return f"{int(value)}, without quotes"
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e9:
            return f"{int(value)}"
        return closest(value, self.instead)

    def schema(self) -> dict[str, Any]:
        number = {"type": "integer", "minimum": self.least, "maximum": self.most}
        return {"anyOf": [number, {"enum": list(self.instead)}]} if self.instead else number


def closest(value: object, options: tuple[str, ...]) -> str:
    """The option that was probably meant, in quotes."""
    if not isinstance(value, str) or not options or len(value) > 64:
        return ""
    from difflib import get_close_matches  # only for problems

    folded = {option.lower(): option for option in options}
    found = get_close_matches(value.lower().replace("_", "-"), folded, 1, 0.7)
    return quoted(folded[found[0]]) if found else ""


class OneOf(msgspec.Struct, frozen=True):
    """One of a few words."""

    options: tuple[str, ...]
    is_text: ClassVar[bool] = True

    @property
    def words(self) -> str:
        return "one of " + ", ".join(quoted(option) for option in self.options)

    def convert(self, value: object, note: Note) -> str | None:
        if not isinstance(value, str):
            expected(self, value, note)
        elif value not in self.options:
            note(f"{show(value)} is not {self.words}", did_you_mean(closest(value, self.options)))
        else:
            return value
        return None

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.options)}


class Text(msgspec.Struct, frozen=True):
    """A string that keeps a rule."""

    words: str
    rule: Callable[[str], Complaint | None] = rules.anything
    pattern: str = rules.ANY_PATTERN
    is_text: ClassVar[bool] = True

    def convert(self, value: object, note: Note) -> str | None:
        if not isinstance(value, str):
            plain = isinstance(value, bool | int | float)
            guess = f"write {quoted(show(value))}, in quotes" if plain else ""
            expected(self, value, note, guess)
            return None
        if complaint := self.rule(value):
            note(*complaint)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": self.pattern}


class Duration(msgspec.Struct, frozen=True):
    """A duration with its unit; seconds in the spec."""

    most_s: float
    least_s: float = 0.0
    is_text: ClassVar[bool] = True

    @property
    def words(self) -> str:
        most = quantities.write_duration(self.most_s)
        return f'a duration such as "90s" or "1h30m", at most "{most}"'

    def convert(self, value: object, note: Note) -> float | None:
        seconds = quantities.parse_duration(value) if isinstance(value, str) else None
        if seconds is None:
            guess = quantities.guess_duration(value)
            expected(self, value, note, did_you_mean(quoted(guess) if guess else ""))
        elif seconds <= 0:
            note(f"{show(value)} is no time at all; it must be more", "or leave the key out")
        elif seconds > self.most_s:
            note(f"{show(value)} is more than the most, {quantities.write_duration(self.most_s)}")
        elif seconds < self.least_s:
            note(f"{show(value)} is less than the least, {quantities.write_duration(self.least_s)}")
        else:
            return seconds
        return None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": quantities.DURATION_PATTERN}


class Size(msgspec.Struct, frozen=True):
    """An amount of memory with its unit; bytes in the spec."""

    most: int
    words: ClassVar[str] = 'a size such as "8GiB" or "512MB"'
    is_text: ClassVar[bool] = True

    def convert(self, value: object, note: Note) -> int | None:
        count = quantities.parse_size(value) if isinstance(value, str) else None
        if count is None:
            guess = quantities.guess_size(value)
            expected(self, value, note, did_you_mean(quoted(guess) if guess else ""))
        elif count > self.most:
            note(f"{show(value)} is more than the most, {quantities.write_size(self.most)}")
        else:
            return count
        return None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": quantities.SIZE_PATTERN}


class NodeCount(msgspec.Struct, frozen=True):
    """How many nodes: at least and at most in the spec."""

    most: int
    words: ClassVar[str] = 'a number of nodes: 3, "2-4" or "all"'
    is_text: ClassVar[bool] = False

    def convert(self, value: object, note: Note) -> tuple[int, int | None] | None:
        wanted = quantities.parse_nodes(value)
        if wanted is None:
            expected(self, value, note, did_you_mean(quantities.guess_nodes(value)))
            return None
        low, high = wanted
        if high is not None and low > high:
            message = f"{show(value)} begins with the larger number"
            note(message, did_you_mean(quantities.guess_nodes(value)))
        elif not 1 <= low <= (high or low) <= self.most:
            note(f"{show(value)} is not within 1 to {self.most}", f"choose 1 to {self.most}")
        else:
            return wanted
        return None

    def schema(self) -> dict[str, Any]:
        number = {"type": "integer", "minimum": 1, "maximum": self.most}
        return {"anyOf": [number, {"type": "string", "pattern": quantities.NODES_PATTERN}]}
