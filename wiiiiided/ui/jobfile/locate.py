"""Where each key of a TOML text stands, which tomllib does not tell.

A problem without its line is a search. This scanner walks the text once and notes the place of
every key, table and element:

    [run]                       ("run",)                    line 1
    env = { A = "1" }           ("run", "env")              line 2
                                ("run", "env", "A")         line 2, column 9
    command = [                 ("run", "command")          line 3
        "python",               ("run", "command", 0)       line 4

tomllib alone decides what is TOML and what the values are; nothing here is ever used as a value. So
the scanner is lenient: it steps over strings, opens and closes brackets, and where it understands
nothing any more it stops with what it has. It has no recursion, and it bounds the depth: a key of
half a million parts would keep tomllib busy for minutes, so the reader refuses a text that is
`too_deep` before tomllib sees it.

A second TOML library, one that keeps lines, was not taken: a dependency for one number.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from typing import NamedTuple

Path = tuple[str | int, ...]

DEPTH = 64  # parts of a path; a job file needs four

_BLANK = re.compile(r"[ \t]*")
_SPACE = re.compile(r"(?:[ \t\n]++|#[^\n]*+)*+")  # between the parts of an array
_REST = re.compile(r"[ \t]*(?:#[^\n]*+)?(?:\n|\Z)")  # what may follow a statement
_NAME = re.compile(r"""[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'""")
_SCALAR = re.compile(
    r'''"""(?:[^"\\]++|\\.|"(?!""))*+""""{0,2}'''
    r"""|'{3}.*?'{3,5}"""
    r'''|"(?:[^"\\\n]|\\.)*+"'''
    r"""|'[^'\n]*+'"""
    r"""|[^\s,\[\]{}#"'][^,\[\]{}\n#"']*""",  # a number, a date (which may have a blank), true
    re.DOTALL,
)


class Location(NamedTuple):
    """A place in the text; both count from 1."""

    line: int
    column: int


class Scan(NamedTuple):
    """Every path's place, and where the text got deeper than DEPTH, if it did."""

    found: dict[Path, Location]
    too_deep: Location | None


def locate(text: str) -> dict[Path, Location]:
    """The place of every key and element of a text that tomllib accepts."""
    return scan(text).found


def scan(text: str) -> Scan:
    """The places, as far as the text can be understood. Never raises."""
    scanner = _Scanner(text.replace("\r\n", "\n"))  # as tomllib does
    try:
        scanner.document()
    except _Lost:
        pass
    except _TooDeep as deep:
        return Scan(scanner.found, scanner.location(deep.position))
    return Scan(scanner.found, None)


def split_key(text: str) -> tuple[tuple[str, ...], str] | None:
    """The dotted key a text begins with, and the rest of the text; None when there is none."""
    scanner = _Scanner(text)
    try:
        parts = scanner.key()
    except (_Lost, _TooDeep):
        return None
    return tuple(name for name, _ in parts), text[scanner.position :]


class _Lost(Exception):
    """The text is not TOML, or not as this scanner knows it."""


class _TooDeep(Exception):
    def __init__(self, position: int) -> None:
        self.position = position


class _OpenValue:
    """An array or an inline table whose end has not come yet."""

    def __init__(self, path: Path, closer: str) -> None:
        self.path = path
        self.closer = closer
        self.count = 0  # of the values seen


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.found: dict[Path, Location] = {}
        self._tables: dict[Path, int] = {}  # arrays of tables, and how many they have so far
        self._line_ends = [match.start() for match in re.finditer("\n", text)]

    def location(self, position: int) -> Location:
        before = bisect_left(self._line_ends, position)
        start = self._line_ends[before - 1] + 1 if before else 0
        return Location(before + 1, position - start + 1)

    def document(self) -> None:
        """Step over all statements; `table` is the one that the last header opened."""
        table: Path = ()
        while self.position < len(self.text):
            self._skip(_SPACE)
            if self.position == len(self.text):
                return
            if self._take("["):
                table = self._header()
            else:
                self._pair(table)
            if not self._skip(_REST):
                raise _Lost

    def key(self) -> list[tuple[str, int]]:
        """The parts of a dotted key, each with its position."""
        parts: list[tuple[str, int]] = []
        while not parts or self._take("."):
            self._skip(_BLANK)
            if len(parts) == DEPTH:
                raise _TooDeep(self.position)
            parts.append((self._name(), self.position))
            self._skip(_NAME)
            self._skip(_BLANK)
        return parts

    def _header(self) -> Path:
        """Step over [table] or [[array of tables]]; the path that following keys belong to."""
        listed = self._take("[")
        parts = self.key()
        path = self._descend((), parts[:-1])
        name, position = parts[-1]
        path = self._enter(path, name, position)
        if listed:
            count = self._tables.setdefault(path, 0)
            self._tables[path] = count + 1
            path = self._enter(path, count, position)
        else:
            self.found[path] = self.location(position)  # this header beats an earlier mention
        if not (self._take("]") and (not listed or self._take("]"))):
            raise _Lost
        return path

    def _pair(self, table: Path) -> None:
        """Step over key = value, and all that is inside of the value."""
        open_ones: list[_OpenValue] = []
        self._value(self._key_path(table), open_ones)
        while open_ones:
            self._inside(open_ones)

    def _inside(self, open_ones: list[_OpenValue]) -> None:
        """Step over the next value of the innermost array or inline table, or its end."""
        inner = open_ones[-1]
        self._skip(_SPACE)
        if inner.count and not self._take(",") and self._peek() != inner.closer:
            raise _Lost
        self._skip(_SPACE)
        if self._take(inner.closer):
            open_ones.pop()
            return
        if inner.closer == "]":
            path = self._enter(inner.path, inner.count, self.position)
        else:
            path = self._key_path(inner.path)
        inner.count += 1
        self._value(path, open_ones)

    def _value(self, path: Path, open_ones: list[_OpenValue]) -> None:
        """Step over a scalar, or open an array or inline table."""
        if self._take("["):
            open_ones.append(_OpenValue(path, "]"))
        elif self._take("{"):
            open_ones.append(_OpenValue(path, "}"))
        elif not self._skip(_SCALAR):
            raise _Lost

    def _key_path(self, table: Path) -> Path:
        """The path of the key that stands here, up to and with its equals sign."""
        parts = self.key()
        path = self._descend(table, parts[:-1])
        path = self._enter(path, *parts[-1])
        if not self._take("="):
            raise _Lost
        self._skip(_BLANK)
        return path

    def _descend(self, path: Path, parts: list[tuple[str, int]]) -> Path:
        """Follow the parts; an array of tables is entered by its latest table, as TOML says."""
        for name, position in parts:
            path = self._enter(path, name, position)
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
        return path

    def _enter(self, path: Path, part: str | int, position: int) -> Path:
        """The path one part deeper; its first mention is its place, unless a header comes later."""
        if len(path) == DEPTH:
            raise _TooDeep(position)
        path = (*path, part)
        if path not in self.found:
            self.found[path] = self.location(position)
        return path

    def _name(self) -> str:
        """The key part that stands here; the position stays."""
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise _Lost
        name = match[0]
        if name[0] not in "\"'":
            return name
        if name[0] == "'" or "\\" not in name:
            return name[1:-1]
        try:
            return str(tomllib.loads(f"k = {name}")["k"])  # its escapes are tomllib's business
        except ValueError:
            raise _Lost from None

    def _peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def _take(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self.position += 1
        return True

    def _skip(self, what: re.Pattern[str]) -> bool:
        match = what.match(self.text, self.position)
        if match is None:
            return False
        self.position = match.end()
        return True
