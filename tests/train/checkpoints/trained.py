"""What the tests of checkpoints train: a small run with all that a checkpoint has to hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.kit.ranks import Rank
from wiiiiided.torch import Batches, Parallel, parallel
from wiiiiided.train.checkpoints import saving

LENGTH, BATCH, EPOCHS = 42, 8, 2  # six steps an epoch, of which the last has two samples
STEPS = 12


class Trained:
    """A model in training, with all that a checkpoint has to hold."""

    def __init__(self, folder: str, **options: Any) -> None:
        source = torch.Generator().manual_seed(3)
        x = torch.randn(LENGTH, 6, generator=source)
        self.data = Batches(TensorDataset(x, x[:, :3].sin(), torch.arange(LENGTH)), BATCH, 1)
        torch.manual_seed(11)
        self.model = nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Linear(40, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.7)
        self.run: Parallel = parallel(
            self.model,
            self.optimizer,
            data=self.data,
            scheduler=self.scheduler,
            save=folder,
            **{"save_every": 4, **options},
        )

    def train(self, until: int = STEPS, dropout: float = 0.3) -> list[tuple[int, float, list[int]]]:
        """Steps up to this one, each with its loss and the samples of this rank."""
        made: list[tuple[int, float, list[int]]] = []
        for _ in range(self.data.epoch, EPOCHS):
            for x, y, ids in self.data:
                mine = ids.tolist()[: self.data.samples_of_step()]
                found = nn.functional.dropout(self.model(torch.cat([x, x + 0.1])), dropout)
                loss = nn.functional.mse_loss(found, torch.cat([y, y]))
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
                step = self.run.state_dict()["step"]
                made.append((step, loss.item(), mine))
                if step == until:
                    return made
        return made

    def bits(self) -> list[Any]:
        """Weights and optimizer state, and what the scheduler has made of the learning rate."""
        kept = self.optimizer.state_dict()["state"]
        tensors = [*self.model.parameters(), *(v for s in kept.values() for v in s.values())]
        return [self.scheduler.get_last_lr(), *(t.detach().tolist() for t in tensors)]


def folder_of(me: Rank, base: str, hosts: str) -> str:
    return f"{base}/{hosts[me.rank]}"


def train_until(me: Rank, base: str, hosts: str, until: int, options: dict[str, Any]) -> list[Any]:
    trained = Trained(folder_of(me, base, hosts), **options)
    trained.run.resume()
    made = trained.train(until)
    trained.run.save()
    return made


def state_of(me: Rank, base: str, hosts: str, options: dict[str, Any]) -> tuple[int, list[Any]]:
    trained = Trained(folder_of(me, base, hosts), **options)
    step = trained.run.resume()
    return step, trained.bits()


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.wide"))


def resume_found(me: Rank, base: str) -> tuple[int, list[str]]:
    said: list[str] = []
    saving.log.warn = lambda who, text: said.append(text)  # type: ignore[assignment]
    return Trained(base).run.resume(), said
