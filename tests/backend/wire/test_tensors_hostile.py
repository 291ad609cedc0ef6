"""Heads that are not what pack made: one sentence each, no other exception, no large allocation."""

from __future__ import annotations

import random
import tracemalloc
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from wiiiiided.backend.wire import tensors_read, tensors_write
from wiiiiided.backend.wire.tensors import HEAD_BYTES, pack, plan, unpack
from wiiiiided.backend.wire.tensors_format import MAX_COLLISIONS, count_bytes
from wiiiiided.backend.wire.tensors_format import TypeTag as Tag
from wiiiiided.errors import HostError

START = pack(None).head[:-1]
LIMIT = 1 << 20


def node(kind: Tag, *rest: int | bytes) -> bytes:
    """A node: numbers are counts, bytes stand as they are."""
    return bytes([kind]) + b"".join(count_bytes(r) if isinstance(r, int) else r for r in rest)


def name(text: str) -> bytes:
    return count_bytes(len(text)) + text.encode("latin-1")


def tensor(*sizes: int, flags: int = 0, dtype: str = "uint8", order: bytes = b"") -> bytes:
    dims = bytes([len(sizes)]) + b"".join(map(count_bytes, sizes))
    return node(Tag.TENSOR, bytes([flags]), name(dtype), dims, order)


def array(*sizes: int, flags: int = 0, dtype: str = "<f4", order: bytes = b"") -> bytes:
    dims = bytes([len(sizes)]) + b"".join(map(count_bytes, sizes))
    return node(Tag.ARRAY, bytes([flags]), name(dtype), dims, order)


ONE = node(Tag.INT, 1, b"\x01")
BROKEN = {
    "nothing": (b"", "cut short"),
    "another beginning": (b"xTEN\x01\x01\x00", "does not begin like one"),
    "a later version": (b"wTEN\x09\x01\x00", "version 9, this wiiiiided knows 1"),
    "another byte order": (b"wTEN\x01\x02\x00", "another byte order"),
    "no value": (START, "cut short"),
    "two values": (START + b"\0\0", "bytes after its end"),
    "an unknown kind": (START + b"\xee", "unknown kind 238"),
    "half a float": (START + node(Tag.FLOAT, b"1234"), "cut short"),
    "a string cut short": (START + node(Tag.STR, 9, b"abc"), "cut short"),
    "text that is none": (START + node(Tag.STR, 2, b"\xff\xfe"), "not UTF-8"),
    "a count without end": (START + node(Tag.STR, b"\xff" * 20), "a count without end"),
    "a list longer than its head": (START + node(Tag.LIST, 1 << 40), "parts in the 0 bytes"),
    "a dict longer than its head": (START + node(Tag.DICT, 2, b"\0\0\0"), "parts in the 3 bytes"),
    "a key twice": (START + node(Tag.DICT, 2, (ONE + b"\0") * 2), "a key twice"),
    "keys that are equal": (START + node(Tag.DICT, 2, ONE + b"\0\x02\0"), "a key twice"),
    "a list as a key": (START + node(Tag.DICT, 1, node(Tag.LIST, 0), b"\0"), "key of kind LIST"),
    "a long key": (START + node(Tag.DICT, 1, node(Tag.STR, 5000), b"\0"), "key that is too long"),
    "a size of strings": (START + node(Tag.SIZE, 1, node(Tag.STR, 0)), "torch.Size of something"),
    "a size of true": (START + node(Tag.SIZE, 1, b"\x02"), "torch.Size of something"),
    "a size too large": (START + node(Tag.SIZE, 1, node(Tag.INT, 9, b"\1" * 9)), "a torch.Size"),
    "a dtype that is none": (START + tensor(1, dtype="float99"), "unknown dtype 'float99'"),
    "a dtype that is quantized": (START + tensor(1, dtype="qint8"), "unknown dtype 'qint8'"),
    "a dtype that is code": (START + tensor(1, dtype="__class__"), "unknown dtype"),
    "a dtype that is not ASCII": (START + tensor(1, dtype="flöat"), "not ASCII"),
    "a dtype without end": (START + tensor(1, dtype="f" * 99), "a name of 99 bytes"),
    "unknown flags": (START + tensor(1, flags=64), "unknown flags 64"),
    "a gradient of integers": (START + tensor(1, flags=1), "requires a gradient"),
    "many dimensions": (START + tensor(*[1] * 65), "65 dimensions"),
    "a tensor too large": (START + tensor(1 << 30), "more than 1,048,576 bytes"),
    "a product that overflows": (START + tensor(1 << 32, 1 << 32), "beyond all bounds"),
    "an overflow to zero": (START + tensor(1 << 32, 1 << 32, dtype="int64"), "beyond all bounds"),
    "an empty one that overflows": (START + tensor(0, 1 << 62, 1 << 62), "beyond all bounds"),
    "together too large": (START + node(Tag.LIST, 2, tensor(LIMIT // 2 + 1) * 2), "more than 1"),
    "a long string too large": (START + node(Tag.STR, LIMIT + 1), "more than 1,048,576 bytes"),
    "a dimension twice": (START + tensor(2, 2, flags=8, order=b"\0\0"), r"in the order \(0, 0\)"),
    "a dimension there is not": (START + tensor(2, 2, flags=8, order=b"\0\2"), r"order \(0, 2\)"),
    "objects": (START + array(1, dtype="|O8"), r"unknown dtype '\|O8'"),
    "fields": (START + array(1, dtype="i4,f4"), "unknown dtype"),
    "strings without length": (START + array(1, dtype="<U0"), "unknown dtype"),
    "strings beyond length": (START + array(1, dtype="<U999999999"), "unknown dtype"),
    "a dtype in other words": (START + array(1, dtype="<i1"), "unknown dtype '<i1'"),
    "flags of an array": (START + array(1, flags=1), "unknown flags 1"),
    "a scalar of another length": (START + node(Tag.SCALAR, name("<f4"), 2, b"ab"), "in 2 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_head_is_refused_in_one_sentence(what: str) -> None:
    head, problem = BROKEN[what]
    with pytest.raises(HostError, match=problem):
        plan(head, limit_bytes=LIMIT)


def test_an_intact_head_made_by_hand_is_taken() -> None:
    # What the table above breaks is right otherwise.
    parts = [tensor(2, 2, flags=8, order=b"\1\0"), array(0, 1 << 40), node(Tag.SIZE, 1, ONE), ONE]
    parts += [node(Tag.DICT, 1, ONE + b"\0"), node(Tag.SCALAR, name("<f4"), 4, bytes(4))]
    head = START + node(Tag.LIST, len(parts), *parts)
    got = unpack(head, bytes([1, 2, 3, 4]))
    assert got[0].tolist() == [[1, 3], [2, 4]]
    assert got[1].shape == (0, 1 << 40)
    assert got[2:] == [torch.Size([1]), 1, {1: None}, np.float32(0)]


def test_a_head_of_containers_in_containers_is_refused_however_deep() -> None:
    for one in (node(Tag.LIST, 1), node(Tag.DICT, 1, ONE)):
        with pytest.raises(HostError, match="more than 100 deep"):
            plan(START + one * 100_000)
    with pytest.raises(HostError, match="more than 100 deep"):
        plan(START + node(Tag.DICT, 1) + node(Tag.TUPLE, 1) * 100_000)


def test_a_head_beyond_its_limit_is_refused() -> None:
    with pytest.raises(HostError, match="a head of 67,108,865 bytes"):
        plan(bytes(HEAD_BYTES + 1))


@pytest.mark.parametrize("limit", ["MAX_NODES", "MAX_BUFFERS"])
def test_a_head_with_more_parts_than_allowed_is_refused(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = pack([torch.ones(0)] * 300).head
    plan(head)
    monkeypatch.setattr(tensors_read, limit, 200)
    with pytest.raises(HostError, match="more than 200 "):
        plan(head)


def test_what_the_writer_may_write_at_most_the_reader_takes() -> None:
    for limit in ("MAX_NODES", "MAX_BUFFERS", "MAX_DEPTH", "INLINE_BYTES", "HEAD_BYTES"):
        assert getattr(tensors_read, limit) == getattr(tensors_write, limit)


def test_keys_made_to_collide_are_refused_at_once() -> None:
    # All have the hash 0: a dict of a million of them would take hours to make.
    count = 20_000
    step = (1 << 61) - 1
    keys = [(i * step).to_bytes(12, "little") for i in range(count)]
    head = START + node(Tag.DICT, count, *[node(Tag.INT, 12, key) + b"\0" for key in keys])
    with pytest.raises(HostError, match="made to collide"):
        plan(head)
    few = MAX_COLLISIONS // 2
    some = START + node(Tag.DICT, few, *[node(Tag.INT, 12, key) + b"\0" for key in keys[:few]])
    assert len(plan(some).build(b"")) == few


def test_characters_that_do_not_exist_are_refused() -> None:
    for order in "<>":
        packed = pack(np.array(["abc"], f"{order}U3"))
        with pytest.raises(HostError, match="characters that do not exist"):
            unpack(packed.head, b"\xff" * packed.nbytes)
    scalar = pack(np.str_("a")).head
    with pytest.raises(HostError, match="characters that do not exist"):
        unpack(scalar[:-4] + b"\xff" * 4, b"")


def test_long_text_that_is_none_is_refused_when_it_is_built() -> None:
    packed = pack("x" * 5000)
    with pytest.raises(HostError, match="cannot be made: UnicodeDecodeError"):
        unpack(packed.head, b"\xff" * 5000)


# ---- fuzzing

SAMPLE: Any = {
    "model": OrderedDict(w=torch.ones(3, 4).t(), b=torch.ones(2, requires_grad=True)),
    "arrays": [np.arange(6).reshape(2, 3).T, np.float32(1), np.datetime64("2020"), np.zeros(0)],
    (1, b"k", None, 2.5): ("text", "ü" * 3000, b"\0" * 5000, bytearray(b"x"), -(2**90), 1j, True),
    "size": torch.Size([1, 2]),
    "names": np.array(["a", "bc"]),
}
INTACT = pack(SAMPLE)
DATA = bytes(INTACT.join())


def assert_harmless(head: bytes) -> None:
    """The head is refused with HostError, or makes a value within the limit."""
    try:
        blueprint = plan(head, limit_bytes=LIMIT)
        assert 0 <= blueprint.nbytes <= LIMIT
        assert all(offset % 64 == 0 and size > 0 for offset, size in blueprint.spans)
        memory = blueprint.allocate()
        memory[:] = (DATA + bytes(blueprint.nbytes))[: blueprint.nbytes]
        blueprint.build(memory)
    except HostError:
        pass


@settings(max_examples=examples(750), deadline=None)
@given(st.data())
def test_a_changed_head_is_refused_or_harmless(data: st.DataObject) -> None:
    head = bytearray(INTACT.head)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(head)))
        match data.draw(st.sampled_from(["set", "cut", "insert", "repeat"])):
            case "set" if at < len(head):
                head[at] = data.draw(st.integers(0, 255))
            case "cut":
                del head[at : at + data.draw(st.integers(1, 30))]
            case "insert":
                head[at:at] = data.draw(st.binary(max_size=12))
            case "repeat":
                head[at:at] = head[at : at + data.draw(st.integers(1, 60))]
    assert_harmless(bytes(head))


@settings(max_examples=examples(250), deadline=None)
@given(st.binary(max_size=200))
def test_a_head_of_chance_is_refused_or_harmless(tail: bytes) -> None:
    assert_harmless(tail)
    assert_harmless(START + tail)


def test_every_changed_byte_and_every_cut_is_harmless_and_takes_little_memory() -> None:
    chance = random.Random(4)
    tracemalloc.start()
    try:
        for at in range(len(INTACT.head)):
            assert_harmless(INTACT.head[:at])
            for byte in (0, 0x7F, 0x80, 0xFF, chance.randrange(256), chance.randrange(256)):
                changed = bytearray(INTACT.head)
                changed[at] = byte
                assert_harmless(bytes(changed))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * LIMIT


def test_the_intact_head_is_taken() -> None:
    got = unpack(INTACT.head, DATA)
    assert list(got) == list(SAMPLE)
    assert torch.equal(got["model"]["w"], SAMPLE["model"]["w"])
