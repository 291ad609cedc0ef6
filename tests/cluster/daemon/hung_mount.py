"""A daemon for which /hung is a file system that does not answer: who looks there waits for ever.

python -m tests.cluster.daemon.hung_mount SECONDS    that a look may take
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from wiiiiided.cluster.daemon import main
from wiiiiided.cluster.system import file_looks

real = os.stat


def stat(path: Any, *given: Any, **options: Any) -> os.stat_result:
    if str(path).startswith("/hung"):
        threading.Event().wait()
    return real(path, *given, **options)


if __name__ == "__main__":
    os.stat = stat
    file_looks.WITHIN_S = float(sys.argv[1])
    sys.exit(main.main([]))
