"""Prints which tests of the suite run, and why the others do not.

`python -m tests.conformance.census` prints the counts; with `--names`, every test and its reasons.
"""

from __future__ import annotations

import argparse

from tests.conformance.client import Client
from tests.conformance.verdicts import Census, Group


def describe(census: Census, *, names: bool) -> str:
    """The census as text."""
    lines = [f"{len(census)} tests in the suite, of which"]
    for group in Group:
        members = {name: v for name, v in census.items() if v.group is group}
        lines.append(f"{len(members):5} {group.value}")
        if names:
            lines += [
                f"        {name}" + "".join(f"\n            {reason}" for reason in verdict.reasons)
                for name, verdict in members.items()
            ]
    return "\n".join(lines)


def main() -> None:
    """Print the census."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.census")
    parser.add_argument("--names", action="store_true", help="every test with its reasons")
    names = parser.parse_args().names
    with Client() as client:
        print(describe(client.census, names=names))


if __name__ == "__main__":
    main()
