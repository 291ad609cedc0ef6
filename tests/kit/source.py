"""A file of the tree as a syntax tree.

Collected garbage may run Python code: a task whose exception was never asked for logs it, and a
traceback's carets are found by parsing. Python 3.11 counts the depth of both parses in one place
and raises SystemError from the outer one, so nothing is collected meanwhile.
"""

from __future__ import annotations

import ast
import gc


def parse(text: str, feature_version: tuple[int, int] | None = None) -> ast.Module:
    """`text` as a syntax tree, refused where an older Python could not read it."""
    gc.disable()
    try:
        return ast.parse(text, feature_version=feature_version)
    finally:
        gc.enable()
