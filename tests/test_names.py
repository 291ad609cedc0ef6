"""One name, one class: a reader who searches for a class finds it, and nothing else."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.kit.source import parse

ROOT = Path(__file__).parents[1]


def classes() -> dict[str, list[str]]:
    """Every class of the product and the benchmarks by its name, private ones too and without their
    underscore, with the files that have it. Tests have names of their own."""
    found = defaultdict(list)
    for path in sorted([*ROOT.glob("wiiiiided/**/*.py"), *ROOT.glob("bench/**/*.py")]):
        for node in ast.walk(parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(str(path.relative_to(ROOT)))
    return found


def test_no_two_classes_have_one_name() -> None:
    found = classes().items()
    twice = {name: files for name, files in found if len(files) > 1}
    assert not twice
