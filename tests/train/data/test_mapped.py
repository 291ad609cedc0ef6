"""`wide.mapped`: a file's samples without loading it, and a sentence where that cannot be."""

from __future__ import annotations

import builtins
import copy
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch
from torch.utils.data import DataLoader

from wiiiiided.errors import UsageError
from wiiiiided.torch import mapped

ROWS = 25
X = torch.arange(ROWS * 6, dtype=torch.float32).view(ROWS, 2, 3)
Y = torch.arange(ROWS) * 10


def _npz(path: Path) -> None:
    np.savez(path, a=np.zeros((ROWS, 1), np.uint8), x=X.numpy(), y=Y.numpy())


def _safetensors(path: Path) -> None:
    # "a" has an odd number of bytes: what follows is not aligned.
    odd = torch.zeros(ROWS, 1, dtype=torch.uint8)
    safetensors.torch.save_file({"a": odd, "x": X, "y": Y}, path, {"made": "here"})


def _table() -> Any:
    inner = pa.FixedSizeListArray.from_arrays(pa.array(X.flatten().numpy()), 3)
    x = pa.FixedSizeListArray.from_arrays(inner, 2)
    return pa.table({"x": x, "y": Y.numpy(), "a": np.zeros(ROWS, np.uint8)})


def _arrow(path: Path, **options: Any) -> None:
    table = _table()
    with pa.OSFile(str(path), "wb") as file:
        made = pa.ipc.new_file(file, table.schema, options=pa.ipc.IpcWriteOptions(**options))
        with made as writer:
            writer.write_table(table, max_chunksize=7)


def _arrow_stream(path: Path) -> None:
    table = _table()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


FORMATS: list[tuple[str, Callable[[Path], None]]] = [
    *(("all.npz", _npz), ("all.safetensors", _safetensors)),
    *(("all.arrow", _arrow), ("all.feather", _arrow_stream)),
]


@pytest.fixture(params=FORMATS, ids=[f"{name} {write.__name__}" for name, write in FORMATS])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name, write = request.param
    write(tmp_path / name)
    return tmp_path / name


def test_samples_are_dicts_of_tensors_by_the_names_in_the_file(file: Path) -> None:
    data = mapped(file)
    assert len(data) == ROWS
    for number in (0, 6, 7, ROWS - 1, -1):
        sample = data[number]
        assert set(sample) == {"a", "x", "y"}
        assert torch.equal(sample["x"], X[number])
        assert torch.equal(sample["y"], Y[number])
        assert sample["y"].shape == ()


def test_a_tuple_is_neither_a_batch_nor_a_part_of_a_sample(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    data = mapped(tmp_path / "x.npy")
    for which in ((1, 0), (1, slice(None)), ()):
        with pytest.raises(UsageError, match=r"a tuple chooses no sample, as in data\[1, 0\]"):
            data[which]


ROWS_TO_TAKE = torch.tensor([3, 24, 0, 3, 13])
NONE: list[int] = []
CHOICES: list[Any] = [
    *(ROWS_TO_TAKE, ROWS_TO_TAKE.tolist(), ROWS_TO_TAKE.numpy(), ROWS_TO_TAKE.numpy().astype("u8")),
    *([-1, 2], np.arange(ROWS) % 3 == 1, slice(2, 9), slice(20, 99), slice(9, 2), slice(None)),
    *(slice(None, None, 4), slice(None, None, -1), range(3, 20, 5), NONE),
]


@pytest.mark.parametrize("chosen", CHOICES, ids=str)
def test_slices_lists_arrays_and_masks_choose_a_batch(chosen: Any, tmp_path: Path) -> None:
    _npz(tmp_path / "x.npz")
    _arrow(tmp_path / "x.arrow")
    numbers = np.arange(ROWS)[chosen if chosen is not NONE else slice(0)].copy()
    for data in (mapped(tmp_path / "x.npz"), mapped(tmp_path / "x.arrow")):
        batch = data[chosen]
        assert torch.equal(batch["x"], X[numbers])
        assert torch.equal(batch["y"], Y[numbers])


def test_a_npy_file_gives_tensors(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    data = mapped(str(tmp_path / "x.npy"))
    assert torch.equal(data[4], X[4])
    assert torch.equal(data[[4, 1]], X[[4, 1]])
    assert torch.equal(torch.stack(list(data)), X)


@pytest.mark.parametrize(
    "name", ["float64", "float16", "int8", "uint16", "uint64", "bool", "complex64"]
)
def test_every_dtype_that_both_have(name: str, tmp_path: Path) -> None:
    array = np.arange(12).reshape(4, 3).astype(name)
    np.save(tmp_path / "x.npy", array)
    assert torch.equal(mapped(tmp_path / "x.npy")[[2, 0]], torch.from_numpy(array[[2, 0]]))


def test_bfloat16_and_rows_without_elements(tmp_path: Path) -> None:
    half, none = torch.randn(5, 3, dtype=torch.bfloat16), torch.empty(5, 0)
    safetensors.torch.save_file({"half": half, "none": none}, tmp_path / "x.safetensors")
    data = mapped(tmp_path / "x.safetensors")
    assert torch.equal(data[[4, 2]]["half"], half[[4, 2]])
    assert data[[4, 2]]["none"].shape == (2, 0)
    assert data[1:4]["none"].shape == (3, 0)
    assert data[3]["none"].shape == (0,)


def test_strings_of_an_arrow_file(tmp_path: Path) -> None:
    words = [f"{'ü' * k}{k}" for k in range(9)]
    table = pa.table({"s": words, "large": pa.array(words, pa.large_string())})
    with pa.OSFile(str(tmp_path / "s.arrow"), "wb") as file:
        writer = pa.ipc.new_file(file, table.schema)
        writer.write_table(table, max_chunksize=4)
        writer.close()
    data = mapped(tmp_path / "s.arrow")
    assert data[5] == {"s": words[5], "large": words[5]}
    assert data[[8, 3, 0]]["s"] == [words[8], words[3], words[0]]
    assert data[2:6]["large"] == words[2:6]


def test_what_is_given_out_may_be_changed_and_changes_nothing_else(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    data = mapped(tmp_path / "x.npy")
    for chosen in (3, slice(2, 5), [1, 2]):
        data[chosen].zero_()
        assert torch.equal(data[chosen], X[chosen])


def test_nothing_is_loaded(tmp_path: Path) -> None:
    """A file of holes that is larger than this machine's memory."""
    path, rows = tmp_path / "x.npy", 1 << 30
    head = np.lib.format.header_data_from_array_1_0(np.empty((0, 256), np.float32))
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {**head, "shape": (rows, 256)})
        file.truncate(file.tell() + rows * 1024)
    data = mapped(path)
    assert len(data) == rows
    assert data[[rows - 1, 5]].sum() == 0


def test_a_data_loader_takes_samples_and_batches(file: Path) -> None:
    data = mapped(file)
    whole = [range(10), range(10, 20), range(20, 25)]
    for loader in (
        DataLoader(data, batch_size=10),
        DataLoader(data, sampler=whole, batch_size=None),  # type: ignore[arg-type]
    ):
        batches = list(loader)
        assert torch.equal(torch.cat([batch["x"] for batch in batches]), X)
        assert torch.equal(torch.cat([batch["y"] for batch in batches]), Y)


def test_another_process_gets_the_path_and_the_same_file_only(file: Path) -> None:
    data = mapped(file)
    sent = pickle.dumps(data)
    assert len(sent) < 1000
    assert torch.equal(pickle.loads(sent)[[5, 3]]["x"], X[[5, 3]])
    assert torch.equal(copy.deepcopy(data)[5]["x"], X[5])
    os.utime(file, ns=(0, 0))
    with pytest.raises(UsageError, match="is another file than it was"):
        pickle.loads(sent)


# -- what cannot be ----


@pytest.mark.parametrize("chosen", [ROWS, -ROWS - 1, [0, ROWS], [-ROWS - 1]], ids=str)
def test_a_sample_that_is_not_there(chosen: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    with pytest.raises(IndexError, match=f"in a data set of {ROWS}"):
        mapped(tmp_path / "x.npy")[chosen]


@pytest.mark.parametrize("chosen", [[0.5], [[1, 2]], [True, False]], ids=str)
def test_what_chooses_no_samples(chosen: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.numpy())
    with pytest.raises(UsageError, match="a list of whole numbers"):
        mapped(tmp_path / "x.npy")[chosen]


def _write_damaged(path: Path) -> None:
    _safetensors(path)
    path.write_bytes(path.read_bytes()[:-1])


def _write_negative(path: Path) -> None:
    head = b'{"x":{"dtype":"F32","shape":[-4,-4],"data_offsets":[0,64]}}'
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(64))


def _write_npy(array: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path, array)


def _write_table(**columns: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        table = pa.table(columns)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    return write


REFUSED: list[tuple[str, Callable[[Path], Any], str]] = [
    ("x.csv", Path.touch, "can be mapped, not .csv"),
    ("x.npy", lambda path: None, "cannot be mapped: No such file"),
    ("x.npy", Path.touch, "is empty"),
    ("x.npy", lambda path: path.write_bytes(b"PK not numpy"), "is not a .npy file"),
    ("x.npy", _write_npy(np.float32(3)), "is one value"),
    ("x.npy", _write_npy(np.array([{}], object)), "holds Python objects"),
    ("x.npy", _write_npy(np.array(["a", "b"])), "torch has no dtype for"),
    ("x.npy", _write_npy(np.arange(3, dtype=">i4")), r"array\.astype\('int32'\)"),
    ("x.npy", _write_npy(np.asfortranarray(X.numpy()[:, 0])), "numpy.ascontiguousarray"),
    ("x.npz", lambda path: np.savez_compressed(path, x=X.numpy()), "numpy.savez in place of"),
    ("x.npz", lambda path: np.savez(path, x=X.numpy(), y=Y.numpy()[:9]), "has 9 rows and .* 25"),
    ("x.npz", lambda path: path.write_bytes(b"half of a file"), "is not a .npz file"),
    ("x.safetensors", _write_negative, "the file is damaged"),
    ("x.safetensors", lambda path: path.write_bytes(b"\xff" * 99), "is not a .safetensors file"),
    ("x.safetensors", _write_damaged, "the file is damaged or cut off"),
    ("x.arrow", lambda path: path.write_bytes(b"nothing of the kind"), "is not an Arrow IPC file"),
    ("x.arrow", lambda path: _arrow(path, compression="zstd"), "compression=None"),
    ("x.arrow", _write_table(x=[1, None]), "has nulls"),
    ("x.arrow", _write_table(x=[[1], [1, 2]]), "lists of a fixed size"),
    ("x.arrow", _write_table(x=[True, False]), "cast bools to uint8"),
]


@pytest.mark.parametrize(("name", "write", "sentence"), REFUSED, ids=[r[2] for r in REFUSED])
def test_what_cannot_be_mapped_gets_a_sentence(
    name: str, write: Callable[[Path], Any], sentence: str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    with pytest.raises(UsageError, match=sentence):
        mapped(tmp_path / name)


def test_without_pyarrow_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _arrow(tmp_path / "x.arrow")
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.delitem(sys.modules, "pyarrow")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'wiiiiided\[arrow\]'"):
        mapped(tmp_path / "x.arrow")
