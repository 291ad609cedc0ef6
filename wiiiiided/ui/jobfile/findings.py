"""Problems while they are collected: found in any order, told in the order of the file.

    findings.add(path, message, suggestion)  …  findings.problems()

A place is looked up only at the end, and so is a suggestion that has to be searched for: a file
with a hundred thousand wrong keys is answered as fast as one with two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wiiiiided.ui.jobfile.describe import printable, spell
from wiiiiided.ui.jobfile.locate import Location, Path
from wiiiiided.ui.jobfile.problem import Problem

MOST = 100  # problems told at once; more of them are one mistake made many times
_LONGEST = 400  # characters of a message: as long as one may have to be, and no flood


class Override(NamedTuple):
    """A --set on the command line, or one value of a --sweep."""

    number: int  # its place among them
    text: str
    flag: str = "--set"


class Places:
    """Where each key came from: a line of the file, or a --set."""

    def __init__(self, file: str, found: dict[Path, Location]) -> None:
        self.file = file
        self._found: dict[Path, Location | Override] = dict(found)

    def replace(self, path: Path, option: Override) -> None:
        """Note that this path, and all that is below it, comes from the option now."""
        below = [old for old in self._found if old[: len(path)] == path]
        for old in below:
            del self._found[old]
        self._found[path] = option

    def create(self, path: Path, option: Override) -> None:
        """Note that the option made a table that was not there."""
        self._found.setdefault(path, option)

    def __contains__(self, path: Path) -> bool:
        return path in self._found

    def of(self, path: Path) -> Location | Override | None:
        """The place of a path, or of the nearest thing it is in."""
        for length in range(len(path), 0, -1):
            if place := self._found.get(path[:length]):
                return place
        return None


class _PlacedProblem(NamedTuple):
    place: Location | Override | None
    key: str
    message: str
    suggestion: str | Callable[[], str]

    @property
    def order(self) -> tuple[int, int, int]:
        """Findings without a place come first, then those of the file, then of the options."""
        match self.place:
            case None:
                return (0, 0, 0)
            case Location(line, column):
                return (1, line, column)
            case Override(number):
                return (2, number, 0)


class Findings:
    """The problems so far, and notes on what may be meant."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._found: list[_PlacedProblem] = []
        self._warned: list[_PlacedProblem] = []

    def add(self, path: Path, message: str, suggestion: str | Callable[[], str] = "") -> None:
        """Note a problem of the key at `path`."""
        self._found.append(_PlacedProblem(self.places.of(path), spell(path), message, suggestion))

    def warn(self, path: Path, message: str, suggestion: str) -> None:
        """Note something about the key at `path` that is legal, but probably a mistake."""
        self._warned.append(_PlacedProblem(self.places.of(path), spell(path), message, suggestion))

    def missing(self, path: Path, message: str, suggestion: str) -> None:
        """Note a key that is not there. Its place is its table, if the file has that."""
        place = self.places.of(path)
        known = place if isinstance(place, Location) else None
        self._found.append(_PlacedProblem(known, spell(path), message, suggestion))

    def add_option(self, option: Override, message: str, suggestion: str) -> None:
        """Note a problem of a --set as a whole."""
        self._found.append(_PlacedProblem(option, "", message, suggestion))

    def problems(self) -> list[Problem]:
        """The first MOST of them, and how many more there are."""
        ordered = sorted(self._found, key=lambda finding: finding.order)
        told = [self._problem(finding) for finding in ordered[:MOST]]
        left = len(ordered) - len(told)
        if left:
            told.append(Problem(self.places.file, None, "", f"and {left} more problems"))
        return told

    def warnings(self) -> list[Problem]:
        """All notes, in the order of the file; there are never many."""
        return [self._problem(one) for one in sorted(self._warned, key=lambda one: one.order)]

    def _problem(self, finding: _PlacedProblem) -> Problem:
        line = finding.place.line if isinstance(finding.place, Location) else None
        file = self.places.file
        if isinstance(finding.place, Override):
            file = f"{finding.place.flag} {printable(finding.place.text)}"
        words = finding.suggestion
        suggestion = words if isinstance(words, str) else words()
        return Problem(
            file,
            line,
            finding.key,
            printable(finding.message, _LONGEST),
            printable(suggestion, _LONGEST),
        )
