"""A daemon whose shims take a second to begin: `python -m tests.daemon.slow_shims`.

For what can happen between the start of a shim and its claim.
"""

from __future__ import annotations

import sys

from wiiiiided.daemon import main
from wiiiiided.daemon.shares import shims

real = shims.shim_command


def slow(*arguments: str) -> list[str]:
    if arguments[0].startswith("--"):
        return real(*arguments)
    command = real(*arguments)
    # The words stay those of a shim, so that a test finds it.
    return ["/bin/sh", "-c", 'sleep 1; exec "$@"', "sh", *command]


shims.shim_command = slow

if __name__ == "__main__":
    sys.exit(main.main([]))
