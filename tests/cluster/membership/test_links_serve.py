"""The coordinator's ends of the links: what a member says counts for itself, by our clock."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.actions import AnyAction
from wiiiiided.cluster.control.job import Job, Owner
from wiiiiided.cluster.membership import link
from wiiiiided.cluster.membership.control_port import OpenConnections
from wiiiiided.cluster.membership.dispatch import ActionDispatcher, Assigner
from wiiiiided.cluster.membership.links import Links, restamped
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.cluster.state.controller import Controller
from wiiiiided.cluster.state.store import MOST_SKIPPED, StateStore, StoreError
from wiiiiided.cluster.trust.certificate import Certificate
from wiiiiided.cluster.trust.tls import VerifiedPeer
from wiiiiided.domain.node import Node
from wiiiiided.domain.spec import JobSpec, Policy, Resources, Restart, Run

A, B, C = (
    Node(name, 2, 1 << 30, address=f"127.0.0.{number}", port=9461, version="0.1.0")
    for number, name in enumerate("abc", 2)
)

OWNER = Owner("a", 0, "root")


class Workers:
    def perform(self, action: Any, given: p.Assignment) -> None:
        pass


class Members:
    def __init__(self, until: float = 1e12) -> None:
        self._until = until
        self.no = ""  # why a certificate does not count

    def until(self, name: str) -> float:
        return self._until

    def verdict(self, peer: VerifiedPeer) -> str:
        return self.no

    def check_place(self, node: Node) -> None:
        pass

    def renew(self, name: str, request: str) -> Certificate:
        return Certificate(f"signed {request} for {name}", 2e12)


class Identity:
    def attempt_key(self, job: int, attempt: int) -> bytes:
        return bytes([job, attempt]) * 16


class Head:
    """A coordinator without a port: members are at the other end of socket pairs."""

    def __init__(
        self, state: Path, members: Members, clock: Callable[[], float] = time.time
    ) -> None:
        self.store = StateStore(state)
        self.controller = Controller(self.store, [A], self._perform, lambda: None, clock=clock)
        identity: Any = Identity()
        assigner = Assigner(self.controller, identity)
        given: Any = members
        self.connections = OpenConnections()
        self.links = Links(
            *(self.controller, assigner, given, self.connections),
            lambda node, metrics: None,
        )
        workers: Any = Workers()
        self.dispatcher = ActionDispatcher("a", workers, assigner, self.links)
        self.tasks: list[asyncio.Task[None]] = []
        self.members: list[RpcConnection] = []

    def _perform(self, action: AnyAction, job: Job) -> None:
        self.dispatcher(action, job)

    async def link(
        self,
        node: Node,
        name: str = "",
        has: tuple[int, ...] = (),
        in_parts: bool = False,
        cancelled: tuple[p.CancelledHere, ...] = (),
    ) -> RpcConnection:
        """A member's end of a link, after its hello; the reconciliation is the next it hears."""
        here, there = socket.socketpair()
        ours = RpcConnection(*await asyncio.open_connection(sock=here))
        ours.peer = VerifiedPeer(name or node.name, "f" * 64, "member")
        self.tasks.append(asyncio.ensure_future(self.links.serve(ours)))
        self.tasks[-1].add_done_callback(lambda _: ours.close())  # as the port does
        connection = RpcConnection(*await asyncio.open_connection(sock=there))
        self.members.append(connection)
        await connection.say(p.LinkHello(node, has, in_parts, cancelled))
        return connection

    def submit(
        self,
        number: int,
        nodes: int,
        secrets: dict[str, str] | None = None,
        policy: Policy | None = None,
    ) -> None:
        run = Run(("python",), pass_env=tuple(secrets or ()))
        spec = JobSpec("test", run, Resources((nodes, nodes)), policy=policy or Policy())
        event = e.JobSubmitted(self.controller.clock(), number, spec, OWNER, "ab" * 32)
        self.controller.ask(event, secrets)

    def state(self, number: int) -> str:
        found = self.controller.job(number)
        assert found is not None
        return found.state


@contextlib.asynccontextmanager
async def head(
    state: Path, members: Members | None = None, clock: Callable[[], float] = time.time
) -> AsyncIterator[Head]:
    made = Head(state, members or Members(), clock)
    try:
        async with asyncio.timeout(20):
            yield made
    finally:
        made.links.close()
        for connection in made.members:
            connection.close()
        await asyncio.gather(*made.tasks, return_exceptions=True)
        made.controller.close()
        made.store.close()


async def reconciled(connection: RpcConnection) -> p.Reconcile:
    told = p.decode_reconcile(await connection.message())
    assert isinstance(told, p.Reconcile)
    return told


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.002)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(link, "BEAT_S", 3600.0)  # no ping between the words that a test expects
    return tmp_path / "state"


def test_a_member_is_told_all_that_is_believed_to_be_on_it(state: Path) -> None:
    async def work() -> None:
        async with head(state) as a:
            b = await a.link(B)
            first = await reconciled(b)
            assert (first.assignments, first.forget) == ((), ())
            a.submit(1, nodes=2, secrets={"WORD": "x"})
            order = p.decode_from_coordinator(await b.message())
            assert isinstance(order, p.Do)
            again = await reconciled(await a.link(B, has=(1,)))
            (given,) = map(p.unpack, again.assignments)
            assert given == p.unpack(order.assignment)
            assert given.endpoints == {"a": A.endpoint, "b": B.endpoint}
            assert given.secrets == {"WORD": "x"}
            assert bytes.fromhex(given.key) == bytes([1, 1]) * 16
            assert again.forget == ()

    asyncio.run(work())


@pytest.mark.parametrize("in_parts", [True, False])
def test_a_member_with_more_than_one_message_holds_is_heard_again(
    state: Path, in_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older one reads a single message: of what does not fit it learns that it is there."""
    monkeypatch.setattr(p, "RECONCILE_BYTES", 5000)
    monkeypatch.setattr(link, "QUEUE_BYTES", 5000)

    async def work() -> None:
        async with head(state) as a:
            b = await a.link(replace(B, cores=64))
            await reconciled(b)
            for number in range(1, 8):
                run = Run(("python", "x" * 2000))
                resources = Resources(cores_per_worker=1, use=("b",))
                event = e.JobSubmitted(
                    a.controller.clock(), number, JobSpec("test", run, resources), OWNER, "ab" * 32
                )
                a.controller.ask(event)
            again = await a.link(replace(B, cores=64), in_parts=in_parts)
            parts = [await reconciled(again)]
            while parts[-1].more:
                parts.append(await reconciled(again))
            packed = [one for part in parts for one in part.assignments]
            assert (len(parts) > 2) == in_parts
            assert [_number(one) for one in packed] == list(range(1, 8))
            assert all(len(p.encode(part)) < 10_000 for part in parts)
            a.submit(8, nodes=2)
            assert a.links.linked("b")

    asyncio.run(work())


def _number(packed: Any) -> int:
    try:
        return p.unpack(packed).job.id
    except p.UnreadableAssignment as problem:
        return problem.job


def test_a_member_forgets_what_the_queue_forgot_and_keeps_what_it_never_knew(state: Path) -> None:
    """The latter is of a later state of the queue: this one was restored from an older copy."""

    async def work() -> None:
        async with head(state) as a:
            for number in (1, 2):
                a.submit(number, nodes=2)
                a.controller.ask(e.CancelRequested(a.controller.clock(), number, "root", now=True))
            a.store.forget([1])
            far = a.store.next_id() + MOST_SKIPPED
            told = await reconciled(await a.link(B, has=(1, 2, 7, 9, far)))
            assert told.forget == (1,)
            assert a.store.next_id() == 10
            again = await reconciled(await a.link(B, has=(1, 2, 7, 9)))
            assert again.forget == (1,)

    asyncio.run(work())


class Cut:
    """Job 1 runs on a and b; then b is cut off, and ada cancels it there."""

    def __init__(self, a: Head, policy: Policy | None = None) -> None:
        self.a = a
        self.policy = policy or Policy(restart=Restart(max=3, on=("failure", "node-lost")))

    async def happens(self) -> None:
        a = self.a
        b = await a.link(B)
        await reconciled(b)
        a.submit(1, nodes=2, policy=self.policy)
        for node in "ab":
            versions = ("3.11.7", "2.13.0", "0.1.0")
            a.controller.report(e.WorkersPrepared(a.controller.clock(), 1, 1, node, *versions))
        for node in "ab":
            a.controller.report(e.WorkersStarted(a.controller.clock(), 1, 1, node))
        b.close()
        await until(lambda: "b" in a.controller.state.absent)

    def said(self, ago_s: float = 1.0, **other: Any) -> tuple[p.CancelledHere, ...]:
        job = self.a.controller.job(1)
        assert job is not None
        return (replace(p.CancelledHere(1, job.submitted_at, "ada", False, ago_s), **other),)

    def ends(self, attempt: int, node: str, code: int = 1) -> None:
        now = self.a.controller.clock()
        self.a.controller.report(e.WorkersEnded(now, 1, attempt, node, code, "rank 0 ended with 1"))


def test_what_was_cancelled_on_a_machine_cut_off_ends_cancelled_and_is_not_restarted(
    state: Path,
) -> None:
    async def work() -> None:
        async with head(state) as a:
            cut = Cut(a)
            await cut.happens()
            cut.ends(1, "a")  # its peer is silent
            assert a.state(1) == "stopping"
            told = await reconciled(await a.link(B, has=(1,), cancelled=cut.said()))
            assert told.cancelled == (1,)
            (given,) = map(p.unpack, told.assignments)
            assert given.job.phase.reason == "cancelled by ada on b"  # type: ignore[union-attr]
            cut.ends(1, "b", 143)
            job = a.controller.job(1)
            assert job is not None
            assert (job.state, job.restarts) == ("cancelled", 0)
            again = await reconciled(await a.link(B, has=(1,), cancelled=cut.said()))
            assert again.cancelled == (1,)
            assert a.state(1) == "cancelled"

    asyncio.run(work())


def test_a_cancel_reaches_the_job_in_whichever_attempt_the_policy_has_it(state: Path) -> None:
    async def work() -> None:
        async with head(state) as a:
            cut = Cut(a)
            await cut.happens()
            a.controller.report(e.NodeDeclaredLost(a.controller.clock(), "b", "root"))
            cut.ends(1, "a")
            assert a.state(1) == "backoff"
            told = await reconciled(await a.link(B, cancelled=cut.said()))
            assert (told.cancelled, a.state(1)) == ((1,), "cancelled")

    asyncio.run(work())


def test_a_job_that_was_asked_for_anew_since_then_goes_on(state: Path) -> None:
    async def work() -> None:
        async with head(state) as a:
            cut = Cut(a)
            await cut.happens()
            a.controller.ask(e.RequeueRequested(a.controller.clock(), 1, "root"))
            told = await reconciled(await a.link(B, cancelled=cut.said(ago_s=60.0)))
            assert told.cancelled == (1,)
            job = a.controller.job(1)
            assert job is not None
            assert job.phase.cause == "requeue"  # type: ignore[union-attr]

    asyncio.run(work())


def test_a_cancel_on_both_sides_is_one(state: Path) -> None:
    async def work() -> None:
        async with head(state) as a:
            cut = Cut(a)
            await cut.happens()
            a.controller.ask(e.CancelRequested(a.controller.clock(), 1, "root"))
            before = a.controller.job(1)
            told = await reconciled(await a.link(B, cancelled=cut.said()))
            assert told.cancelled == (1,)
            assert a.controller.job(1) == before

    asyncio.run(work())


def test_a_restored_coordinator_cancels_no_other_job_of_that_number(state: Path) -> None:
    async def work() -> None:
        async with head(state) as a:
            cut = Cut(a)
            await cut.happens()
            other = (*cut.said(submitted_at=1.0), *cut.said(id=77))
            told = await reconciled(await a.link(B, cancelled=other))
            assert (told.cancelled, a.state(1)) == ((1, 77), "running")

    asyncio.run(work())


def test_a_cancel_that_could_not_be_stored_is_told_again(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with head(state) as a:
            cut = Cut(a)
            await cut.happens()

            def full(*_: Any) -> None:
                raise StoreError("the disk is full")

            with monkeypatch.context() as broken:
                broken.setattr(a.store, "commit", full)
                told = await reconciled(await a.link(B, cancelled=cut.said()))
                assert told.cancelled == ()
            told = await reconciled(await a.link(B, cancelled=cut.said()))
            assert (told.cancelled, a.state(1)) == ((1,), "stopping")

    asyncio.run(work())


def test_a_mad_hello_leaves_one_row_and_moves_the_numbers_once(state: Path) -> None:
    async def work() -> None:
        async with head(state) as a:
            a.submit(1, nodes=2)
            rows = "SELECT count(*) FROM facts"
            (before,) = a.store.db.execute(rows).fetchone()
            mad = tuple(range(2, 2 + 2 * MOST_SKIPPED))
            told = await reconciled(await a.link(B, has=mad))
            assert told.forget == ()  # whatever it is, it is not ours to remove
            assert a.store.next_id() == 2 + MOST_SKIPPED
            again = tuple(range(2 + MOST_SKIPPED, 2 + 2 * MOST_SKIPPED))
            told = await reconciled(await a.link(B, has=again))
            assert told.forget == ()
            assert a.store.next_id() == 2 + MOST_SKIPPED
            assert a.store.db.execute(rows).fetchone() == (before + 1,)
            await reconciled(await a.link(C, has=(3 + MOST_SKIPPED,)))
            assert a.store.next_id() == 4 + MOST_SKIPPED  # of another, once, and in the same row
            assert a.store.db.execute(rows).fetchone() == (before + 1,)

    asyncio.run(work())


def test_a_second_link_takes_the_place_of_the_first(state: Path) -> None:
    async def work() -> None:
        async with head(state) as a:
            first = await a.link(B)
            await reconciled(first)
            second = await a.link(B)
            await reconciled(second)
            await first.gone()
            assert a.links.linked("b")
            assert "b" not in a.controller.state.absent
            second.close()
            await until(lambda: not a.links.linked("b"))
            await until(lambda: "b" in a.controller.state.absent)

    asyncio.run(work())


def test_a_machine_with_the_same_certificate_waits_until_the_first_is_gone(state: Path) -> None:
    """A clone would be given the same allocations; one that restarted is taken a moment later."""

    async def work() -> None:
        async with head(state) as a:
            first = await a.link(replace(B, boot_id="one"))
            await reconciled(first)
            clone = await a.link(replace(B, boot_id="two"))
            with pytest.raises(EOFError):
                await clone.message()
            a.submit(1, nodes=2)
            heard = p.decode_from_coordinator(await first.message())
            assert isinstance(heard, p.Ping)  # is it still there?
            assert isinstance(p.decode_from_coordinator(await first.message()), p.Do)
            first.close()
            await until(lambda: not a.links.linked("b"))
            await reconciled(await a.link(replace(B, boot_id="two")))

    asyncio.run(work())


def test_a_link_that_cannot_be_begun_leaves_the_node_unheard(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with head(state) as a:
            with monkeypatch.context() as broken:
                broken.setattr(a.links, "_reconciliation", None)
                connection = await a.link(B)
                await until(lambda: "b" in a.controller.state.absent)
                assert not a.links.linked("b")
                connection.close()
            await reconciled(await a.link(B))
            assert "b" not in a.controller.state.absent

    asyncio.run(work())


def test_a_member_is_the_node_its_certificate_names(state: Path) -> None:
    async def work() -> None:
        async with head(state) as a:
            connection = await a.link(C, name="b")
            await reconciled(connection)
            assert set(a.controller.state.nodes) == {"a", "b"}

    asyncio.run(work())


def test_what_a_member_says_of_others_is_not_believed(state: Path) -> None:
    async def work() -> None:
        async with head(state) as a:
            b, c = await a.link(B), await a.link(C)
            await reconciled(b)
            await reconciled(c)
            a.submit(1, nodes=3)
            assert a.state(1) == "starting"
            await b.say(p.Report(e.WorkersEnded(0.0, 1, 1, "c", 1, "a lie")))
            await b.say(p.Report(e.WorkersEnded(0.0, 1, 1, "a", 1, "a lie")))
            await b.say(p.Report(e.WorkersEnded(0.0, 1, 1, "b", 1, "the truth")))
            await until(lambda: a.state(1) == "stopping")
            found = a.controller.job(1)
            assert found is not None
            assert found.attempt is not None
            assert set(found.attempt.results) == {"b"}

    asyncio.run(work())


def test_a_certificate_that_ends_soon_is_renewed_over_the_link(state: Path) -> None:
    async def work() -> None:
        async with head(state, Members(until=0.0)) as a:
            b = await a.link(B)
            await reconciled(b)
            assert isinstance(p.decode_from_coordinator(await b.message()), p.RenewDue)
            await b.say(p.RenewRequest("mine"))
            said = p.decode_from_coordinator(await b.message())
            assert said == p.Renewed("signed mine for b", 2e12)

    asyncio.run(work())


@pytest.mark.parametrize(
    "message", [b'{"type": "OfTheFuture"}', b'{"type": "RenewRequest", "request": "\xff"}']
)
def test_a_message_that_cannot_be_read_is_passed_over(state: Path, message: bytes) -> None:
    async def work() -> None:
        async with head(state) as a:
            b = await a.link(B)
            await reconciled(b)
            await b.send(b"J", message)
            await b.say(p.RenewRequest("mine"))
            assert isinstance(p.decode_from_coordinator(await b.message()), p.Renewed)

    asyncio.run(work())


def test_a_removed_member_is_told_and_not_reported_as_lost(state: Path) -> None:
    async def work() -> None:
        async with head(state) as a:
            b = await a.link(B)
            await reconciled(b)
            a.links.remove("b", "root")
            assert p.decode_from_coordinator(await b.message()) == p.MemberRemoved("root")
            with pytest.raises(EOFError):
                await b.message()
            assert "b" not in a.controller.state.absent

    asyncio.run(work())


def test_a_removed_member_is_heard_until_its_allocations_have_ended(state: Path) -> None:
    """Although all that it has under way is cancelled; it is told once."""

    async def work() -> None:
        async with head(state) as a:
            b = await a.link(B)
            await reconciled(b)
            a.connections.hang_up = lambda who: a.tasks[0].cancel()  # type: ignore[method-assign]
            a.submit(1, nodes=2)
            assert isinstance(p.decode_from_coordinator(await b.message()), p.Do)
            a.links.remove("b", "root", listen=True)
            assert p.decode_from_coordinator(await b.message()) == p.MemberRemoved("root")
            await b.say(p.Report(e.WorkersEnded(0.0, 1, 1, "b", 143, "stopped", lost=True)))
            await until(lambda: a.state(1) == "stopping")
            a.links.remove("b", "root")
            with pytest.raises(EOFError):
                await b.message()
            assert not a.links.linked("b")

    asyncio.run(work())


@pytest.mark.parametrize(
    ("member_at", "ended_at", "found"),
    [
        (5000.0, 4990.0, 90.0),  # ten seconds before it was told, by whatever clock
        (0.0, -10.0, 90.0),
        (5000.0, 6000.0, 100.0),  # its clock was set back meanwhile: not in the future
        (5000.0, None, None),
    ],
)
def test_times_of_another_machine_become_ours(
    member_at: float, ended_at: float | None, found: float | None
) -> None:
    reason, times = "all\nranks \x1b[31mended", {"ended_at": ended_at, "failed_at": ended_at}
    event = e.WorkersEnded(member_at, 1, 1, "b", 0, reason, error="\x1b" * 999, **times)
    ours = restamped(event, 100.0)
    assert (ours.at, ours.ended_at, ours.failed_at) == (100.0, found, found)
    assert ours.reason == "all?ranks ended"
    assert ours.error == "?" * 300


def test_a_clock_that_went_back_while_no_daemon_ran_makes_no_silence_longer(
    state: Path,
) -> None:
    """A job that ends alone after a time would be started elsewhere beside itself."""

    async def begin() -> None:
        async with head(state) as a:
            b = await a.link(B)
            await reconciled(b)
            a.submit(1, nodes=2, policy=Policy(stop_alone_s=600.0))
            for node in "ab":
                a.controller.report(prepared(node))
            for node in "ab":
                a.controller.report(e.WorkersStarted(a.controller.clock(), 1, 1, node))
            assert a.state(1) == "running"

    async def again() -> None:
        async with head(state, clock=lambda: time.time() - 50_000.0) as a:
            now, latest = (
                a.controller.clock(),
                a.controller.latest(a.controller.state.jobs.values()),
            )
            assert latest > now + 40_000.0
            a.controller.report(e.ClockJumped(now, now - latest))
            a.controller.tick()
            assert a.controller.state.absent["b"] == pytest.approx(now, abs=60.0)
            assert a.state(1) == "running"

    asyncio.run(begin())
    asyncio.run(again())


def prepared(node: str) -> e.WorkersPrepared:
    return e.WorkersPrepared(time.time(), 1, 1, node, "3.11", "2.13", "0.1.0")


def test_what_was_reported_comes_before_what_is_asked(state: Path) -> None:
    """As when there was no room on the disk for a report: the order is that of what happened."""

    async def work() -> None:
        async with head(state) as a:
            a.controller._reports.append(e.NodeSeen(a.controller.clock(), B))
            a.controller.ask(e.NodeRemoved(a.controller.clock(), "b", "root"))
            a.controller.tick()
            assert "b" not in a.controller.state.nodes

    asyncio.run(work())
