"""A member's link: what it hears, what it does about it, and that it never gives up."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from wiiiiided.cluster.control import actions as a
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Attempt, Job, Owner, Starting
from wiiiiided.cluster.membership import uplink as module
from wiiiiided.cluster.membership.dial import PeerRefusal, Unreachable
from wiiiiided.cluster.membership.uplink import Uplink
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc.connection import RpcConnection
from wiiiiided.domain.node import Node
from wiiiiided.domain.rank_layout import AllocationSpec, Layout
from wiiiiided.domain.spec import JobSpec, Run

NODE = Node("b", 2, 1 << 30, address="127.0.0.3", port=9461)
LAYOUT = Layout((AllocationSpec("b", 0, 0, 1, 1),))


def job(number: int) -> Job:
    spec = JobSpec("test", Run(("python", "-c", "pass")))
    attempt = Attempt(1, LAYOUT, 0.0)
    owner = Owner("a", 0, "root")
    return Job(number, spec, owner, "ab" * 32, 0.0, Starting(0.0), attempt=attempt)


class Cancelled:
    """Jobs that were cancelled here."""

    def __init__(self) -> None:
        self.untold: dict[int, p.CancelledHere] = {}

    def told(self, now: float) -> tuple[p.CancelledHere, ...]:
        return tuple(self.untold.values())

    def forget(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self.untold.pop(number, None)


class Workers:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.raises: dict[int, Exception] = {}  # job → what carrying out its orders does
        self.following: dict[tuple[int, int], Job] = {}
        self.heard_at: list[float] = []
        self.job_dirs = self
        self.cancellations = Cancelled()

    def clock(self) -> float:
        return 0.0

    def numbers(self) -> list[int]:
        return [3, 4]

    def reconcile(
        self,
        given: list[p.Assignment],
        others: set[tuple[int, int]] = frozenset(),
        reason: str = "",
    ) -> None:
        self.told.append(("reconcile", [one.job.id for one in given], others))
        if reason:
            self.told.append(("ends all", reason))

    def perform(self, action: Any, given: p.Assignment) -> None:
        self.told.append((type(action).__name__, given.job.id, given.secrets))
        if given.job.id in self.raises:
            raise self.raises[given.job.id]

    def never(self, key: tuple[int, int], why: str) -> None:
        self.told.append(("never", *key, why))

    def decline(self, number: int, attempt: int, why: str) -> None:
        self.told.append(("decline", number, attempt))

    def heard(self, at: float) -> None:
        self.told.append("heard")
        self.heard_at.append(at)


class Coordinator:
    """Plays the other end; every dial is one call of `play`, or the error it raises."""

    def __init__(self, *plays: Callable[[RpcConnection], Awaitable[None]] | Exception) -> None:
        self.plays = list(plays)
        self.tasks: list[asyncio.Task[None]] = []

    async def open(
        self, address: str, port: int, purpose: str, person: Any = None
    ) -> RpcConnection:
        play = self.plays.pop(0) if self.plays else Unreachable("the play is over")
        if isinstance(play, Exception):
            raise play
        here, there = socket.socketpair()
        connection = RpcConnection(*await asyncio.open_connection(sock=there))

        async def run() -> None:
            try:
                await play(connection)
            except EOFError:  # the member has left before the play was over
                pass
            finally:
                connection.close()

        self.tasks.append(asyncio.ensure_future(run()))
        return RpcConnection(*await asyncio.open_connection(sock=here))


class Papers:
    class identity:
        cluster = "lab"

        class coordinator:
            name, address, port, endpoint = "a", "127.0.0.2", 9461, "127.0.0.2:9461"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.001)
    monkeypatch.setattr(module, "MOST_S", 0.01)
    monkeypatch.setattr(module, "TURNED_S", 0.01)
    monkeypatch.setattr(module, "HEARD_S", 0.01)


class Watcher:
    """What the daemon does about its link."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers

    def linked(self) -> None:
        pass

    def unlinked(self) -> None:
        pass

    async def forget(self, jobs: tuple[int, ...]) -> None:
        self.workers.told.append(("forget", jobs))


def member(there: Coordinator) -> tuple[Uplink, Workers]:
    workers = Workers()
    papers: Any = Papers()
    dialer: Any = there
    given: Any = workers
    return Uplink(papers, dialer, NODE, given, Watcher(workers)), workers


def played(there: Coordinator, until: Callable[[Uplink, Workers], bool]) -> tuple[Uplink, Workers]:
    """Run a member against a play until something is true of it."""

    async def work() -> tuple[Uplink, Workers]:
        link, workers = member(there)
        running = asyncio.ensure_future(link.run())
        async with asyncio.timeout(20):
            while not until(link, workers):
                await asyncio.sleep(0.002)
        running.cancel()
        await asyncio.gather(running, *there.tasks, return_exceptions=True)
        return link, workers

    return asyncio.run(work())


async def greeted(
    connection: RpcConnection, *given: p.Assignment, forget: tuple[int, ...] = ()
) -> p.LinkHello:
    hello = p.decode_hello(await connection.message())
    await connection.say(p.Reconcile(tuple(map(p.pack, given)), forget))
    return hello


def test_a_link_begins_with_what_is_there_on_both_sides() -> None:
    hellos = []

    async def play(connection: RpcConnection) -> None:
        hellos.append(await greeted(connection, p.Assignment(job(7), ""), forget=(3,)))
        await connection.message()

    _, workers = played(Coordinator(play), lambda link, w: ("forget", (3,)) in w.told)
    assert hellos == [p.LinkHello(NODE, (3, 4), in_parts=True)]
    assert ("reconcile", [7], set()) in workers.told


def test_what_was_cancelled_here_is_said_until_the_coordinator_has_it() -> None:
    """Also what is cancelled while a link is being made: it is made again."""
    hellos: list[p.LinkHello] = []
    cancelled = p.CancelledHere(7, 1.0, "ada", False, 5.0)
    there = Coordinator()

    async def before(connection: RpcConnection) -> None:
        hellos.append(p.decode_hello(await connection.message()))
        made[1].cancellations.untold[7] = cancelled
        await connection.say(p.Reconcile(()))
        await connection.gone()

    async def stores(connection: RpcConnection) -> None:
        hellos.append(p.decode_hello(await connection.message()))
        await connection.say(p.Reconcile((), cancelled=(7,)))
        await connection.gone()

    there.plays += [before, stores]
    made = member(there)

    async def work() -> None:
        running = asyncio.ensure_future(made[0].run())
        async with asyncio.timeout(20):
            while len(hellos) < 2 or made[1].cancellations.untold or not made[0].linked:
                await asyncio.sleep(0.002)
        running.cancel()
        await asyncio.gather(running, *there.tasks, return_exceptions=True)

    asyncio.run(work())
    assert [hello.cancelled for hello in hellos] == [(), (cancelled,)]


def test_it_dials_again_whatever_happens() -> None:
    count = 0

    async def play(connection: RpcConnection) -> None:
        nonlocal count
        await greeted(connection)
        count += 1

    async def nonsense(connection: RpcConnection) -> None:
        await connection.send(b"J", b"{}")

    plays = [
        Unreachable("no"),
        play,
        nonsense,
        OSError(5, "io"),
        play,
        PeerRefusal(5, "not now"),
        play,
    ]
    link, _ = played(Coordinator(*plays), lambda link, w: count == 3 and not link.linked)
    assert "does not answer" in link.trouble
    assert "jobs go on" in link.trouble


def test_orders_are_carried_out_and_what_is_unknown_is_passed_over() -> None:
    async def play(connection: RpcConnection) -> None:
        await greeted(connection)
        await connection.send(b"J", b'{"type": "OfTheFuture", "x": 1}')
        await connection.send(b"J", b'{"type": "Removed", "by": "\xff"}')
        given = p.Assignment(job(9), "", secrets={"A": "b"})
        await connection.say(p.Do(a.StartWorkers(9, 1, "b", LAYOUT), p.pack(given)))
        await connection.message()

    order = ("StartWorkers", 9, {"A": "b"})
    _, workers = played(Coordinator(play), lambda link, w: order in w.told and "heard" in w.told)
    assert [told for told in workers.told if told != "heard"] == [("reconcile", [], set()), order]


def test_a_job_of_a_newer_version_is_declined_and_the_rest_is_done() -> None:
    """One job that cannot be read must not cost the node all others."""
    good = p.Assignment(job(8), "")
    newer = msgspec.json.decode(msgspec.json.encode(p.Assignment(job(7), "")))
    newer["job"]["spec"]["run"]["warp"] = 9
    packed = msgspec.Raw(msgspec.json.encode(newer))

    async def play(connection: RpcConnection) -> None:
        await connection.message()
        await connection.say(p.Reconcile((packed, p.pack(good))))
        await connection.say(p.Do(a.StartWorkers(7, 1, "b", LAYOUT), packed))
        await connection.message()

    def twice(link: Uplink, workers: Workers) -> bool:
        return workers.told.count(("decline", 7, 1)) == 2

    _, workers = played(Coordinator(play), twice)
    assert ("reconcile", [8], {(7, 1)}) in workers.told


def test_a_reconciliation_in_parts_counts_when_all_of_it_is_here() -> None:
    async def play(connection: RpcConnection) -> None:
        await connection.message()
        first, second = (p.pack(p.Assignment(job(number), "")) for number in (7, 8))
        await connection.say(p.Reconcile((first,), more=True))
        await connection.say(p.Reconcile((second,), (3,)))
        await connection.message()

    _, workers = played(Coordinator(play), lambda link, w: ("forget", (3,)) in w.told)
    assert ("reconcile", [7, 8], set()) in workers.told
    assert ("reconcile", [7], set()) not in workers.told


def test_a_job_too_large_to_be_sent_is_declined_and_can_be_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(p, "ASSIGNMENT_BYTES", 1000)
    large = p.pack(p.Assignment(job(7), "", secrets={"A": "x" * 1000}))
    with pytest.raises(p.UnreadableAssignment, match=r"has .* bytes, too many to be sent"):
        p.unpack(large)

    async def play(connection: RpcConnection) -> None:
        await connection.message()
        await connection.say(p.Reconcile((large, p.pack(p.Assignment(job(8), "")))))
        await connection.say(p.Do(a.StopWorkers(7, 1, "b", 1.0, "enough"), large))
        await connection.message()

    async def follow(connection: RpcConnection) -> None:
        workers.following[7, 1] = job(7)
        await play(connection)

    def declined(link: Uplink, workers: Workers) -> bool:
        return workers.told.count(("decline", 7, 1)) == 2

    _, workers = played(Coordinator(play), declined)
    assert ("reconcile", [8], {(7, 1)}) in workers.told
    link, workers = member(Coordinator(follow))
    asyncio.run(_until_told(link, ("StopWorkers", 7, {}), workers))


async def _until_told(link: Uplink, what: Any, workers: Workers) -> None:
    running = asyncio.ensure_future(link.run())
    async with asyncio.timeout(20):
        while what not in workers.told:
            await asyncio.sleep(0.002)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_an_order_that_raises_is_the_end_of_its_allocation_or_is_asked_for_again() -> None:
    async def play(connection: RpcConnection) -> None:
        await greeted(connection)
        for number in (7, 8, 9):
            packed = p.pack(p.Assignment(job(number), ""))
            await connection.say(p.Do(a.StartWorkers(number, 1, "b", LAYOUT), packed))
        await connection.gone()

    def prepared(link: Uplink, workers: Workers) -> bool:
        workers.raises = {7: KeyError("x"), 8: OSError(errno.EMFILE, "Too many open files")}
        return ("StartWorkers", 9, {}) in workers.told

    _, workers = played(Coordinator(play), prepared)
    (never,) = [told for told in workers.told if told[0] == "never"]
    assert never == ("never", 7, 1, "a defect kept it from being started: KeyError('x')")


def test_the_shims_hear_that_the_coordinator_is_there_while_it_is() -> None:
    async def play(connection: RpcConnection) -> None:
        await greeted(connection)
        await connection.gone()

    _, workers = played(Coordinator(play), lambda link, w: w.told.count("heard") > 3)
    count = workers.told.count("heard")
    _link, workers = played(Coordinator(), lambda link, w: link.away == "the play is over")
    assert count > 3
    assert "heard" not in workers.told


def test_the_shims_hear_when_the_coordinator_was_heard_not_that_there_is_a_line() -> None:
    async def play(connection: RpcConnection) -> None:
        await greeted(connection)
        await connection.gone()  # and not a word more

    _, workers = played(Coordinator(play), lambda link, w: len(w.heard_at) > 5)
    assert len(set(workers.heard_at)) == 1


def test_after_a_sleep_what_is_in_the_socket_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator may have given the allocations here to others meanwhile."""
    asleep_s = 0.0
    monkeypatch.setattr(module, "_now", lambda: time.monotonic() + asleep_s)
    given = p.pack(p.Assignment(job(9), ""))

    async def sleeps(connection: RpcConnection) -> None:
        await greeted(connection)
        while not asleep_s:
            await asyncio.sleep(0.002)
        await connection.say(p.Do(a.StartWorkers(9, 1, "b", LAYOUT), given))
        await connection.gone()

    async def wakes(connection: RpcConnection) -> None:
        await greeted(connection)
        await connection.say(
            p.Do(a.StartWorkers(8, 1, "b", LAYOUT), p.pack(p.Assignment(job(8), "")))
        )
        await connection.gone()

    def woken(link: Uplink, workers: Workers) -> bool:
        nonlocal asleep_s
        asleep_s = 3600.0 if "heard" in workers.told else 0.0
        return ("StartWorkers", 8, {}) in workers.told

    _, workers = played(Coordinator(sleeps, wakes), woken)
    assert ("StartWorkers", 9, {}) not in workers.told
    known = [found for found in workers.told if found != "heard"]
    assert [found[0] for found in known] == ["reconcile", "reconcile", "StartWorkers"]


def test_an_allocation_of_a_job_that_cannot_be_read_any_more_ends_when_it_is_told_to() -> None:
    newer = msgspec.json.decode(msgspec.json.encode(p.Assignment(job(7), "")))
    newer["job"]["phase"] = {"state": "of-the-future"}
    packed = msgspec.Raw(msgspec.json.encode(newer))

    async def play(connection: RpcConnection) -> None:
        await greeted(connection)
        await connection.say(p.Do(a.StopWorkers(7, 1, "b", 1.0, "cancelled"), packed))
        await connection.gone()

    def stopped(link: Uplink, workers: Workers) -> bool:
        workers.following[7, 1] = job(7)
        return ("StopWorkers", 7, {}) in workers.told

    _, workers = played(Coordinator(play), stopped)
    assert ("decline", 7, 1) not in workers.told


@pytest.mark.parametrize("how", ["told", "turned away"])
def test_a_removed_member_ends_what_it_runs_and_says_so(how: str) -> None:
    async def play(connection: RpcConnection) -> None:
        await greeted(connection)
        await connection.say(p.MemberRemoved("root"))
        await connection.gone()

    plays = [play] if how == "told" else [PeerRefusal(5, "b was removed", removed=True)]
    link, workers = played(Coordinator(*plays), lambda link, w: bool(link.removed))
    assert "removed" in link.trouble
    assert "wiiiiide leave" in link.trouble
    assert [found[0] for found in workers.told].count("ends all") == 1


def test_reports_without_a_link_are_left_to_the_reconciliation() -> None:
    heard = []

    async def play(connection: RpcConnection) -> None:
        await greeted(connection)
        heard.append(p.decode_from_member(await connection.message()))

    async def work() -> None:
        link, _ = member(there := Coordinator(play))
        link.report(e.WorkersStarted(1.0, 1, 1, "b"))
        link._watcher.linked = lambda: link.report(e.WorkersStarted(2.0, 2, 1, "b"))  # type: ignore[method-assign]
        running = asyncio.ensure_future(link.run())
        async with asyncio.timeout(20):
            while not heard:
                await asyncio.sleep(0.002)
        running.cancel()
        await asyncio.gather(running, *there.tasks, return_exceptions=True)

    asyncio.run(work())
    assert heard == [p.Report(e.WorkersStarted(2.0, 2, 1, "b"))]
