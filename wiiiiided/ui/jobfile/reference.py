"""The parts of docs/job-file.md that are made from the table of keys, between their marks.

    <!-- keys of run -->          a table of that section's keys
    <!-- problems -->             what is wrong with the nearest TOML block above, as job.toml
    <!-- problems with --set a=b -->       … and with these options
    <!-- end -->                  closes both

Written by hand they would be wrong after the next change; a test compares.
"""

from __future__ import annotations

import re

from wiiiiided.ui.jobfile.keys import KEYS, Key
from wiiiiided.ui.jobfile.problem import Invalid
from wiiiiided.ui.jobfile.read import read

_MADE = re.compile(
    r"<!-- (keys of (?P<section>[a-z.]+|the file)|problems(?P<sets>( with)?[^>\n]*)) -->\n"
    r".*?<!-- end -->",
    re.DOTALL,
)
_TOML = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def refreshed(page: str) -> str:
    """The page with all its made parts made anew."""

    def part(match: re.Match[str]) -> str:
        if match["section"]:
            made = _keys(match["section"])
        else:
            made = _problems(page[: match.start()], match["sets"].split("--set ")[1:])
        return f"<!-- {match[1]} -->\n{made}<!-- end -->"

    return _MADE.sub(part, page)


def _keys(section: str) -> str:
    path = () if section == "the file" else tuple(section.split("."))
    rows = [_row(key) for key in KEYS if key.path[:-1] == path]
    return "| key | meaning | value | default |\n|---|---|---|---|\n" + "".join(rows)


def _row(key: Key) -> str:
    default = ", ".join(filter(None, (key.default and f"`{key.default}`", key.absent)))
    cells = (
        f"`{key.path[-1]}`",
        key.meaning,
        f"{key.kind.words}; `{key.example}`",
        default or "required",
    )
    return f"| {' | '.join(map(_cell, cells))} |\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _problems(above: str, sets: list[str]) -> str:
    """The result of reading the last TOML block, as a terminal would show it."""
    text = _TOML.findall(above)[-1]
    try:
        read(text, "job.toml", [one.strip() for one in sets])
    except Invalid as invalid:
        return f"```text\n{invalid}\n```\n"
    return "```text\njob.toml: nothing is wrong with it\n```\n"
