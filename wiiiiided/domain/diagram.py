"""docs/job-states.md, drawn from the table of moves: `python -m wiiiiided.domain.diagram`."""

from __future__ import annotations

from wiiiiided.domain.states import ENDED, MOVES, STATES

HEAD = """# The states of a job

Made from the table in wiiiiided/domain/states.py by `python -m wiiiiided.domain.diagram`; a test
compares the two. `wiiiiide why ID` says in one sentence why a job is where it is.

An allocation is a node's part of a job; `WorkersEnded` is its end, as its node reports it. It also
counts as ended when its node is declared lost or removed, and when the node was silent for longer
than the job's `stop_alone`. Silence alone ends nothing that was started.

| state | meaning |
|---|---|
"""


def document() -> str:
    """The whole page."""
    rows = "".join(f"| {state} | {meaning} |\n" for state, meaning in STATES.items())
    return f"{HEAD}{rows}\n```mermaid\n{diagram()}```\n"


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


if __name__ == "__main__":
    print(document(), end="")
