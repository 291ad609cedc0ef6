"""`import torch` calls this through the entry point `torch.backends`, to make the backend known.

An exception here would break `import torch` for every program of the environment, so nothing
leaves this module: a failure is one line on stderr, and torch goes on without the backend.
Nothing heavy is imported either: the backend itself comes in when a group is first made.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

BACKEND = "wiiiiide"
PROBE = "WIIIIIDE_PROBE"  # a trial of `wiiiiide plan`, whose ranks watch their steps


def register() -> None:
    """Register the backend with torch.distributed; harmless when called again."""
    try:
        _register()
    except Exception as problem:
        text = f"wiiiiide: the backend is not available: {type(problem).__name__}: {problem}"
        with contextlib.suppress(Exception):  # stderr may be closed or full
            print(text, file=sys.stderr)


def _register() -> None:
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, BACKEND.upper()):
        return
    # "cuda" too: a Python process group serves every device of its group, and CUDA tensors
    # are staged through host memory.
    dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
    if os.environ.get(PROBE) == "1":  # not by config, which would be imported with every torch
        from wiiiiided.torch.step_probe import watch

        watch()


def _create(options: Any, backend_options: Any) -> Any:
    from wiiiiided.torch.process_group import create

    return create(options, backend_options)
