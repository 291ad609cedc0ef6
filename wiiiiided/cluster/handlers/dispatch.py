"""The effect of each request of a client, on a machine alone and on a coordinator.

    jobs           look, wait, hold, release, requeue, cancel
    submissions    submit
    ranks          show, logs, stacks, pull: what the nodes of a job know
    nodes          machines
    metrics        watch, records
    trials         what plans and earlier runs say of a job, and the end of a trial

To a coordinator requests come from every machine of the cluster; `connection.caller` is the person.
Requests about the daemon itself (init, join, leave, renew) never arrive here: membership/roles
answers them before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from wiiiiided.cluster.allocation.archive_cache import Archives
from wiiiiided.cluster.handlers.cluster_role import ClusterRole
from wiiiiided.cluster.handlers.jobs import JobRequests
from wiiiiided.cluster.handlers.metrics import MetricsRequests
from wiiiiided.cluster.handlers.node_rpc import NodeRpc
from wiiiiided.cluster.handlers.nodes import Cluster, MachineRequest, NodeRequests
from wiiiiided.cluster.handlers.quota import Quota
from wiiiiided.cluster.handlers.ranks import RankRequests
from wiiiiided.cluster.handlers.resumption import Resumption
from wiiiiided.cluster.handlers.status import DaemonFacts, status_of
from wiiiiided.cluster.handlers.submissions import Submissions
from wiiiiided.cluster.handlers.trials import TrialRequests
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller, RpcConnection
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.state import views
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.system.settings import Settings
from wiiiiided.domain.exit_codes import USAGE


class Requests:
    """Answers clients. Without `cluster` this machine is alone."""

    def __init__(
        self,
        controller: Controller,
        archives: Archives,
        settings: Callable[[], Settings],
        facts: DaemonFacts,
        cluster_role: ClusterRole,
        metrics: MetricsRequests,
        node_rpc: NodeRpc,
        cluster: Cluster | None,
        forget: Callable[[int], Awaitable[None]],
    ) -> None:
        self.controller = controller
        self.facts = facts
        self.metrics = metrics
        self.cluster_role = cluster_role
        quota = Quota(lambda: controller.state.jobs, settings)
        self.jobs = JobRequests(controller, facts.node.name, archives.has, metrics.starts, quota)
        self.submissions = Submissions(
            self.jobs, archives, settings, Resumption(self.jobs, node_rpc)
        )
        self.ranks = RankRequests(self.jobs, node_rpc, metrics, Path(facts.state_directory))
        self.nodes = NodeRequests(self.jobs, cluster)
        self.trials = TrialRequests(self.jobs, metrics, forget)

    async def handle(self, connection: RpcConnection, request: m.Request) -> None:
        """Answer one request, to its end."""
        match request:
            case m.Submit() | m.SubmitSweep():
                await self.submissions.submit(connection, request)
            case m.Wait():
                await self.jobs.wait(connection, request)
            case m.Cancel():
                await self.jobs.cancel(connection, request)
            case m.CancelSweep():
                await self.jobs.cancel_sweep(connection, request)
            case m.Logs():
                await self.ranks.logs(connection, request)
            case m.Show():
                await connection.say(await self.ranks.show(request.id))
            case m.Stacks():
                await connection.say(await self.ranks.stacks(request.id))
            case m.Pull():
                await self.ranks.pull(connection, request)
            case m.ForgetTrial():
                await connection.say(await self.trials.forget(connection.caller, request))
            case m.WatchSnapshots():
                await self.metrics.watch(connection, request)
            case m.RemoveNode():
                await connection.say(await self.nodes.remove(connection.caller, request))
            case _:
                await connection.say(self.answer(connection.caller, request))

    def answer(self, caller: Caller, request: m.Request) -> m.Answer:
        """Requests that are answered at once."""
        if isinstance(request, MachineRequest):
            return self.nodes.answer(caller, request)
        match request:
            case m.ListJobs(sweep=0, ended=number):
                return self.metrics.with_use(self.jobs.list(number))
            case m.ListJobs(sweep=number):
                found = m.JobList(self.jobs.views(self.jobs.sweep(number)))
                return self.metrics.with_use(found)
            case m.ListHistory(limit=limit):
                return self.jobs.history(limit)
            case m.Why(id=number):
                return self.jobs.why(number)
            case m.FindSubmission():
                return self.submissions.find(caller, request)
            case m.Hold() | m.Release() | m.Requeue():
                return self.jobs.change(caller, request)
            case m.GetStatus():
                return self.status()
            case m.GetRecords(id=number):
                return self.records(number)
            case m.Predict(name=name):
                return self.trials.predicted(name)
            case m.KeepPlan():
                return self.trials.keep(request)
            case _:
                raise Refuse(USAGE, f"{request.tag} is not a request")

    def records(self, number: int) -> m.JobRecords:
        job = self.jobs.find(number)
        return m.JobRecords(
            self.jobs.view(job),
            self.jobs.story(job),
            self.metrics.runs(job.id),
            views.spec_for_people(job),
        )

    def status(self) -> m.DaemonStatus:
        counts = views.count_states(self.controller.state)
        return status_of(self.facts, self.cluster_role, counts, self.controller.trouble)
