"""What dies in a cluster, what is named, and what goes on. Deadlines are five times the promise."""

from __future__ import annotations

import contextlib
import re
import time

import psutil
import pytest

from tests.kit.conditions import wait_until
from tests.kit.machines import Machine
from tests.machines.cluster import SECONDS, Cluster

pytestmark = [pytest.mark.needs("root", "machines", "disks", "ip"), pytest.mark.timeout(600)]
RESTARTS = 'restart = { max = 2, backoff = "1s" }'
PORT = 9461


def test_a_killed_worker_is_named_and_training_goes_on_from_its_checkpoint(
    cluster: Cluster,
) -> None:
    job = cluster.training(policy=RESTARTS)
    victim = cluster.pids(job)["b"][0]
    killed_at = time.time()
    cluster.fleet["b"].run("kill", "-KILL", str(victim))
    cluster.running(job, attempt=2)
    story = cluster.fleet["a"].wiiiiide("show", str(job)).stdout
    assert "rank 1 was killed by SIGKILL" in story
    first = cluster.log(job, "a", "--attempt", "1")
    lost = [line for line in first.splitlines() if re.search(r"rank 1 .*on b", line)]
    assert any(line.startswith(("a:0", "c:2")) for line in lost), first[-3000:]
    stops = [line["at"] for line in cluster.show(job)["story"] if "stopping" in line["text"]]
    assert stops[0] - killed_at < 5 * 1.0 + 5  # the error, and its way through the daemons
    cluster.goes_on(job)
    begun = [int(n) for n in re.findall(r"begins at (\d+)", cluster.log(job))]
    assert min(begun) >= 3
    for letter in "abc":
        starts = cluster.starts(job, letter)
        assert len(starts) == len(set(starts)) == 2


@pytest.mark.parametrize("letter", ["a", "b"])
def test_a_killed_daemon_disturbs_nothing(cluster: Cluster, letter: str) -> None:
    job = cluster.training()
    pids = cluster.pids(job)
    old = cluster.daemon(letter)
    cluster.kill_daemon(letter)
    wait_until(lambda: cluster.daemon(letter) not in (0, old), SECONDS, "systemd starts it again")
    cluster.all_there()
    cluster.goes_on(job)
    assert cluster.pids(job) == pids
    assert cluster.view(job)["attempt"] == 1


def test_all_daemons_restarted_at_once_disturb_nothing(cluster: Cluster) -> None:
    job = cluster.training()
    pids = cluster.pids(job)
    old = {letter: cluster.daemon(letter) for letter in "abc"}
    for machine in cluster.fleet:
        machine.run("systemctl", "restart", "--no-block", "wiiiiided")
    # The pids first: those that answer could still be the ones that are about to go.
    wait_until(lambda: _are_others(cluster, old), SECONDS, "all daemons are new ones")
    wait_until(lambda: _answers(cluster), SECONDS, "the daemons are back")
    cluster.all_there()
    cluster.goes_on(job)
    assert cluster.pids(job) == pids


def _are_others(cluster: Cluster, old: dict[str, int]) -> bool:
    return all(cluster.daemon(letter) not in (0, pid) for letter, pid in old.items())


def _answers(cluster: Cluster) -> bool:
    return all(m.wiiiiide("nodes", check=False).returncode == 0 for m in cluster.fleet)


def test_a_job_that_ends_without_its_coordinator_is_reported_once(cluster: Cluster) -> None:
    job = cluster.train(60, 0.1)
    cluster.until(job, lambda: cluster.steps(job) > 3, "it trains")
    with cluster.no_daemon("a"):
        wait_until(lambda: not _ranks(cluster), SECONDS, "its ranks have ended")
    assert cluster.ended(job)["state"] == "done"
    texts = [line["text"] for line in cluster.show(job)["story"]]
    assert sum("done" in text for text in texts) == 1
    assert all(cluster.starts(job, letter) == [f"1 {n}"] for n, letter in enumerate("abc"))


def _ranks(cluster: Cluster) -> bool:
    return any(machine.processes_of("wiiiiide-job") for machine in cluster.fleet)


def test_a_machine_that_loses_power_is_named_and_comes_back_by_itself(cluster: Cluster) -> None:
    job = cluster.training(policy=RESTARTS)
    cluster.fleet["c"].power_loss()
    off_at = time.time()
    cluster.until(
        job,
        lambda: bool(re.search(r"rank 2 .*on c", _first_attempt(cluster, job))),
        "the others name the rank on it",
        5 * 10.0 + 10,
    )
    wait_until(lambda: cluster.nodes()["c"]["state"] == "lost", 5 * 12.0, "it is lost")
    cluster.until(job, lambda: cluster.view(job)["state"] == "stopping", "the others have ended")
    assert "c has not been heard of" in cluster.view(job)["why"]
    assert time.time() - off_at < SECONDS
    cluster.fleet["c"].boot()
    cluster.running(job, attempt=2)
    cluster.goes_on(job)
    starts = cluster.starts(job, "a")
    assert starts == ["1 0", "2 0"]


def _first_attempt(cluster: Cluster, job: int) -> str:
    lines = cluster.log(job, "a", "--attempt", "1").splitlines()
    return "\n".join(line for line in lines if not line.startswith("c:"))


def test_a_coordinator_that_loses_power_loses_nothing_it_has_acknowledged(
    cluster: Cluster,
) -> None:
    job = cluster.training(policy=RESTARTS)
    waiting = cluster.train(3)  # acknowledged a moment before
    cluster.fleet["a"].power_loss()
    cluster.fleet["a"].boot()
    cluster.all_there()
    assert cluster.view(waiting)["state"] in ("queued", "starting", "running", "done")
    cluster.running(job, attempt=2)
    cluster.goes_on(job)
    for letter in "abc":
        starts = cluster.starts(job, letter)
        assert len(starts) == len(set(starts)) == 2


def test_a_cable_that_is_out_for_5_s_is_a_pause(cluster: Cluster) -> None:
    job = cluster.training()
    pids = cluster.pids(job)
    cluster.fleet.cut("b")
    time.sleep(5.0)  # the fault itself
    cluster.fleet.heal("b")
    cluster.all_there()
    cluster.goes_on(job)
    assert cluster.pids(job) == pids
    assert cluster.view(job)["attempt"] == 1


@pytest.mark.soak
def test_a_cable_that_is_out_for_60_s_ends_the_attempt_and_the_next_goes_on(
    cluster: Cluster,
) -> None:
    job = cluster.training(policy=RESTARTS)
    cluster.fleet.cut("b")
    cut_at = time.time()
    wait_until(lambda: cluster.nodes()["b"]["state"] == "lost", 5 * 12.0, "b is lost")
    time.sleep(max(0.0, cut_at + 60.0 - time.time()))
    assert cluster.view(job)["attempt"] == 1  # its allocation may run: nothing is started elsewhere
    cluster.fleet.heal("b")
    cluster.running(job, attempt=2)
    cluster.goes_on(job)
    for letter in "abc":
        starts = cluster.starts(job, letter)
        assert len(starts) == len(set(starts)) == 2


def test_a_frozen_machine_is_waited_for(cluster: Cluster) -> None:
    job = cluster.training()
    pids = cluster.pids(job)
    cluster.fleet["c"].freeze()
    wait_until(lambda: cluster.nodes()["c"]["state"] == "lost", 5 * 12.0, "it is lost")
    stalled = r"rank 2 .*c"
    cluster.until(
        job, lambda: bool(re.search(stalled, _first_attempt(cluster, job))), "who is missing"
    )
    cluster.fleet["c"].thaw()
    cluster.all_there()
    cluster.goes_on(job)
    assert cluster.pids(job) == pids


def test_an_allocation_moves_only_when_an_operator_vouches_for_its_end(cluster: Cluster) -> None:
    job = cluster.training(nodes="2-3", policy=RESTARTS)
    assert cluster.view(job)["nodes"] == ["a", "b", "c"]
    cluster.fleet["c"].crash()
    cluster.until(job, lambda: cluster.view(job)["state"] == "stopping", "the others have ended")
    wait_until(lambda: cluster.nodes()["c"]["state"] == "lost", 5 * 12.0, "it is lost")
    assert cluster.view(job)["attempt"] == 1
    refused = cluster.fleet["a"].wiiiiide("nodes", "lost", "b", check=False)
    assert refused.returncode != 0  # it is there: nothing to vouch for
    cluster.fleet["b"].wiiiiide("nodes", "lost", "c")
    cluster.running(job, attempt=2)
    assert cluster.view(job)["nodes"] == ["a", "b"]
    cluster.goes_on(job)


def test_nothing_but_the_cluster_gets_in(cluster: Cluster) -> None:
    a, c = cluster.fleet["a"], cluster.fleet["c"]
    endpoint = f"{cluster.fleet.address('a')}:{PORT}"
    token = a.wiiiiide("token", "create").stdout.split()[-1]
    short = a.wiiiiide("token", "create", "--ttl", "1s").stdout.split()[-1]
    made_at = time.monotonic()
    stranger = c.wiiiiide("submit", "/home/ada/none.toml", user="bob", check=False)
    assert stranger.returncode in (3, 5)
    assert c.wiiiiide("ps", user="bob", check=False).returncode == 5
    # A machine outside: a daemon of ada's own, on the same wire.
    outside = f"WIIIIIDE_HOME=/home/ada/own {c.bin}"
    c.run("sh", "-c", f"{outside}/wiiiiided >/home/ada/own.log 2>&1 &", user="ada")
    join = f"{outside}/wiiiiide join --name outside --port 9462 {endpoint}"
    try:
        wait_until(lambda: _said(c, f"{outside}/wiiiiide ps") == 0, SECONDS, "it answers")
        flipped = token[:-6] + ("A" if token[-6] != "A" else "B") + token[-5:]
        assert _said(c, f"{join} {flipped}") != 0
        # Sooner it would be let in, and the machine would be a member already.
        wait_until(lambda: time.monotonic() > made_at + 1.0, SECONDS, "its second is over")
        assert "expired" in _words(c, f"{join} {short}")
        assert _said(c, f"{join} {token}") == 0
        assert set(cluster.nodes()) == {"a", "b", "c", "outside"}
        assert _said(c, f"{outside}/wiiiiide leave") == 0
        assert "used" in _words(c, f"{join} {token}")
        assert set(cluster.nodes()) == {"a", "b", "c"}
    finally:
        wait_until(lambda: _are_gone(c, "ada"), SECONDS, "nothing of ada's writes any more")
        c.run("rm", "-rf", "/home/ada/own")


def _are_gone(machine: Machine, user: str) -> bool:
    """Whether nothing of a user's runs; else it is killed."""
    left = machine.processes_of(user)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return not left


def _said(machine: Machine, words: str) -> int:
    return machine.run("sh", "-c", words, user="ada", check=False).returncode


def _words(machine: Machine, words: str) -> str:
    return machine.run("sh", "-c", words, user="ada", check=False).stderr


def test_a_removed_machine_is_refused_everywhere_and_may_join_again(cluster: Cluster) -> None:
    cluster.fleet["b"].wiiiiide("nodes", "remove", "c")
    assert set(cluster.nodes()) == {"a", "b"}
    refused = cluster.fleet["c"].wiiiiide("nodes", check=False)
    assert refused.returncode != 0
    assert "leave" in refused.stderr
    cluster.fleet["c"].wiiiiide("leave")
    cluster.join("c", cluster.fleet["a"].wiiiiide("token", "create").stdout.strip())
    cluster.all_there()
    job = cluster.train(3)
    assert cluster.ended(job)["state"] == "done"
