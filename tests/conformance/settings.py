"""What all layers must agree on: which backend is tested, by how many ranks, in what environment.

No torch here: pytest's process and the server import this module too.
"""

from __future__ import annotations

import os
from pathlib import Path

OURS = "wiiiiide"
# The switch exists to tell a fault of the backend from a fault of this driver: gloo is the
# backend the suite was written for.
BACKEND = os.environ.get("WIIIIIDE_CONFORMANCE_BACKEND", OURS)

# Three: enough for groups that leave a rank out, and for a ring that is not a pair. A test that
# insists on four gets four.
RANKS = 3

# A test that hangs is ended after this long and reported with the stacks of its ranks. Above
# the suite's own timeout of 60 s for a process group, whose message says more.
TEST_SECONDS = 80.0
# From a cold disk on a busy machine, importing torch and the suite takes its time.
START_SECONDS = 180.0

ROOT = Path(__file__).resolve().parents[2]

# What an outer launcher or a developer's shell may have set, and the suite would react to.
_NOT_INHERITED = (
    "INIT_METHOD",
    "LOCAL_RANK",
    "MASTER_PORT",
    "PYTHONWARNINGS",
    "RANK",
    "SANDCASTLE",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_SHOW_CPP_STACKTRACES",
    "TW_JOB_USER",
)


def environment(folder: Path) -> dict[str, str]:
    """The environment of the server and, by inheritance, of its ranks."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    return kept | {
        "WIIIIIDE_CONFORMANCE_BACKEND": BACKEND,
        # Everything the suite leaves in the temporary folder goes away with this one.
        "TMPDIR": str(folder),
        # Read when the suite is imported; see suite.py for the name, rank.py for the rest.
        "BACKEND": "gloo",
        "WORLD_SIZE": str(RANKS),
        "TEMP_DIR": str(folder),
        "INIT_METHOD": f"file://{folder}/unused",
        "MASTER_ADDR": "127.0.0.1",
        # A process that is to be forked may have no threads, and three ranks share few cores.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        # The hint on how to repeat a failure names files that are not there.
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
        # The suite leaves a test when it sees fewer GPUs than ranks: it shall see none.
        "CUDA_VISIBLE_DEVICES": "",
    }
