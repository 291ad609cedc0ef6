"""Requests from any machine about jobs on all of them, with three real daemons."""

from __future__ import annotations

import os
import signal
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_cluster
from wiiiiided.cluster.client import Client, DaemonRefused
from wiiiiided.cluster.rpc import messages as m

# Every rank prints its number, writes files that differ and one that does not, and waits.
SCRIPT = """
import os, pathlib, sys, time
rank = os.environ["RANK"]
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/same").write_text("same")
pathlib.Path("out/which").write_text("of rank " + rank)
pathlib.Path("out/" + rank).write_text(rank)
print("begun", rank, flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
print("ended", rank, flush=True)
"""
Cluster = list[PrivateDaemon]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with private_cluster() as daemons:
        yield daemons


def waiting(daemon: PrivateDaemon, go: Path, **rest: object) -> int:
    """A job on all nodes that runs until `go` is there."""
    command = ("python", "-c", SCRIPT, str(go))
    return daemon.submit(command=command, nodes=3, **rest)  # type: ignore[arg-type]


def has_begun(daemon: PrivateDaemon, job: int) -> None:
    def begun() -> bool:
        return sorted(daemon.output(job)) == [f"begun {rank}" for rank in range(3)]

    wait_until(begun, 60, "all ranks have said so")


def lines_of(client: Client, job: int) -> Iterator[str]:
    """What the ranks write, as it comes."""
    for item in client.follow(job):
        if isinstance(item, m.LogLine) and item.stream != "note":
            yield item.text


def test_any_machine_shows_everything_of_a_job_on_all(cluster: Cluster, tmp_path: Path) -> None:
    a, b, c = cluster
    job = waiting(b, tmp_path / "go", work=_work(tmp_path))
    has_begun(c, job)

    def known() -> bool:  # of a line its node knows by the file, of a pid when the shim has told it
        ranks = c.client.show(job).ranks
        return all(rank.pid is not None and rank.state == "running" for rank in ranks)

    wait_until(known, 60, "all ranks are known")
    detail = c.client.show(job)
    nodes = [rank.node for rank in detail.ranks]
    assert nodes[1:] == ["b", "c"]
    assert detail.job.owner == b.client.show(job).job.owner
    lines = list(a.client.logs(job))
    assert {(line.rank, line.node) for line in lines} == set(enumerate(nodes))
    assert [line.at for line in lines] == sorted(line.at for line in lines)
    assert [dump.rank for dump in b.client.stacks(job)] == [0, 1, 2]
    (tmp_path / "go").touch()
    assert b.end_of(job).state == "done"
    found = pulled(b, job, tmp_path)
    assert found == {
        "out/0": "0",
        "out/1": "1",
        "out/2": "2",
        "out/same": "same",
        "out/which": "of rank 0",
        "out/which.b": "of rank 1",
        "out/which.c": "of rank 2",
    }


def _work(tmp_path: Path) -> Path:
    """A directory that has to be sent: from b to the coordinator, from there to c."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "data").write_bytes(os.urandom(3 << 20))
    return work


def pulled(daemon: PrivateDaemon, job: int, tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "pulled.tar"
    with daemon.client.pull(job, ("out/**",)) as blob, path.open("wb") as file:
        while piece := blob.read(1 << 16):
            file.write(piece)
    with tarfile.open(path) as archive:
        return {e.name: archive.extractfile(e).read().decode() for e in archive}  # type: ignore[union-attr]


def test_what_a_member_submits_it_keeps_and_the_others_get(
    cluster: Cluster, tmp_path: Path
) -> None:
    a, b, c = cluster
    job = waiting(b, tmp_path / "go", work=_work(tmp_path))
    has_begun(a, job)
    there = [{path.name for path in (d.paths.state / "archives").iterdir()} for d in (a, b, c)]
    assert there[0] & there[1] & there[2]
    (tmp_path / "go").touch()
    assert a.end_of(job).state == "done"


def test_lines_are_followed_on_a_member_through_the_death_of_the_coordinator(
    cluster: Cluster, tmp_path: Path
) -> None:
    a, b, _ = cluster
    job = waiting(a, tmp_path / "go")
    notices: list[str] = []
    texts: list[str] = []

    def follow() -> None:
        texts.extend(lines_of(Client(b.paths, notices.append), job))

    following = threading.Thread(target=follow)
    following.start()
    try:
        wait_until(lambda: len(texts) == 3, 60, "what all have said")
        a.kill()
        wait_until(lambda: bool(notices), 60, "it was noticed")
        a.start()
        wait_until(lambda: "the daemon is back" in notices, 60, "it is back")
        (tmp_path / "go").touch()
    finally:
        (tmp_path / "go").touch()
        following.join(60)
    assert sorted(texts) == sorted(
        f"{word} {rank}" for word in ("begun", "ended") for rank in range(3)
    )


def test_lines_of_a_member_whose_daemon_dies_go_on_when_it_is_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    a, b, _ = cluster
    job = waiting(a, tmp_path / "go")
    texts: list[str] = []

    def follow() -> None:
        texts.extend(lines_of(a.client, job))

    following = threading.Thread(target=follow)
    following.start()
    try:
        wait_until(lambda: len(texts) == 3, 60, "what all have said")
        b.kill()
        b.start()
    finally:
        (tmp_path / "go").touch()
        following.join(60)
    assert sorted(texts) == sorted(
        f"{word} {rank}" for word in ("begun", "ended") for rank in range(3)
    )


def test_without_the_coordinator_a_member_says_so(cluster: Cluster) -> None:
    a, b, _ = cluster
    assert a.process is not None
    name = a.client.status().node.name
    a.stop()
    try:
        with pytest.raises(DaemonRefused, match=f"the coordinator {name} .* jobs go on") as no:
            b.client.history()
        assert no.value.code == 4
        told = b.client.jobs()
        assert told.partial.startswith(f"the coordinator {name} ")
        assert told.partial.endswith("; b tells of its own jobs only")
        assert b.client.status().role == "member"
    finally:
        a.start()
    wait_until(lambda: b.client.status().linked, 60, "they have found each other")


def test_a_frozen_member_costs_a_line_and_no_wait_without_end(
    cluster: Cluster, tmp_path: Path
) -> None:
    a, b, _ = cluster
    job = waiting(a, tmp_path / "go")
    has_begun(a, job)
    assert b.process is not None
    b.process.send_signal(signal.SIGSTOP)
    try:
        lines = list(a.client.logs(job))
    finally:
        b.process.send_signal(signal.SIGCONT)
        (tmp_path / "go").touch()
    (note,) = [line for line in lines if line.stream == "note"]
    assert (note.node, note.rank) == ("b", 1)
    assert note.text.startswith("b does not answer")
    assert len(lines) == 3
    assert a.end_of(job).state == "done"
