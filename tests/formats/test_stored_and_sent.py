"""What is stored or sent keeps its name, whatever the classes and modules are called.

recorded.txt has every message, every stored object and every file name of the first release. A line
may get fields that can be left out (`?`): write them into the file. Any other difference means that
a daemon could not read its own state after an upgrade, or its neighbour's messages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.formats.spelling import spelled, spelled_dataclass
from wiiiiided.cluster.allocation import cancellations, checkpoints, job_dir_owner, job_dirs
from wiiiiided.cluster.control import actions as a
from wiiiiided.cluster.control import events as e
from wiiiiided.cluster.control import job as j
from wiiiiided.cluster.control.node_table import NodeRow
from wiiiiided.cluster.handlers import output_store
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.peering import metrics_codec as pf
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.state.store import StateStore
from wiiiiided.cluster.trust import identity
from wiiiiided.config import JobHere
from wiiiiided.domain import metrics as f
from wiiiiided.domain import node, plan, rank_layout, spec
from wiiiiided.train.checkpoints.file import FileHead
from wiiiiided.train.checkpoints.owner import FileOwner

RECORDED = Path(__file__).with_name("recorded.txt")

ROOTS: dict[str, Any] = {
    "client hello": m.Hello,
    "client request": m.Request,
    "client answer": m.Answer,
    "daemon opening": p.Opening,
    "daemon opened": p.Opened | p.TurnedAway,
    "daemon join": p.JoinRequest,
    "daemon joined": p.Joined,
    "daemon link hello": p.LinkHello,
    "daemon reconcile": p.Reconcile,
    "daemon assignment": p.Assignment,
    "daemon from member": p.FromMember,
    "daemon from coordinator": p.FromCoordinator,
    "daemon fetch": p.FetchArchive | p.FetchCheckpoints,
    "daemon fetched": p.CheckpointsSent,
    "daemon ask": p.NodeRequest,
    "daemon asked": p.AllocationView,
    "stored event": e.AnyEvent,
    "stored action": a.AnyAction,
    "stored job": j.Job,
    "stored node": NodeRow,
    "stored run": f.RunRecord,
    "stored cluster.json": identity.ClusterMembership,
    "stored .whose": job_dir_owner.Marker,
    "stored cancelled.json": cancellations.Cancelled,
    "stored collection": output_store.Collection,
    "stored placed": checkpoints.Placed,
    "stored plan": plan.KeptPlan,
    "trial line": plan.ProbeLine,
}

NAMES: dict[type, str] = {
    f.RunForecast: "forecast",
    f.JobNow: "job now",
    f.NodeNow: "node now",
    f.Point: "point",
    f.RankNow: "rank now",
    f.RankRecord: "rank record",
    f.RankSample: "rank sample",
    f.Rates: "rates",
    f.RunRecord: "run record",
    f.Straggler: "straggler",
    f.TrainingMetrics: "training figures",
    plan.KeptPlan: "kept plan",
    plan.MachineSet: "plan machines",
    plan.PlanRow: "plan row",
    plan.RankLine: "trial rank",
    plan.PairLine: "trial pair",
    j.Attempt: "attempt",
    j.Job: "job",
    j.Owner: "owner",
    j.Result: "result",
    j.Saved: "saved",
    j.Versions: "versions",
    rank_layout.Layout: "layout",
    rank_layout.AllocationSpec: "allocation",
    node.DrainRecord: "drain",
    node.Node: "node",
    NodeRow: "node row",
    m.JobRow: "job row",
    m.LogLine: "log line",
    m.RankView: "rank view",
    m.StackDump: "stack dump",
    m.StoryLine: "story line",
    m.SweepJob: "sweep job",
    p.Assignment: "assignment",
    p.CancelledHere: "cancelled there",
    p.Person: "person",
    pf.PackedMetrics: "attempt metrics",
    pf.NodeMetrics: "node metrics",
    spec.JobSpec: "job spec",
    spec.Network: "job spec network",
    spec.Notify: "job spec notify",
    spec.Output: "job spec output",
    spec.Policy: "job spec policy",
    spec.Resources: "job spec resources",
    spec.Restart: "job spec restart",
    spec.Run: "job spec run",
    identity.ClusterMembership: "membership",
    identity.NodeEndpoint: "place",
    job_dir_owner.Marker: "marker",
    cancellations.Cancelled: "cancelled",
    output_store.Collection: "collection",
    output_store.CollectedPart: "collection part",
    checkpoints.Placed: "placed checkpoints",
}

FILES = {
    "order": protocol.ORDER,
    "claim": protocol.CLAIM,
    "end": protocol.EXIT,
    "room for the end": protocol.ROOM,
    "handed-over connections": protocol.ENDPOINT,
    "key": protocol.KEY,
    "certificate": protocol.PEM,
    "job": job_dirs.JOB,
    "cancelled": job_dirs.CANCELLED,
    "placing": job_dirs.PLACING,
    "owner of the job directories": job_dir_owner.MARKER,
}


HEAD = FileHead(120, 0, 1, 1, "90afb240d9bf7c50")
APART = FileOwner(HEAD.model, JobHere("17-19a2b3c4d5e", "/work", ""), True)


def formats(directory: Path) -> list[str]:
    """Everything, a line each."""
    shim = (
        ("order", protocol.LaunchOrder),
        ("claim", protocol.ShimClaim),
        ("end", protocol.AttemptEnd),
    )
    return [
        *spelled(ROOTS, NAMES),
        *(spelled_dataclass(f"shim {name}", kind) for name, kind in shim),
        *(f"file of the {what}: {name}" for what, name in FILES.items()),
        spelled_dataclass("head of a checkpoint", FileHead),
        *(f"file of a checkpoint: {HEAD.name(series)}" for series in (HEAD.model, APART.series)),
        *schema(directory / "alone"),
        *state_files(directory / "coordinator"),
    ]


def schema(directory: Path) -> list[str]:
    store = StateStore(directory)
    try:
        rows = store.db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
        return [re.sub(r"\s+", " ", sql) for (sql,) in rows]
    finally:
        store.close()


def state_files(directory: Path) -> list[str]:
    StateStore(directory).close()
    own = {"node": "a", "address": "10.0.0.5", "port": 9461}
    identity.create_cluster(directory, cluster="lab", now=1e9, **own)  # type: ignore[arg-type]
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(f"file in the state directory: {path}" for path in found)


def test_what_is_stored_or_sent_is_as_recorded(tmp_path: Path) -> None:
    assert formats(tmp_path) == RECORDED.read_text().splitlines()


@pytest.mark.parametrize("message", [m.Message, e.Event, a.Action])
def test_a_message_has_the_tag_that_is_written_at_its_class(message: type[Any]) -> None:
    for kind in message.__subclasses__():
        source = Path(__import__(kind.__module__, fromlist=["_"]).__file__).read_text()
        found = re.search(rf'class {kind.__name__}\(.*tag="(\w+)"\):', source)
        assert found, f"{kind.__name__} has no tag of its own: a rename would change the format"
        assert kind.__struct_config__.tag == found[1]
