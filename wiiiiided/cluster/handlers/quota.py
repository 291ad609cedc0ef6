"""How much of the queue one user may have, and all together: jobs, and bytes of their texts.

    all users      limits.queue             256 MiB of specs        limits.archives
    one of them    limits.queue_per_user    a quarter               a quarter, of jobs not over

Everything here is in the coordinator's memory, in its state and on its disk, so none of it is
without an end; and no user's part is all of it, so that others can still submit. Root and the
daemon's own user have no part of their own: on a person's own machine there is no other user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from wiiiiided.cluster.control.job import Job, Owner
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.domain.spec import JobSpec
from wiiiiided.domain.sweep import setting_chars
from wiiiiided.text import format_size

QUEUE_BYTES = 256 << 20  # of the specs of all jobs that are not over: 20,000 have 13 KiB each
PART = 4  # one user's bytes are at most so many times less than all

User = tuple[str, int]  # node and uid, as in control.job.Owner


class Quota:
    """Counts what `jobs` there are, a spec once: 20,000 of them must not cost each submit."""

    def __init__(
        self, jobs: Callable[[], Mapping[int, Job]], settings: Callable[[], Settings]
    ) -> None:
        self._jobs = jobs
        self._settings = settings
        self._counted: dict[int, tuple[User, int]] = {}
        self._number: Counter[User] = Counter()
        self._bytes: Counter[User] = Counter()

    def check(
        self,
        owner: Owner,
        admin: bool,
        specs: Sequence[JobSpec],
        swept: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Refuse: these jobs more, of that owner, are too many. `swept`: settings of a sweep."""
        self._catch_up()
        settings, user = self._settings(), (owner.node, owner.uid)
        size = sum(map(size_of, specs)) + sum(map(setting_chars, swept))
        most, there = settings.queue, len(self._counted)
        if there >= most:
            raise Refuse(FAILED, f"the queue is full: {most} jobs are not over")
        if there + len(specs) > most:
            text = f"the queue has room for {most - there} of the sweep's {len(specs)} jobs"
            raise Refuse(FAILED, f"{text} ({most} in all): none was queued")
        if self._bytes.total() + size > QUEUE_BYTES:
            text = f"the queue is full: its jobs have {format_size(QUEUE_BYTES)} of text"
            raise Refuse(FAILED, text, "put long texts into files of the working directory")
        if admin:
            return
        if self._number[user] + len(specs) > settings.queue_per_user:
            text = f"{owner.user} has {self._number[user]} jobs that are not over, and a user may "
            text += f"have {settings.queue_per_user} (limits.queue_per_user)"
            raise Refuse(FAILED, text if len(specs) == 1 else f"{text}: none was queued")
        if self._bytes[user] + size > QUEUE_BYTES // PART:
            text = (
                f"the jobs of {owner.user} that are not over have {format_size(self._bytes[user])}"
            )
            text += f" of text, and a user's may have {format_size(QUEUE_BYTES // PART)}"
            raise Refuse(FAILED, text, "put long texts into files of the working directory")

    def archives_of(self, owner: Owner) -> set[str]:
        """The archives that one user's jobs need while they are not over."""
        return {
            job.archive
            for job in self._jobs().values()
            if (job.owner.node, job.owner.uid) == (owner.node, owner.uid)
        }

    def _catch_up(self) -> None:
        jobs = self._jobs()
        for number in self._counted.keys() - jobs.keys():
            user, size = self._counted.pop(number)
            self._number[user] -= 1
            self._bytes[user] -= size
        for number in jobs.keys() - self._counted.keys():
            job = jobs[number]
            owner, size = job.owner, size_of(job.spec) + setting_chars(job.setting)
            user = (owner.node, owner.uid)
            self._counted[number] = (user, size)
            self._number[user] += 1
            self._bytes[user] += size


def size_of(spec: JobSpec) -> int:
    """Bytes of a spec as it is stored."""
    return len(msgspec.json.encode(spec))
