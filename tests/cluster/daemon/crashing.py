"""A daemon that kills itself at a chosen moment: `python -m tests.cluster.daemon.crashing WHERE N`.

    before-commit N    when the N-th change is decided and not yet stored
    after-commit N     when it is stored, and nothing was done or answered yet
    after-actions N    when it was done, and no client was answered yet

The real program otherwise: no line of the package knows of this.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from wiiiiided.cluster.daemon import main, queue_daemon
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.state.store import StateStore

where, number = sys.argv[1], int(sys.argv[2])
commits = 0


def die_at(place: str) -> None:
    if place == where and commits == number:
        os.kill(os.getpid(), signal.SIGKILL)


class CrashingStore(StateStore):
    def commit(self, *args: Any, **kwargs: Any) -> None:
        global commits
        commits += 1
        die_at("before-commit")
        super().commit(*args, **kwargs)
        die_at("after-commit")


class CrashingController(Controller):
    def _done(self, *args: Any) -> None:
        super()._done(*args)
        die_at("after-actions")


main.StateStore = CrashingStore  # type: ignore[misc]
queue_daemon.Controller = CrashingController  # type: ignore[misc]

if __name__ == "__main__":
    sys.exit(main.main([]))
