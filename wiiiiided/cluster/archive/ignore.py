"""Which paths of a working directory are not shipped.

Three sources of rules; the first one with a rule for a path decides:

    ALWAYS               names that are never shipped: repositories, caches, virtual environments;
                         what `pull` made, by the mark in it; and a daemon's own files
    .wiiiiideignore      the deepest one first; `!data/` in it ships what git ignores
    .gitignore           the deepest one first, up to the root of the repository

As in git, nothing below an ignored directory can come back.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

OURS = ".wiiiiideignore"
GITS = ".gitignore"
PULLED = ".wiiiiide-pulled"  # in a folder of results: they do not travel with the next job

ALWAYS = frozenset(
    (
        *(".git", ".hg", ".venv", "node_modules"),
        *("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
    )
)

RULES_BYTES = 1 << 20  # of one ignore file; longer ones are not made by people


class BadRules(Exception):
    """One sentence about an ignore file that cannot be used."""


class LeftOut(NamedTuple):
    """Something excluded: a path, or a folder it is in, and the rule that says so."""

    name: str  # relative to the working directory
    by: str  # as of `Rules.ignored_by`
    pattern: str  # of OURS or GITS: the line that says so


@dataclass(frozen=True)
class Rules:
    """The ignore files of one directory and of those above it."""

    directory: str
    ours: Any = None  # GitIgnoreSpec | None: pathspec's own types vary with its version
    gits: Any = None
    above: Rules | None = None

    @classmethod
    def of(cls, directory: str) -> Rules:
        """Read the rules of a working directory, and of the repository it is part of."""
        directory = os.path.abspath(directory)
        above = cls._of_repository(directory)
        if above is not None and above.ignores(directory, True):
            above = None  # an ignored folder that is submitted is wanted nevertheless
        return cls._read(directory, above)

    @classmethod
    def _of_repository(cls, directory: str) -> Rules | None:
        """Read the rules of the directories above, if one of them is a git repository's root."""
        chain: list[str] = []
        while not os.path.exists(os.path.join(directory, ".git")):
            parent = os.path.dirname(directory)
            if parent == directory:
                return None
            chain.append(directory := parent)
        rules: Rules | None = None
        for folder in reversed(chain):
            rules = cls._read(folder, rules)
        return rules

    @classmethod
    def _read(cls, directory: str, above: Rules | None) -> Rules:
        ours, gits = (_spec(os.path.join(directory, name)) for name in (OURS, GITS))
        return cls(directory, ours, gits, above)

    def below(self, directory: str) -> Rules:
        """Give the rules of a directory inside; the same where it has none of its own."""
        inner = self._read(directory, self)
        return self if inner.ours is None and inner.gits is None else inner

    def ignores(self, path: str, is_directory: bool) -> bool:
        """Whether this path, inside of the directory, is not shipped."""
        return self.ignored_by(path, is_directory) is not None

    def ignored_by(self, path: str, is_directory: bool) -> str | None:
        """The file that excludes this path: OURS, GITS, PULLED; "" for a path never shipped."""
        if os.path.basename(path) in ALWAYS or (is_directory and is_daemons(path)):
            return ""
        if is_directory and (mark := _mark(path)) is not None:
            return PULLED if mark == PULLED else ""
        for kind, file in (("ours", OURS), ("gits", GITS)):
            verdict = self._verdict(kind, path + "/" * is_directory)
            if verdict is not None:
                return file if verdict else None
        return None

    def _verdict(self, kind: str, path: str) -> bool | None:
        return self._rule(kind, path)[0]

    def _rule(self, kind: str, path: str) -> tuple[bool | None, str]:
        """Whether rules of this kind ignore a path, and the line that says so."""
        rules: Rules | None = self
        while rules is not None:
            spec = getattr(rules, kind)
            if spec is not None:
                relative = path[len(rules.directory.rstrip("/")) + 1 :]
                found = spec.check_file(relative)
                if found.include is not None:
                    return found.include, str(getattr(spec.patterns[found.index], "pattern", ""))
            rules = rules.above
        return None, ""

    def pattern(self, path: str, is_directory: bool) -> str:
        """The line of OURS or GITS that excludes this path."""
        kind = "ours" if self.ignored_by(path, is_directory) == OURS else "gits"
        return self._rule(kind, path + "/" * is_directory)[1]


def left_out(directory: str, name: str) -> LeftOut | None:
    """The rule that excludes `name`, a path below the working directory; None: it is shipped."""
    root = os.path.abspath(directory)
    rules, path = Rules.of(root), root
    for part in name.split("/"):
        path = os.path.join(path, part)
        is_directory = os.path.isdir(path) and not os.path.islink(path)
        by = rules.ignored_by(path, is_directory)
        if by is not None:
            pattern = rules.pattern(path, is_directory) if by in (OURS, GITS) else ""
            return LeftOut(os.path.relpath(path, root) + "/" * is_directory, by, pattern)
        rules = rules.below(path) if is_directory else rules
    return None


def is_daemons(path: str) -> bool:
    """Whether a daemon keeps its state in this directory, or directly below: with it keys of the
    cluster and of jobs would travel. A person's own daemon is below ~/.local/state."""
    return any(
        all(os.path.exists(os.path.join(path, inner, name)) for name in ("state.sqlite", "lock"))
        for inner in ("", "state", "daemon")
    )


def _mark(path: str) -> str | None:
    """The file in this directory that says what it is: an environment, or results."""
    marks = ("pyvenv.cfg", PULLED)
    return next((mark for mark in marks if os.path.exists(os.path.join(path, mark))), None)


def _spec(path: str) -> GitIgnoreSpec | None:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read(RULES_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as problem:
        raise BadRules(f"cannot read {path}: {problem.strerror}") from problem
    if len(text) > RULES_BYTES:
        raise BadRules(f"{path} has more than {RULES_BYTES} characters: it is no list of patterns")
    from pathspec import GitIgnoreSpec  # a third of what `submit --help` would import

    try:
        return GitIgnoreSpec.from_lines(text.split("\n"))
    except ValueError as problem:
        raise BadRules(f"{path} has a pattern that git would not know: {problem}") from problem
