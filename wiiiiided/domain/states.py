"""The states of a job and its legal moves: the table is the machine.

`cluster/control/step` makes no move that is not in MOVES; docs/job-states.md is drawn from it; a
test follows every line of it. An event that is not listed for a state is ignored there: it is late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, Literal

State = Literal[
    "held",
    "queued",
    "starting",
    "running",
    "hung",
    "stopping",
    "backoff",
    "done",
    "failed",
    "cancelled",
]

# The meaning of each state, for docs and `wiiiiide ps --help`.
STATES: Final[dict[State, str]] = {
    "held": "waits until it is released",
    "queued": "waits for its turn, its nodes or the jobs it comes after",
    "starting": "has its nodes; they are being prepared, or its workers started",
    "running": "all its workers run",
    "hung": "made no progress for hang_timeout; stacks are being written",
    "stopping": "its workers are being ended",
    "backoff": "ended badly and will start again by itself",
    "done": "ended well",
    "failed": "ended badly, for good",
    "cancelled": "was ended by a person, or could no longer run",
}
ENDED: Final[frozenset[State]] = frozenset({"done", "failed", "cancelled"})
ON_NODES: Final[frozenset[State]] = frozenset({"starting", "running", "hung", "stopping"})

_OVER: Final[tuple[State, ...]] = ("done", "failed", "backoff")

# state → event → the states it may lead to. "Placed" and "DependencyEnded" are consequences that
# the machine draws by itself; the others are events of cluster/control/events. "WorkersEnded" also
# stands for every allocation that counts as ended by NodeDeclaredLost, NodeRemoved or its node's
# silence; "NodeLeft" for the same before the start was ordered.
MOVES: Final[dict[State | Literal["new"], dict[str, tuple[State, ...]]]] = {
    "new": {"JobSubmitted": ("queued", "held")},
    "held": {
        "ReleaseRequested": ("queued",),
        "CancelRequested": ("cancelled",),
        "DependencyEnded": ("held", "cancelled"),
    },
    "queued": {
        "Placed": ("starting",),
        "HoldRequested": ("held",),
        "CancelRequested": ("cancelled",),
        "DependencyEnded": ("queued", "cancelled"),
    },
    "starting": {
        "WorkersPrepared": ("starting", "stopping"),
        "NodeLeft": ("stopping",),
        "WorkersStarted": ("starting", "running"),
        "WorkersEnded": ("starting", "stopping", *_OVER),
        "Ticked": ("starting",),
        "CancelRequested": ("stopping",),
        "RequeueRequested": ("stopping",),
    },
    "running": {
        "WorkersEnded": ("running", "stopping", *_OVER),
        "ProgressSampled": ("hung",),
        "StepsCompared": ("running",),
        "Ticked": ("running", "stopping"),
        "CancelRequested": ("stopping",),
        "RequeueRequested": ("stopping",),
    },
    "hung": {
        "StacksDumped": ("hung", "stopping"),
        "Ticked": ("stopping",),
        "WorkersEnded": ("hung", "stopping", *_OVER),
        "CancelRequested": ("stopping",),
        "RequeueRequested": ("stopping",),
    },
    "stopping": {
        "WorkersStarted": ("stopping",),
        "NodeLeft": ("stopping",),
        "WorkersEnded": ("stopping", "cancelled", "queued", "failed", "backoff"),
        "CancelRequested": ("stopping",),
    },
    "backoff": {
        "Ticked": ("queued",),
        "HoldRequested": ("held",),
        "CancelRequested": ("cancelled",),
        "RequeueRequested": ("queued",),
    },
    "done": {"RequeueRequested": ("queued",)},
    "failed": {"RequeueRequested": ("queued",)},
    "cancelled": {"RequeueRequested": ("queued",)},
}


def tally(states: Iterable[str]) -> str:
    """`4 done, 1 failed, 1 queued`, in the order of the table."""
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
