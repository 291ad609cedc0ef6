"""Every question to the daemon.

Nothing is kept between calls: each opens the socket, says Hello, asks, reads the answer and closes.
`submit`, `wait`, `follow` and `cancel` outlive a restart of the daemon: jobs do not notice one, so
neither does a command that watches them. They come back within 30 s; no line is shown twice, and no
job queued twice.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from wiiiiided.cluster.client.connection import (
    ANSWER_S,
    PATIENT_S,
    Blob,
    Connection,
    NoticeHandler,
    Progress,
    connect,
    expect,
)
from wiiiiided.cluster.client.errors import (
    ClientError,
    DaemonLost,
    DaemonRefused,
    NoDaemon,
    TimedOut,
    mismatch,
)
from wiiiiided.cluster.client.follow_job import SeenLines, both
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.config import Paths
from wiiiiided.domain.exit_codes import NO_SUCH
from wiiiiided.domain.metrics import RunForecast
from wiiiiided.domain.plan import KeptPlan
from wiiiiided.domain.spec import JobSpec
from wiiiiided.domain.states import ENDED
from wiiiiided.domain.sweep import sweep_id

if TYPE_CHECKING:  # it brings tarfile and pathspec, which only `submit` needs
    from wiiiiided.cluster.archive.pack import Packed

Result = TypeVar("Result")

JOIN_S = 60.0  # two connections to another machine, each of which may be slow to fail
LEAVE_S = 300.0  # by force it first ends its allocations, each in its grace
SUBMIT_S = 300.0  # it writes the archive to the disk before it answers
RETURN_S = 30.0  # how long a daemon may be away in a restart
AT_ONCE = 64  # connections; the daemon has a limit for all its clients together


class Client:
    """Talks to one daemon. `notice` hears sentences worth a person's eye."""

    def __init__(self, paths: Paths, notice: NoticeHandler | None = None) -> None:
        self.paths = paths
        self._notice = notice

    # ---- one question about jobs, one answer

    def status(self, within_s: float = ANSWER_S) -> m.DaemonStatus:
        return self._ask(m.GetStatus(), m.DaemonStatus, within_s)

    def jobs(self, ended: int = 0) -> m.JobList:
        """The jobs, whether these are all, and what is wrong with the daemon that has the queue."""
        return self._ask(m.ListJobs(ended), m.JobList)

    def sweep(self, number: int) -> tuple[m.JobView, ...]:
        """All jobs of a sweep, over or not."""
        found = self._ask(m.ListJobs(sweep=number), m.JobList).jobs
        if not found or any(job.sweep != sweep_id(number) for job in found):
            raise mismatch(None)  # an older daemon lists what it lists always
        return found

    def history(self, limit: int = 50) -> tuple[m.JobView, ...]:
        return self._ask(m.ListHistory(limit), m.JobList).jobs

    def show(self, job: int) -> m.JobDetail:
        return self._ask(m.Show(job), m.JobDetail)

    def why(self, job: int) -> m.JobReason:
        return self._ask(m.Why(job), m.JobReason)

    def requeue(self, job: int) -> m.JobView:
        return self._ask(m.Requeue(job), m.JobView, PATIENT_S)

    def hold(self, job: int) -> m.JobView:
        return self._ask(m.Hold(job), m.JobView)

    def release(self, job: int) -> m.JobView:
        return self._ask(m.Release(job), m.JobView)

    def stacks(self, job: int) -> tuple[m.StackDump, ...]:
        return self._ask(m.Stacks(job), m.StackDumps, 2 * PATIENT_S).dumps

    def snapshot(self) -> m.Snapshot:
        return self._ask(m.WatchSnapshots(once=True), m.Snapshot)

    def records(self, job: int) -> m.JobRecords:
        return self._ask(m.GetRecords(job), m.JobRecords)

    def predict(self, name: str, within_s: float = ANSWER_S) -> RunForecast:
        return self.foretold(name, within_s).forecast

    def foretold(self, name: str, within_s: float = ANSWER_S) -> m.Predicted:
        """All that plans and earlier runs say of jobs of this name."""
        return self._ask(m.Predict(name), m.Predicted, within_s)

    def keep_plan(self, name: str, plan: KeptPlan) -> None:
        self._ask(m.KeepPlan(name, plan), m.EndOfAnswers)

    def forget_trial(self, job: int) -> None:
        self._ask(m.ForgetTrial(job), m.EndOfAnswers, PATIENT_S)

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
        """Cancel a sweep, and yield each job that was not over when it is. The request is sent
        again after a restart of the daemon, which may have heard the first or not."""
        told: set[int] = set()

        def once() -> Iterator[m.JobView]:
            with self._open(m.CancelSweep(number, now), None) as connection:
                while not isinstance(answer := connection.answer(), m.EndOfAnswers):
                    job = expect(answer, m.JobView)
                    if job.id not in told:
                        told.add(job.id)
                        yield job

        return self._through_restarts(once)

    def _cancel_again(self, job: int, now: bool, lost: DaemonLost) -> m.JobView | DaemonRefused:
        """Cancel once more after the daemon went away, which may have heard the first request or
        not."""

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

    # ---- the machines of the cluster; init, join, leave and renew are about this one

    def init(self, cluster: str = "", address: str = "", port: int = 0) -> m.ClusterView:
        return self._ask(m.Init(cluster, address, port), m.ClusterView, PATIENT_S)

    def join(self, request: m.Join) -> m.ClusterView:
        return self._ask(request, m.ClusterView, JOIN_S)

    def leave(self, force: bool = False) -> m.ClusterView:
        return self._ask(m.Leave(force), m.ClusterView, LEAVE_S)

    def renew(self) -> m.ClusterView:
        return self._ask(m.Renew(), m.ClusterView, PATIENT_S)

    def create_token(self, ttl_s: float = 3600.0, uses: int = 1) -> m.TokenCreated:
        return self._ask(m.CreateToken(ttl_s, uses), m.TokenCreated)

    def nodes(self, within_s: float = ANSWER_S) -> m.NodeList:
        return self._ask(m.ListNodes(), m.NodeList, within_s)

    def remove_node(self, name: str, force: bool = False) -> m.NodeView:
        return self._ask(m.RemoveNode(name, force), m.NodeView, PATIENT_S)

    def declare_lost(self, name: str) -> m.NodeView:
        return self._ask(m.DeclareLost(name), m.NodeView, PATIENT_S)

    def drain(self, name: str, reason: str = "") -> m.NodeView:
        return self._ask(m.Drain(name, reason), m.NodeView)

    def resume(self, name: str) -> m.NodeView:
        return self._ask(m.Resume(name), m.NodeView)

    # ---- more than one answer, or bytes

    def submit(
        self,
        spec: JobSpec,
        archive: Packed,
        secrets: dict[str, str],
        *,
        hold: bool = False,
        resumes: int | None = None,
        progress: Progress | None = None,
    ) -> m.Submitted:
        """Queue a job, once, through a restart of the daemon too; its archive is sent when the
        daemon does not have it yet. `resumes`: the job whose checkpoints it begins with."""
        nonce = os.urandom(16).hex()
        given = (spec, archive.sha256, archive.bytes, secrets, hold, nonce)
        request = m.Submit(*given) if resumes is None else m.SubmitResuming(*given, resumes)
        return self._submit_once(request, m.Submitted, archive, progress)

    def submit_sweep(
        self,
        jobs: Sequence[m.SweepJob],
        archive: Packed,
        secrets: dict[str, str],
        *,
        hold: bool = False,
        progress: Progress | None = None,
    ) -> m.Swept:
        """Queue all of them or none; the archive is sent once."""
        nonce = os.urandom(16).hex()
        request = m.SubmitSweep(tuple(jobs), archive.sha256, archive.bytes, secrets, hold, nonce)
        return self._submit_once(request, m.Swept, archive, progress)

    def _submit_once(
        self, request: m.Submission, kind: type[Result], archive: Packed, progress: Progress | None
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
        self, request: m.Submission, kind: type[Result], archive: Packed, progress: Progress | None
    ) -> Result:
        with self._open(request, SUBMIT_S) as connection:
            answer = connection.answer()
            if isinstance(answer, m.SendArchive):
                connection.send_file(archive.path, archive.bytes, progress)
                answer = connection.answer()
        return expect(answer, kind)

    def watching(self, every_s: float = 1.0) -> Connection:
        """A connection that Snapshots come from: `fileno()` to select on, `answer()` to read."""
        return self._open(m.WatchSnapshots(every_s), None, raw=True)

    def tailing(self, job: int, tail: int) -> Connection:
        """A connection that LogLines come from: the last lines of each rank and those to come, then
        End."""
        return self._open(m.Logs(job, follow=True, tail=tail), None, raw=True)

    def wait(self, job: int, timeout_s: float | None = None) -> Iterator[m.JobView]:
        """The job now and at every change until it is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        def once() -> Iterator[m.JobView]:
            with self._open(m.Wait(job), None) as connection:
                while True:
                    answer = connection.answer(deadline)
                    if isinstance(answer, m.EndOfAnswers):
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
        """The ranks' lines so far. An older daemon ignores `nodes`, and tells all."""
        request = m.Logs(job, tuple(ranks), tail=tail, attempt=attempt, nodes=tuple(nodes))
        with self._open(request, PATIENT_S) as connection:
            while not isinstance(answer := connection.answer(), m.EndOfAnswers):
                yield from expect(answer, m.LogLines).lines

    def follow(
        self,
        job: int,
        ranks: Sequence[int] = (),
        tail: int | None = None,
        nodes: Sequence[str] = (),
    ) -> Iterator[m.JobView | m.LogLine]:
        """Lines as they are written and the job at every change, until it is over."""
        seen = SeenLines()

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

    def _ask(
        self, request: m.Request, kind: type[Result], timeout_s: float | None = ANSWER_S
    ) -> Result:
        with self._open(request, timeout_s) as connection:
            return expect(connection.answer(), kind)

    def _open(
        self, request: m.Request, timeout_s: float | None = ANSWER_S, raw: bool = False
    ) -> Connection:
        """`raw`: notices come as answers, for a screen of its own."""
        notice = None if raw else self._say
        connection = Connection(connect(self.paths), timeout_s, notice)
        try:
            connection.begin(request)
        except BaseException:
            connection.close()
            raise
        return connection

    def _through_restarts(
        self,
        once: Callable[[], Iterator[Result]],
        deadline: float | None = None,
        before_again: Callable[[], None] | None = None,
        lost: ClientError | None = None,
    ) -> Iterator[Result]:
        """The answers of `once`; begun again, for up to RETURN_S, when the daemon goes away."""
        give_up = self._missed() if lost is not None else 0.0
        while True:
            try:
                for result in once():
                    if lost is not None:
                        self._say("the daemon is back")
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
                if before_again is not None:
                    before_again()
                time.sleep(0.1)

    def _say(self, text: str) -> None:
        if self._notice is not None:
            self._notice(text)

    def _missed(self) -> float:
        """Say that the daemon is away; until when to wait for it."""
        self._say(f"the daemon went away; jobs go on. Waiting up to {RETURN_S:.0f} s for it")
        return time.monotonic() + RETURN_S
