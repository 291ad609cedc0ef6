"""Cases of two or three kinds of thing that need not meet each other every time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def thinned(rows: Iterable[Any], columns: Iterable[Any], each: int = 1) -> list[Any]:
    """Every row with every column; `make test` takes `each` columns for a row, in turn, and each
    column at least once if there are as many rows; `make soak` takes the rest."""
    rows, columns = list(rows), list(columns)
    cases = []
    for (number, row), (place, column) in product(enumerate(rows), enumerate(columns)):
        taken = (place - number * each) % len(columns) < each
        names = "-".join(getattr(one, "__name__", str(one)) for one in (row, column))
        marks = () if taken else pytest.mark.soak
        cases.append(pytest.param(row, column, id=names, marks=marks))
    return cases
