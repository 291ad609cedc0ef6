"""Several daemons as one: allocations start, end and are reported, whichever daemon dies.

Three real daemons on one machine, each on a loopback address of its own. Their jobs wait for a file
of the test's, so nothing ends before the test wants it to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, node_states, private_cluster
from wiiiiided.cluster.client import ClientError
from wiiiiided.cluster.client.machines import settle
from wiiiiided.cluster.peering import messages as p
from wiiiiided.cluster.rpc import framing
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.cluster.trust.identity import Identity
from wiiiiided.cluster.trust.tls import client_context, greeting_context, peer_of
from wiiiiided.domain.spec import Restart

LOST_WITHIN_S = 5 * 12.0  # five times what a silent node may take to be noticed
WAITS = """
import os, sys, time
print(os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
RING = f"""
import os
os.environ["WIIIIIDE_HOST_ID"] = os.environ["GROUP_RANK"]  # as if on three machines
import torch, torch.distributed as dist
dist.init_process_group("wiiiiide")
dist.all_reduce(torch.ones(100_000))
{WAITS}
dist.destroy_process_group()
"""
STUBBORN = f"""
import fcntl, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = open("one-at-a-time", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
{WAITS}"""
GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
print("sum", int(t.item()))
dist.destroy_process_group()
"""

Cluster = list[PrivateDaemon]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """For tests that leave it as it was."""
    with private_cluster() as daemons:
        yield daemons


@pytest.fixture
def own() -> Iterator[Cluster]:
    """For tests that spoil it."""
    with private_cluster() as daemons:
        yield daemons


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


def waiting(daemon: PrivateDaemon, go: Path, script: str = WAITS, **rest: Any) -> int:
    """A job on all nodes that runs until `go` is there."""
    rest = {"nodes": 3, **rest}
    return daemon.submit(command=("python", "-c", script, str(go)), **rest)


def names(cluster: Cluster) -> list[str]:
    return [daemon.client.status().node.name for daemon in cluster]


def all_pids(daemon: PrivateDaemon, job: int) -> list[int]:
    """Of a rank on each node. A request does not wait for a node that is busy just now: we do."""
    found: list[int] = []

    def there() -> bool:
        found[:] = daemon.pids(job)
        return len(found) == 3

    wait_until(there, 60, "all nodes say what runs there")
    return found


def starts(daemon: PrivateDaemon, job: int) -> list[str]:
    return [line.text for line in daemon.client.show(job).story if line.text.startswith("starting")]


def ends(daemon: PrivateDaemon, job: int) -> list[str]:
    return [line.text for line in daemon.client.show(job).story if line.text == "done"]


@contextlib.contextmanager
def stopped(daemon: PrivateDaemon) -> Iterator[None]:
    """A daemon that does nothing, as when its machine is frozen; its jobs go on."""
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


# ---- starting


def test_a_job_submitted_on_a_member_runs_on_all(cluster: Cluster) -> None:
    a, b, c = cluster
    job = b.submit(GLOO, nodes=3)
    assert a.end_of(job).state == "done"
    assert c.view(job).nodes == tuple(names(cluster))
    assert b.output(job) == ["sum 3"] * 3


def test_a_job_of_one_node_on_a_member_gets_its_archive_there(
    cluster: Cluster, tmp_path: Path
) -> None:
    a, _, c = cluster
    (tmp_path / "hello.py").write_text("print('hello from the archive')")
    job = a.submit(command=("python", "hello.py"), work=tmp_path, use=("c",))
    assert c.end_of(job).nodes == ("c",)
    assert a.output(job) == ["hello from the archive"]
    assert len(list((c.paths.state / "archives").iterdir())) >= 1


def test_secrets_reach_ranks_on_other_nodes_and_no_file(cluster: Cluster) -> None:
    a, b, _ = cluster
    script = "import os; print(open(os.environ['WIIIIIDE_SECRETS']).read().strip())"
    job = a.submit(script, use=("b",), secrets={"WORD": "tulip-and-nothing-else"})
    assert a.end_of(job).state == "done"
    assert a.output(job) == ["WORD=tulip-and-nothing-else"]
    files = [path for path in (b.home / "jobs" / str(job)).rglob("*") if path.is_file()]
    files += [path for path in b.paths.state.rglob("*") if path.is_file()]
    found = [path.name for path in files if b"tulip" in path.read_bytes()]
    assert found == ["rank-0.log"]  # where the script itself has printed it


def test_versions_that_differ_fail_the_job_and_are_named(cluster: Cluster, tmp_path: Path) -> None:
    """The interpreter is a small program that says another torch on every second call."""
    a, _, _ = cluster
    marks = tmp_path / "marks"
    marks.mkdir()
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f"torch=2.13.0; mkdir {marks}/first 2>/dev/null || torch=2.12.1\n"
        'echo "{\\"python\\": \\"3.11.7\\", \\"torch\\": \\"$torch\\"}"\n'
    )
    python.chmod(0o755)
    job = a.submit("pass", nodes=3, python=str(python), policy={"restart": Restart(max=3)})
    view = a.end_of(job)
    assert view.state == "failed"
    assert "torch differs" in view.why
    assert "2.13.0" in view.why
    assert "2.12.1" in view.why
    assert len(starts(a, job)) == 1


def test_an_interpreter_that_is_missing_on_a_node_is_said(cluster: Cluster) -> None:
    a, _, _ = cluster
    view = a.end_of(a.submit("pass", nodes=3, python="/nowhere/python"))
    assert view.state == "failed"
    assert "/nowhere/python cannot be run" in view.why


def test_cancelling_ends_every_allocation(cluster: Cluster, go: Path) -> None:
    a, b, c = cluster
    job = waiting(b, go)
    c.wait_for(job, "running")
    assert c.client.cancel(job).state == "cancelled"
    for daemon in (a, b, c):
        daemon.no_process_is_left()


def test_an_allocation_that_fails_ends_the_others_and_is_named(cluster: Cluster, go: Path) -> None:
    a, b, c = cluster
    script = f"import os, sys\nif os.environ['RANK'] == '1': sys.exit(7)\n{WAITS}"
    job = a.submit(command=("python", "-c", script, str(go)), nodes=3)
    view = a.end_of(job)
    assert (view.state, view.code) == ("failed", 7)
    assert "on b" in view.why
    for daemon in (a, b, c):
        daemon.no_process_is_left()


def test_nothing_of_a_job_listens_but_the_daemons_one_port(cluster: Cluster, go: Path) -> None:
    a, _, _ = cluster
    job = waiting(a, go, RING)
    wait_until(lambda: len(a.output(job)) == 3, 120, "all ranks have talked to each other")
    family = {pid for daemon in cluster for pid in daemon.processes()}
    assert len(family) >= 6
    listening = [
        (pid, found.laddr)
        for pid in family
        for found in psutil.Process(pid).net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    ]
    go.touch()
    assert a.end_of(job).state == "done"
    assert listening == []


# ---- standing


def test_a_drained_node_gets_no_new_job_until_it_is_resumed(cluster: Cluster) -> None:
    a, b, _ = cluster
    b.client.drain("c", "fan broken")
    try:
        assert node_states(a)["c"] == "drained"
        job = a.submit("pass", use=("c",))
        assert "drained" in a.view(job).why
        assert a.state(job) == "queued"
    finally:
        b.client.resume("c")
    assert a.end_of(job).nodes == ("c",)


@pytest.mark.soak
def test_a_member_that_was_frozen_is_lost_and_comes_back(own: Cluster, go: Path) -> None:
    a, b, _ = own
    job = waiting(a, go)
    a.wait_for(job, "running")
    with stopped(b):
        wait_until(lambda: node_states(a)["b"] == "lost", LOST_WITHIN_S, "b is lost")
        assert a.state(job) == "running"
    wait_until(lambda: node_states(a)["b"] == "ok", LOST_WITHIN_S, "b is back")
    go.touch()
    assert a.end_of(job).state == "done"
    assert len(starts(a, job)) == 1


@pytest.mark.soak
def test_a_lost_node_ends_its_allocation_when_it_comes_back(own: Cluster, go: Path) -> None:
    """Also one that does not want to end; nothing of the next attempt runs beside it."""
    a, b, _ = own
    policy = {"restart": Restart(max=1, backoff_s=0.1), "grace_s": 2.0}
    job = waiting(a, go, STUBBORN, policy=policy)
    a.wait_for(job, "running")
    with stopped(b):
        wait_until(lambda: node_states(a)["b"] == "lost", LOST_WITHIN_S, "b is lost")
        assert b.processes()
        a.client.declare_lost("b")
        wait_until(lambda: a.state(job) in ("queued", "backoff"), 60, "it waits for three nodes")
    a.wait_for(job, "running")
    assert a.view(job).attempt == 2
    go.touch()
    assert a.end_of(job).state == "done"
    assert "stopped: the queue does not know this attempt any more" in b.said()


# ---- daemons that die


def test_a_job_does_not_notice_the_coordinators_death(own: Cluster, go: Path) -> None:
    a, b, c = own
    job = waiting(b, go)
    a.wait_for(job, "running")
    pids = all_pids(a, job)
    a.kill()
    with pytest.raises(ClientError, match="does not answer"):
        b.client.nodes()
    a.start()
    wait_until(lambda: set(node_states(a).values()) == {"ok"}, 60, "all are back")
    assert all_pids(a, job) == pids
    go.touch()
    assert c.end_of(job).state == "done"
    assert len(starts(a, job)) == 1


def test_an_end_while_the_coordinator_is_away_is_reported_once(own: Cluster, go: Path) -> None:
    a, b, c = own
    job = waiting(b, go)
    a.wait_for(job, "running")
    a.kill()
    go.touch()
    for daemon in (a, b, c):
        daemon.no_process_is_left()
    a.start()
    assert a.end_of(job).state == "done"
    assert ends(a, job) == ["done"]


def test_a_member_daemon_that_is_killed_finds_its_allocation_again(own: Cluster, go: Path) -> None:
    a, b, _ = own
    job = waiting(a, go)
    a.wait_for(job, "running")
    pids = all_pids(a, job)
    b.kill()
    wait_until(lambda: "b" in a.view(job).why, 60, "why says that b is missing")
    b.start()
    wait_until(lambda: a.pids(job) == pids, 60, "the same processes are seen again")
    go.touch()
    assert a.end_of(job).state == "done"
    assert len(starts(a, job)) == 1


def test_an_end_while_a_members_daemon_is_dead_is_reported_when_it_is_back(
    own: Cluster, go: Path
) -> None:
    a, b, _ = own
    job = waiting(a, go)
    a.wait_for(job, "running")
    b.kill()
    go.touch()
    b.no_process_is_left()
    assert a.state(job) in ("running", "stopping")
    b.start()
    assert a.end_of(job).state == "done"
    assert ends(a, job) == ["done"]


def test_a_member_that_starts_alone_looks_after_its_allocation(own: Cluster, go: Path) -> None:
    """Its coordinator is away: its files say what runs."""
    a, b, _ = own
    job = waiting(a, go)
    a.wait_for(job, "running")
    a.kill()
    b.kill()
    b.start()
    assert "looking after 1" in b.said()
    status = b.client.status()
    assert not status.linked
    assert "does not answer" in status.problem
    assert "jobs go on" in status.problem
    a.start()
    go.touch()
    assert a.end_of(job).state == "done"


def test_all_daemons_restarted_at_once_lose_nothing(own: Cluster, go: Path) -> None:
    a, b, c = own
    job = waiting(c, go)
    later = waiting(c, go)
    a.wait_for(job, "running")
    for daemon in own:
        daemon.kill()
    for daemon in own:
        daemon.start()
    go.touch()
    assert a.end_of(job).state == "done"
    assert b.end_of(later).state == "done"
    assert len(starts(a, job)) == len(starts(a, later)) == 1


def test_a_shim_killed_on_a_member_is_told_as_lost(own: Cluster, go: Path) -> None:
    a, b, c = own
    job = waiting(a, go)
    a.wait_for(job, "running")
    # All are found before one is killed: its ranks do not outlive it for long.
    family = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in b.processes()}
    for pid in [pid for pid, words in family.items() if b"run.py" in words]:
        os.kill(pid, signal.SIGKILL)
    view = a.end_of(job)
    assert view.state == "failed"
    assert "b" in view.why
    for daemon in (a, b, c):
        daemon.no_process_is_left()


@pytest.mark.soak
def test_an_allocation_that_may_not_be_alone_ends_when_the_coordinator_stays_away(
    own: Cluster, go: Path
) -> None:
    a, b, _ = own
    policy = {"stop_alone_s": 15.0, "grace_s": 1.0}
    job = waiting(a, go, nodes=1, use=("b",), policy=policy)
    a.wait_for(job, "running")
    a.kill()
    b.no_process_is_left(within_s=5 * 20.0)
    a.start()
    view = a.end_of(job)
    assert view.state == "failed"
    assert "stop_alone" in view.why


# ---- which machines are admitted


def place(cluster: Cluster) -> Identity:
    identity = Identity.load(cluster[0].paths.state)
    assert identity is not None
    return identity


def opened(
    address: tuple[str, int], context: ssl.SSLContext, opening: p.Opening
) -> tuple[p.Opened | p.TurnedAway, str]:
    """What a daemon answers to an opening, and its identity."""
    with (
        socket.create_connection(address, timeout=60) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(framing.frame(framing.MESSAGE, m.encode(opening)))
        parser, peer = framing.Parser(), peer_of(connection)
        while True:
            data = connection.recv(65536)
            assert data, "it hung up without a word"
            for _, payload in parser.feed(data):
                return p.decode_opened(payload), peer.name if peer is not None else ""


@pytest.mark.parametrize(
    ("protocols", "spoken"), [((0, 1), 1), ((1, 2), 1), ((1, 1), 1), ((2, 3), None), ((0, 0), None)]
)
def test_daemons_one_protocol_apart_talk_and_others_are_told(
    cluster: Cluster, protocols: tuple[int, int], spoken: int | None
) -> None:
    head, member = place(cluster), Identity.load(cluster[1].paths.state)
    assert member is not None
    opening = p.Opening("request", protocols, "9.9", p.Person(1, "x"))
    answer, who = opened((head.address, head.port), client_context(member), opening)
    assert who == head.node
    if spoken is None:
        assert isinstance(answer, p.TurnedAway)
        assert "too old" in answer.message
    else:
        assert isinstance(answer, p.Opened)
        assert answer.protocol == spoken


@pytest.mark.parametrize("purpose", ["link", "request", "fetch"])
def test_without_a_certificate_no_machine_gets_in(cluster: Cluster, purpose: p.Purpose) -> None:
    head = place(cluster)
    opening = p.Opening(purpose, p.PROTOCOLS, "0.1", p.Person(0, "root", admin=True))
    answer, _ = opened((head.address, head.port), greeting_context(), opening)
    assert isinstance(answer, p.TurnedAway)
    assert answer.code == 5


def test_a_member_listens_to_its_coordinator_alone(cluster: Cluster) -> None:
    b, c = (Identity.load(daemon.paths.state) for daemon in cluster[1:])
    assert b is not None
    assert c is not None
    ask = p.Opening("ask", p.PROTOCOLS, "0.1")
    answer, _ = opened((b.address, b.port), client_context(c), ask)
    assert isinstance(answer, p.TurnedAway)
    assert "is not the coordinator" in answer.message
    answer, _ = opened((b.address, b.port), client_context(place(cluster)), ask)
    assert isinstance(answer, p.Opened)


def test_a_member_sends_a_machine_that_wants_to_join_to_its_coordinator(cluster: Cluster) -> None:
    b = Identity.load(cluster[1].paths.state)
    assert b is not None
    answer, _ = opened(
        (b.address, b.port), greeting_context(), p.Opening("greet", p.PROTOCOLS, "0.1")
    )
    assert isinstance(answer, p.TurnedAway)
    assert place(cluster).endpoint in answer.message


def test_a_removed_member_is_refused_and_says_how_to_go_on(own: Cluster, go: Path) -> None:
    a, b, c = own
    job = waiting(a, go)
    a.wait_for(job, "running")
    with pytest.raises(ClientError, match="job"):
        a.client.remove_node("b")
    a.client.remove_node("b", force=True)
    for daemon in (a, b, c):
        daemon.no_process_is_left()
    assert a.end_of(job).state == "failed"
    assert "b" not in node_states(c)
    wait_until(lambda: "wiiiiide leave" in b.client.status().problem, 60, "b says so")
    with pytest.raises(ClientError, match="removed"):
        b.client.nodes()
    b.stop()
    b.start()
    wait_until(lambda: "removed" in b.client.status().problem, 60, "b knows it after a restart too")
    assert b.client.leave().role == "alone"
    settle(b.client.status, "alone")
