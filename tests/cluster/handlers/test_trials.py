"""What a daemon keeps of plans, and that nothing stays of their trials."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.cluster.connections import run
from tests.cluster.control.world import spec
from tests.cluster.handlers.test_submissions import digest, keep
from tests.cluster.requesting import ADA, ROOT, Coordinator, coordinator
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Owner
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.rpc.connection import Caller
from wiiiiided.cluster.state import plans
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.domain.exit_codes import FAILED, NOT_ALLOWED, USAGE
from wiiiiided.domain.plan import PROBE, START, KeptPlan, MachineSet, PlanRow
from wiiiiided.domain.spec import JobSpec, Network, Resources, Run

EVE = Caller(1001, "eve", False, "a")
SHAPE = "0123456789abcdef"
ROWS = (PlanRow(("a",), 1, "exact", 190.0), PlanRow(("a", "b", "c"), 16, "int8", 431.0, True, "x"))
SETS = (MachineSet(3, 48.0, 0.1, 0.1, {"exact": 0.3, "int8": 0.15}),)
BAD_SETS = (
    replace(SETS[0], machines=1),
    replace(SETS[0], seldom_s=0.0),
    replace(SETS[0], samples=-1.0),
    replace(SETS[0], exchange_s={"exact": -1.0}),
    replace(SETS[0], exchange_s={"exact": 1e300}),
    replace(SETS[0], exchange_s={"x" * 1000: 1.0}),
    replace(SETS[0], exchange_s={str(one): 1.0 for one in range(99)}),
)


def plan(shape: str = SHAPE, at: float = 1.0) -> KeptPlan:
    return KeptPlan(at, shape, ROWS, sets=SETS)


def trial(cluster: Coordinator) -> int:
    """One that has just been queued."""
    number, now = cluster.store.next_id(), cluster.controller.clock()
    made = replace(spec(), run=Run(("python", "train.py"), env={PROBE: "1"}))
    owner = Owner("a", 1000, "ada")
    cluster.controller.ask(e.JobSubmitted(now, number, made, owner, digest(b"x")))
    cluster.prepare(number)
    return number


def test_a_plan_is_kept_and_told_with_what_earlier_runs_needed(tmp_path: Path) -> None:
    async def body() -> None:
        with coordinator(tmp_path) as cluster:
            assert (await cluster.one(m.Predict("digits"))).plan is None
            assert await cluster.one(m.KeepPlan("digits", plan()), ADA) == m.EndOfAnswers()
            assert (await cluster.one(m.Predict("digits"))).plan == plan()
            assert (await cluster.one(m.Predict("digit"))).plan is None
            await cluster.one(m.KeepPlan("digits", plan("f" * 16, at=2.0)))
            found = await cluster.one(m.Predict("digits"))
            assert (found.plan, found.others) == (plan("f" * 16, at=2.0), (plan(),))

    run(body())


def test_what_is_no_plan_is_refused(tmp_path: Path) -> None:
    bad = (
        replace(plan(), shape="x"),
        replace(plan(), rows=()),
        replace(plan(), rows=ROWS * 40),
        replace(plan(), rows=(replace(ROWS[0], every=0),)),
        replace(plan(), rows=(replace(ROWS[0], nodes=()),)),
        replace(plan(), every=0),
        replace(plan(), every="often"),
        replace(plan(), gradients="x" * 1000),
        replace(plan(), sets=SETS * 65),
        *(replace(plan(), sets=(one,)) for one in BAD_SETS),
    )

    async def body() -> None:
        with coordinator(tmp_path) as cluster:
            for one in bad:
                assert (await cluster.one(m.KeepPlan("digits", one))).code == USAGE
            assert (await cluster.one(m.KeepPlan("a\nb", plan()))).code == USAGE

    run(body())


def test_a_plan_from_the_future_is_one_of_now(tmp_path: Path) -> None:
    async def body() -> None:
        with coordinator(tmp_path) as cluster:
            await cluster.one(m.KeepPlan("digits", plan(at=1e300)), ADA)
            kept = (await cluster.one(m.Predict("digits"))).plan
            assert kept is not None
            assert kept.at <= cluster.controller.clock()

    run(body())


def test_the_oldest_plans_go(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(plans, "KEPT", 2)
    store = StateStore(tmp_path / "state")
    store.fact("node", "a")
    for at in (3.0, 1.0, 2.0):
        store.plans.keep(f"job {at:g}", plan(at=at))
    assert [bool(store.plans.of(f"job {at}")) for at in (1, 2, 3)] == [False, True, True]
    assert store.fact("node", "b") == "a"  # what else is there stays
    store.close()


def test_a_job_begins_with_what_a_plan_found_for_its_machines(tmp_path: Path) -> None:
    async def submitted(cluster: Coordinator, made: JobSpec) -> dict[str, str]:
        request = m.Submit(made, digest(b"x"), 1, hold=True)
        answer = await cluster.one(request, ROOT)
        return cluster.job(answer.id).spec.run.env

    async def body() -> None:
        with coordinator(tmp_path) as cluster:
            keep(cluster, b"x")
            cluster.store.plans.keep("digits", plan())
            made = replace(spec("digits"), resources=Resources((3, 3)))
            assert (await submitted(cluster, made))[START] == f"32@{SHAPE}"
            coded = replace(made, network=Network(gradients="int8"))
            assert (await submitted(cluster, coded))[START] == f"16@{SHAPE}"
            for other in (
                replace(made, name="another"),
                replace(made, resources=Resources((2, 2))),  # of which the plan says nothing
                replace(made, resources=Resources()),
            ):
                assert START not in await submitted(cluster, other)
            own = replace(made, run=replace(made.run, env={START: "4@ff"}))
            assert (await submitted(cluster, own))[START] == "4@ff"

    run(body())


def test_a_job_of_all_machines_begins_with_what_was_found_for_those_that_fit(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        with coordinator(tmp_path) as cluster:
            keep(cluster, b"x")
            two = PlanRow(("a", "b"), 8, "int8", 300.0)
            cluster.store.plans.keep("digits", KeptPlan(1.0, SHAPE, (*ROWS, two)))

            async def start(resources: Resources) -> str:
                made = replace(spec("digits"), resources=resources)
                answer = await cluster.one(m.Submit(made, digest(b"x"), 1, hold=True), ROOT)
                return cluster.job(answer.id).spec.run.env[START]

            every = Resources((1, None))
            assert await start(every) == f"16@{SHAPE}"
            assert await start(replace(every, avoid=("c",))) == f"8@{SHAPE}"
            assert await start(Resources((1, 9))) == f"16@{SHAPE}"
            drained = e.NodeDrained(cluster.controller.clock(), "c", "root", "fan broken")
            cluster.controller.ask(drained)
            assert await start(every) == f"8@{SHAPE}"

    run(body())


def test_a_trial_goes_when_it_is_over_and_nothing_else_does(tmp_path: Path) -> None:
    async def body() -> None:
        with coordinator(tmp_path) as cluster:
            number = trial(cluster)
            cluster.start(number)
            assert (await cluster.one(m.ForgetTrial(number), ADA)).code == FAILED  # it runs
            cluster.end(number)
            assert (await cluster.one(m.ForgetTrial(number), EVE)).code == NOT_ALLOWED
            assert await cluster.one(m.ForgetTrial(number), ADA) == m.EndOfAnswers()
            assert cluster.controller.job(number) is None
            ordinary = cluster.submit()
            cluster.start(ordinary)
            cluster.end(ordinary)
            assert (await cluster.one(m.ForgetTrial(ordinary), ADA)).code == USAGE
            assert cluster.job(ordinary).state == "done"

    run(body())


def test_a_trial_that_was_left_behind_is_found(tmp_path: Path) -> None:
    async def body() -> None:
        with coordinator(tmp_path) as cluster:
            number, ordinary = trial(cluster), cluster.submit(nodes=1)
            for job in (number, ordinary):
                cluster.start(job)
                cluster.end(job)
            assert cluster.store.ended_trials(time.time() - 60) == []  # its client may still come
            assert cluster.store.ended_trials(time.time() + 60) == [number]
            await cluster.one(m.ForgetTrial(number), ADA)
            assert cluster.store.ended_trials(time.time() + 60) == []

    run(body())


def test_a_trial_is_found_behind_any_number_of_jobs_and_after_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
        with coordinator(tmp_path) as cluster:
            number = trial(cluster)
            cluster.start(number)
            cluster.end(number)
            over = [
                replace(cluster.job(number), id=number + 1 + i, spec=spec()) for i in range(300)
            ]
            event = e.Ticked(cluster.controller.clock())
            cluster.store.commit(over, [], event)
            assert cluster.store.ended_trials(time.time() + 60) == [number]
        store = StateStore(tmp_path / "state")
        assert store.ended_trials(time.time() + 60) == [number]
        store.close()

    run(body())
