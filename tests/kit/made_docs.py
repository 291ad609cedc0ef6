"""The parts of docs/ that are made from tables of the product: `python -m tests.kit.made_docs`.

    docs/job-states.md      the whole page, from the table of moves in domain/states
    docs/job.schema.json    the whole file, from the table of keys in ui/jobfile/keys
    docs/job-file.md        between marks, from the same table:

    <!-- keys of run -->          a table of that section's keys
    <!-- problems -->             what is wrong with the nearest TOML block above, as job.toml
    <!-- problems with --set a=b -->       … and with these options
    <!-- end -->                  closes both

Written by hand they would be wrong after the next change; tests compare. Run it at the root of the
repository; another folder than docs may be named.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from wiiiiided.domain.states import ENDED, MOVES, STATES
from wiiiiided.ui.jobfile import schema
from wiiiiided.ui.jobfile.keys import KEYS, Key
from wiiiiided.ui.jobfile.problem import Invalid
from wiiiiided.ui.jobfile.read import examine

STATES_HEAD = """# The states of a job

Made from the table in wiiiiided/domain/states.py by `python -m tests.kit.made_docs`; a test
compares the two. `wiiiiide why ID` says in one sentence why a job is where it is.

An allocation is a node's part of a job; `WorkersEnded` is its end, as its node reports it. It also
counts as ended when its node is declared lost or removed, and when the node was silent for longer
than the job's `stop_alone`. Silence alone ends nothing that was started.

| state | meaning |
|---|---|
"""

_MADE = re.compile(
    r"<!-- (keys of (?P<section>[a-z.]+|the file)|problems(?P<sets>( with)?[^>\n]*)) -->\n"
    r".*?<!-- end -->",
    re.DOTALL,
)
_TOML = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)


# ---- states


def states_page() -> str:
    rows = "".join(f"| {state} | {meaning} |\n" for state, meaning in STATES.items())
    return f"{STATES_HEAD}{rows}\n```mermaid\n{diagram()}```\n"


def diagram() -> str:
    """The moves as a Mermaid state diagram: one arrow per pair, with all events that cause it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for old, moves in MOVES.items():
        for event, news in moves.items():
            for new in news:
                arrows.setdefault(("[*]" if old == "new" else old, new), []).append(event)
    lines = [
        f"    {old} --> {new}: {', '.join(events)}"
        for (old, new), events in arrows.items()
        if old != new
    ]
    lines += [f"    {state} --> [*]" for state in STATES if state in ENDED]
    return "stateDiagram-v2\n" + "\n".join(lines) + "\n"


# ---- the job file


def job_file_page(page: str) -> str:
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
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _problems(above: str, sets: list[str]) -> str:
    """The result of reading the last TOML block, as a terminal would show it."""
    text = _TOML.findall(above)[-1]
    try:
        examine(text, "job.toml", [one.strip() for one in sets], None)
    except Invalid as invalid:
        return f"```text\n{invalid}\n```\n"
    return "```text\njob.toml: nothing is wrong with it\n```\n"


def write_all(docs: Path) -> None:
    page = docs / "job-file.md"
    page.write_text(job_file_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    (docs / "job.schema.json").write_text(schema.as_text(), encoding="utf-8")
    (docs / "job-states.md").write_text(states_page(), encoding="utf-8")


if __name__ == "__main__":
    write_all(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
