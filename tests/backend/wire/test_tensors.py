"""Values with tensors, packed and unpacked: everything that travels comes back as it was."""

from __future__ import annotations

import math
import struct
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from wiiiiided.backend.wire import tensors_write
from wiiiiided.backend.wire.tensors import pack, plan, unpack
from wiiiiided.backend.wire.tensors_format import ALIGN, INLINE_BYTES, MAX_DEPTH, MAX_DIMS
from wiiiiided.backend.wire.tensors_memory import TORCH_DTYPES
from wiiiiided.errors import HostError, UsageError

DTYPES = sorted(TORCH_DTYPES.values(), key=str)


def there_and_back(value: Any, **options: bool) -> Any:
    packed = pack(value, **options)
    return unpack(packed.head, packed.join(), **options)


def bits(tensor: torch.Tensor) -> bytes:
    """Every bit of a tensor, element by element, also of dtypes that torch can hardly use."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    carriers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    carried = plain.view(carriers.get(plain.element_size(), plain.dtype))
    return carried.contiguous().numpy().tobytes()


def assert_alike(got: Any, want: Any) -> None:
    """The same type, structure and bits."""
    assert type(got) is type(want), f"{type(got)} instead of {type(want)}"
    if isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.requires_grad == want.requires_grad
        assert bits(got) == bits(want)
    elif isinstance(want, np.ndarray | np.generic):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tobytes() == want.tobytes()
    elif isinstance(want, dict):
        assert len(got) == len(want)
        for (key, item), (other, thing) in zip(got.items(), want.items(), strict=True):
            assert_alike(key, other)
            assert_alike(item, thing)
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)
        for item, thing in zip(got, want, strict=True):
            assert_alike(item, thing)
    elif isinstance(want, float):
        assert struct.pack("d", got) == struct.pack("d", want)
    elif isinstance(want, complex):
        assert_alike([got.real, got.imag], [want.real, want.imag])
    else:
        assert got == want


def noise(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of random bits, for any dtype; of a bool only 0 and 1 are any."""
    count = math.prod(shape)
    high = 2 if dtype is torch.bool else 256
    chance = torch.Generator().manual_seed(count)
    raw = torch.randint(0, high, (count * dtype.itemsize,), generator=chance, dtype=torch.uint8)
    return raw.view(dtype).view(shape) if count else torch.empty(shape, dtype=torch.uint8).to(dtype)


# ---- nested values

texts = st.text(st.characters(codec=None), max_size=20)  # with lone surrogates
numbers = st.integers() | st.integers(-(2**200), 2**200)
atoms = st.none() | st.booleans() | numbers | st.floats() | texts | st.binary(max_size=20)
keys = st.recursive(atoms, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
shapes = st.lists(st.integers(0, 4), max_size=4)
layouts = st.sampled_from(["as it is", "turned", "every other", "expanded"])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.complex64]))
    tensor = noise(draw(shapes), dtype)
    layout = draw(layouts)
    if layout == "turned":
        tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    elif layout == "every other":
        tensor = tensor[(slice(None, None, 2),) * tensor.dim()]
    elif layout == "expanded":
        tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor.requires_grad_(dtype is not torch.int64 and draw(st.booleans()))


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(["<f4", ">i8", "|b1", "<M8[us]", "<U3", "|S5", "<c16"]))
    array = np.zeros(draw(shapes), dtype)
    if dtype not in ("|b1", "<U3"):
        array.view(np.ndarray).flat[:] = np.arange(array.size).astype(dtype)
    steps = draw(st.sampled_from([1, 2, -1]))
    array = array[(slice(None, None, steps),) * array.ndim]
    return array.transpose(draw(st.permutations(range(array.ndim))))


leaves = (
    atoms
    | st.complex_numbers()
    | st.binary(max_size=20).map(bytearray)
    | st.binary(min_size=INLINE_BYTES - 1, max_size=INLINE_BYTES + 1)
    | tensors()
    | arrays()
    | arrays().filter(lambda a: a.size and a.dtype.kind != "U").map(lambda a: a.reshape(-1)[0])
    | shapes.map(torch.Size)
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, max_size=4)
    named = st.dictionaries(keys, inner, max_size=4)
    return several | several.map(tuple) | named | named.map(OrderedDict)


@settings(max_examples=examples(150), deadline=None)
@given(st.recursive(leaves, containers, max_leaves=15))
def test_a_nested_value_comes_back_as_it_was(value: Any) -> None:
    assert_alike(there_and_back(value), value)


@pytest.mark.parametrize("size", [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 100_000])
def test_strings_bytes_and_numbers_of_every_length_come_back(size: int) -> None:
    number = (1 << 8 * size) - 1
    value = [
        "ü" * size,
        "\ud800" * size,
        bytes(size),
        bytearray(size),
        number,
        -number,
        np.bytes_(b"x" * size),
    ]
    assert_alike(there_and_back(value), value)


def test_integers_at_the_edges_of_their_bytes_come_back() -> None:
    edges = [s * (1 << b) + d for b in range(0, 80, 4) for d in (-1, 0, 1) for s in (1, -1)]
    assert_alike(there_and_back(edges), edges)


def test_floats_keep_every_bit() -> None:
    odd = struct.unpack("<d", bytes.fromhex("010000000000f4ff"))[0]  # a NaN with a payload
    value = [0.0, -0.0, math.inf, -math.inf, math.nan, odd, 5e-324, complex(-0.0, math.nan)]
    assert_alike(there_and_back(value), value)


def test_keys_that_are_equal_only_to_themselves_come_back() -> None:
    value = {math.nan: 1, float("nan"): 2, -1: 3, -2: 4, True: 5, 0: 6, (): 7, ("a", (1,)): 8}
    assert_alike(there_and_back(value), value)


def test_the_state_of_a_model_and_its_optimizer_comes_back_and_loads() -> None:
    def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
        return model, torch.optim.Adam(model.parameters())

    model, optimizer = parts()
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    value = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    got = there_and_back(value)
    assert_alike(got, value)
    other, its_optimizer = parts()
    other.load_state_dict(got["model"])
    its_optimizer.load_state_dict(got["optimizer"])
    assert_alike(other.state_dict(), model.state_dict())


# ---- tensors


def layouts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views of a tensor of shape [2, 3, 4, 6], dense ones first."""
    yield from (tensor, tensor.permute(3, 1, 0, 2), tensor[1], tensor.transpose(0, 3)[2:4])
    yield from (
        tensor[0, 0, 0, 0],
        tensor[:0],
        tensor[:, :, 1:3, ::2],
        tensor[0, 0, 0].expand(5, 6),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_every_dtype_and_layout_comes_back(dtype: torch.dtype) -> None:
    value = list(layouts_of(noise((2, 3, 4, 6), dtype)))
    assert_alike(there_and_back(value), value)


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (1, 1, 1, 1)]
)
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_dense_strides_survive(shape: tuple[int, ...], format: torch.memory_format) -> None:
    tensor = torch.empty(shape, memory_format=format)
    assert there_and_back(tensor).stride() == tensor.stride()
    turned = tensor.permute(2, 0, 3, 1)
    assert there_and_back(turned).stride() == turned.stride()


def test_a_slice_of_a_channels_last_tensor_stays_channels_last() -> None:
    part = torch.randn(2, 8, 4, 5).to(memory_format=torch.channels_last)[:, 2:5, 1:]
    got = there_and_back(part)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert_alike(got, part)


def address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def test_dense_memory_is_not_copied_and_a_slice_carries_its_own_bytes_alone() -> None:
    whole = torch.randn(1000, 8)
    array = np.asfortranarray(np.arange(600.0).reshape(20, 30))
    long = bytes(INLINE_BYTES + 1)
    packed = pack([whole, whole[10:12], whole.t(), array, long, whole[:, 1]])
    sizes = [32_000, 64, 32_000, 4800, len(long), 4000]
    assert [buffer.nbytes for buffer in packed.buffers] == sizes
    places = [address(buffer) for buffer in packed.buffers]
    lent = [whole.data_ptr(), whole[10:].data_ptr(), whole.data_ptr(), array.ctypes.data]
    assert places[:4] == lent
    assert places[4] == address(memoryview(long))
    assert not whole.data_ptr() <= places[5] < whole.data_ptr() + 32_000
    assert all(offset % ALIGN == 0 for offset, _ in packed.spans)
    assert packed.nbytes == sum(packed.spans[-1]) < sum(sizes) + ALIGN * len(sizes)


def test_a_conjugate_and_a_negative_view_arrive_resolved() -> None:
    z = noise((3, 4), torch.complex64)
    value = [z.conj(), z.conj().imag, z.t().conj(), z.conj().imag[1:, ::2]]
    got = there_and_back(value)
    assert_alike(got, value)
    assert not any(tensor.is_conj() or tensor.is_neg() for tensor in got)


def test_gradients_and_parameters_are_kept() -> None:
    weight = torch.nn.Parameter(torch.randn(3))
    fixed = torch.nn.Parameter(torch.ones(3, dtype=torch.int32), requires_grad=False)
    value = [weight, fixed, weight * 2, weight.detach(), torch.empty(0, requires_grad=True)]
    with torch.inference_mode():
        got = there_and_back(value)
    assert_alike(got, value)
    assert all(tensor.is_leaf for tensor in got)
    (got[0].sum() + got[2].sum()).backward()
    assert got[0].grad is not None


def test_tensors_made_in_inference_mode_travel() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3, 4).t()
        assert_alike(there_and_back(tensor), tensor)


def test_a_tensor_that_was_elsewhere_is_noted() -> None:
    packed = pack({"w": torch.zeros(2), "v": torch.ones(1)})
    # The machines this is tested on have one device: the note is written into the head by hand.
    name = b"\x07float32"
    head = packed.head.replace(b"\x00" + name, b"\x04" + name + b"\x06cuda:1", 1)
    blueprint = plan(head)
    assert blueprint.devices == {'value["w"]': "cuda:1"}
    assert blueprint.build(packed.join())["w"].device == torch.device("cpu")
    with pytest.raises(HostError, match="on the device"):
        plan(head.replace(b"cuda:1", b"cuda;1"))


# ---- arrays

NUMPY = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
NUMPY += [
    ">i4",
    ">f8",
    ">u2",
    ">c16",
    "S7",
    "<U3",
    ">U3",
    "M8[ns]",
    ">M8[D]",
    "M8[25s]",
    "m8",
    "m8[h]",
]


@pytest.mark.parametrize("name", NUMPY)
def test_an_array_and_a_scalar_of_every_dtype_come_back(name: str) -> None:
    dtype = np.dtype(name)
    raw = np.arange(24 * dtype.itemsize, dtype=np.uint8) % (2 if name == "?" else 120)
    if dtype.kind == "U":
        raw = np.full(24 * dtype.itemsize // 4, 0x1F600, dtype.str[0] + "u4")
    whole = raw.view(dtype).reshape(2, 3, 4)
    value = [
        whole,
        whole.T,
        whole[:, ::2],
        whole[::-1],
        whole[0, 0, 0],
        whole[:0],
        whole[0, 0, :1].reshape(()),
    ]
    assert_alike(there_and_back(value), value)


def test_the_order_of_an_arrays_dimensions_survives() -> None:
    array = np.zeros((2, 3, 4)).transpose(1, 2, 0)
    assert there_and_back(array).strides == array.strides


def test_an_array_that_may_not_be_written_comes_back_writable() -> None:
    array = np.arange(5)
    array.flags.writeable = False
    got = there_and_back(array)
    got[0] = 7
    assert array[0] == 0


# ---- memory


def test_tensors_lie_in_the_memory_they_were_received_in_and_keep_it() -> None:
    packed = pack([torch.arange(4), np.arange(3), b"x" * 5000])
    blueprint = plan(packed.head)
    memory = blueprint.allocate()
    memory[:] = packed.join()
    tensor, array, _ = blueprint.build(memory)
    assert tensor.data_ptr() == address(memory)
    assert array.ctypes.data == address(memory) + ALIGN
    assert tensor.untyped_storage().nbytes() == 32
    memory[0] = 9
    del memory, blueprint
    assert tensor.tolist() == [9, 1, 2, 3]


def test_a_blueprint_builds_more_than_once() -> None:
    packed = pack([bytearray(b"ab"), [1], {2: []}])
    blueprint = plan(packed.head)
    first, second = blueprint.build(b""), blueprint.build(b"")
    first[0] += b"c"
    first[1].append(2)
    first[2][2].append(3)
    assert second == [bytearray(b"ab"), [1], {2: []}]


def test_memory_that_cannot_hold_tensors_is_copied_by_unpack_and_refused_by_build() -> None:
    packed = pack(torch.arange(100))
    data = packed.join()
    shifted = np.zeros(len(data) + ALIGN + 1, np.uint8)
    start = -address(shifted.data) % ALIGN + 1
    shifted[start : start + len(data)] = np.frombuffer(data, np.uint8)
    for unusable in (bytes(data), shifted[start : start + len(data)].data):
        assert_alike(unpack(packed.head, unusable), torch.arange(100))
        with pytest.raises(UsageError, match="multiple of 64"):
            plan(packed.head).build(unusable)
    with pytest.raises(UsageError, match="799 bytes are given for 800"):
        plan(packed.head).build(data[:-1])


@pytest.mark.parametrize("change", [-1, 1, -800])
def test_data_of_another_length_is_refused(change: int) -> None:
    packed = pack(torch.arange(100))
    data = bytes(packed.join()) + bytes(1)
    with pytest.raises(HostError, match=f"promises 800 bytes of data, {800 + change} came"):
        unpack(packed.head, data[: 800 + change])


def test_more_than_the_limit_is_refused() -> None:
    packed = pack([torch.arange(100), torch.arange(3)])
    total = packed.nbytes
    assert plan(packed.head, limit_bytes=total).nbytes == total
    with pytest.raises(HostError, match=f"more than {total - 1} bytes"):
        plan(packed.head, limit_bytes=total - 1)


# ---- what does not travel

Point = namedtuple("Point", "x y")


class Colour(IntEnum):
    RED = 1


class Sub(torch.Tensor):
    pass


REFUSED = {
    "a function": (print, "is a builtin_function_or_method: only plain values"),
    "a class": (Point, "is a type: only plain values"),
    "a named tuple": (Point(1, 2), r"is a Point: send tuple\(x\), or x._asdict\(\)"),
    "a set": ({1}, r"is a set: send sorted\(x\)"),
    "a dict of another kind": (Counter("a"), r"is a Counter: send dict\(x\)"),
    "an enum": (Colour.RED, "is a Colour: send the plain value"),
    "a tensor of another kind": (torch.ones(2).as_subclass(Sub), "is a Sub: send the plain"),
    "a dtype": (torch.float32, "is a dtype: only plain values"),
    "a sparse tensor": (torch.eye(2).to_sparse(), "layout sparse_coo: send x.to_dense"),
    "a meta tensor": (torch.empty(2, device="meta"), "device meta: it has no values"),
    "objects in an array": (np.array([None]), "an array of dtype object, which does not travel"),
    "fields in an array": (np.zeros(2, "i4,f4"), "an array with fields: send its fields"),
    "a void scalar": (np.void(b"ab"), "a numpy scalar of dtype .*V2"),
    "long doubles": (np.zeros(2, np.longdouble), "an array of dtype (float128|longdouble)"),
    "strings of any length": (np.array(["a"], np.dtypes.StringDType()), "dtype StringDType"),
    "a masked array": (np.ma.zeros(2), r"is a MaskedArray: send numpy.asarray\(x\)"),
    "too many dimensions": (torch.ones([1] * (MAX_DIMS + 1)), "at most 64 dimensions"),
    "a key that is a set": ({frozenset(): 1}, "has a key that is a frozenset: keys are str"),
    "a key with a set in it": ({(1, frozenset()): 1}, "has a key that is a tuple: keys are str"),
    "a key of numpy": ({np.int64(1): 1}, "has a key that is an int64: keys are str"),
    "a long key": ({"k" * 5000: 1}, "has a key of more than 4,096 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_travel_is_refused_with_its_path(what: str) -> None:
    value, problem = REFUSED[what]
    around = {"model": [0, (1, {"opt": value})], 'a"b': 1}
    with pytest.raises(UsageError, match=rf'^value\["model"\]\[1\]\[1\]\["opt"\] .*{problem}'):
        pack(around)


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_a_quantized_tensor_is_refused() -> None:
    tensor = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(
        UsageError, match=r"value\[0\] is a quantized tensor: send x.dequantize\(\)"
    ):
        pack([tensor])


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_a_nested_tensor_is_refused() -> None:
    tensor = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(UsageError, match="nested tensor: send a list"):
        pack(tensor)


def test_a_tensor_whose_memory_has_been_freed_is_refused_and_not_read() -> None:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(UsageError, match="memory has been freed"):
        pack(tensor)


def test_a_tensor_inside_a_transform_is_refused() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(UsageError, match=r"cannot be read|is a"):
            pack(x)
        return x

    torch.vmap(inside)(torch.ones(3, 2))


def test_a_value_that_contains_itself_is_refused_with_both_paths() -> None:
    inner: dict[Any, Any] = {}
    value = [1, {"a": inner}]
    inner[7] = [inner]
    with pytest.raises(UsageError, match=r'value\[1\]\["a"\]\[7\]\[0\] is value\[1\]\["a"\] again'):
        pack(value)
    around: list[Any] = [1, 2]
    around.append(around)
    with pytest.raises(UsageError, match=r"value\[2\] is value again"):
        pack(around)


def test_the_same_part_twice_is_no_cycle() -> None:
    part, tensor = [1], torch.ones(2)
    value = [part, {"p": part}, (part, part), tensor, tensor]
    assert_alike(there_and_back(value), value)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_depth_is_bounded() -> None:
    assert_alike(there_and_back(nested(MAX_DEPTH)), nested(MAX_DEPTH))
    with pytest.raises(UsageError, match="100 containers deep"):
        pack(nested(MAX_DEPTH + 1))
    key: Any = ()
    for _ in range(50_000):
        key = (key,)
    with pytest.raises(UsageError, match="has a key"):
        pack({key: 1})


@pytest.mark.parametrize("limit", ["MAX_NODES", "MAX_BUFFERS", "HEAD_BYTES"])
def test_size_is_bounded_with_the_path_of_what_is_too_much(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"a": [torch.ones(1)] * 300}
    pack(value)
    monkeypatch.setattr(tensors_write, limit, 200)
    with pytest.raises(UsageError, match=r'value\["a"\]\[\d+\] is too much: at most '):
        pack(value)


def test_a_long_path_is_shortened() -> None:
    value: Any = print
    for _ in range(MAX_DEPTH):
        value = {"k" * 1000: value}
    with pytest.raises(UsageError) as caught:
        pack(value)
    assert len(str(caught.value)) < 700
    assert "…" in str(caught.value)


def test_a_path_shows_any_key() -> None:
    keys = {
        1: "1",
        'a"\n\ud800': r'"a\"\n\ud800"',
        (b"x", None): "(b'x', None)",
        1 << 20_000: "<int>",
    }
    for key, shown in keys.items():
        with pytest.raises(UsageError) as caught:
            pack({key: print})
        assert str(caught.value).startswith(f"value[{shown}] is a ")
    foreign = pack({1 << 20_000: Custom(1)}, pickle=True).head
    with pytest.raises(HostError, match=r"<int>\] was pickled"):
        plan(foreign)


# ---- pickle


class Custom:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and other.inner == self.inner

    def __hash__(self) -> int:
        return 1


class Trap:
    """Unpickling it is noticed."""

    sprung = 0

    def __reduce__(self) -> Any:
        return (spring, ())


def spring() -> None:
    Trap.sprung += 1


def test_with_pickle_on_both_sides_anything_travels() -> None:
    value = {
        "c": Custom([1]),
        "s": {1, 2},
        "p": Point(1, 2),
        Custom(2): Colour.RED,
        "w": torch.ones(3),
    }
    value["long"] = Custom("x" * 10_000)
    got = there_and_back(value, pickle=True)
    assert torch.equal(got.pop("w"), value.pop("w"))
    assert got == value
    sparse = there_and_back(torch.eye(2).to_sparse(), pickle=True)
    assert torch.equal(sparse.to_dense(), torch.eye(2))


def test_pickled_parts_are_refused_unread_without_pickle() -> None:
    for value, path in (
        ([Trap()], r"value\[0\]"),
        ({Trap(): 1}, "value"),
        ({"t": {"u": Trap()}}, "u"),
    ):
        packed = pack(value, pickle=True)
        with pytest.raises(HostError, match=f"{path}.* was pickled by its sender"):
            unpack(packed.head, packed.join())
        with pytest.raises(HostError, match="pickle=True"):
            plan(packed.head)
        plan(packed.head, pickle=True)
    assert Trap.sprung == 0
    unpack(packed.head, packed.join(), pickle=True)
    assert Trap.sprung == 1


def test_without_foreign_parts_pickle_on_one_side_makes_no_difference() -> None:
    packed = pack([1, torch.ones(2)], pickle=True)
    assert packed.head == pack([1, torch.ones(2)]).head
    assert_alike(unpack(packed.head, packed.join()), [1, torch.ones(2)])


class Broken:
    def __reduce__(self) -> Any:
        return (fail, ())


def fail() -> None:
    raise KeyError("no such thing")


def test_what_cannot_be_pickled_or_unpickled_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"value\[0\] is a function: .*cannot be pickled either"):
        pack([lambda: 0], pickle=True)
    packed = pack([Broken()], pickle=True)
    with pytest.raises(HostError, match="cannot be made: KeyError: 'no such thing'"):
        unpack(packed.head, packed.join(), pickle=True)
