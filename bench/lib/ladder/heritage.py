"""The ladder's tables in docs/heritage.md: a copy of the kept ones, between two marks.

PYTHONPATH=bench python -m lib.ladder.heritage      puts those of the latest run there
"""

from pathlib import Path

from lib.machine import RESULTS, ROOT

PAGE = ROOT / "docs" / "heritage.md"
_BEGIN = "<!-- ladder: PYTHONPATH=bench python -m lib.ladder.heritage -->\n"
_END = "<!-- end of ladder -->\n"


def kept() -> Path:
    """A full run's result, if there is one."""
    full = RESULTS / "ladder.md"
    return full if full.exists() else RESULTS / "ladder-quick.md"


def tables(result: Path) -> str:
    """All of a result from its first heading on, and the way to the rest."""
    _, heading, text = result.read_text().partition("\n## ")
    body = (heading + text).replace("\n## ", "\n### ")
    folder = "../bench/results"
    return f"{body}\n[Machine, commit, command and method]({folder}/{result.name})\n\n"


def renewed(page: str, result: Path) -> str:
    """The page with the tables of this result."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise ValueError(f"the page lacks the marks {_BEGIN!r} and {_END!r}")
    return before + begin + tables(result) + end + after


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(), kept()))
