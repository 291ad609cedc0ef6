"""How a group comes to be, its rendezvous: from rank, size and Store to boards mapped by all.

    1  count       add 1 to this rank's counter in the Store: the number of this incarnation
                   (a group destroyed and made again finds new keys, not the old ones)
    2  introduce   set "…/<incarnation>/<rank>" to this process's card; read every rank's: those
                   with the same boot id and network namespace are on one host
    3  link        on one host the process with the smaller uid connects; connect_hosts makes the
                   links between hosts; a link that exists is used again
    4  attach      a host's first rank makes the first segment and sends it over the links; all of
                   that host map it
    5  arrive      all ranks arrive on the board, then the hosts meet: the group stands

The Store is only asked in 1 to 3 (TCPStore, FileStore, HashStore, any PrefixStore). A rank that
fails says so under "…/<incarnation>/failed", where the ranks that wait for it look, so that all of
them stop with the same sentence instead of at the timeout.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from wiiiiided import errors, log
from wiiiiided.backend.engine import process as processes
from wiiiiided.backend.engine.connect_hosts import LinkBuilder
from wiiiiided.backend.engine.group import AnyLink, Group, GroupMembership
from wiiiiided.backend.engine.host_team import BASE_SEGMENT, Team, base_bytes
from wiiiiided.backend.engine.local_link import Card, Link
from wiiiiided.backend.engine.operation import Operation, Plan
from wiiiiided.backend.engine.process import RankProcess
from wiiiiided.backend.net.link import WideLink
from wiiiiided.backend.shm import stats
from wiiiiided.backend.shm.board import Board, CallSignature, board_bytes
from wiiiiided.backend.shm.segment import Segment
from wiiiiided.backend.wire.local_frame import Frame, FrameKind
from wiiiiided.errors import (
    HostError,
    Mismatch,
    PeerLate,
    PeerLost,
    UsageError,
    WiiiiideError,
)

VERSION: Final = 2
LOOK_S: Final = 0.2  # how often waiting ranks look whether one has failed
FIRST_PAUSE_S: Final = 0.0005  # before the Store is asked again; ranks come within milliseconds,
LONGEST_PAUSE_S: Final = 0.05  # or a rank imports for seconds


class KeyValueStore(Protocol):
    """The part of torch.distributed's Store that is used."""

    def add(self, key: str, amount: int, /) -> int: ...
    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


class _Introduction(NamedTuple):
    card: Card
    nonce: int
    key: bytes  # its holders may connect: every process that reaches the Store


class _Register:
    """One incarnation's keys in the Store."""

    def __init__(self, store: KeyValueStore, rank: int, size: int, deadline: float) -> None:
        self._store, self._rank, self._size, self._deadline = store, rank, size, deadline
        self.incarnation = store.add(f"wiiiiide/joins/{rank}", 1)
        self._failed = f"wiiiiide/{self.incarnation}/failed"

    def introduce(self, card: Card, listen: Callable[[int], None]) -> list[_Introduction]:
        """Set my card; return every rank's, with the nonce and key each proposes (rank 0's count).

        `listen(nonce)` is called before any peer can know that I am here: over links from earlier
        groups a faster peer may speak in this one before I have read all cards.
        """
        nonce = secrets.randbits(62)
        if self._rank:
            self._wait_for([self._key(0)])
            listen(self._read(self._key(0)).nonce)
        else:
            listen(nonce)
        mine = {
            "version": VERSION,
            "nonce": nonce,
            "key": secrets.token_hex(32),
            "card": card.dump().decode(),
        }
        self._store.set(self._key(self._rank), json.dumps(mine))
        keys = [self._key(rank) for rank in range(self._size)]
        self._wait_for(keys)
        return [self._read(key) for key in keys]

    def publish(self, name: str, value: object) -> None:
        """Write a key of this incarnation for the other ranks."""
        self._store.set(self._key(name), json.dumps(value))

    def read_all(self, names: list[str]) -> list[object]:
        """The values of others, as soon as all are there."""
        keys = [self._key(name) for name in names]
        self._wait_for(keys)
        return [json.loads(self._store.get(key)) for key in keys]

    def look_up(self, name: str) -> object:
        """The value of a rank, or None."""
        key = self._key(name)
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def _wait_for(self, keys: list[str]) -> None:
        """Wait until all keys are there, by asking again and again: a wait of torch's Store that
        ends without them writes two lines into the log, of every rank and every time."""
        pause_s, looked_at = FIRST_PAUSE_S, time.monotonic()
        while not self._store.check(keys):
            now = time.monotonic()
            if now >= self._deadline:
                missing = [
                    int(key.rpartition("/")[2]) for key in keys if not self._store.check([key])
                ]
                raise PeerLate(
                    f"ranks {missing} of {self._size} did not join the group in time: were they "
                    "started, with the same MASTER_ADDR and MASTER_PORT (or the same Store)?"
                )
            if now - looked_at > LOOK_S:
                self.raise_failure()
                looked_at = now
            time.sleep(min(pause_s, self._deadline - now))
            pause_s = min(1.5 * pause_s, LONGEST_PAUSE_S)

    def tell_failure(self, error: WiiiiideError) -> None:
        """Let the others stop waiting; the first word counts."""
        try:
            if not self._store.check([self._failed]):
                said = {"kind": type(error).__name__, "text": f"rank {self._rank}: {error}"}
                self._store.set(self._failed, json.dumps(said))
        except RuntimeError:
            pass  # the Store itself is gone: the others will notice as we did

    def raise_failure(self) -> None:
        """Raise the error of a rank that has failed to join, if one has."""
        if self._store.check([self._failed]):
            said = json.loads(self._store.get(self._failed))
            kind = getattr(errors, said["kind"], HostError)
            raise kind(said["text"])

    def _key(self, name: int | str) -> str:
        return f"wiiiiide/{self.incarnation}/{name}"

    def _read(self, key: str) -> _Introduction:
        said = json.loads(self._store.get(key))
        if said.get("version") != VERSION:
            raise HostError(
                f"a rank speaks version {said.get('version')} of the joining protocol, this one "
                f"{VERSION}: all ranks must run the same version of wiiiiided"
            )
        key_bytes = bytes.fromhex(said["key"])
        return _Introduction(Card.load(said["card"].encode()), int(said["nonce"]), key_bytes)


def join(
    store: KeyValueStore,
    rank: int,
    size: int,
    timeout_s: float,
    name: str,
    world: Sequence[int] = (),
) -> Group:
    """Make this process rank `rank` of a group of `size`; returns when all are in.

    `world` has the members' ranks in the whole program, if they are not the same.
    """
    deadline = time.monotonic() + timeout_s
    register = _Register(store, rank, size, deadline)
    process: RankProcess | None = None
    nonces: list[int] = []

    def listen(nonce: int) -> None:
        assert process is not None
        nonces.append(nonce)
        mesh = process.mesh
        process.loop.call(lambda: mesh.await_group(nonce))

    try:
        with _telling(register):  # before we leave: a peer that sees us go must find why
            process = processes.enter()
            introduced = register.introduce(process.card, listen)
            cards, (_, nonce, key) = [one.card for one in introduced], introduced[0]
            membership = GroupMembership(
                name, nonce, rank, size, timeout_s, tuple(world), register.incarnation
            )
            _check_processes(cards, rank)
            hosts = _hosts(cards)
            links: dict[int, AnyLink] = {**_link(process, register, cards, rank, deadline)}
            reach = LinkBuilder(process, register, membership, cards, key)
            links.update(_link_hosts(process, register, reach, cards, deadline))
            group = _attach(process, register, membership, links, hosts, deadline)
    except BaseException:
        if process is not None:
            process.loop.call(lambda: _forget(process, nonces))
            processes.leave(process)
        raise
    words = process.driver.page.words
    if words[stats.WORLD] < size:  # the largest group this process is in: its world
        words[stats.RANK], words[stats.WORLD] = rank, size
    log.tell(group.who, f"joined: {size} ranks [{membership.nonce:016x}]")
    return group


def _forget(process: RankProcess, nonces: list[int]) -> None:
    """Forget a group that was not made: nothing is to stay of it."""
    process.drop_unclaimed()
    for nonce in nonces:
        process.mesh.forget(nonce)


@contextmanager
def _telling(register: _Register) -> Iterator[None]:
    """The first rank that fails says so to all, and all fail as it did."""
    try:
        yield
    except WiiiiideError as error:
        register.raise_failure()
        register.tell_failure(error)
        raise
    except OSError as problem:
        refusal = HostError(f"cannot join the group: {problem}; is a limit reached (ulimit -n)?")
        register.raise_failure()
        register.tell_failure(refusal)
        raise refusal from problem
    except BaseException as error:  # Ctrl-C: the others need not wait for the timeout
        register.tell_failure(HostError(f"stopped by {type(error).__name__}"))
        raise


def _check_processes(cards: list[Card], rank: int) -> None:
    for other, card in enumerate(cards):
        if other != rank and card.uid == cards[rank].uid:
            raise UsageError(
                f"ranks {rank} and {other} are the same process (pid {card.pid}); "
                "every rank needs a process of its own"
            )


def _hosts(cards: list[Card]) -> list[list[int]]:
    """The ranks of each host, hosts in the order of their first rank: the same on all ranks."""
    hosts: dict[tuple[str, str, str], list[int]] = {}
    for rank, card in enumerate(cards):
        hosts.setdefault(card.host_key, []).append(rank)
    return list(hosts.values())


def _link(
    process: RankProcess, register: _Register, cards: list[Card], rank: int, deadline: float
) -> dict[int, Link]:
    """A link to every other member on this host: I connect to some, some connect to me."""
    here = cards[rank].host_key
    others = {r: card for r, card in enumerate(cards) if r != rank and card.host_key == here}
    problems: list[HostError] = []

    def connect() -> None:
        for other, card in others.items():
            try:
                process.connect(card)
            except OSError as problem:
                problems.append(
                    HostError(
                        f"rank {other} (pid {card.pid} on {card.host}) cannot be reached from rank "
                        f"{rank}: its process has ended ({problem.strerror})"
                    )
                )
                return

    process.loop.call(connect)
    if problems:
        raise problems[0]
    links: dict[int, Link] = {}

    def all_there() -> bool:
        for r, card in others.items():
            link = process.links.get(card.uid)
            if link is not None:
                links[r] = link
        return len(links) == len(others)

    def look() -> None:
        for r, card in others.items():
            if (r not in links or links[r].gone) and not _alive(card):
                raise PeerLost(f"rank {r} (pid {card.pid}) died while the group was made")

    _wait(process, register, all_there, look, deadline, "connection")
    return links


def _link_hosts(
    process: RankProcess,
    register: _Register,
    reach: LinkBuilder,
    cards: list[Card],
    deadline: float,
) -> dict[int, WideLink]:
    """A link to every member on another host."""
    if not reach.far:
        return {}
    reach.prepare()
    process.loop.call(reach.start)

    def look() -> None:
        process.loop.call(reach.advance)
        reach.tell()
        reach.look()

    what = "connection to a host"
    _wait(process, register, lambda: not reach.unlinked(), look, deadline, what, reach.trouble)
    found = {rank: process.mesh.links.get(cards[rank].uid) for rank in reach.far}
    for rank, link in found.items():
        if link is None:
            raise PeerLost(f"rank {rank} on {cards[rank].host} was lost while the group was made")
    return {rank: link for rank, link in found.items() if link is not None}


def _alive(card: Card) -> bool:
    """Whether a process still listens: its socket goes with it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(card.address)
        except BlockingIOError:
            return True  # its queue is full: a process holds it
        except OSError:
            return False
        return True


def _attach(
    process: RankProcess,
    register: _Register,
    membership: GroupMembership,
    links: dict[int, AnyLink],
    hosts: list[list[int]],
    deadline: float,
) -> Group:
    """Map the first segment, register the group, and arrive with all."""
    here = next(ranks for ranks in hosts if membership.rank in ranks)
    near = {place: links[r] for place, r in enumerate(here) if r != membership.rank}
    local = {place: link for place, link in near.items() if isinstance(link, Link)}
    base = _base_segment(process, register, membership, here, local, deadline)
    team = Team(process, membership, here, local, base)
    group = Group(process, membership, links, team, hosts)
    team.board.check(membership.nonce)
    team.small.reserve(team.rank)
    base.forget_fd()

    def enlist() -> None:
        process.groups[membership.nonce] = group
        process.count_ranks()
        for rank, link in links.items():
            if link.gone:
                group.member_gone(rank, link.gone)

    process.loop.call(enlist)
    process.loop.call(lambda: process.mesh.enlisted(membership.nonce))

    op = Operation(
        group, "join", 0, first_meeting(group), timeout_s=max(0.1, deadline - time.monotonic())
    )
    process.loop.submit(op)
    try:
        while not process.loop.wait(op, LOOK_S):
            register.raise_failure()
        # A mismatch is of a later call: the others have joined and gone on. So have I, and my own
        # next call, not the joining, says what they disagree on.
        if op.error is not None and not isinstance(op.error, Mismatch):
            raise op.error
    except BaseException:
        process.loop.call(group.close)
        raise
    return group


def first_meeting(group: Group) -> Plan:
    """The hosts' first meeting, after that of the ranks of this one."""
    wide = group.wide
    sequence = wide.begin() if wide is not None else 0
    yield group.team.arrive()
    if wide is not None:
        call = CallSignature.of("join")
        wide.open(sequence, call)
        yield wide.opened(sequence)
        wide.take_opens(sequence, call)


def _base_segment(
    process: RankProcess,
    register: _Register,
    membership: GroupMembership,
    ranks: list[int],
    links: dict[int, Link],
    deadline: float,
) -> Segment:
    size = len(ranks)
    nbytes = base_bytes(size)
    if membership.rank == ranks[0]:
        segment = Segment.create(membership.name, nbytes)
        segment.reserve(0, board_bytes(size))
        Board(segment, 0, size).found(membership.nonce)
        frame = Frame(FrameKind.SEGMENT, membership.nonce, BASE_SEGMENT, nbytes)

        def hand_out() -> None:
            for link in links.values():
                process.send(link, frame, segment.fd)

        process.loop.call(hand_out)
        return segment
    key = (membership.nonce, BASE_SEGMENT)

    def look() -> None:
        for place, link in links.items():
            if link.gone:
                who = f"rank {ranks[place]} (pid {link.pid})"
                raise PeerLost(f"{who} {link.gone} while the group was made")

    _wait(process, register, lambda: key in process.segments, look, deadline, "shared memory")
    return Segment.attach(process.segments.pop(key), nbytes)


def _wait(
    process: RankProcess,
    register: _Register,
    ready: Callable[[], bool],
    look: Callable[[], None],
    deadline: float,
    what: str,
    why: Callable[[], str] = str,
) -> None:
    """Attend to the links until `ready`; now and then `look` for lost and failed ranks."""
    while not process.loop.attend(ready, min(LOOK_S, max(0.0, deadline - time.monotonic()))):
        register.raise_failure()
        look()
        if time.monotonic() >= deadline:
            because = f" ({said})" if (said := why()) else ""
            text = f"the group was not made before its timeout: a {what} is missing{because}"
            raise PeerLate(text)
