"""Old jobs go: their rows, then their files here and on members, then archives that no job names.

A job that could not be removed when a daemon ended has files and no row: the next one finds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from wiiiiided.cluster.allocation.workers import Workers
from wiiiiided.cluster.handlers.collect_outputs import Collector
from wiiiiided.cluster.state.store import StateStore, StoreError
from wiiiiided.log import about, logger

if TYPE_CHECKING:
    from wiiiiided.cluster.membership.links import Links


TRIAL_KEPT_S: Final = 60.0  # an ended trial; only one whose client is gone lives so long


class Pruner:
    """Forgets ended jobs of one queue, and their files. `settings.keep` is how many of them
    stay."""

    def __init__(
        self,
        store: StateStore,
        workers: Workers,
        collector: Collector,
        links: Links | None,
        wanted: Callable[[], set[int]],
    ) -> None:
        """`wanted`: jobs whose files others are still to be given."""
        self._wanted = wanted
        self._store = store
        self._workers = workers
        self._collector = collector
        self._links = links
        self._task: asyncio.Task[None] | None = None
        self._pruned = False  # since the start

    def start(self) -> bool:
        """False: it is under way already, and does not know of what has ended since."""
        if self._task is not None and not self._task.done():
            return False
        self._task = asyncio.get_running_loop().create_task(self._prune())
        return True

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def forget(self, number: int) -> None:
        """Forget one job that is over, with all that is left of it."""
        self._store.forget([number], [number])
        if self._links is not None:
            self._links.forget([number])
        await self._remove(number)
        self._workers.archives.prune(self._store.archives())

    async def _prune(self) -> None:
        """Old jobs' files, then their rows, then archives that no job names."""
        try:
            wanted = self._wanted()
            over = self._store.ended_before_latest(self._workers.settings().keep)
            trials = self._store.ended_trials(time.time() - TRIAL_KEPT_S)
            old = [n for n in dict.fromkeys((*over, *trials)) if n not in wanted]
            # The rows first: a job without one cannot be requeued under our hands.
            self._store.forget(old, trials)
            if self._links is not None:
                self._links.forget(old)
            if not self._pruned:
                old += self._left_over()
            busy = {number for number, _ in self._workers.shims}
            for number in set(old) - busy:
                await self._remove(number)
            if old or not self._pruned:
                self._workers.archives.prune(self._store.archives())
                self._pruned = busy.isdisjoint(old)
        except (OSError, StoreError) as problem:
            logger.warning("old jobs cannot be removed: %s", problem)

    def _left_over(self) -> list[int]:
        """Jobs that have files and no row: their removal was interrupted. Those that this queue
        never gave out are kept."""
        numbers = self._workers.job_dirs.numbers()
        known = self._store.never_issued(numbers) | self._store.numbers()
        return [number for number in numbers if number not in known]

    async def _remove(self, number: int) -> None:
        try:
            await self._workers.remove(number)
            await self._collector.forget(number)
        except OSError as problem:
            text = "the files of job %d cannot be removed: %s"
            logger.warning(text, number, problem, extra=about(number))
