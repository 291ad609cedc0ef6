"""Training inside the service's sandbox: what a job needs of the machine is still there."""

from __future__ import annotations

import pytest

from tests.machines.site import Site

pytestmark = [pytest.mark.needs("root", "machines", "disks"), pytest.mark.timeout(600)]

TRAIN = """
import os, sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.ones(16, 4), torch.zeros(16, 1))
for x, y in DataLoader(data, batch_size=8, num_workers=1):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
total = torch.ones(1)
dist.all_reduce(total)
print(f"total {total.item():g}", flush=True)
dist.destroy_process_group()
if sys.argv[1] == "gloo":  # its threads may abort the process while the interpreter ends
    os._exit(0)
"""

# What torch, its compilers and its debuggers ask of the kernel.
NEEDS = """
import ctypes, ctypes.util, mmap, multiprocessing, multiprocessing.shared_memory as shm
import os, socket, tempfile
import psutil

libc = ctypes.CDLL(None, use_errno=True)

def traceable():
    if os.fork() == 0:
        os._exit(0 if libc.ptrace(0, 0, 0, 0) == 0 else 1)  # PTRACE_TRACEME
    assert os.wait()[1] == 0

def in_shared_memory():
    held = shm.SharedMemory(create=True, size=4096)
    held.close()
    held.unlink()

def in_a_pool():
    with multiprocessing.Pool(1) as pool:
        assert pool.map(abs, [-1]) == [1]

needs = {
    "anonymous shared memory": lambda: os.memfd_create("x"),
    "/dev/shm": in_shared_memory,
    "memory that is written and executed":
        lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC),
    "pinning threads": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    "listening": lambda: socket.create_server(("127.0.0.1", 0)).close(),
    "the list of interfaces": lambda: psutil.net_if_addrs()["lo"],
    "a pool of processes": in_a_pool,
    "being debugged": traceable,
    "temporary files": lambda: tempfile.TemporaryFile(dir="/tmp"),
    "a cache in its home": lambda: os.makedirs(os.path.expanduser("~/.cache/torch"), exist_ok=True),
    "its working directory": lambda: open("checkpoint.pt", "w").close(),
    "the boot id": lambda: open("/proc/sys/kernel/random/boot_id").read(),
}
for name, use in needs.items():
    use()
    print("has", name, flush=True)
print("that was all", flush=True)
"""


@pytest.mark.parametrize("backend", ["wiiiiide", "gloo"])
def test_ranks_train_together_inside_the_sandbox(site: Site, backend: str) -> None:
    job = site.submit(
        "python", "train.py", backend, files={"train.py": TRAIN}, workers=2, backend=backend
    )
    shown = site.ended(job, within_s=100)
    assert shown["job"]["state"] == "done", site.log(job)
    assert site.log(job).count("total 2") == 2


def test_the_sandbox_leaves_what_training_needs(site: Site) -> None:
    job = site.submit("python", "needs.py", files={"needs.py": NEEDS})
    assert site.ended(job)["job"]["state"] == "done", site.log(job)
    assert "that was all" in site.log(job)
