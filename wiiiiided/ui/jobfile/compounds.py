"""The kinds of values that contain others: lists, commands, tables of variables."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import msgspec

from wiiiiided.ui.jobfile import rules
from wiiiiided.ui.jobfile.describe import as_list, show
from wiiiiided.ui.jobfile.kinds import Note, OneOf, Text, ValueKind, Whole, expected

MOST = 1000  # elements, variables: far above any use; what is longer is a mistake


def _comma_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> str:
    """A list of the numbers that a text has; empty where it has others, or very many."""
    parts = [part.lstrip("#") for part in _comma_list(text[:200])]
    if len(text) > 200 or not parts or not all(re.fullmatch("[0-9]{1,18}", one) for one in parts):
        return ""
    return f"[{', '.join(str(int(one)) for one in parts)}]"


class ListKind(msgspec.Struct, frozen=True):
    """A list of one kind."""

    item: ValueKind
    plural: str
    least: int = 0
    unique: bool = True
    is_text: ClassVar[bool] = False

    @property
    def words(self) -> str:
        chosen = isinstance(self.item, OneOf)
        return f"a list of {self.plural}" + (f", each {self.item.words}" if chosen else "")

    def convert(self, value: object, note: Note) -> tuple[Any, ...] | None:
        if not isinstance(value, list):
            expected(self, value, note, self.guess(value))
            return None
        if len(value) < self.least:
            note(f"an empty list; expected {self.words}")
        if len(value) > MOST:
            note(f"has {len(value)} elements; at most {MOST} are possible", "list fewer")
            return None
        found = tuple(self.item.convert(one, _inside(note, at)) for at, one in enumerate(value))
        if self.unique:
            self._twice(value, note)
        return found

    def _twice(self, value: list[object], note: Note) -> None:
        for at, one in enumerate(value):
            if isinstance(one, str | int) and one in value[:at]:
                note(f"{show(one)} is listed twice", "leave one out", at)

    def guess(self, value: object) -> str:
        """The list that a value of another type was meant to be."""
        if isinstance(value, str) and self.item.is_text:
            texts = as_list(_comma_list(value))
        elif isinstance(value, str) and isinstance(self.item, Whole):
            texts = _numbers(value)
        else:
            texts = f"[{show(value)}]" if isinstance(value, int | str) else ""
        return f"write {texts}" if texts else ""

    def schema(self) -> dict[str, Any]:
        items = {"type": "array", "items": self.item.schema(), "maxItems": MOST}
        if self.least:
            items["minItems"] = self.least
        if self.unique:
            items["uniqueItems"] = True
        return items


def _inside(note: Note, place: str | int) -> Note:
    """The note function for an element; no element has elements itself."""

    def note_inside(message: str, suggestion: str = "", at: str | int | None = None) -> None:
        note(message, suggestion, place)

    return note_inside


# Characters that a shell would act upon; a program gets them as they stand.
_SHELL = frozenset("|&;<>$*?`~")


class CommandLine(ListKind, frozen=True):
    """A program and its arguments: a list, for there is no shell that would split a string."""

    item: ValueKind = Text("a string")
    plural: str = "strings"
    least: int = 1
    unique: bool = False

    def convert(self, value: object, note: Note) -> tuple[Any, ...] | None:
        found = super().convert(value, note)
        first = found[0] if found else None
        if first == "":
            note("the program's name is empty", at=0)
        elif isinstance(first, str) and self._is_line(first):
            note(f"{show(first)} is no program: no shell splits it", self._split(found), 0)
        return found

    def _is_line(self, text: str) -> bool:
        """A whole command line in one string; a path with blanks has a slash before the first."""
        word, blank, _ = text.strip().partition(" ")
        return bool(blank) and "/" not in word

    def _split(self, found: tuple[Any, ...] | None) -> str:
        """The arguments that a command line and the elements behind it were meant to be."""
        import shlex

        words = [word for word in found or () if isinstance(word, str)]
        return self.guess(" ".join([*words[:1], *map(shlex.quote, words[1:])]))

    def guess(self, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or len(value) > 200:
            return ""
        import shlex  # only for problems

        if _SHELL.intersection(value):
            line = as_list(["sh", "-c", value])
        else:
            try:
                line = as_list(shlex.split(value))
            except ValueError:  # an open quote
                line = ""
        return f"write {line}" if line else ""


class Variables(msgspec.Struct, frozen=True):
    """A table of environment variables: names as the user likes, values as strings."""

    words: ClassVar[str] = 'a table of strings, { NAME = "value" }'
    is_text: ClassVar[bool] = False
    value: ClassVar[Text] = Text("a string")

    def convert(self, value: object, note: Note) -> dict[str, str | None] | None:
        if not isinstance(value, dict):
            expected(self, value, note)
            return None
        if len(value) > MOST:
            note(f"has {len(value)} variables; at most {MOST} are possible", "set fewer")
            return None
        return {name: self._one(name, text, note) for name, text in value.items()}

    def _one(self, name: str, text: object, note: Note) -> str | None:
        if complaint := rules.env_name(name):
            note(*complaint, at=name)
        return self.value.convert(text, _inside(note, name))

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "patternProperties": {rules.ENV_NAME_PATTERN: self.value.schema()},
            "additionalProperties": False,
        }
