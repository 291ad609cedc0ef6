"""`wide.mapped`: a memory-mapped file as a data set, without loading it.

The file is mapped read-only: the kernel reads a page when a sample on it is first asked for, and
keeps it for all processes of the machine once. A data set larger than memory works, and eight ranks
hold no more than one. Sent to another process (a spawned DataLoader worker), the data set is a
path; the file must still be the one it was.
"""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from wiiiiided.errors import UsageError
from wiiiiided.train.data import file_formats
from wiiiiided.train.data.columns import ColumnDataset, Tree

_FORMATS: Final[dict[str, Callable[[Path, torch.Tensor], Tree]]] = {
    ".npy": file_formats.npy,
    ".npz": file_formats.npz,
    ".safetensors": file_formats.safetensors,
    ".arrow": file_formats.arrow,
    ".feather": file_formats.arrow,
}


class MappedDataset(ColumnDataset):
    """The samples of a file. Made by `wide.mapped`."""

    def __init__(self, path: Path) -> None:
        try:
            self._memory, self._stamp = _map(path)
        except OSError as problem:
            raise UsageError(f"{path} cannot be mapped: {problem.strerror}") from None
        self._path = path.absolute()
        super().__init__(_FORMATS[path.suffix](path, self._memory), path.name)
        len(self)  # columns of different lengths are refused here

    def __reduce__(self) -> tuple[Any, ...]:
        return _map_again, (self._path, self._stamp)

    def __repr__(self) -> str:
        return f"mapped({str(self._path)!r}) of {len(self)} samples"


def mapped(path: str | os.PathLike[str]) -> MappedDataset:
    """A .npy, .npz (not compressed), .safetensors or Arrow IPC file as a map-style data set.

    Nothing is loaded: `data[3]`, `data[10:20]` and `data[[3, 1, 2]]` read what they give out, as
    tensors. A .npy file gives tensors, the others dicts of them by the names in the file.
    """
    found = Path(path)
    if found.suffix not in _FORMATS:
        raise UsageError(
            f"{found.name}: {', '.join(_FORMATS)} can be mapped, not {found.suffix or 'this'}"
        )
    return MappedDataset(found)


def _map_again(path: Path, stamp: tuple[int, int]) -> MappedDataset:
    """Map the file again in another process."""
    data = mapped(path)
    if data._stamp != stamp:
        raise UsageError(f"{path} is another file than it was when it was mapped first")
    return data


def _map(path: Path) -> tuple[torch.Tensor, tuple[int, int]]:
    """A file's bytes, and its size and time of change."""
    with path.open("rb") as file:
        about = os.fstat(file.fileno())
        if not about.st_size:
            raise UsageError(f"{path.name} is empty")
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with warnings.catch_warnings(), torch.inference_mode(False):
        # That it cannot be written to: all that leaves here is copied.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        bytes_ = torch.from_numpy(np.frombuffer(memory, np.uint8))
    return bytes_, (about.st_size, about.st_mtime_ns)
