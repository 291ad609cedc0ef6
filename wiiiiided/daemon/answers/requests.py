"""What each request of a client does, on a machine alone and on a coordinator.

    jobs           look, wait, hold, release, requeue, cancel
    submissions    submit
    ranks          show, logs, stacks, pull: what the nodes of a job know
    nodes          machines
    figures        watch, records, predict

On a coordinator they come from every machine of the cluster; who asks is in `talk.caller`. What a
daemon does with itself (init, join, leave, renew) is taken out before (daemon/cluster/roles).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wiiiiided.daemon import views
from wiiiiided.daemon.answers.asks import Asks
from wiiiiided.daemon.answers.figures import Figures
from wiiiiided.daemon.answers.jobs import Jobs
from wiiiiided.daemon.answers.nodes import Cluster, NodeRequest, NodeRequests
from wiiiiided.daemon.answers.ranks import RankRequests
from wiiiiided.daemon.answers.share import Share
from wiiiiided.daemon.answers.standing import Standing
from wiiiiided.daemon.answers.status import DaemonFacts, status_of
from wiiiiided.daemon.answers.submissions import Submissions
from wiiiiided.daemon.conversation.refusal import Refuse
from wiiiiided.daemon.conversation.talk import Caller, Talk
from wiiiiided.daemon.keeper import Keeper
from wiiiiided.daemon.settings import Settings
from wiiiiided.daemon.shares.archives import Archives
from wiiiiided.daemon.shares.runs import Runs
from wiiiiided.daemon.shares.workers import Workers
from wiiiiided.domain.codes import USAGE
from wiiiiided.wire import messages as m


class Requests:
    """Answers clients. Without `asks` and `cluster` this machine is alone."""

    def __init__(
        self,
        keeper: Keeper,
        workers: Workers,
        runs: Runs,
        archives: Archives,
        facts: DaemonFacts,
        settings: Callable[[], Settings],
        figures: Figures,
        standing: Standing | None = None,
        asks: Asks | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.keeper = keeper
        self.runs = runs
        self.facts = facts
        self.figures = figures
        self.standing = standing or Standing()
        own = facts.node.name
        asks = asks or Asks(Share(own, workers, runs), lambda: keeper.state.nodes)
        self.jobs = Jobs(keeper, own)
        self.jobs.has_archive = archives.has
        self.jobs.estimate = figures.starts
        self.submissions = Submissions(self.jobs, archives, settings)
        self.ranks = RankRequests(self.jobs, asks, figures, Path(facts.state_directory))
        self.nodes = NodeRequests(self.jobs, cluster)

    async def handle(self, talk: Talk, request: m.Request) -> None:
        """One request, to its end."""
        match request:
            case m.Submit() | m.SubmitSweep():
                await self.submissions.submit(talk, request)
            case m.Wait():
                await self.jobs.wait(talk, request)
            case m.Cancel():
                await self.jobs.cancel(talk, request)
            case m.CancelSweep():
                await self.jobs.cancel_sweep(talk, request)
            case m.Logs():
                await self.ranks.logs(talk, request)
            case m.Show():
                await talk.say(await self.ranks.show(request.id))
            case m.Stacks():
                await talk.say(await self.ranks.stacks(request.id))
            case m.Pull():
                await self.ranks.pull(talk, request)
            case m.Watch():
                await self.figures.watch(talk, request)
            case m.RemoveNode():
                await talk.say(await self.nodes.remove(talk.caller, request))
            case _:
                await talk.say(self.answer(talk.caller, request))

    def answer(self, caller: Caller, request: m.Request) -> m.Answer:
        """Requests that are answered at once."""
        if isinstance(request, NodeRequest):
            return self.nodes.answer(caller, request)
        match request:
            case m.List(sweep=0, ended=number):
                return self.figures.with_use(self.jobs.list(number))
            case m.List(sweep=number):
                found = m.Jobs(self.jobs.views(self.jobs.sweep(number)))
                return self.figures.with_use(found)
            case m.History(limit=limit):
                return self.jobs.history(limit)
            case m.Why(id=number):
                return self.jobs.why(number)
            case m.FindSubmission():
                return self.submissions.find(caller, request)
            case m.Hold() | m.Release() | m.Requeue():
                return self.jobs.change(caller, request)
            case m.Status():
                return self.status()
            case m.Records(id=number):
                return self.records(number)
            case m.Predict(name=name):
                return m.Predicted(self.figures.forecast(name))
            case _:
                raise Refuse(USAGE, f"{type(request).__name__} is not a request")

    def records(self, number: int) -> m.JobRecords:
        job = self.jobs.find(number)
        return m.JobRecords(
            self.jobs.view(job),
            self.jobs.story(job),
            self.figures.runs(job.id),
            views.spec_for_people(job),
        )

    def status(self) -> m.DaemonStatus:
        counts = views.count_states(self.keeper.state)
        return status_of(self.facts, self.runs, self.standing, counts, self.keeper.trouble)
