"""The way from a job file to a JobSpec, or to everything that is wrong with it.

text ──locate──► places of keys
  └──tomllib──► document ──overrides──► check ──► cross_field ──► program ──► JobSpec
                                          └────────────┴─────────────┴────► Invalid(problems)
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from wiiiiided.domain.limits import MAX_NAME, too_large
from wiiiiided.domain.spec import JobSpec
from wiiiiided.ui.jobfile import overrides as options
from wiiiiided.ui.jobfile.check import Values, check
from wiiiiided.ui.jobfile.cross_field import INTO_A_FILE, check_together
from wiiiiided.ui.jobfile.describe import printable, show
from wiiiiided.ui.jobfile.findings import Findings, Override, Places
from wiiiiided.ui.jobfile.keys import KEYS, SECTIONS
from wiiiiided.ui.jobfile.locate import DEPTH, Scan, scan
from wiiiiided.ui.jobfile.problem import Invalid, Problem
from wiiiiided.ui.jobfile.program import Folder, look

WARN_SHARE = 0.1  # of max_time, at most, unless the file says when to warn

_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


class Examined(NamedTuple):
    """A job, and warnings about probable mistakes in it."""

    spec: JobSpec
    warnings: tuple[Problem, ...] = ()


def examine(
    text: str,
    file: str,
    sets: Sequence[str],
    folder: Callable[[str], Folder] | None,
    swept: Sequence[str] = (),
) -> Examined:
    """The job in a text; Invalid with everything that is wrong.

    `file` names it in problems, and its folder names the job. `swept` are options like `sets`, one
    for each --sweep. `folder` makes a Folder of the working directory's path, in which the files of
    the command are looked for; None: they are not.
    """
    shown = printable(file, 400)
    scanned = scan(text)
    document = _parse(text, shown, scanned)
    findings = Findings(Places(shown, scanned.found))
    given = [*((one, "--set") for one in sets), *((one, "--sweep") for one in swept)]
    for number, (one, flag) in enumerate(given):
        options.apply(document, Override(number, one, flag), findings)
    values = check(document, findings)
    check_together(values, findings)
    if folder is not None:
        _look(values, file, findings, folder)
    if problems := findings.problems():
        raise Invalid(problems)
    spec = _spec(values, file)
    if large := too_large(spec):
        raise Invalid([Problem(shown, None, "", sentence, INTO_A_FILE) for sentence in large])
    return Examined(spec, tuple(findings.warnings()))


def _look(values: Values, file: str, findings: Findings, folder: Callable[[str], Folder]) -> None:
    path = ("run", "workdir")
    workdir = values.get(path, ".")
    if not isinstance(workdir, str):
        return
    directory = os.path.join(os.path.dirname(file), workdir)
    if os.path.isdir(directory):
        look(values, folder(directory), findings)
    else:
        message = f"{show(workdir)} is not there, or is no folder"
        findings.add(path, message, "it is looked for beside the job file")


def _parse(text: str, file: str, scanned: Scan) -> dict[str, Any]:
    if scanned.too_deep:
        message = f"nested more than {DEPTH} deep"
        raise Invalid([Problem(file, scanned.too_deep.line, "", message, "a job file needs four")])
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Invalid([_syntax(str(error), text, file)]) from None
    except (ValueError, RecursionError):  # tomllib lets Python's own limits through
        message = "a number of thousands of digits"
        raise Invalid([Problem(file, None, "", message, "a job file needs none")]) from None


# tomllib's words for the slips that people make most, and what to do.
_HINTS = (
    ("Invalid value", "texts stand in quotes"),
    ("Expected newline", "one key = value per line; texts stand in quotes"),
    ("Expected '='", "write key = value"),
    ("Cannot declare", "put both parts into one table"),
    ("Cannot overwrite", "the key stands twice; leave one out"),
    ("Unclosed array", "elements are separated by commas and end with ]"),
    ("Unescaped", "write \\\\ for a backslash, or use single quotes"),
)


def _syntax(error: str, text: str, file: str) -> Problem:
    """tomllib's words, with the line in its place."""
    match = _AT.fullmatch(error)
    said, line, column = match.groups() if match else (error, None, None)
    at = int(line) if line else text.rstrip().count("\n") + 1
    where = f" (column {column})" if column else " (end of file)"
    hint = next((hint for start, hint in _HINTS if said.startswith(start)), "")
    return Problem(file, at, "", f"not TOML: {printable(said, 200)}{where}", hint)


def _spec(values: Values, file: str) -> JobSpec:
    """The spec of values that are all right."""
    parts: dict[tuple[str, ...], dict[str, Any]] = {section.path: {} for section in SECTIONS}
    for key in KEYS:
        if key.path in values:
            parts[key.path[:-1]][key.field] = values[key.path]
    parts[()].setdefault("name", default_name(file))
    policy = parts[("policy",)]
    if "max_time_s" in policy:
        usual = WARN_SHARE * policy["max_time_s"]
        policy.setdefault("warn_before_s", min(usual, 60.0))
    for section in sorted(SECTIONS, key=lambda section: -len(section.path)):
        if section.path:
            made = section.struct(**parts[section.path])
            parts[section.path[:-1]][section.path[-1]] = made
    return JobSpec(**parts[()])


def default_name(file: str) -> str:
    """The name of the folder that holds the file, as far as it can be one."""
    folder = os.path.basename(os.path.dirname(os.path.abspath(file.replace("\0", ""))))
    kept = "".join(char if char.isprintable() else "_" for char in folder)
    return kept.strip()[:MAX_NAME].strip() or "job"
