"""A process of a pretended host: all of it real but sockets, threads and the clock.

    Rank             a Process: real groups, mesh and links to other hosts
      Wheel          turns the real Driver, one small step at a time
      NearLink       to a rank of the same host: frames from hand to hand

tests.kit.wide_world has several of them and decides which moves.
"""

from __future__ import annotations

import os
import random
import select
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from wiiiiided.backend.engine.driver import Driver
from wiiiiided.backend.engine.lane import Lanes
from wiiiiided.backend.engine.local_link import Card, Link, Then
from wiiiiided.backend.engine.loop import ProgressLoop
from wiiiiided.backend.engine.mesh import Mesh
from wiiiiided.backend.engine.operation import Operation
from wiiiiided.backend.engine.poller import EpollPoller
from wiiiiided.backend.engine.process import RankProcess
from wiiiiided.backend.net.link import WideLink
from wiiiiided.backend.net.virtual_network import FakeNetwork, FakePoller, FakeStream
from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.board import Board
from wiiiiided.backend.shm.kernels import DTYPE_NAMES
from wiiiiided.backend.wire.header import Header
from wiiiiided.backend.wire.local_frame import Frame, FrameKind
from wiiiiided.config import Config

if TYPE_CHECKING:
    from tests.kit.wide_world import World


class NearLink(Link):
    """One end of a link inside a host: frames go from hand to hand, in order."""

    def __init__(self, number: int, peer: Card, owner: RankProcess, chance: random.Random) -> None:
        # Not Link's own: there is no socket.
        self.lanes = Lanes(lambda frame, descriptor: owner.send(self, frame, descriptor))
        self.fd, self.pidfd, self.peer, self.pid = number, -1, peer, peer.pid
        self.gone, self.said_bye = "", False
        self.other: NearLink
        self.inbox: deque[tuple[Frame, int]] = deque()
        self.ended = False
        self._chance = chance
        self._out = deque()
        self._descriptors = deque()

    def send(self, frame: Frame, descriptor: int = -1, then: Then | None = None) -> None:
        if self.gone:
            return
        if not self.other.gone:
            copy = os.dup(descriptor) if descriptor >= 0 else -1
            self.other.inbox.append((frame, copy))
        if then is not None:
            then()

    def ring(self) -> None:
        self.send(Frame(FrameKind.BELL))

    def receive(self) -> tuple[list[Frame], bool]:
        frames = []
        for _ in range(self._chance.randint(1, len(self.inbox)) if self.inbox else 0):
            frame, descriptor = self.inbox.popleft()
            frames.append(frame)
            if descriptor >= 0:
                self._descriptors.append(descriptor)
        return frames, self.ended and not self.inbox

    @property
    def readable(self) -> bool:
        return not self.gone and (bool(self.inbox) or self.ended)

    def close(self) -> None:
        self.other.ended = True
        for _, descriptor in self.inbox:
            if descriptor >= 0:
                os.close(descriptor)
        self.inbox.clear()
        while self._descriptors:
            os.close(self._descriptors.popleft())


class OwnEnds:
    """The network as one rank's watch sees it: it need not look through all streams."""

    def __init__(self, network: FakeNetwork) -> None:
        self._network, self.streams = network, list[FakeStream]()
        self.chance, self.step = network.chance, network.step

    def ends(self) -> list[FakeStream]:
        return self.streams

    @property
    def now(self) -> float:
        return self._network.now

    @now.setter
    def now(self, now: float) -> None:
        self._network.now = now


class StepDriver:
    """Turns the driver without a thread and without a clock, one small step at a time."""

    def __init__(self, config: Config, network: FakeNetwork) -> None:
        self.ends = OwnEnds(network)
        self.sockets = FakePoller(cast(FakeNetwork, self.ends))
        self.driver = Driver(config, stats.StatsPage(), cast(EpollPoller, self.sockets))

    def submit(self, op: Operation) -> None:
        """A call of the program."""
        self.driver.submit(op)

    def called(self) -> bool:
        """Take up a call or a task; whether there was one."""
        if self.driver._tasks:
            self.driver.run_tasks()
        elif self.driver._submitted:
            self.driver._admit(self.driver._submitted.popleft())
        else:
            return False
        return True

    @property
    def has_calls(self) -> bool:
        return bool(self.driver._tasks or self.driver._submitted)

    def advance(self, chance: random.Random) -> bool:
        """Resume the plans that can go on, in any order."""
        chance.shuffle(self.driver.active)
        return self.driver._advance()

    @property
    def patrol_at(self) -> float:
        """When to look for the late and the lost next."""
        return self.driver._patrol_at

    def patrol(self) -> bool:
        """Look for them; whether that ended anything."""
        driver = self.driver
        before = len(driver.active) + len(driver.messages)
        driver._patrol()
        return len(driver.active) + len(driver.messages) != before

    def doze(self) -> list[Board]:
        """Say on the boards which ranks we wait for, as the driver does before it sleeps."""
        boards = []
        for op in self.driver.active:
            if isinstance(op.wait, int):
                board = op.group.team.board
                board.doze(board.lagging(op.wait))
                boards.append(board)
        return boards


class CountingMesh(Mesh):
    """The real one; it also counts the frames that come and find no place, nor a plan that is free
    to go on and post it: those hold up their link for what may depend on that link."""

    homeless = 0

    def place(self, link: WideLink, header: Header) -> memoryview | None:
        place = super().place(link, header)
        if place is None:
            queue = self._process.groups[header.group].queue
            self.homeless += not (queue and _can_go_on(queue[0]))
        return place


def _can_go_on(op: Operation) -> bool:
    if isinstance(op.wait, int):
        return op.group.team.board.lagging(op.wait) < 0
    return op.wait.ready()


class Rank(RankProcess):
    """One process of the world."""

    mesh: CountingMesh

    def __init__(self, index: int, host: str, world: World, config: Config) -> None:
        # Not Process's own: there is no listener and no thread.
        self.index, self.host, self.name = index, host, f"r{index}"
        self.config = config
        self.card = Card(
            uid=f"{index:016x}", token="", pid=1000 + index, host=f"host-{host}", boot=host,
            network="", cores=[0],
        )  # fmt: skip
        self.dtype_names = DTYPE_NAMES
        self.links, self.groups, self.segments = {}, {}, {}
        self.step_driver = StepDriver(config, world.network)
        self.driver = self.step_driver.driver
        self.loop = cast(ProgressLoop, self.step_driver)  # a caller of this world only submits
        self.mesh = CountingMesh(self)
        self.dead = self.stopped = False  # stopped: as by SIGSTOP, its kernel still answers
        self.asleep: list[Board] | None = None
        self.calls: dict[int, deque[Callable[[], None]]] = {}  # still to be made, by group
        self._strangers = {}
        self._chance = world.chance

    def move(self) -> bool:
        """One thing of what this process could do now; False: it sleeps."""
        if self.asleep is not None:
            if not (self.step_driver.has_calls or self._heard()):
                return False
            self.wake()
        if self.step_driver.called():
            return True
        ways: list[Callable[[], bool]] = [
            lambda: self.step_driver.advance(self._chance),
            lambda: self.step_driver.sockets.poll(0.0),
            self._read_near,
        ]
        self._chance.shuffle(ways)
        if any(way() for way in ways):
            return True
        self.asleep = self.step_driver.doze()
        return False

    def wake(self) -> None:
        """No more bells."""
        for sleeping in self.asleep or []:
            sleeping.wake()
        self.asleep = None

    @property
    def calls_left(self) -> int:
        """The number of calls its program still has."""
        return sum(map(len, self.calls.values()))

    def _heard(self) -> bool:
        return bool(self.step_driver.sockets._ready()) or any(
            cast(NearLink, link).readable for link in self.links.values()
        )

    def _read_near(self) -> bool:
        readable = [link for link in self.links.values() if cast(NearLink, link).readable]
        if readable:
            self._on_link(self._chance.choice(readable), select.EPOLLIN)
        return bool(readable)

    def end(self) -> None:
        """Give everything back."""
        self.wake()
        for joined in list(self.groups.values()):
            joined.close()
        for link in list(self.mesh.links.values()):
            self.mesh._drop(link)
        for near in self.links.values():
            near.close()
        self.drop_segments()
