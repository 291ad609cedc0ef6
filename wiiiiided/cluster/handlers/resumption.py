"""`submit --resume 17`: whether a new job may begin with another's checkpoints, and from where.

Asked when a job is submitted, so that it is not queued for hours only to fail: the other job is
over, of the same owner, and has some on a node that answers. They are fetched when its nodes are
prepared (handlers/checkpoints); until then the other job is not pruned (daemon/pruning).
"""

from __future__ import annotations

from collections.abc import Iterable

from wiiiiided.cluster.control.job import Job, Saved
from wiiiiided.cluster.handlers.checkpoint_search import holders
from wiiiiided.cluster.handlers.jobs import JobRequests, check_owner
from wiiiiided.cluster.handlers.node_rpc import NodeRpc
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.domain.checkpoint_files import checkpoint_globs
from wiiiiided.domain.exit_codes import FAILED
from wiiiiided.domain.states import ENDED


class Resumption:
    """Checks that a job may begin with another's checkpoints."""

    def __init__(self, jobs: JobRequests, node_rpc: NodeRpc) -> None:
        self._jobs = jobs
        self._node_rpc = node_rpc

    async def of(self, caller: Caller, request: m.Submission) -> Saved | None:
        """Find the checkpoints that the job begins with. Refuse: why they cannot be used."""
        if not isinstance(request, m.SubmitResuming):
            return None
        job = self._jobs.find(request.resumes)
        check_owner(caller, job, self._jobs.own, "go on from it")
        if job.state not in ENDED:
            text = f"job {job.id} is {job.state}: another goes on from it when it is over"
            raise Refuse(FAILED, text, f"wiiiiide wait {job.id}, or wiiiiide cancel {job.id}")
        globs = checkpoint_globs(request.spec.output)
        if (saved := job.saved) is None:
            raise _none(job, "it never ran")
        absent = self._jobs.controller.state.absent
        found = await holders(self._node_rpc, absent, saved, globs)
        if not found.nodes and found.missing:
            why = "; ".join(found.missing.values())
            raise Refuse(FAILED, f"the checkpoints of job {job.id} cannot be had: {why}")
        if not found.nodes:
            raise _none(job, f"no file in its working directory matches {', '.join(globs)}")
        return saved


def waited_for(jobs: Iterable[Job]) -> set[int]:
    """Jobs whose checkpoints others are still to begin with."""
    return {job.saved.job for job in jobs if job.saved is not None and job.saved.job != job.id}


def _none(job: Job, why: str) -> Refuse:
    hint = "wide.parallel(…, save=…) writes them; output.checkpoints in the job file names others"
    return Refuse(FAILED, f"job {job.id} has no checkpoints: {why}", hint)
