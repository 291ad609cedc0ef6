"""torch.distributed's face of WIIIIIDE: the backend `wiiiiide`, and what only it offers.

import torch.distributed as dist
dist.init_process_group("wiiiiide")           # `import torch` has registered it

from wiiiiided.torch import shared_empty, monitored_barrier, stats, progress, links, set_interface
from wiiiiided.torch import parallel          # one copy of the weights a host: docs/training.md
from wiiiiided.torch import Between, compress_gradients   # slow links: docs/slow-links.md
from wiiiiided.torch import mapped, shared_dataset, Batches   # data once a host: docs/data.md
from wiiiiided.torch import save, load, CheckpointReader   # checkpoints: docs/data.md
from wiiiiided.torch import send_object, recv_object, broadcast_object
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wiiiiided.autoload import BACKEND, register
from wiiiiided.torch import api, compress, objects, process_group, work
from wiiiiided.torch.api import (
    compress_gradients,
    links,
    load,
    monitored_barrier,
    parallel,
    progress,
    save,
    set_interface,
    shared_dataset,
    shared_empty,
    stats,
)
from wiiiiided.torch.dynamo import keep_out_of
from wiiiiided.torch.objects import broadcast_object, recv_object, send_object
from wiiiiided.torch.process_group import WiiiiideProcessGroup
from wiiiiided.train import async_step, gradient_store, loop_step, optimizer, outer_step, sync_step
from wiiiiided.train import parallel as train_parallel
from wiiiiided.train.between import Between
from wiiiiided.train.checkpoints import exchange, one_file, resuming, saving
from wiiiiided.train.data.batches import Batches
from wiiiiided.train.data.mapped import mapped
from wiiiiided.train.parallel import Parallel

if TYPE_CHECKING:
    from wiiiiided.train.checkpoints.dcp import CheckpointReader

register()
keep_out_of(process_group, work, api, compress, objects, train_parallel)
keep_out_of(saving, resuming, exchange, one_file)
keep_out_of(optimizer, loop_step, sync_step, async_step, outer_step, gradient_store)


def __getattr__(name: str) -> Any:
    if name != "CheckpointReader":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wiiiiided.train.checkpoints.dcp import CheckpointReader  # DCP takes a second to import

    return CheckpointReader


__all__ = [
    "BACKEND",
    "Batches",
    "Between",
    "CheckpointReader",
    "Parallel",
    "WiiiiideProcessGroup",
    "broadcast_object",
    "compress_gradients",
    "links",
    "load",
    "mapped",
    "monitored_barrier",
    "parallel",
    "progress",
    "recv_object",
    "save",
    "send_object",
    "set_interface",
    "shared_dataset",
    "shared_empty",
    "stats",
]
