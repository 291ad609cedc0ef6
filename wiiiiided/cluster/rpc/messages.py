"""Messages between a client and the daemon on its machine, over the daemon's unix socket.

    client                                   daemon
    ──────                                   ──────
    Hello, then one request        ──►
                                   ◄──       Hello, then one of
                                               · Refusal                      (always possible)
                                               · the one answer of the request
                                               · several, then EndOfAnswers   (Wait, Logs, Pull,
                                                                            CancelSweep)
                                               · Snapshots without end        (WatchSnapshots)
                                             and before any of these, Notices for the person
    Submit, SubmitSweep            ──►
                                   ◄──       SendArchive when it does not have it yet
    the archive's bytes            ──►
                                   ◄──       Submitted, Swept

One request per connection; a client that goes away ends its request and nothing else. Frames are
made by `rpc/framing`. A message is one JSON object with its type in "type". Fields may be added
within a protocol number; a change of meaning raises PROTOCOL, and both sides say so in a sentence.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.domain.metrics import JobNow, NodeNow, RunForecast, RunRecord
from wiiiiided.domain.node import Node
from wiiiiided.domain.plan import KeptPlan
from wiiiiided.domain.spec import JobSpec

PROTOCOL = 1


class Message(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """A tagged JSON object; fields a newer peer added are ignored. Every message has its tag
    written at its class: a class may be renamed, its tag may not."""

    @property
    def tag(self) -> str:
        return str(self.__struct_config__.tag)


def _without_secrets(message: Message) -> str:
    """Name a message in a log, which must not have its secrets."""
    return f"{type(message).__name__}(…)"


class Hello(Message, frozen=True, tag="Hello"):
    protocol: int
    version: str
    notices: bool = False  # of a client: it understands Notice


# ---- requests


class Submit(Message, frozen=True, tag="Submit"):
    spec: JobSpec
    archive: str  # sha256 of the packed working directory, hexadecimal
    archive_bytes: int
    secrets: dict[str, str] = {}  # the values of run.pass_env
    hold: bool = False
    nonce: str = ""  # a random word: said again with it, this queues nothing more

    __repr__ = _without_secrets


class SubmitResuming(Submit, frozen=True, tag="SubmitResuming"):
    """A job that begins with the checkpoints of another. Of a kind of its own: a daemon that does
    not know it must not queue one that begins without."""

    resumes: int = 0  # the other job's number


class SweepJob(msgspec.Struct, frozen=True):
    """One job of a sweep: what it runs, and the values that tell it from the others."""

    spec: JobSpec
    setting: dict[str, str]  # key of the job file → value, as text


class SubmitSweep(Message, frozen=True, tag="SubmitSweep"):
    """Several jobs of one folder, all queued or none. Of a kind of its own: a daemon that does not
    know it must not queue one job instead."""

    jobs: tuple[SweepJob, ...]
    archive: str
    archive_bytes: int
    secrets: dict[str, str] = {}  # each job gets those that its run.pass_env names
    hold: bool = False
    nonce: str = ""

    __repr__ = _without_secrets


Submission = Submit | SubmitResuming | SubmitSweep  # an archive may follow


class FindSubmission(Message, frozen=True, tag="FindSubmission"):
    """Was the one with that nonce stored? Answered as it was, or refused: no such."""

    nonce: str


class ListJobs(Message, frozen=True, tag="List"):
    """Jobs that are not over, in queue order; with `ended`, the latest ended ones first too. With
    `sweep`, all jobs of that sweep instead, by number; an older daemon does not know of sweeps."""

    ended: int = 0
    sweep: int = 0


class Show(Message, frozen=True, tag="Show"):
    id: int


class Why(Message, frozen=True, tag="Why"):
    id: int


class Wait(Message, frozen=True, tag="Wait"):
    """A JobView now and at every change, until the job is over."""

    id: int


class Logs(Message, frozen=True, tag="Logs"):
    """LogLines, oldest first. With `follow`, until the job is over."""

    id: int
    ranks: tuple[int, ...] = ()  # empty: all
    follow: bool = False
    tail: int | None = None  # only so many of the last lines of each rank
    attempt: int | None = None  # None: the latest; with follow, also those to come
    nodes: tuple[str, ...] = ()  # only ranks on these; empty: all, as of a daemon that is older


class Cancel(Message, frozen=True, tag="Cancel"):
    """Answered with a JobView when the job has really ended."""

    id: int
    now: bool = False  # SIGKILL at once


class CancelSweep(Message, frozen=True, tag="CancelSweep"):
    """All jobs of a sweep that are not over, in one step. Answered with a JobView of each when it
    has really ended, then EndOfAnswers."""

    id: int
    now: bool = False


class Requeue(Message, frozen=True, tag="Requeue"):
    id: int


class Hold(Message, frozen=True, tag="Hold"):
    id: int


class Release(Message, frozen=True, tag="Release"):
    id: int


class ListHistory(Message, frozen=True, tag="History"):
    limit: int = 50


class Stacks(Message, frozen=True, tag="Stacks"):
    id: int


class Pull(Message, frozen=True, tag="Pull"):
    """Files of the job's working directory: a tar in blob frames, then EndOfAnswers."""

    id: int
    globs: tuple[str, ...] = ()  # empty: the job's output.collect


class GetStatus(Message, frozen=True, tag="Status"):
    """The daemon's state and role."""


class WatchSnapshots(Message, frozen=True, tag="Watch"):
    """A Snapshot now and every `every_s` (0.25 to 60) until the client goes; with `once`, one."""

    every_s: float = 1.0
    once: bool = False


class GetRecords(Message, frozen=True, tag="Records"):
    """The records of a job's runs."""

    id: int


class Predict(Message, frozen=True, tag="Predict"):
    """The likely needs of a job of this name, from its earlier runs."""

    name: str


class KeepPlan(Message, frozen=True, tag="KeepPlan"):
    """The plan `wiiiiide plan` found for jobs of this name. Answered with EndOfAnswers."""

    name: str
    plan: KeptPlan


class ForgetTrial(Message, frozen=True, tag="ForgetTrial"):
    """A job of `wiiiiide plan` that is over goes, with its files. Answered with EndOfAnswers."""

    id: int


# ---- requests about machines. Init, Join and Leave are answered by the daemon of this machine;
# all others by the coordinator, whichever daemon was asked.


class Init(Message, frozen=True, tag="Init"):
    """This machine becomes the coordinator of a cluster. Answered with a ClusterView; then the
    daemon takes up its new role, and GetStatus says when it has."""

    cluster: str = ""  # empty: the name of this node
    address: str = ""  # empty: by the route to the outside
    port: int = 0  # 0: the usual one


class Join(Message, frozen=True, tag="Join"):
    """This machine becomes a member. Answered as Init is."""

    host: str
    port: int
    token: str
    name: str = ""  # of this node; empty: as its host is called
    address: str = ""  # of this machine; empty: by the route to the coordinator
    own_port: int = 0  # of this machine; 0: the usual one

    __repr__ = _without_secrets


class Leave(Message, frozen=True, tag="Leave"):
    """This machine is alone again. With `force` also when the coordinator cannot be told."""

    force: bool = False


class CreateToken(Message, frozen=True, tag="CreateToken"):
    ttl_s: float = 3600.0
    uses: int = 1


class ListNodes(Message, frozen=True, tag="Nodes"):
    """All machines of the cluster."""


class RemoveNode(Message, frozen=True, tag="RemoveNode"):
    """Its certificate is refused by every daemon from then on. Refused while jobs are on it, unless
    `force`: then its allocations count as ended."""

    name: str
    force: bool = False


class DeclareLost(Message, frozen=True, tag="DeclareLost"):
    """The operator vouches: nothing runs on that machine any more, or ever will."""

    name: str


class Drain(Message, frozen=True, tag="Drain"):
    name: str
    reason: str = ""


class Resume(Message, frozen=True, tag="Resume"):
    name: str


class Renew(Message, frozen=True, tag="Renew"):
    """A new certificate for the daemon that was asked; by itself it does so in good time."""


Request = (
    Submit
    | SubmitResuming
    | SubmitSweep
    | FindSubmission
    | ListJobs
    | Show
    | Why
    | Wait
    | Logs
    | Cancel
    | CancelSweep
    | Requeue
    | Hold
    | Release
    | ListHistory
    | Stacks
    | Pull
    | GetStatus
    | WatchSnapshots
    | GetRecords
    | Predict
    | KeepPlan
    | ForgetTrial
    | Init
    | Join
    | Leave
    | CreateToken
    | ListNodes
    | RemoveNode
    | DeclareLost
    | Drain
    | Resume
    | Renew
)


# ---- answers


class Refusal(Message, frozen=True, tag="Refused"):
    """The request was refused and nothing was changed. `code` is the exit code of the command
    (operations: docs/cli.md)."""

    code: int
    message: str
    hint: str = ""


class Notice(Message, frozen=True, tag="Notice"):
    """A sentence for the person who waits, before the answer. Only to clients that said
    in their Hello that they understand it."""

    text: str


class SendArchive(Message, frozen=True, tag="SendArchive"):
    pass


class Submitted(Message, frozen=True, tag="Submitted"):
    id: int
    why: str  # the sentence `why` would give now
    starts: str = ""  # as in JobView


class Swept(Message, frozen=True, tag="Swept"):
    id: int  # of the sweep
    jobs: tuple[int, ...]  # in the order of the request
    why: str  # of the first
    starts: str = ""  # of the last


class RankView(msgspec.Struct, frozen=True):
    rank: int
    node: str
    pid: int | None
    state: Literal["starting", "running", "ended"]
    code: int | None = None  # 128 + signal for a signal


class JobView(Message, frozen=True, tag="JobView"):
    """One job as ps, wait and top show it."""

    id: int
    name: str
    state: str  # of domain.states.STATES
    owner: str  # a user, and where there are several machines, which one's: ada, ada@b
    priority: int
    submitted_at: float  # seconds since 1970
    started_at: float | None  # of the latest attempt
    ended_at: float | None
    attempt: int  # 0 before the first
    attempts: int  # that there can be: those made and those the policy still allows
    nodes: tuple[str, ...]  # where it runs or ran last
    workers: int  # ranks of the latest attempt, or those it asks for
    code: int | None  # the job's exit code once it is over
    why: str  # one sentence: why it waits, what it does, how it ended
    error: str = ""  # of a job that failed: the exception's last line, untrusted text
    sweep: str = ""  # the id of the sweep it belongs to: s12
    setting: dict[str, str] = {}  # of a sweep: key of the job file → its value
    cpu: float | None = None  # cores that its ranks use together, while it runs
    memory: int | None = None  # resident bytes of its ranks together
    starts_at: float | None = None  # of a queued job, as far as that can be said; not in a Snapshot
    starts: str = ""  # the same in a sentence, or why it cannot be said
    apart: str = ""  # which ranks of the latest attempt trained at other steps, a sentence


class JobList(Message, frozen=True, tag="Jobs"):
    jobs: tuple[JobView, ...]
    partial: str = ""  # a sentence when these are not all: one machine's view, and why
    problem: str = ""  # as in DaemonStatus, of the daemon that has the queue


class StoryLine(msgspec.Struct, frozen=True):
    at: float
    text: str


class JobDetail(Message, frozen=True, tag="JobDetail"):
    """Everything `show` has. `spec` is without any secret: those are never in a spec."""

    job: JobView
    spec: dict[str, Any]
    ranks: tuple[RankView, ...]
    story: tuple[StoryLine, ...]
    directory: str  # of the job's files on its node
    error: str = ""  # what the failing rank wrote to its error file, or its last words
    run: RunRecord | None = None  # metrics of the latest attempt, without its points
    forecast: RunForecast | None = None  # of a job that has not begun
    partial: str = ""  # as in JobList


class JobReason(Message, frozen=True, tag="Reason"):
    id: int
    state: str
    why: str
    error: str = ""  # as in JobView
    starts: str = ""  # as in JobView
    problem: str = ""  # as in JobList


class LogLine(msgspec.Struct, frozen=True):
    at: float
    rank: int
    stream: Literal["out", "err", "note"]  # note: the shim's own words
    text: str  # without its newline; untrusted
    attempt: int = 1
    node: str = ""  # where the rank runs


class LogLines(Message, frozen=True, tag="LogLines"):
    lines: tuple[LogLine, ...]


class StackDump(msgspec.Struct, frozen=True):
    rank: int
    pid: int | None
    text: str  # or a sentence saying why there is none
    node: str = ""  # where the rank runs; empty: there is one machine


class StackDumps(Message, frozen=True, tag="StackDumps"):
    dumps: tuple[StackDump, ...]


class DaemonStatus(Message, frozen=True, tag="DaemonStatus"):
    version: str
    pid: int
    mode: Literal["system", "user", "private"]
    node: Node
    started_at: float
    state_directory: str
    jobs_directory: str
    job_user: str
    counts: dict[str, int]  # jobs per state, those not over
    problem: str = ""  # a sentence when something is wrong: "cannot write …: the disk is full"
    role: Literal["alone", "coordinator", "member"] = "alone"
    cluster: str = ""  # empty: alone
    coordinator: str = ""  # the name of that node
    linked: bool = True  # of a member: whether the coordinator hears it


class ClusterView(Message, frozen=True, tag="ClusterView"):
    """This machine's membership after init, join, leave or renew."""

    cluster: str
    role: Literal["alone", "coordinator", "member"]
    node: str
    address: str = ""  # of its one port, "10.0.0.5:9461"
    coordinator: str = ""  # its node's name
    coordinator_address: str = ""
    certificate_until: float | None = None


class TokenCreated(Message, frozen=True, tag="TokenCreated"):
    token: str  # a secret
    address: str  # of the coordinator, for the line that joins
    expires_at: float
    uses: int

    __repr__ = _without_secrets


class NodeView(Message, frozen=True, tag="NodeView"):
    """A machine, as `nodes` shows it."""

    node: Node
    state: Literal["ok", "idle", "drained", "lost"]
    why: str  # one sentence: "runs job 3", "drained by root: fan broken", "not heard of for 40 s"
    coordinator: bool = False
    jobs: tuple[int, ...] = ()
    since: float = 0.0  # of the state
    certificate_until: float | None = None


class NodeList(Message, frozen=True, tag="NodeList"):
    cluster: str
    nodes: tuple[NodeView, ...]


class JobRow(msgspec.Struct, frozen=True):
    """A job in a snapshot: what it is, and what it does while it runs."""

    job: JobView
    now: JobNow | None = None


class Snapshot(Message, frozen=True, tag="Snapshot"):
    """Everything `top` shows: all nodes, all jobs that are not over, and the latest that are."""

    at: float  # seconds since 1970
    every_s: float
    cluster: str  # what this set of machines is called; one machine: its name
    nodes: tuple[NodeNow, ...]
    jobs: tuple[JobRow, ...]  # running first, then in queue order, then ended
    problem: str = ""  # as in DaemonStatus
    more: int = 0  # jobs of the queue beyond those listed


class JobRecords(Message, frozen=True, tag="JobRecords"):
    """The content of `report`."""

    job: JobView
    story: tuple[StoryLine, ...]
    runs: tuple[RunRecord, ...]  # one an attempt that was seen, oldest first
    spec: dict[str, Any] = {}  # as in JobDetail; empty: of a daemon that is older


class Predicted(Message, frozen=True, tag="Predicted"):
    forecast: RunForecast
    plan: KeptPlan | None = None  # the latest of that name
    speeds: dict[int, float] = {}  # samples/s of earlier runs, by their number of machines
    others: tuple[KeptPlan, ...] = ()  # the latest of that name and of other models


class EndOfAnswers(Message, frozen=True, tag="End"):
    """No more answers to this request."""


Answer = (
    Refusal
    | Notice
    | SendArchive
    | Submitted
    | Swept
    | JobView
    | JobList
    | JobDetail
    | JobReason
    | LogLines
    | StackDumps
    | DaemonStatus
    | Snapshot
    | JobRecords
    | Predicted
    | ClusterView
    | TokenCreated
    | NodeView
    | NodeList
    | EndOfAnswers
)

encode = msgspec.json.Encoder().encode
decode_hello = json_decoder(Hello)
decode_request = json_decoder(Request)
decode_answer = json_decoder(Answer)
