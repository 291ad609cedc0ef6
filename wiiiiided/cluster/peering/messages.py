"""Messages between daemons, over TLS, on the one port of each machine.

    from                    purpose    after Opening / Opened
    ────                    ───────    ──────────────────────
    a machine that joins    greet      ◄── Opened has the authority's certificate; end. Nothing is
                                       verified yet: its digest is compared with the token's
                            join       JoinRequest ──►   ◄── Joined       (no client certificate)
    a member → coordinator  link       LinkHello ──►   ◄── Reconcile, then both ways as below
                            request    a Request of rpc/messages ──►   ◄── its answers, as on the
                                       unix socket, for a person on that machine
                            fetch      FetchArchive ──►   ◄── blob frames, end of blob
                                       FetchCheckpoints ──►   ◄── the same, CheckpointsSent
    coordinator → a member  ask        one of NodeRequest ──►   ◄── its answers

                                       (a Reconcile that would be too large comes in parts)
    link, from a member     Report, MetricsUpdate, RenewRequest, Ping
    link, to a member       Do, Forget, RenewDue, Renewed, MemberRemoved, Ping

Frames are those of rpc/framing. Every connection begins with Opening, which is answered with Opened
or TurnedAway. Both say which protocol numbers they speak; the highest common one is spoken, so that
daemons one version apart work together. Fields may be added within a number; a message whose type
is not known is passed over; a job that asks for what only a newer version knows is refused by the
node that does not know it. The link carries nothing large: whatever takes long has a connection of
its own, so no archive can make a node look lost.

A link is not a log: what was said and not heard is said again by reconciliation. When a link
stands, the coordinator sends everything it believes to be on that node; the node reports what is
true of each, and ends what the coordinator does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from wiiiiided import __version__
from wiiiiided.cluster.control import actions as a
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control.job import Job
from wiiiiided.cluster.peering.metrics_codec import NodeMetrics
from wiiiiided.cluster.rpc.messages import Message
from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.domain.node import Node
from wiiiiided.errors import WiiiiideError

PROTOCOLS = (1, 1)  # the oldest and the newest this package speaks
ASSIGNMENT_BYTES = 8 << 20  # a job has at most a few hundred kilobytes, and its secrets a megabyte
RECONCILE_BYTES = 16 << 20  # of the assignments in one message
Purpose = Literal["greet", "join", "link", "request", "fetch", "ask"]


# ---- every connection


class Person(msgspec.Struct, frozen=True):
    """The user for whom a member asks, as the kernel of that machine knows it."""

    uid: int
    user: str
    admin: bool = False  # root there, or the daemon's own user


class Opening(Message, frozen=True, tag="Opening"):
    purpose: Purpose
    protocols: tuple[int, int]
    version: str
    person: Person | None = None  # of a request


class Opened(Message, frozen=True, tag="Opened"):
    protocol: int
    version: str
    authority: str = ""  # its certificate, PEM; only to a peer that greets


class TurnedAway(Message, frozen=True, tag="TurnedAway"):
    """The connection is refused and nothing was changed. `code` is an exit code, as in
    rpc/messages.Refusal."""

    code: int
    message: str
    hint: str = ""
    removed: bool = False  # the peer was a member once, and is none any more


# ---- join


class JoinRequest(Message, frozen=True, tag="JoinRequest"):
    token_id: str
    secret: str
    request: str  # a certificate signing request, PEM: the private key stays where it is
    node: Node  # with the address and port of its endpoint


class Joined(Message, frozen=True, tag="Joined"):
    certificate: str  # PEM
    cluster: str
    cluster_id: str
    coordinator: Node
    until: float  # the certificate's end, by the coordinator's clock


# ---- link


class Assignment(msgspec.Struct, frozen=True):
    """All that a node needs to look after its allocation of a job's latest attempt."""

    job: Job
    key: str  # of the attempt, hexadecimal: it opens the endpoints below
    # Node → its one port, for all nodes of the attempt; sent as "doors".
    endpoints: dict[str, str] = msgspec.field(name="doors", default_factory=dict)
    secrets: dict[str, str] = {}  # values of run.pass_env; only where it is still to start


class UnreadableAssignment(WiiiiideError):
    """An assignment that only a newer version understands, or that was too large to be sent, and
    which attempt it is about."""

    def __init__(self, job: int, attempt: int, why: str) -> None:
        super().__init__(why)
        self.job, self.attempt = job, attempt


def pack(given: Assignment) -> msgspec.Raw:
    """An assignment as it travels: a node that cannot read one must still be able to read the rest.
    Of one that is too large only a sketch is sent: its node declines that job, and hears others."""
    data = encode(given)
    return msgspec.Raw(data) if len(data) <= ASSIGNMENT_BYTES else sketch(given, len(data))


def sketch(given: Assignment, size: int) -> msgspec.Raw:
    """Encode an assignment that is too large as nothing but which job it is about. If that runs it
    goes on, and ends when told to; if it has not begun it never will."""
    attempt = _AttemptSketch(given.job.attempt.number) if given.job.attempt else None
    why = f"the order for its node has {size} bytes, too many to be sent"
    return msgspec.Raw(encode(_Sketch(_JobSketch(given.job.id, attempt), why)))


def reconciliation(
    given: Iterable[Assignment], forget: tuple[int, ...], in_parts: bool
) -> list[Reconcile]:
    """All assignments of a node, in messages of a size that can be sent. A node that reads only one
    message gets sketches of those that do not fit into it."""
    parts: list[list[msgspec.Raw]] = [[]]
    size = 0
    for one in given:
        packed = pack(one)
        size += len(packed)
        if size > RECONCILE_BYTES and parts[-1]:
            if in_parts:
                parts.append([])
                size = len(packed)
            else:
                packed = sketch(one, len(packed))
        parts[-1].append(packed)
    *first, last = parts
    return [*(Reconcile(tuple(part), more=True) for part in first), Reconcile(tuple(last), forget)]


def unpack(packed: msgspec.Raw) -> Assignment:
    """An assignment, or Unreadable."""
    try:
        return _assignment(packed)
    except msgspec.DecodeError as problem:
        found = _sketch(packed)
        attempt = found.job.attempt
        why = found.why or f"wiiiiided {__version__} cannot read the job, upgrade it: {problem}"
        raise UnreadableAssignment(found.job.id, attempt.number if attempt else 0, why) from None


class _AttemptSketch(msgspec.Struct, frozen=True):
    number: int


class _JobSketch(msgspec.Struct, frozen=True):
    id: int
    attempt: _AttemptSketch | None = None


class _Sketch(msgspec.Struct, frozen=True):
    """The fields that every version has sent of an assignment, and will."""

    job: _JobSketch
    why: str = ""  # it is no more than a sketch


class CancelledHere(msgspec.Struct, frozen=True):
    """A job that its owner, or root, cancelled on a machine whose coordinator was away."""

    id: int
    submitted_at: float  # of the job that is meant: a restored coordinator gives numbers anew
    by: str
    now: bool
    ago_s: float  # clocks of machines differ, spans do not


class LinkHello(Message, frozen=True, tag="LinkHello"):
    node: Node
    has: tuple[int, ...] = ()  # jobs that have files there
    in_parts: bool = False  # it reads more than one Reconcile
    cancelled: tuple[CancelledHere, ...] = ()  # until the coordinator has stored it


class Reconcile(Message, frozen=True, tag="Reconcile"):
    """Everything that the coordinator believes to be on that node: start it, follow it, stop it, as
    its phase says. A job that runs and is not listed is to be ended."""

    assignments: tuple[msgspec.Raw, ...]  # packed
    forget: tuple[int, ...] = ()  # of `has`: jobs that the coordinator does not know
    more: bool = False  # another one follows, and only all of them are everything
    cancelled: tuple[int, ...] = ()  # of `cancelled`: stored, or of no job that there is


NodeEvent = (
    e.WorkersPrepared | e.WorkersStarted | e.WorkersEnded | e.StacksDumped | e.ProgressSampled
)


class Report(Message, frozen=True, tag="Report"):
    """An event on that node. Its times are the node's: clocks of machines differ, spans do not."""

    event: NodeEvent


class MetricsUpdate(Message, frozen=True, tag="Figures"):
    metrics: NodeMetrics = msgspec.field(name="figures")


NodeAction = (
    a.PrepareWorkers | a.StartWorkers | a.StopWorkers | a.SignalWorkers | a.DumpStacks | a.RunNotify
)


class Do(Message, frozen=True, tag="Do"):
    action: NodeAction
    assignment: msgspec.Raw  # packed


class Forget(Message, frozen=True, tag="Forget"):
    """Files of these jobs are wanted no more."""

    jobs: tuple[int, ...]


class RenewDue(Message, frozen=True, tag="RenewDue"):
    """The certificate ends soon, by the coordinator's clock: send a RenewRequest."""


class RenewRequest(Message, frozen=True, tag="RenewRequest"):
    request: str  # a signing request, PEM, for a new key


class Renewed(Message, frozen=True, tag="Renewed"):
    certificate: str
    until: float


class MemberRemoved(Message, frozen=True, tag="Removed"):
    """This machine is no member any more."""

    by: str


class Ping(Message, frozen=True, tag="Ping"):
    """A heartbeat of a link that has nothing else to say."""


# ---- fetch and ask


class FetchArchive(Message, frozen=True, tag="FetchArchive"):
    digest: str


class FetchCheckpoints(Message, frozen=True, tag="FetchCheckpoints"):
    """The set that all nodes of that attempt are to have: a tar in blob frames, empty ones while it
    is still on its way to the coordinator, then CheckpointsSent."""

    id: int
    attempt: int


class CheckpointsSent(Message, frozen=True, tag="CheckpointsSent"):
    sha256: str  # of the tar


class NodeLogs(Message, frozen=True, tag="NodeLogs"):
    """LogLines, then EndOfAnswers; with `follow`, until that attempt is over on the node."""

    id: int
    attempt: int
    ranks: tuple[int, ...] = ()
    follow: bool = False
    tail: int | None = None


class NodeStacks(Message, frozen=True, tag="NodeStacks"):
    """Answered with StackDumps."""

    id: int
    attempt: int


class NodeRanks(Message, frozen=True, tag="NodeRanks"):
    """Answered with AllocationView."""

    id: int
    attempt: int


class NodePull(Message, frozen=True, tag="NodePull"):
    """A tar in blob frames, then EndOfAnswers."""

    id: int
    globs: tuple[str, ...]
    checkpoints: bool = False  # refused where they are not a whole set of one machine
    names: bool = False  # no file's content; one of an earlier release sends it all the same


NodeRequest = NodeLogs | NodeStacks | NodeRanks | NodePull


class AllocationView(Message, frozen=True, tag="ShareView"):
    """An allocation of an attempt, as its own node knows it."""

    pids: dict[int, int] = msgspec.field(
        default_factory=dict
    )  # rank → process, of those that have begun
    codes: dict[int, int] = msgspec.field(default_factory=dict)  # of ranks that have ended
    directory: str = ""
    error: str = ""  # what the failing rank wrote, or its last words


FromMember = Report | MetricsUpdate | RenewRequest | Ping
FromCoordinator = Do | Forget | RenewDue | Renewed | MemberRemoved | Ping

encode = msgspec.json.Encoder().encode
_assignment = json_decoder(Assignment)
_sketch = json_decoder(_Sketch)
decode_opening = json_decoder(Opening)
decode_opened = json_decoder(Opened | TurnedAway)
decode_join = json_decoder(JoinRequest)
decode_joined = json_decoder(Joined | TurnedAway)
decode_hello = json_decoder(LinkHello)
decode_reconcile = json_decoder(Reconcile | TurnedAway)
decode_from_member = json_decoder(FromMember)
decode_from_coordinator = json_decoder(FromCoordinator)
decode_fetch = json_decoder(FetchArchive | FetchCheckpoints)
decode_sent = json_decoder(CheckpointsSent)
decode_ask = json_decoder(NodeRequest)
