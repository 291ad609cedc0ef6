"""How the links between hosts come to be, once every rank's card is known.

    1  publish    the addresses of this machine; read those of one rank of every other host
    2  listen     on the address that routes to them (net.address says which, and why)
    3  publish    address and port; read those of the peers that have no link to us yet
    4  connect    of the two connections of a link the one with the smaller uid opens `data`, the
                  other one `watch`: so every pair is tried in both directions
    5  turn       a direction that does not work (a firewall, a route one way) is told in the Store,
                  and the other side opens that connection too. Neither works: an error with both
                  reasons

Under a cluster's daemon there is nothing to choose in 1 and 2: all of a machine is behind its one
port, which is published in 3, and a peer authenticates there (net.handoff_listener). A daemon that
restarts is waited for: what is worth another try gets one at every look, five times a second.

Links that exist from an earlier group are used again: then nothing of this happens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from wiiiiided import log
from wiiiiided.backend.net import address, interfaces
from wiiiiided.backend.wire.handshake import ConnectionClaim
from wiiiiided.errors import HostError, PeerLost

if TYPE_CHECKING:
    from wiiiiided.backend.engine.group import GroupMembership
    from wiiiiided.backend.engine.local_link import Card
    from wiiiiided.backend.engine.process import RankProcess
    from wiiiiided.backend.net.acceptor import ConnectAttempt

ROLES: Final = ("data", "watch")
TURN_S: Final = 15.0  # how long a peer that was asked to connect may take


class StoreNotes(Protocol):
    """An incarnation's keys in the Store. Others' notes are JSON of any form."""

    def publish(self, name: str, value: object) -> None: ...
    def read_all(self, names: list[str]) -> list[object]: ...
    def look_up(self, name: str) -> object: ...


class LinkBuilder:
    """The links of this rank to those on other hosts, while they are made."""

    def __init__(
        self,
        process: RankProcess,
        notes: StoreNotes,
        membership: GroupMembership,
        cards: list[Card],
        key: bytes,
    ) -> None:
        self._process, self._notes, self._membership = process, notes, membership
        self._cards, self._key, self._rank = cards, key, membership.rank
        mine = cards[self._rank]
        self._far = [r for r, card in enumerate(cards) if card.host_key != mine.host_key]
        if self._far:  # a link may have ended since the last poll: then it is none
            process.loop.call(lambda: process.driver.poller.poll(0.0))
        self._missing = [r for r in self._far if cards[r].uid not in process.mesh.links]
        self._mine: list[address.Candidate] = []
        self._endpoints: dict[int, list[tuple[str, int]]] = {}
        self._approaches: dict[tuple[int, str], _Approach] = {}
        self._turned: dict[tuple[int, str], float] = {}  # when a peer was asked to take the turn
        self._pending: list[tuple[str, str]] = []  # turns to ask for, in the Store

    def prepare(self) -> None:
        """Steps 1 to 3; blocks in the Store."""
        if not self._missing:
            return
        addresses = self._listen()
        self._notes.publish(f"door/{self._rank}", addresses)
        published = self._notes.read_all([f"door/{rank}" for rank in self._missing])
        self._endpoints = {
            rank: _addresses(said, self._cards[rank])
            for rank, said in zip(self._missing, published, strict=True)
        }

    def _listen(self) -> list[tuple[str, int]]:
        """Steps 1 and 2: where this rank can be reached."""
        mine, config = self._cards[self._rank], self._process.config
        addresses: list[tuple[str, int]] = []
        mesh, port = self._process.mesh, config.one_port
        if port is not None:
            self._process.loop.call(lambda: addresses.extend(mesh.listen_behind(port)))
            log.tell(f"pid {mine.pid}", f"behind the daemon's port {addresses}")
            return addresses
        one_machine = all(
            (card.boot, card.network) == (mine.boot, mine.network) for card in self._cards
        )
        if not one_machine:
            self._mine = interfaces.candidates(config.interface, config.store_host)
        self._notes.publish(f"addresses/{self._rank}", address.dump(self._mine))
        choice = address.choose(
            self._mine,
            self._candidates(),
            interfaces.route,
            loopback=one_machine,
            here=mine.host,
        )
        self._process.loop.call(lambda: addresses.extend(mesh.listen(choice.listen)))
        log.tell(f"pid {mine.pid}", f"listening on {addresses}: {choice.reason}")
        return addresses

    def start(self) -> None:
        """Step 4; runs as the driver."""
        m, mesh = self._membership, self._process.mesh
        if not self._missing:
            return
        assert mesh.endpoint is not None
        self._key = mesh.endpoint.sealed(self._key)
        mesh.expect(m.nonce, m.generation, self._key, [self._cards[r] for r in self._missing])
        me = self._cards[self._rank].uid
        for rank in self._missing:
            first = me < self._cards[rank].uid
            self._approach(rank, "data" if first else "watch")

    def advance(self) -> None:
        """Give up on addresses that do not answer, take turns. Runs now and then, as the driver."""
        if self._process.mesh.endpoint is not None:
            self._process.mesh.endpoint.tick()
        for (rank, role), approach in list(self._approaches.items()):
            if approach.advance():
                self._warn(rank, approach)
                continue
            since = self._turned.get((rank, role))
            if since is None:
                self._turned[rank, role] = time.monotonic()
                self._turn(rank, role, approach)
            elif time.monotonic() - since > TURN_S and rank in self.unlinked():
                card = self._cards[rank]
                raise PeerLost(
                    f"rank {rank} (pid {card.pid} on {card.host}) cannot be reached and does not "
                    f"connect either: {approach.problem}. Its process has ended, or it reaches "
                    f"no other rank. {self._what_to_do()}"
                )

    def trouble(self) -> str:
        """Why links are missing, as far as it is known here; empty when it is not."""
        lost = [
            f"rank {self._rank} on {self._cards[self._rank].host} to rank {rank} on "
            f"{self._cards[rank].host}: {approach.problem}"
            for (rank, _), approach in self._approaches.items()
            if approach.problem and rank in self.unlinked()
        ]
        more = f" (and {len(lost) - 1} more such connections)" if len(lost) > 1 else ""
        return lost[0] + more if lost else ""

    def _warn(self, rank: int, approach: _Approach) -> None:
        """Warn once of a connection that is tried again and again: the user may be able to help."""
        if approach.tried_for_s() > self._process.config.stall_warning_s and not approach.told:
            approach.told = True
            here, there = self._cards[self._rank].host, self._cards[rank].host
            text = f"from {here} to rank {rank} on {there}: {approach.problem}. It is tried again"
            log.warn(f"rank {self._rank}", f"{text} until the group's timeout")

    def look(self) -> None:
        """Look in the Store, now and then, whether a peer has asked us to connect instead."""
        for rank in self.unlinked():
            for role in ROLES:
                if (rank, role) in self._approaches:
                    continue
                said = self._notes.look_up(f"turn/{role}/{rank}-{self._rank}")
                if isinstance(said, str):
                    self._process.loop.call(
                        lambda rank=rank, role=role, said=said: self._approach(rank, role, said)  # type: ignore[misc]
                    )

    def unlinked(self) -> list[int]:
        """The ranks that are still without a link."""
        links = self._process.mesh.links
        return [rank for rank in self._missing if self._cards[rank].uid not in links]

    @property
    def far(self) -> list[int]:
        """All ranks on other hosts."""
        return self._far

    def _approach(self, rank: int, role: str, theirs: str = "") -> None:
        mine, card, m = self._cards[self._rank], self._cards[rank], self._membership
        claim = ConnectionClaim(m.nonce, m.generation, self._rank, rank, mine.uid, card.uid, role)
        ports = dict(self._endpoints[rank])
        order = address.targets(list(ports), self._mine, interfaces.route, card.host)
        addresses = [(one, ports[one]) for one in order]

        def connect(where: tuple[str, int]) -> ConnectAttempt:
            return self._process.mesh.connect(*where, self._key, claim)

        self._approaches[rank, role] = _Approach(addresses, connect, theirs)

    def _turn(self, rank: int, role: str, approach: _Approach) -> None:
        """Ask a peer none of whose addresses answers to connect; give up if it has asked us to."""
        mine, card = self._cards[self._rank], self._cards[rank]
        problem = f"from {mine.host} to {card.host}: {approach.problem}"
        if approach.theirs:
            raise HostError(
                f"rank {self._rank} on {mine.host} and rank {rank} on {card.host} cannot reach "
                f"each other: {approach.theirs}; {problem}. {self._what_to_do()}, and let "
                "firewalls pass connections between these machines"
            )
        log.warn(
            f"rank {self._rank}",
            f"{problem}. {card.host} is asked to open this connection the other way",
        )
        self._pending.append((f"turn/{role}/{self._rank}-{rank}", problem))

    def _what_to_do(self) -> str:
        if self._process.config.one_port is None:
            return address.WHAT_TO_DO
        return "Look at `wiiiiide nodes` whether both machines are there"

    def tell(self) -> None:
        """Write down which turns are asked for; blocks in the Store."""
        while self._pending:
            name, problem = self._pending.pop()
            self._notes.publish(name, problem)

    def _candidates(self) -> dict[str, list[address.Candidate]]:
        """The addresses of every other host, as its first rank published them."""
        first: dict[tuple[str, str, str], int] = {}
        for rank in self._far:
            first.setdefault(self._cards[rank].host_key, rank)
        ranks = list(first.values())
        published = self._notes.read_all([f"addresses/{rank}" for rank in ranks])
        found = {}
        for rank, said in zip(ranks, published, strict=True):
            host = self._cards[rank].host
            label = host if host not in found else f"{host} (rank {rank})"
            found[label] = address.load(said, host)
        return found


class _Approach:
    """One connection that is ours to open: one address after the other until one works."""

    def __init__(
        self,
        addresses: list[tuple[str, int]],
        connect: Callable[[tuple[str, int]], ConnectAttempt],
        theirs: str = "",
    ) -> None:
        self.theirs = theirs  # why the peer could not open it
        self.told = False  # that it takes long
        self._left, self._connect = list(addresses), connect
        self._problems: list[str] = []  # of addresses that are given up
        self._attempt: ConnectAttempt | None = None
        self._tries: _FailedTries | None = None  # of the present address
        self.advance()

    @property
    def problem(self) -> str:
        """The failures so far, the present address last; empty: none yet."""
        return "; ".join([*self._problems, *([self._tries.problem] if self._tries else [])])

    def tried_for_s(self) -> float:
        """How long the present address has been tried in vain."""
        return 0.0 if self._tries is None else time.monotonic() - self._tries.since

    def advance(self) -> bool:
        """Go on; False when every address has failed."""
        while self._attempt is None or self._attempt.state == "failed":
            if self._attempt is not None:
                if self._try_again(self._attempt):
                    return True
                self._problems.append(self._attempt.problem)
                self._attempt = self._tries = None
            if not self._left:
                self._problems = self._problems or ["it listens nowhere"]
                return False
            self._attempt = self._connect(self._left.pop(0))
        if self._attempt.state == "done":
            self._tries = None
        return True

    def _try_again(self, failed: ConnectAttempt) -> bool:
        """Try the same address again, if that is worth it: once at each look.

        How long counts from the first failure of that kind: a daemon that was away for a minute
        has its time to find its jobs from when it is back.
        """
        now, worth_s = time.monotonic(), failed.again_s
        if self._tries is None:
            self._tries = _FailedTries(since=now, kind_since=now, worth_s=worth_s)
        elif self._tries.worth_s != worth_s:
            self._tries.kind_since, self._tries.worth_s = now, worth_s
        self._tries.problem = failed.problem
        if now - self._tries.kind_since >= worth_s:
            return False
        self._attempt = self._connect((failed.address, failed.port))
        return True


@dataclass
class _FailedTries:
    """Tries of one address that failed."""

    since: float
    kind_since: float  # when it began to fail as it does now
    worth_s: float  # how long that is worth it
    problem: str = ""


def _addresses(said: object, card: Card) -> list[tuple[str, int]]:
    if isinstance(said, list):
        try:
            addresses = [(str(one), int(port)) for one, port in said]
            if all(0 < port < 65536 for _, port in addresses):
                return addresses
        except (TypeError, ValueError):
            pass
    raise HostError(f"{card.host} published {json.dumps(said)[:100]}, which is no address and port")
