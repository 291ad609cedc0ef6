"""A script as people write them for torchrun. It knows nothing of WIIIIIDE, and runs under it.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 elastic.py
    wiiiiide submit job.toml

It takes its place from RANK, LOCAL_RANK and WORLD_SIZE, lets torch choose the backend, hands its
exception to its starter (@record), and resumes from a snapshot after a restart. Machines
have disks of their own, and a restart may be on others: each saves, and the latest is given to all.
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

DATA, SNAPSHOT = "data.pt", "snapshot.pt"


def prepare_data(count: int = 4096) -> None:
    """Points of two rings, one around the other. Where others would download something."""
    ring = torch.randint(2, (count,))
    radius = 1.0 + ring + 0.2 * torch.randn(count)
    angle = 6.2832 * torch.rand(count)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    torch.save((points, ring), DATA)


def load_snapshot() -> Any:
    """The latest snapshot that any machine has, or None."""
    own = torch.load(SNAPSHOT) if os.path.exists(SNAPSHOT) else None
    epochs: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(epochs, 0 if own is None else own["epochs_run"])
    found = [own]
    dist.broadcast_object_list(found, src=epochs.index(max(epochs)))
    return found[0]


class Trainer:
    """Learns which ring a point belongs to."""

    def __init__(self, rank: int, local_rank: int) -> None:
        self.rank = rank
        self.saves = local_rank == 0  # one per machine
        self.net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.net.append(nn.Linear(64, 2))
        self.epochs_run = 0
        if (snapshot := load_snapshot()) is not None:
            self.net.load_state_dict(snapshot["net"])
            self.epochs_run = snapshot["epochs_run"]
            print(f"[rank {rank}] resumes after epoch {self.epochs_run}")
        self.model = DistributedDataParallel(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        data = TensorDataset(*torch.load(DATA))
        self.sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=64, sampler=self.sampler)

    def train(self, epochs: int) -> None:
        for epoch in range(self.epochs_run + 1, epochs + 1):
            self.sampler.set_epoch(epoch)
            correct = self.run_epoch()
            if self.rank == 0:
                print(f"[rank 0] epoch {epoch:>2}/{epochs}: {correct:.1%} correct")
            if self.saves:
                torch.save({"net": self.net.state_dict(), "epochs_run": epoch}, f"{SNAPSHOT}.tmp")
                os.replace(f"{SNAPSHOT}.tmp", SNAPSHOT)

    def run_epoch(self) -> float:
        counts = torch.zeros(2)
        for points, ring in self.loader:
            scores = self.model(points)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(scores, ring)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            counts += torch.tensor([(scores.argmax(1) == ring).sum(), len(ring)])
        dist.all_reduce(counts)
        return float(counts[0] / counts[1])


@record
def main() -> None:
    parser = argparse.ArgumentParser(description="Tell two rings apart.")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    dist.init_process_group()
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    if rank == 0:
        workers, restarts = os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"]
        print(f"[rank 0] {workers} workers, {restarts} restarts so far")
    torch.manual_seed(1)
    if local_rank == 0 and not os.path.exists(DATA):  # one per machine
        prepare_data()
    dist.barrier()
    Trainer(rank, local_rank).train(options.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
