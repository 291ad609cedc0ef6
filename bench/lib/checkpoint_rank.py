"""A rank that trains a model with `wide.parallel`, and saves and resumes.

Started by lib/fleet.py; waits for messages from checkpoint.py.
"""

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import wiiiiided.torch as wide
from lib import groups, link
from lib.link import Message

_BATCH = 8  # rows of a rank's step


class CheckpointRank:
    """This rank's model, its optimizer and its run."""

    def __init__(self) -> None:
        self.rank = groups.join()
        self._group = groups.open_group("wiiiiide")
        self._begun = self._stood_ns = 0

    def make(self, message: Message) -> Message:
        """A model of so many layers, and its run; with a folder it saves there."""
        torch.manual_seed(1)
        width, layers = message["width"], message["layers"]
        self._model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-5)
        self._x = torch.randn(_BATCH, width) / width**0.5
        samples = message.get("samples", 0)
        self._data = wide.Batches(
            TensorDataset(torch.arange(max(2 * samples, 1000), dtype=torch.int32)),
            max(samples // 10, 2) if message.get("large_batches") else 256,
            group=self._group,
        )
        self._folder = Path(message["folder"]) if "folder" in message else None
        options: dict[str, Any] = {}
        if self._folder is not None:
            options = {"save": self._folder, "save_every": message["save_every"], "keep": 1}
            if samples:
                options["data"] = self._data
        # Around the hook in which a save that is due is made: it stands on the model between them.
        self._model.register_forward_pre_hook(self._begin)
        self._run = wide.parallel(self._model, self._optimizer, group=self._group, **options)
        self._model.register_forward_pre_hook(self._end)
        return {"parameters": sum(p.numel() for p in self._model.parameters())}

    def _begin(self, *_: Any) -> None:
        self._begun = time.perf_counter_ns()

    def _end(self, *_: Any) -> None:
        self._stood_ns = time.perf_counter_ns() - self._begun

    def steps(self, message: Message) -> Message:
        """So many steps, and the longest time for which a save stopped one of them."""
        begin, stood = time.perf_counter_ns(), [0]
        for _ in range(message["count"]):
            self._model(self._x).square().mean().backward()
            stood.append(self._stood_ns)
            self._optimizer.step()
            self._optimizer.zero_grad()
        return {"ns": time.perf_counter_ns() - begin, "stood_ns": max(stood)}

    def train(self, message: Message) -> Message:
        """So many steps over the data, and a save."""
        for batch, _ in zip(self._data, range(message["count"]), strict=False):
            (self._model(self._x).square().mean() * (1 + 0 * float(batch[0][0]))).backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
        self._run.save()
        return {"bytes": self._file().stat().st_size}

    def written(self, message: Message) -> Message:
        """Waits until a newer file than the one `before` is on the disk; returns its name."""
        while not (found := self._file()).exists() or found.name == message.get("before"):
            time.sleep(0.01)
        return {"name": found.name}

    def torch_save(self, message: Message) -> Message:
        """The time of one torch.save of the same state."""
        begin = time.perf_counter_ns()
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(state, message["path"])
        taken = time.perf_counter_ns() - begin
        size = os.stat(message["path"]).st_size
        os.unlink(message["path"])
        return {"ns": taken, "bytes": size}

    def resume(self, message: Message) -> Message:
        """From run.resume() to the first batch after it."""
        begin = time.perf_counter_ns()
        step = self._run.resume()
        first = next(iter(self._data))[0]
        return {"ns": time.perf_counter_ns() - begin, "step": step, "sample": int(first[0])}

    def read(self, message: Message) -> Message:
        """The time of reading the newest file and its digest."""
        begin, digest = time.perf_counter_ns(), hashlib.sha256()
        with open(self._file(), "rb") as file:
            while piece := file.read(4 << 20):
                digest.update(piece)
        return {"ns": time.perf_counter_ns() - begin}

    def stop(self, message: Message) -> Message:
        groups.leave()
        return {}

    def _file(self) -> Path:
        assert self._folder is not None
        found = sorted(self._folder.glob("*.wide"))
        return found[-1] if found else self._folder / "none"


if __name__ == "__main__":
    link.run(CheckpointRank)
