"""Requests of `wiiiiide plan`: what earlier plans and runs say, what one has found, and the end of
a trial, of which nothing stays."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec.structs import replace

from wiiiiided.cluster.handlers.jobs import JobRequests
from wiiiiided.cluster.handlers.metrics import MetricsRequests
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller
from wiiiiided.cluster.rpc.errors import Refuse
from wiiiiided.cluster.state.plans import Plans, PlansUnwritable
from wiiiiided.domain.exit_codes import FAILED, USAGE
from wiiiiided.domain.limits import MAX_NAME, MAX_NODES
from wiiiiided.domain.plan import PROBE, KeptPlan, MachineSet, is_every
from wiiiiided.domain.states import ENDED

ROWS: Final = 64  # of a plan
CODECS: Final = 16  # of its machines
LEAST, MOST = 1e-12, 1e15  # samples, seconds


class TrialRequests:
    """`forget` removes a job that is over, with its files."""

    def __init__(
        self,
        jobs: JobRequests,
        metrics: MetricsRequests,
        forget: Callable[[int], Awaitable[None]],
    ) -> None:
        self._jobs, self._metrics, self._forget = jobs, metrics, forget

    def predicted(self, name: str) -> m.Predicted:
        forecast = self._metrics.forecast(name)
        plans = tuple(self._jobs.controller.store.plans.of(name))
        latest = plans[0] if plans else None
        return m.Predicted(forecast, latest, self._metrics.speeds(name), plans[1:])

    def keep(self, request: m.KeepPlan) -> m.EndOfAnswers:
        if not 1 <= len(request.name) <= MAX_NAME or not request.name.isprintable():
            raise Refuse(USAGE, f"a job's name has 1 to {MAX_NAME} printable characters")
        if not _is_possible(request.plan):
            raise Refuse(USAGE, "this is no plan that could be kept")
        controller = self._jobs.controller
        # The latest stay: one from the future would for ever.
        plan = replace(request.plan, at=min(request.plan.at, controller.clock()))
        try:
            controller.store.plans.keep(request.name, plan)
        except PlansUnwritable as problem:
            raise Refuse(FAILED, str(problem)) from problem
        return m.EndOfAnswers()

    async def forget(self, caller: Caller, request: m.ForgetTrial) -> m.EndOfAnswers:
        job = self._jobs.owned(caller, request.id)
        if PROBE not in job.spec.run.env:
            raise Refuse(USAGE, f"job {job.id} is no trial of wiiiiide plan: it stays")
        if job.state not in ENDED:
            raise Refuse(FAILED, f"job {job.id} is not over: {self._jobs.view(job).why}")
        await self._forget(job.id)
        return m.EndOfAnswers()


def _is_possible(plan: KeptPlan) -> bool:
    return (
        Plans.is_shape(plan.shape)
        and math.isfinite(plan.at)
        and 0 < len(plan.rows) <= ROWS
        and all(0 < len(row.nodes) <= MAX_NODES for row in plan.rows)
        and all(math.isfinite(row.samples_per_s) and row.every >= 1 for row in plan.rows)
        and all(len(row.gradients) <= MAX_NAME and len(row.why) <= 1000 for row in plan.rows)
        and (plan.every is None or is_every(plan.every))
        and len(plan.gradients or "") <= MAX_NAME
        and len(plan.sets) <= ROWS
        and all(map(_is_set, plan.sets))
    )


def _is_set(found: MachineSet) -> bool:
    """Numbers that can be divided by each other."""
    return (
        2 <= found.machines <= MAX_NODES
        and all(LEAST < one < MOST for one in (found.samples, found.step_s, found.seldom_s))
        and all(0 <= seconds < MOST for seconds in found.exchange_s.values())
        and len(found.exchange_s) <= CODECS
        and all(len(name) <= MAX_NAME for name in found.exchange_s)
    )
