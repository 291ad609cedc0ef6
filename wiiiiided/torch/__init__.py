"""torch.distributed's face of WIIIIIDE: the backend `wiiiiide`, and what only it offers.

import torch.distributed as dist
dist.init_process_group("wiiiiide")           # `import torch` has registered it

from wiiiiided.torch import shared_empty, monitored_barrier, stats, progress
"""

from __future__ import annotations

from wiiiiided.autoload import BACKEND, register
from wiiiiided.torch.api import monitored_barrier, progress, shared_empty, stats
from wiiiiided.torch.process_group import WiiiiideProcessGroup

register()

__all__ = [
    "BACKEND",
    "WiiiiideProcessGroup",
    "monitored_barrier",
    "progress",
    "shared_empty",
    "stats",
]
