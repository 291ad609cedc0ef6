"""What an exchange says of its coding."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wiiiiided.backend.collectives.wide.segment_coder import SegmentCoder
from wiiiiided.backend.lossy.registry import by_name

PIECE, PIECES = 64 * 1024, 3


def _coder() -> SegmentCoder:
    codec = by_name("int4")
    assert codec is not None
    wide: Any = SimpleNamespace(host=0, hosts=[[0], [1]], buffer=lambda _, size: bytes_of(size))
    coder = SegmentCoder(wide, codec)
    coder.make_buffers(PIECE)
    return coder


def bytes_of(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.zeros(size, np.uint8)


def _told(coder: SegmentCoder) -> float:
    found = re.search(r"([\d.]+) % left for the next exchange", coder.summary())
    assert found, coder.summary()
    return float(found[1])


@pytest.mark.parametrize("kind", ["unused rows", "ends differ", "columns differ"])
def test_the_error_that_is_told_is_that_of_the_whole_exchange(kind: str) -> None:
    chance = np.random.default_rng(1)
    values = chance.standard_normal(PIECE * PIECES).astype(np.float32)
    if kind == "unused rows":
        values[: PIECE + PIECE // 2] = 0
    elif kind == "ends differ":  # few of them large, in the second half
        values[values.size // 2 :] **= 3
    else:  # in each row of 256 one is far larger than all others, which are rounded to nothing
        values.reshape(-1, 256)[:, 7] = 100.0
    given, left = values.copy(), np.zeros_like(values)
    coder = _coder()
    for k in range(PIECES):
        here = slice(k * PIECE, (k + 1) * PIECE)
        coder.written(k, 1, values[here], left[here])
    true = 100 * np.linalg.norm(left) / np.linalg.norm(given)
    assert _told(coder) == pytest.approx(true, rel=0.15)
