"""What can be asked of the daemon.

Nothing is kept between calls: each opens the socket, says Hello, asks, reads the answer and closes.
`submit`, `wait`, `follow` and `cancel` outlive a restart of the daemon: jobs do not notice one, so
neither does whoever watches them. They come back within 30 s; no line is shown twice, and no job
queued twice.

Asking ◄── Machines (what is about nodes) ◄── Client (what is about jobs)
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from wiiiiided.client.connection import (
    ANSWER_S,
    PATIENT_S,
    Blob,
    Connection,
    Progress,
    expect,
)
from wiiiiided.client.errors import (
    ClientError,
    DaemonLost,
    DaemonRefused,
    NoDaemon,
    TimedOut,
    mismatch,
)
from wiiiiided.client.machines import Machines
from wiiiiided.client.resume import Seen, both
from wiiiiided.domain.codes import NO_SUCH
from wiiiiided.domain.figures import Forecast
from wiiiiided.domain.spec import JobSpec
from wiiiiided.domain.states import ENDED
from wiiiiided.domain.sweep import sweep_id
from wiiiiided.wire import messages as m

if TYPE_CHECKING:  # it brings tarfile and pathspec, which only `submit` needs
    from wiiiiided.ship.pack import Packed

Result = TypeVar("Result")

SUBMIT_S = 300.0  # it writes the archive to the disk before it answers
RETURN_S = 30.0  # how long a daemon may be away in a restart
AT_ONCE = 64  # connections; the daemon has a limit for all its clients together


class Client(Machines):
    """Talks to one daemon."""

    # ---- one question, one answer

    def list(self, ended: int = 0) -> tuple[m.JobView, ...]:
        return self.jobs(ended).jobs

    def jobs(self, ended: int = 0) -> m.Jobs:
        """The same, whether these are all, and what is wrong with the daemon that has the queue."""
        return self._ask(m.List(ended), m.Jobs)

    def sweep(self, number: int) -> tuple[m.JobView, ...]:
        """All jobs of a sweep, over or not."""
        found = self._ask(m.List(sweep=number), m.Jobs).jobs
        if not found or any(job.sweep != sweep_id(number) for job in found):
            raise mismatch(None)  # an older daemon lists what it lists always
        return found

    def history(self, limit: int = 50) -> tuple[m.JobView, ...]:
        return self._ask(m.History(limit), m.Jobs).jobs

    def show(self, job: int) -> m.JobDetail:
        return self._ask(m.Show(job), m.JobDetail)

    def why(self, job: int) -> m.Reason:
        return self._ask(m.Why(job), m.Reason)

    def requeue(self, job: int) -> m.JobView:
        return self._ask(m.Requeue(job), m.JobView, PATIENT_S)

    def hold(self, job: int) -> m.JobView:
        return self._ask(m.Hold(job), m.JobView)

    def release(self, job: int) -> m.JobView:
        return self._ask(m.Release(job), m.JobView)

    def stacks(self, job: int) -> tuple[m.StackDump, ...]:
        return self._ask(m.Stacks(job), m.StackDumps, 2 * PATIENT_S).dumps

    def snapshot(self) -> m.Snapshot:
        return self._ask(m.Watch(once=True), m.Snapshot)

    def records(self, job: int) -> m.JobRecords:
        return self._ask(m.Records(job), m.JobRecords)

    def predict(self, name: str, within_s: float = ANSWER_S) -> Forecast:
        return self._ask(m.Predict(name), m.Predicted, within_s).forecast

    def cancel(self, job: int, now: bool = False) -> m.JobView:
        """Returns when the job is really over, however long its grace is."""
        answer = next(self.cancel_all([job], now))
        if isinstance(answer, DaemonRefused):
            raise answer
        return answer

    def cancel_all(
        self, jobs: Sequence[int], now: bool = False
    ) -> Iterator[m.JobView | DaemonRefused]:
        """Several at once: their grace periods pass together. The later are asked for first, since
        a job that comes after another would end with that one, and be over when it is asked for.
        Answers are in the order of `jobs`, as far as they are asked for at once."""
        latest = sorted(set(jobs), reverse=True)
        for start in range(0, len(latest), AT_ONCE):
            batch = latest[start : start + AT_ONCE]
            with contextlib.ExitStack() as stack:
                asked = {
                    job: stack.enter_context(self._open(m.Cancel(job, now), None)) for job in batch
                }
                for job in dict.fromkeys(job for job in jobs if job in asked):
                    try:
                        yield expect(asked[job].answer(), m.JobView)
                    except DaemonRefused as no:
                        yield no
                    except DaemonLost as lost:
                        yield self._cancel_again(job, now, lost)

    def cancel_sweep(self, number: int, now: bool = False) -> Iterator[m.JobView]:
        """Each job that was not over, when it is. Asked again after a restart of the daemon: it may
        have heard the first request, or not."""
        told: set[int] = set()

        def once() -> Iterator[m.JobView]:
            with self._open(m.CancelSweep(number, now), None) as connection:
                while not isinstance(answer := connection.answer(), m.End):
                    job = expect(answer, m.JobView)
                    if job.id not in told:
                        told.add(job.id)
                        yield job

        return self._through_restarts(once)

    def _cancel_again(self, job: int, now: bool, lost: DaemonLost) -> m.JobView | DaemonRefused:
        """After the daemon went away: it may have heard the first request, or not."""

        def once() -> Iterator[m.JobView | DaemonRefused]:
            found = self.show(job).job
            if found.state in ENDED:
                yield found
                return
            try:
                yield self._ask(m.Cancel(job, now), m.JobView, None)
            except DaemonRefused as no:
                yield no

        return next(self._through_restarts(once, lost=lost))

    # ---- more than that

    def submit(
        self,
        spec: JobSpec,
        archive: Packed,
        secrets: dict[str, str],
        *,
        hold: bool = False,
        progress: Progress = lambda sent, total: None,
    ) -> m.Submitted:
        """Queue a job, once, through a restart of the daemon too; its archive is sent when the
        daemon does not have it yet."""
        nonce = os.urandom(16).hex()
        request = m.Submit(spec, archive.sha256, archive.bytes, secrets, hold, nonce)
        return self._submit_once(request, m.Submitted, archive, progress)

    def submit_sweep(
        self,
        jobs: Sequence[m.SweepJob],
        archive: Packed,
        secrets: dict[str, str],
        *,
        hold: bool = False,
        progress: Progress = lambda sent, total: None,
    ) -> m.Swept:
        """Queue all of them or none; the archive is sent once."""
        nonce = os.urandom(16).hex()
        request = m.SubmitSweep(tuple(jobs), archive.sha256, archive.bytes, secrets, hold, nonce)
        return self._submit_once(request, m.Swept, archive, progress)

    def _submit_once(
        self, request: m.Submission, kind: type[Result], archive: Packed, progress: Progress
    ) -> Result:
        def again() -> Iterator[Result | None]:
            try:
                yield self._ask(m.FindSubmission(request.nonce), kind)
            except DaemonRefused as no:
                # One that knows the question knows the nonce: the same request is the same job.
                yield self._submit(request, kind, archive, progress) if no.code == NO_SUCH else None

        try:
            return self._submit(request, kind, archive, progress)
        except DaemonLost as problem:
            lost = problem
        with contextlib.suppress(DaemonLost, NoDaemon):
            if found := next(self._through_restarts(again, lost=lost)):
                return found
        hint = "whether the job was queued is not known: look with wiiiiide ps"
        raise DaemonLost(str(lost), hint) from lost

    def _submit(
        self, request: m.Submission, kind: type[Result], archive: Packed, progress: Progress
    ) -> Result:
        with self._open(request, SUBMIT_S) as connection:
            answer = connection.answer()
            if isinstance(answer, m.SendArchive):
                connection.send_file(archive.path, archive.bytes, progress)
                answer = connection.answer()
        return expect(answer, kind)

    def watching(self, every_s: float = 1.0) -> Connection:
        """A connection that Snapshots come from: `fileno()` to select on, `answer()` to read."""
        return self._open(m.Watch(every_s), None, raw=True)

    def tailing(self, job: int, tail: int) -> Connection:
        """The same for LogLines: the last lines of each rank and those to come, then End."""
        return self._open(m.Logs(job, follow=True, tail=tail), None, raw=True)

    def wait(self, job: int, timeout_s: float | None = None) -> Iterator[m.JobView]:
        """The job now and at every change until it is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def once() -> Iterator[m.JobView]:
            with self._open(m.Wait(job), None) as connection:
                while True:
                    answer = connection.answer(deadline)
                    if isinstance(answer, m.End):
                        return
                    yield expect(answer, m.JobView)

        return self._through_restarts(once, deadline)

    def logs(
        self,
        job: int,
        ranks: Sequence[int] = (),
        tail: int | None = None,
        attempt: int | None = None,
        nodes: Sequence[str] = (),
    ) -> Iterator[m.LogLine]:
        """What the ranks have written so far. An older daemon ignores `nodes`, and tells all."""
        request = m.Logs(job, tuple(ranks), tail=tail, attempt=attempt, nodes=tuple(nodes))
        with self._open(request, PATIENT_S) as connection:
            while not isinstance(answer := connection.answer(), m.End):
                yield from expect(answer, m.LogLines).lines

    def follow(
        self,
        job: int,
        ranks: Sequence[int] = (),
        tail: int | None = None,
        nodes: Sequence[str] = (),
    ) -> Iterator[m.JobView | m.LogLine]:
        """Lines as they are written and the job at every change, until it is over."""
        seen = Seen()

        def once() -> Iterator[m.JobView | m.LogLine]:
            if seen.attempt is not None:  # back after a restart: the rest of what we were reading
                yield from seen.unseen(self.logs(job, ranks, None, seen.attempt, nodes))
                seen.rewind()
            last = None if seen.attempt else tail
            follow = m.Logs(job, tuple(ranks), follow=True, tail=last, nodes=tuple(nodes))
            with self._open(m.Wait(job), None) as states, self._open(follow, None) as lines:
                yield expect(states.answer(), m.JobView)  # first: how lines are shown depends on it
                for answer in both(states, lines):
                    if isinstance(answer, m.JobView):
                        yield answer
                    else:
                        yield from seen.unseen(iter(expect(answer, m.LogLines).lines))

        return self._through_restarts(once, before_again=seen.rewind)

    def pull(self, job: int, globs: Sequence[str] = ()) -> Blob:
        """Files of the job's working directory, as a tar to be read and closed."""
        return Blob(self._open(m.Pull(job, tuple(globs)), PATIENT_S))

    # ---- how

    def _through_restarts(
        self,
        once: Callable[[], Iterator[Result]],
        deadline: float | None = None,
        before_again: Callable[[], None] = lambda: None,
        lost: ClientError | None = None,
    ) -> Iterator[Result]:
        """What `once` yields; begun again, for up to RETURN_S, when the daemon goes away."""
        give_up = self._missed() if lost is not None else 0.0
        while True:
            try:
                for result in once():
                    if lost is not None:
                        self._notice("the daemon is back")
                        lost = None
                    yield result
                return
            except (DaemonLost, NoDaemon) as problem:
                if lost is None and isinstance(problem, NoDaemon):
                    raise  # it was not there in the first place
                if lost is None:
                    lost, give_up = problem, self._missed()
                now = time.monotonic()
                if now > give_up:
                    raise
                if deadline is not None and now > deadline:
                    raise TimedOut("the time is up") from problem
                before_again()
                time.sleep(0.1)

    def _missed(self) -> float:
        """Say that the daemon is away; until when to wait for it."""
        self._notice(f"the daemon went away; jobs go on. Waiting up to {RETURN_S:.0f} s for it")
        return time.monotonic() + RETURN_S
