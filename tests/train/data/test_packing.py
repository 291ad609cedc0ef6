"""What `wide.shared_dataset` packs comes back as it was; what cannot be packed gets a sentence."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from wiiiiided.errors import UsageError
from wiiiiided.train.data.packing import PackedValue, unpacked, values_of
from wiiiiided.train.data.shared_memory import GrowingMemory, SharedBuffer

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint16]


def through_bytes(value: Any) -> Any:
    memory = GrowingMemory()
    PackedValue(value, memory).write()
    raw = SharedBuffer.of(memory.seal()).tensor
    return values_of(unpacked(raw), raw)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, list) and a and all(isinstance(text, str) for text in a):
        return a == list(b)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def _tensors() -> st.SearchStrategy[torch.Tensor]:
    shapes = st.lists(st.integers(0, 4), max_size=3)
    made = st.builds(lambda shape, dtype: (torch.randn(shape) * 3).to(dtype), shapes,
                     st.sampled_from(DTYPES))  # fmt: skip
    return made.map(lambda tensor: tensor.transpose(0, 1) if tensor.dim() > 1 else tensor)


CONSTANTS = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(),
                      st.floats(allow_nan=False), st.binary(max_size=9))  # fmt: skip
TEXTS = st.lists(st.text(st.characters(), max_size=9), min_size=1)
ARRAYS = st.builds(lambda n, dtype: np.arange(n).astype(dtype), st.integers(0, 9),
                   st.sampled_from(["f4", "f8", "i1", "u8", "?"]))  # fmt: skip
LEAVES = st.one_of(CONSTANTS, TEXTS, ARRAYS, _tensors())
KEYS = st.one_of(st.text(max_size=3), st.integers(0, 5))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda parts: [*parts, ()]),  # no list of numbers alone
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=8,
)


@given(VALUES)
def test_a_nest_comes_back_as_it_was(value: Any) -> None:
    assert same(value, through_bytes(value))


def test_a_list_of_numbers_is_an_array_and_a_tensor_data_set_its_tensors() -> None:
    assert same(through_bytes([1, 2, 3]), np.array([1, 2, 3]))
    assert same(through_bytes([1, 2.5]), np.array([1, 2.5]))
    x, y = torch.ones(3, 2), torch.arange(3)
    assert same(through_bytes(TensorDataset(x, y)), (x, y))
    assert through_bytes(np.float32(0.5)) == 0.5


def test_a_lone_surrogate_survives() -> None:
    assert list(through_bytes(["a\udc80", ""])) == ["a\udc80", ""]


def test_an_array_in_shared_memory_refuses_writes() -> None:
    with pytest.raises(ValueError, match="read-only"):
        through_bytes(np.zeros(3))[0] = 1


def test_strings_are_a_sequence() -> None:
    words = [f"word {k}" for k in range(20_001)]  # more than are encoded at once
    found = through_bytes(words)
    assert len(found) == len(words)
    assert (found[0], found[-1], found[3:5]) == (words[0], words[-1], words[3:5])
    assert list(found) == words
    assert words[7] in found
    with pytest.raises(IndexError):
        found[len(words)]


Point = namedtuple("Point", "x y")
REFUSED: list[tuple[Any, str]] = [
    ({"a": (0, object())}, r"the value\['a'\]\[1\] is a object"),
    (Point(1, 2), "is a Point"),
    ({1.5: 0}, r"the key 1\.5"),
    (torch.empty(2, device="meta"), "lies on meta"),
    (torch.eye(2).to_sparse(), "torch.sparse_coo"),
    (np.array(["a"]), "torch has no dtype"),
    (np.array([None]), "torch has no dtype"),
    (2**70, "is a int"),
    (3j, "is a complex"),
]


@pytest.mark.parametrize(("value", "sentence"), REFUSED, ids=[r[1] for r in REFUSED])
def test_what_cannot_be_shared_is_named_with_its_place(value: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        PackedValue(value, GrowingMemory())
