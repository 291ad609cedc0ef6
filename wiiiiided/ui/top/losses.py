"""The loss of each running job over its steps: recorded by the daemon, then seen in snapshots.

A snapshot has the loss of now alone. So the screen keeps what it has seen, and asks the daemon once
for the record of a job that it meets: then the curve begins where the job did.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from wiiiiided.cluster.rpc.messages import Snapshot
from wiiiiided.domain.metrics import RunRecord

POINTS = 512  # points of a job; when there are more, every other one goes
Track = list[tuple[int, float]]  # a step, and the loss at it


class LossHistory:
    """Grows with every snapshot; jobs that have gone from it are forgotten."""

    def __init__(self) -> None:
        self._tracks: dict[int, Track] = {}

    def take(self, snapshot: Snapshot) -> None:
        self._tracks = {
            row.job.id: self._tracks.get(row.job.id, [])
            for row in snapshot.jobs
            if row.now is not None or row.job.id in self._tracks
        }
        for row in snapshot.jobs:
            if row.now is not None and row.now.step is not None and row.now.loss is not None:
                _add(self._tracks[row.job.id], row.now.step, row.now.loss)

    def begin(self, job: int, runs: Sequence[RunRecord]) -> None:
        """Take the losses recorded before this session; later ones stay."""
        seen = self._tracks.get(job, [])
        track: Track = []
        for point in (point for run in runs for point in run.points):
            if point.step is not None and point.loss is not None:
                _add(track, point.step, point.loss)
        for step, loss in seen:
            _add(track, step, loss)
        self._tracks[job] = track

    def values(self) -> dict[int, tuple[float, ...]]:
        """The losses of each job, oldest first."""
        found = {job: tuple(loss for _, loss in track) for job, track in self._tracks.items()}
        return {job: losses for job, losses in found.items() if losses}


def _add(track: Track, step: int, loss: float) -> None:
    """Add a loss. A job that began again at an earlier step replaces those it had after that."""
    if not math.isfinite(loss):
        return
    del track[bisect_left(track, (step, -math.inf)) :]
    track.append((step, loss))
    if len(track) > POINTS:
        del track[1:-1:2]
