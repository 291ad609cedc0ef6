"""A checkpoint's file: a head in JSON, the structure of the value, and its tensors as they lie.

    0     "wideCKP1"                       zeros in a file that is half written
    8     sha256 of all from byte 40 on
    40    bytes of JSON, of the structure, of the whole file (u64 each, little endian)
    64    JSON: format, step, host, hosts, ranks, model, token, job; for people: names
    …     structure (`backend/wire/tensors`)
    4096n data: each tensor at a multiple of 64, so that a mapped file is read in place

Nothing in it is ever unpickled. `model` is a digest of the names, dtypes and shapes of
a model and the kind of its optimizer; it is part of the file's name, so that two models may share a
folder without touching each other's files.

`token` is drawn once an attempt of a run, and is the same on all its hosts. Two hosts that have
gone on apart from each other may both come to step 100, with other weights: a state is known by its
step and its token. Files of before there were tokens have none, which counts as one. `job` is the
daemon's job that wrote the file (`owner`); those of runs by hand have none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from wiiiiided.backend.wire.tensors import PackedTensors, pack, unpack
from wiiiiided.backend.wire.tensors_memory import bytes_tensor
from wiiiiided.errors import HostError, UsageError, WiiiiideError
from wiiiiided.train.checkpoints.owner import FileOwner, job_of, model_of
from wiiiiided.train.checkpoints.writer import CHUNK, DIGESTED_FROM, MAGIC, NAME

_FORMAT: Final = 1
_SIZES: Final = struct.Struct("<QQQ")
_JSON_AT: Final = DIGESTED_FROM + _SIZES.size
_PAGE: Final = 4096
_PIECE: Final = 16 << 20  # bytes that one thread copies at a time


@dataclass(frozen=True)
class FileHead:
    """The head of a file: its step and host, its model and job."""

    step: int
    host: int
    hosts: int
    ranks: int
    model: str
    token: str = ""
    job: str = ""

    def name(self, series: str) -> str:
        """The file's name."""
        return f"step-{self.step:010}.host-{self.host}.{series}.wide"


def model_digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> str:
    """A digest of what must be the same for a checkpoint to fit."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    said = [f"{name} {value.dtype} {list(value.shape)}" for name, value in tensors]
    if optimizer is not None:
        counts = [len(held["params"]) for held in optimizer.param_groups]
        said.append(f"{type(optimizer).__name__} {counts}")
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def optimizer_names(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """The names of its parameters, in the order of its numbers."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return [names.get(id(parameter), str(i)) for i, parameter in enumerate(held)]


@dataclass(frozen=True)
class FileImage:
    """A file that is to be written: its front, and tensors where they lie."""

    front: bytes
    packed: PackedTensors

    @classmethod
    def of(cls, head: FileHead, value: dict[str, Any]) -> FileImage:
        """UsageError with the path of what cannot be saved."""
        packed = pack(value)
        said = {"format": _FORMAT, **asdict(head), "names": list(value.get("model", ()))}
        text = json.dumps(said).encode()
        text += b" " * (-len(text) % 64)
        front = _JSON_AT + len(text) + len(packed.head)
        front += -front % _PAGE
        sizes = _SIZES.pack(len(text), len(packed.head), front + packed.nbytes)
        made = bytes(DIGESTED_FROM) + sizes + text + packed.head
        return cls(made.ljust(front, b"\0"), packed)

    @property
    def nbytes(self) -> int:
        """The bytes of the file."""
        return len(self.front) + self.packed.nbytes

    def chunks(self) -> Iterator[bytes | memoryview]:
        """One after the other, as they stand in the file."""
        yield self.front
        end = 0
        for (offset, nbytes), buffer in zip(self.packed.spans, self.packed.buffers, strict=True):
            yield bytes(offset - end)
            yield buffer
            end = offset + nbytes

    def copy_to(self, memory: mmap.mmap, threads: int) -> None:
        """Copy the file in so many threads: one core does not fill the memory's bandwidth."""
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        front = len(self.front)
        whole[:front] = bytes_tensor(memoryview(self.front))
        pieces: list[tuple[torch.Tensor, torch.Tensor]] = []
        for (offset, nbytes), buffer in zip(self.packed.spans, self.packed.buffers, strict=True):
            begin = front + offset
            target, source = whole[begin : begin + nbytes], bytes_tensor(buffer)
            cuts = [slice(at, at + _PIECE) for at in range(0, nbytes, _PIECE)]
            pieces += [(target[cut], source[cut]) for cut in cuts]
        with ThreadPoolExecutor(threads) as pool:
            deque(pool.map(lambda piece: piece[0].copy_(piece[1]), pieces), maxlen=0)


def check(path: Path, model: str | None) -> FileHead:
    """The head of a good file; `model` None: of any model. HostError says in a sentence how one is
    damaged, UsageError why a whole one cannot be used."""
    return _read(path, model, with_digest=True)


def read_head(path: Path) -> FileHead:
    """The head of a file, without reading all of it; raises as `check` does."""
    return _read(path, None, with_digest=False)


def _read(path: Path, model: str | None, with_digest: bool) -> FileHead:
    try:
        with open(path, "rb") as file:
            return _check(path, model, file, with_digest)
    except OSError as problem:
        raise UsageError(f"{path} cannot be read: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise HostError(f"{path} is no checkpoint: its head makes no sense") from None


def _check(path: Path, model: str | None, file: Any, with_digest: bool) -> FileHead:
    size, front = os.fstat(file.fileno()).st_size, file.read(_JSON_AT)
    if front[: len(MAGIC)] == bytes(len(MAGIC)):
        raise HostError(f"{path} was not written to its end")
    if len(front) < _JSON_AT or front[: len(MAGIC)] != MAGIC:
        raise HostError(f"{path} is no checkpoint")
    json_bytes, _, total = _SIZES.unpack_from(front, DIGESTED_FROM)
    if size != total:
        raise HostError(f"{path} is cut off or damaged: it has {size:,} of {total:,} bytes")
    text = file.read(min(json_bytes, size))
    if with_digest and _digest(front, text, file) != front[len(MAGIC) : DIGESTED_FROM]:
        raise HostError(f"{path} is damaged: its digest is another")
    said = json.loads(text)
    if said["format"] != _FORMAT:
        raise UsageError(f"{path} has format {said['format']}: a newer wiiiiided wrote it")
    numbers = [said[name] for name in ("step", "host", "hosts", "ranks")]
    texts = [said["model"], said.get("token", ""), said.get("job", "")]
    if any(type(n) is not int for n in numbers) or any(type(text) is not str for text in texts):
        raise TypeError
    head = FileHead(*numbers, *texts)
    if model is not None and head.model != model:
        raise UsageError(f"{path} is of another model or optimizer")
    return head


def _digest(front: bytes, text: bytes, rest: Any) -> bytes:
    digest = hashlib.sha256(front[DIGESTED_FROM:])
    digest.update(text)
    while piece := rest.read(CHUNK):
        digest.update(piece)
    return digest.digest()


def load(path: Path) -> dict[str, Any]:
    """The value of a file that has been checked. Its tensors lie in the mapped file: to be copied
    from, and gone from memory with the last of them."""
    with open(path, "rb") as file:
        memory = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    json_bytes, head_bytes, _ = _SIZES.unpack_from(memory, DIGESTED_FROM)
    at = _JSON_AT + json_bytes
    front = at + head_bytes
    front += -front % _PAGE
    value: dict[str, Any] = unpack(bytes(memory[at : at + head_bytes]), memory[front:])
    return value


@dataclass(frozen=True)
class NewestFile:
    """The outcome of a look through a folder."""

    path: Path | None = None  # the newest good file
    step: int = 0
    token: str = ""
    passed_over: tuple[str, ...] = ()  # and why, a sentence each


def newest(folder: Path, owner: FileOwner, host: int) -> NewestFile:
    """The newest good file that a run may go on from, this host's before another's.

    A damaged one is renamed, so that it does not count among those that are kept. UsageError: the
    folder cannot be read.
    """
    why: list[str] = []
    for step, path in candidates(folder, owner, host, why):
        try:
            head = check(path, owner.model)
            return NewestFile(path, head.step, head.token, tuple(why))
        except UsageError as problem:
            why.append(f"{problem}: step {step} is passed over")
        except HostError as problem:
            aside = path.with_name(f"{path.name}.damaged")
            why.append(f"{problem}: step {step} is passed over, and the file now {aside.name}")
            with contextlib.suppress(OSError):  # another host was first
                path.replace(aside)
    return NewestFile(passed_over=tuple(why))


def candidates(folder: Path, owner: FileOwner, host: int, why: list[str]) -> list[tuple[int, Path]]:
    """Files of the model, by their names, that the run may go on from, the newest first; `why`:
    what others are. UsageError: the folder cannot be read."""
    found, others = [], set()
    for path in _files(folder):
        said = NAME.fullmatch(path.name)
        if said is None:
            why.append(f"{path} is no checkpoint by its name: passed over")
            continue
        step, of_host, series = int(said[1]), int(said[2]), said[3]
        if model_of(series) != owner.model:
            why.append(f"{path} is of another model or optimizer: passed over")
        elif owner.is_apart and not owner.takes(job := _job(path, series)):
            others.add(job)
        else:
            found.append((step, series == owner.series, of_host == host, path))
    if others:
        why.append(owner.passes_over(folder, others))
    return [(step, path) for step, _, _, path in sorted(found, reverse=True)]


def _job(path: Path, series: str) -> str:
    """The job that a file is of; "": none, or it does not say."""
    with contextlib.suppress(WiiiiideError):
        return job_of(series) or read_head(path).job
    return ""


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(".wide"))
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise UsageError(f"{folder} cannot be read: {problem.strerror}") from None
