"""Several hosts in one process and one thread: real groups, plans and links, a pretended network.

    with World("aab", seed) as world:      ranks 0 and 1 on host a, rank 2 on host b
      Rank, NearLink       processes and links inside a host (tests.kit.wide_rank); the memory that
                           ranks of a host share is a real segment
      FakeNetwork          between hosts: virtual time, delay, tiny windows, cuts, silence

Each next step is drawn from the seed, and every draw is one that real processes could make: a
rank is slow, its sockets are looked at before its plans or after, a call comes late. A rank with
nothing to do falls asleep as the driver does and only wakes by what would wake it: a socket, a
bell. If no rank can move and nothing is in flight, that is a deadlock (or a lost bell): `run` fails
and shows what every rank waits for.

Inside `with`, the engine's clock is the network's: patrols, stall warnings and timeouts come when
virtual time has passed.
"""

from __future__ import annotations

import itertools
import math
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.kit.wide_rank import NearLink, Rank
from wiiiiided.backend.engine import driver, operation, remote_members
from wiiiiided.backend.engine import group as group_module
from wiiiiided.backend.engine.group import AnyLink, Group, GroupMembership
from wiiiiided.backend.engine.host_team import Team, base_bytes
from wiiiiided.backend.engine.join import first_meeting
from wiiiiided.backend.engine.local_link import Link
from wiiiiided.backend.engine.operation import NOT_STARTED, Operation, Plan
from wiiiiided.backend.net.link import WideLink
from wiiiiided.backend.net.virtual_network import FakeNetwork, FakeStream, LineQuality
from wiiiiided.backend.shm import board as board_module
from wiiiiided.backend.shm.board import Board
from wiiiiided.backend.shm.segment import Segment
from wiiiiided.config import Config

# Makes one rank's plan, when its turn to call has come; with its item, if it has one.
Begin = Callable[[Group], Plan | tuple[Plan, Any]]

KEEPALIVE_S = 8.0
MOST_STEPS = 2_000_000  # a run that needs more goes round in circles
# With nothing in flight, only a patrol can still end a wait: of one that follows a death.
PATIENCE_S = 5.0


class Clock:
    """Stands in for the module `time`: the network's time, and a little more with each look."""

    def __init__(self, network: FakeNetwork) -> None:
        self._network, self._ticks = network, itertools.count(1)

    def monotonic_ns(self) -> int:
        return int(self._network.now * 1e9) + next(self._ticks)

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1e9


class Circle:
    """A group of the world, as all its members have it."""

    def __init__(self, name: str, members: Sequence[Rank], groups: Sequence[Group]) -> None:
        self.name, self.members, self.groups = name, list(members), list(groups)
        self.size = len(self.members)

    @property
    def letters(self) -> str:
        """The host of each rank of the group."""
        return "".join(member.host for member in self.members)


class Called:
    """A collective, called by all members, each in its own time; or a message of one."""

    def __init__(self, callers: Sequence[Rank]) -> None:
        self.callers = list(callers)
        self.ops: list[Operation | None] = [None] * len(callers)

    @property
    def over(self) -> bool:
        """Done for all ranks that live."""
        return all(
            caller.dead or (op is not None and op.done)
            for caller, op in zip(self.callers, self.ops, strict=True)
        )

    @property
    def errors(self) -> list[BaseException | None]:
        """How it ended for each rank that called it."""
        return [op.error if op is not None and op.done else None for op in self.ops]

    @property
    def succeeded(self) -> bool:
        """It is over for all ranks, and was right for all."""
        return all(op is not None and op.done and op.error is None for op in self.ops)


class World:
    """All ranks, and the order in which things happen."""

    def __init__(
        self, letters: str, seed: int, codec: str = "none", line: LineQuality | None = None
    ):
        self.seed = seed
        self.chance = random.Random(f"world {seed}")
        self.network = FakeNetwork(seed)
        config = Config(codec=codec)
        self.ranks = [Rank(n, host, self, config) for n, host in enumerate(letters)]
        # Some are slower than others, some networks slower than some processes.
        self._weights = [10 ** self.chance.uniform(-1.5, 0) for _ in self.ranks]
        self._eager = self.chance.uniform(0.02, 0.5)
        self._nonces = itertools.count(0x1000)
        self._called: list[Called] = []
        self._patched = pytest.MonkeyPatch()
        self.story: list[int] = []  # the rank that moved; -1: the network
        self.streams: dict[tuple[int, int], tuple[FakeStream, FakeStream]] = {}
        for a, b in itertools.combinations(self.ranks, 2):
            if a.host == b.host:
                self._link_near(a, b)
            else:
                self._link(a, b, line)

    def _link(self, a: Rank, b: Rank, line: LineQuality | None) -> None:
        line = line or LineQuality(
            delay_s=10 ** self.chance.uniform(-4, -1),
            jitter_s=10 ** self.chance.uniform(-5, -2),
            bytes_per_s=10 ** self.chance.uniform(5, 9),
            window_bytes=int(10 ** self.chance.uniform(2.5, 5)),
        )
        data = self.network.pair(a.name, b.name, line)
        delay_s = 10 ** self.chance.uniform(-4, -1)
        watch = self.network.pair(
            a.name,
            b.name,
            LineQuality(delay_s, delay_s, keepalive_s=KEEPALIVE_S, window_bytes=8192),
        )
        for near, far, n in ((a, b, 0), (b, a, 1)):
            near.step_driver.ends.streams += (data[n], watch[n])
            near.mesh._adopt(far.card, data[n], watch[n])
            self.streams[near.index, far.index] = data[n], watch[n]

    def _link_near(self, a: Rank, b: Rank) -> None:
        number = 10_000 + 2 * (a.index * len(self.ranks) + b.index)
        ends = (
            NearLink(number, b.card, a, self.chance),
            NearLink(number + 1, a.card, b, self.chance),
        )
        ends[0].other, ends[1].other = ends[1], ends[0]
        for rank, link in ((a, ends[0]), (b, ends[1])):
            rank.links[link.peer.uid] = link

    def __enter__(self) -> World:
        clock = Clock(self.network)
        for module in (driver, group_module, operation, remote_members, board_module):
            self._patched.setattr(module, "time", clock)
        return self

    def __exit__(self, *_: object) -> None:
        """All ranks leave; descriptors and memory go back."""
        for rank in self.ranks:
            rank.end()
        self._patched.undo()

    # -- groups and calls ----

    def circle(self, members: Sequence[int] | None = None, timeout_s: float = 1800.0) -> Circle:
        """A new group of these processes, in this order; each joins in its own time."""
        nonce = next(self._nonces)
        ranks = [self.ranks[n] for n in (range(len(self.ranks)) if members is None else members)]
        hosts: dict[str, list[int]] = {}
        for rank, member in enumerate(ranks):
            hosts.setdefault(member.host, []).append(rank)
        bases = {host: _base(nonce, len(here)) for host, here in hosts.items()}
        groups = []
        for rank, member in enumerate(ranks):
            m = GroupMembership(
                f"group-{nonce:x}", nonce, rank, len(ranks), timeout_s,
                tuple(other.index for other in ranks),
            )  # fmt: skip
            base, here = bases[member.host], hosts[member.host]
            team = Team(
                member, m, here, _near_links(member, ranks, here),
                Segment.attach(os.dup(base.fd), base.nbytes),
            )  # fmt: skip
            group = Group(member, m, _links(member, ranks), team, list(hosts.values()))
            groups.append(group)
            member.mesh.await_group(nonce)
            member.calls[nonce] = deque([lambda g=group: _enlist(g)])  # type: ignore[misc]
        for base in bases.values():
            base.forget_fd()
        circle = Circle(f"group-{nonce:x}", ranks, groups)
        self.call(circle, "join", [first_meeting] * len(ranks))
        return circle

    def call(self, circle: Circle, name: str, begins: Sequence[Begin], **options: Any) -> Called:
        """All members are to call a collective, after what they were to call before."""
        called = Called(circle.members)
        self._called.append(called)
        for rank, begin in enumerate(begins):
            group = circle.groups[rank]

            def make(rank: int = rank, group: Group = group, begin: Begin = begin) -> None:
                plan = begin(group)
                plan, item = plan if isinstance(plan, tuple) else (plan, None)
                op = called.ops[rank] = Operation(group, name, 0, plan, **options)
                op.batch_item = item
                circle.members[rank].step_driver.submit(op)

            circle.members[rank].calls[group.membership.nonce].append(make)
        return called

    def message(
        self,
        circle: Circle,
        rank: int,
        name: str,
        begin: Callable[[Group, Operation], None],
        **options: Any,
    ) -> Called:
        """One member is to send or receive."""
        called, group = Called([circle.members[rank]]), circle.groups[rank]
        self._called.append(called)

        def make() -> None:
            op = Operation(group, name, 0, begin=lambda op: begin(group, op), **options)
            called.ops[0] = op
            circle.members[rank].step_driver.submit(op)

        circle.members[rank].calls[group.membership.nonce].append(make)
        return called

    # -- time ----

    def run(
        self,
        steps: int = MOST_STEPS,
        until: Callable[[], bool] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> bool:
        """Until everything that was called is over (True), or so many steps, or a condition."""
        still_since = self.network.now
        for _ in range(steps):
            if self._over():
                return True
            if until is not None and until():
                return False
            moved = self._step()
            if self._patrol() or moved:
                still_since = self.network.now
            elif self.network.now - still_since >= patience_s:
                raise AssertionError(f"seed {self.seed}: no rank can move\n{self.describe()}")
            else:
                self._sleep()
        if steps == MOST_STEPS:
            raise AssertionError(f"seed {self.seed}: no end\n{self.describe()}")
        return self._over()

    def _patrol(self) -> bool:
        """The patrol of each rank, when it is time; whether one ended something."""
        changed = [
            rank
            for rank in self._running()
            if self.network.now >= rank.step_driver.patrol_at and rank.step_driver.patrol()
        ]
        for rank in changed:
            rank.wake()
        return bool(changed)

    def _sleep(self, until: float = math.inf) -> None:
        """Nothing is in flight: time passes until the next patrol."""
        soon = min((rank.step_driver.patrol_at for rank in self._running()), default=math.inf)
        self.network.now = min(until, max(soon, self.network.now + 1e-6))

    def _running(self) -> list[Rank]:
        return [rank for rank in self.ranks if not (rank.dead or rank.stopped)]

    def drain(self) -> None:
        """Until nothing moves any more."""
        while self._step():
            pass

    def pass_time(self, until: float) -> None:
        """On to a moment of virtual time, whether or not a rank waits for ever."""
        while self.network.now < until:
            if not self._step(until):
                self._sleep(until)
            self._patrol()

    def _over(self) -> bool:
        if any(rank.calls_left for rank in self.ranks if not rank.dead):
            return False
        self._called = [called for called in self._called if not called.over]
        return not self._called

    def _step(self, until: float = math.inf) -> bool:
        """One thing that could happen next; False: nothing can, until then."""
        if self.chance.random() < self._eager and self.network.step(until):
            self.story.append(-1)
            return True
        living = self._running()
        weights = [self._weights[rank.index] for rank in living]
        first = self.chance.choices(living, weights)[0] if living else None
        for rank in [first, *living] if first is not None else []:
            if self._move(rank):
                self.story.append(rank.index)
                return True
        if self.network.step(until):
            self.story.append(-1)
            return True
        return False

    def _move(self, rank: Rank) -> bool:
        waiting = [calls for calls in rank.calls.values() if calls]
        if waiting and self.chance.random() < 0.2:
            self.chance.choice(waiting).popleft()()
            return True
        if rank.move():
            return True
        if waiting:  # the program does not wait for ever
            self.chance.choice(waiting).popleft()()
        return bool(waiting)

    # -- faults ----

    def leave(self, circle: Circle, rank: int) -> None:
        """A rank destroys its group, whatever is under way."""
        circle.members[rank].wake()
        circle.groups[rank].close()

    def kill(self, index: int) -> None:
        """The process is no more: its kernel ends its connections."""
        rank = self.ranks[index]
        rank.dead = True
        self.network.end(rank.name)
        for link in rank.links.values():
            link.close()

    def silence(self, host: str) -> None:
        """A host has lost its power: its processes are no more, and no message says so."""
        for rank in self.ranks:
            if rank.host == host:
                rank.dead = True
                self.network.silence(rank.name)

    def reset(self, a: int, b: int) -> None:
        """Both connections of one link break."""
        for stream in self.streams[a, b]:
            stream.reset()

    def describe(self) -> str:
        """The wait of every rank."""
        return "\n".join(line for rank in self.ranks for line in _state(rank))


def _enlist(group: Group) -> None:
    process = group.process
    process.groups[group.membership.nonce] = group
    for rank, link in group.links.items():
        if link.gone:
            group.member_gone(rank, link.gone)
    process.mesh.enlisted(group.membership.nonce)


def _base(nonce: int, size: int) -> Segment:
    segment = Segment.create(f"world-{nonce:x}", base_bytes(size))
    board = Board(segment, 0, size)
    board.found(nonce)
    board.release()
    return segment


def _links(member: Rank, ranks: Sequence[Rank]) -> dict[int, AnyLink]:
    found: dict[int, AnyLink] = {}
    for rank, other in enumerate(ranks):
        if other is not member:
            uid = other.card.uid
            near = member.links.get(uid)
            found[rank] = near if near is not None else member.mesh.links[uid]
    return found


def _near_links(member: Rank, ranks: Sequence[Rank], here: Sequence[int]) -> dict[int, Link]:
    return {
        place: member.links[ranks[rank].card.uid]
        for place, rank in enumerate(here)
        if ranks[rank] is not member
    }


def _state(rank: Rank) -> list[str]:
    sleep = "dead" if rank.dead else "asleep" if rank.asleep is not None else "awake"
    lines = [f"{rank.name} on {rank.host}, {sleep}, {rank.calls_left} calls to make"]
    for op in [*rank.driver.active, *rank.driver.messages]:
        wait = op.wait if isinstance(op.wait, int) else op.wait.what
        begun = "has not begun" if op.wait == NOT_STARTED else f"waits for {wait}"
        lines.append(f"  {op} of {op.group.membership.name} {begun}: ranks {op.missing()}")
    lines += [f"  {_link_state(link)}" for link in rank.mesh.links.values()]
    return lines


def _link_state(link: WideLink) -> str:
    paused = f", paused at {link.data.paused}" if link.data.paused is not None else ""
    return f"link to pid {link.pid}: {len(link.data)} bytes to send{paused}"
