"""Problems while they are collected: found in any order, told in the order of the file.

    findings.add(path, message, suggestion)  …  findings.problems()

A place is looked up only at the end, and so is a suggestion that has to be searched for: a file
with a hundred thousand wrong keys is answered as fast as one with two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from wiiiiided.jobfile.locate import Location, Path
from wiiiiided.jobfile.problem import Problem
from wiiiiided.jobfile.words import printable, spell

MOST = 100  # problems told at once; who has more made one mistake many times
_LONGEST = 400  # characters of a message: as long as one may have to be, and no flood


class Option(NamedTuple):
    """A --set on the command line, or one value of a --sweep."""

    number: int  # its place among them
    text: str
    flag: str = "--set"


class Places:
    """Where each key came from: a line of the file, or a --set."""

    def __init__(self, file: str, found: dict[Path, Location]) -> None:
        self.file = file
        self._found: dict[Path, Location | Option] = dict(found)

    def replace(self, path: Path, option: Option) -> None:
        """This path, and all that is below it, comes from the option now."""
        below = [old for old in self._found if old[: len(path)] == path]
        for old in below:
            del self._found[old]
        self._found[path] = option

    def create(self, path: Path, option: Option) -> None:
        """The option made a table that was not there."""
        self._found.setdefault(path, option)

    def __contains__(self, path: Path) -> bool:
        return path in self._found

    def of(self, path: Path) -> Location | Option | None:
        """The place of a path, or of the nearest thing it is in."""
        for length in range(len(path), 0, -1):
            if place := self._found.get(path[:length]):
                return place
        return None


class _Finding(NamedTuple):
    place: Location | Option | None
    key: str
    message: str
    suggestion: str | Callable[[], str]

    @property
    def order(self) -> tuple[int, int, int]:
        """What has no place comes first, then the file, then the options."""
        match self.place:
            case None:
                return (0, 0, 0)
            case Location(line, column):
                return (1, line, column)
            case Option(number):
                return (2, number, 0)


class Findings:
    """Everything that is wrong so far, and what only may be."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._found: list[_Finding] = []
        self._warned: list[_Finding] = []

    def add(self, path: Path, message: str, suggestion: str | Callable[[], str] = "") -> None:
        """Something about the key at `path`."""
        self._found.append(_Finding(self.places.of(path), spell(path), message, suggestion))

    def warn(self, path: Path, message: str, suggestion: str) -> None:
        """Something about the key at `path` that may be meant."""
        self._warned.append(_Finding(self.places.of(path), spell(path), message, suggestion))

    def missing(self, path: Path, message: str, suggestion: str) -> None:
        """A key that is not there: the table it should be in is the place, if the file has it."""
        place = self.places.of(path)
        known = place if isinstance(place, Location) else None
        self._found.append(_Finding(known, spell(path), message, suggestion))

    def add_option(self, option: Option, message: str, suggestion: str) -> None:
        """Something about a --set as a whole."""
        self._found.append(_Finding(option, "", message, suggestion))

    def problems(self) -> list[Problem]:
        """The first MOST of them, and how many more there are."""
        ordered = sorted(self._found, key=lambda finding: finding.order)
        told = [self._problem(finding) for finding in ordered[:MOST]]
        left = len(ordered) - len(told)
        if left:
            told.append(Problem(self.places.file, None, "", f"and {left} more problems"))
        return told

    def warnings(self) -> list[Problem]:
        """In the order of the file; there are never many."""
        return [self._problem(one) for one in sorted(self._warned, key=lambda one: one.order)]

    def _problem(self, finding: _Finding) -> Problem:
        line = finding.place.line if isinstance(finding.place, Location) else None
        file = self.places.file
        if isinstance(finding.place, Option):
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
