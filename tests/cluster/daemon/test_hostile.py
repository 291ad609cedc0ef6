"""Jobs that spoil their own records, and machines that fail: no other job notices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.daemon.slow_shims import may_begin
from tests.cluster.daemon.test_jobs import FOREVER, alive, running
from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_daemon
from wiiiiided.cluster.shim import protocol
from wiiiiided.domain.spec import Restart


@pytest.fixture
def daemon() -> Iterator[PrivateDaemon]:
    with private_daemon() as made:
        yield made


def claim_of(daemon: PrivateDaemon, job: int, attempt: int = 1) -> dict[str, object]:
    path = daemon.paths.jobs / str(job) / str(attempt) / protocol.CLAIM
    found: dict[str, object] = json.loads(path.read_text())
    return found


START = b'{"format": 1, "ended_at": 1, "codes": {}, "code": 1'
ENDS = {
    "half a character": START + b', "reason": "\\ud800"}',
    "a huge code": START + b"0" * 40 + b"}",
    "a deep nest": b"[" * 200_000,
    "codes of another kind": b'{"format": 1, "ended_at": 1, "codes": {"0": [1]}, "code": 1}',
    "control characters": START + b', "reason": "\\u001b[2J"}',
}


@pytest.mark.parametrize("content", ENDS.values(), ids=ENDS)
def test_a_spoiled_end_harms_its_own_job_only(
    daemon: PrivateDaemon, content: bytes, tmp_path: Path
) -> None:
    """The job kills its shim and writes its own end."""
    (tmp_path / "end").write_bytes(content)
    script = (
        "import os, shutil, signal\n"
        "shutil.copy('end', os.environ['WIIIIIDE_ATTEMPT_DIR'] + '/exit.json')\n"
        "os.kill(os.getppid(), signal.SIGKILL)"
    )
    job = daemon.submit(script, work=tmp_path)
    view = daemon.end_of(job)
    assert view.state == "failed"
    assert view.why.isprintable()
    assert daemon.client.show(job).job.state == "failed"
    assert daemon.end_of(daemon.submit("print(1)")).state == "done"
    daemon.kill()
    daemon.start()
    assert daemon.state(job) == "failed"
    assert "Traceback" not in daemon.said()


def test_a_claim_that_names_no_process_there_can_be(daemon: PrivateDaemon) -> None:
    job = daemon.submit(FOREVER)
    running(daemon, job)
    pid = claim_of(daemon, job)["pid"]
    daemon.kill()
    path = daemon.paths.jobs / str(job) / "1" / protocol.CLAIM
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 10**17}))
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    daemon.start()
    assert daemon.end_of(job).state == "failed"


CLAIMS = {
    "empty": lambda claim: "",
    "pid 0": lambda claim: json.dumps({**claim, "pid": 0}),
    "pid -1": lambda claim: json.dumps({**claim, "pid": -1}),
}


@pytest.mark.parametrize("spoiled", CLAIMS.values(), ids=CLAIMS)
def test_a_job_that_spoils_its_claim_can_be_cancelled_all_the_same(
    daemon: PrivateDaemon, spoiled: Callable[[dict[str, object]], str]
) -> None:
    """Its shim lives, a daemon that comes back cannot know it: what it runs is cleaned up."""
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    job = daemon.submit(ignores + FOREVER, policy={"grace_s": 600.0})
    running(daemon, job)
    cancelling = threading.Thread(target=daemon.client.cancel, args=(job,), daemon=True)
    cancelling.start()
    daemon.wait_for(job, "stopping")
    daemon.kill()
    path = daemon.paths.jobs / str(job) / "1" / protocol.CLAIM
    path.write_text(spoiled(claim_of(daemon, job)))
    daemon.start()
    assert daemon.end_of(job).state == "cancelled"
    cancelling.join()
    daemon.no_process_is_left()
    assert "Traceback" not in daemon.said()


@pytest.mark.parametrize("spoiled", CLAIMS.values(), ids=CLAIMS)
def test_a_job_that_spoils_its_claim_does_not_hold_its_node(
    daemon: PrivateDaemon, spoiled: Callable[[dict[str, object]], str]
) -> None:
    job = daemon.submit(FOREVER)
    running(daemon, job)
    daemon.kill()
    path = daemon.paths.jobs / str(job) / "1" / protocol.CLAIM
    path.write_text(spoiled(claim_of(daemon, job)))
    daemon.start()
    assert daemon.end_of(job).state == "failed"
    daemon.no_process_is_left()
    assert daemon.end_of(daemon.submit("print(1)")).state == "done"


FORGED = {
    "of another boot": lambda claim: json.dumps({**claim, "boot_id": "another-boot"}),
    "of a stop": lambda claim: json.dumps({**claim, "boot_id": ""}),
    "none": lambda claim: None,
}


@pytest.mark.parametrize("ended", [False, True], ids=["no end", "an end"])
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_job_that_forges_its_claim_does_not_free_its_node_while_it_runs(
    daemon: PrivateDaemon, forged: Callable[[dict[str, object]], str | None], ended: bool
) -> None:
    job = daemon.submit(FOREVER, workers=2)
    pids = running(daemon, job)
    daemon.kill()
    path = daemon.paths.jobs / str(job) / "1" / protocol.CLAIM
    text = forged(claim_of(daemon, job))
    path.unlink() if text is None else path.write_text(text)
    if ended:
        path.with_name(protocol.EXIT).write_bytes(START + b"}")
    daemon.start()
    assert daemon.end_of(job).state == "failed"
    assert not [pid for pid in pids if alive(pid)]


def test_a_daemon_without_descriptors_takes_up_again(daemon: PrivateDaemon, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = (
        "import pathlib, time; print('up', flush=True)\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    )
    job = daemon.submit(script)
    running(daemon, job)
    assert daemon.process is not None
    pid = str(daemon.process.pid)
    subprocess.run(["prlimit", "--pid", pid, "--nofile=3:4096"], check=True)
    go.touch()
    wait_until(lambda: "following it failed" in daemon.said(), 60, "it has noticed")
    subprocess.run(["prlimit", "--pid", pid, "--nofile=1024:4096"], check=True)
    assert daemon.end_of(job).state == "done"


def test_a_shim_that_another_process_ended_has_not_done_its_work(
    daemon: PrivateDaemon,
) -> None:
    """As when the machine shuts down: ranks that checkpoint at SIGTERM end with 0."""
    script = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + FOREVER
    again = Restart(max=1, on=("node-lost",), backoff_s=0.1)
    job = daemon.submit(script, policy={"restart": again})
    running(daemon, job)
    pid = claim_of(daemon, job)["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: daemon.view(job).attempt == 2, 60, "it starts again")
    running(daemon, job)
    daemon.client.cancel(job, now=True)


HASTY = """
from wiiiiided.cluster.daemon import main
from wiiiiided.cluster.allocation import shim_process
shim_process.ENFORCE_S = 2.0  # instead of thirty
raise SystemExit(main.main())
"""


def test_a_stopped_shim_is_ended_all_the_same() -> None:
    """SIGSTOP keeps it from obeying; the daemon ends it, and a cleanup what it had."""
    with private_daemon(program=(sys.executable, "-c", HASTY)) as daemon:
        job = daemon.submit(FOREVER)
        pids = running(daemon, job)
        pid = claim_of(daemon, job)["pid"]
        assert isinstance(pid, int)
        os.kill(pid, signal.SIGSTOP)
        view = daemon.client.cancel(job, now=True)
        assert view.state == "cancelled"
        assert not [pid for pid in pids if alive(pid)]


def test_a_shim_killed_before_its_claim_never_runs_beside_the_next_attempt() -> None:
    """A daemon dies just after it has started a shim that is stopped before it can claim; the next
    shim of that attempt is killed; the policy starts another attempt; the first shim wakes up."""
    program = (sys.executable, "-m", "tests.cluster.daemon.slow_shims")
    with private_daemon(program=program) as daemon:
        again = Restart(max=1, on=("node-lost", "failure"), backoff_s=0.1)
        job = daemon.submit(FOREVER, policy={"restart": again})
        (first,) = _shims(daemon, job, 1)
        os.kill(first, signal.SIGSTOP)
        daemon.kill()
        daemon.start()
        wait_until(lambda: len(_shims(daemon, job, 1)) == 2, 30, "a second shim of attempt 1")
        (second,) = set(_shims(daemon, job, 1)) - {first}
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: daemon.view(job).attempt == 2, 30, "attempt 2")
        with may_begin(daemon.home):
            os.kill(first, signal.SIGCONT)
            running(daemon, job)
            wait_until(lambda: not alive(first), 30, "the late shim leaves")
        ranks = [pid for pid in daemon.processes() if _variable(pid, "WIIIIIDE_ATTEMPT") == "1"]
        assert not ranks
        daemon.client.cancel(job, now=True)


def hung_mount(look_within_s: float) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.cluster.daemon.hung_mount", str(look_within_s))


def test_a_job_on_a_file_system_that_does_not_answer_fails_in_a_sentence_and_stops_no_other() -> (
    None
):
    with private_daemon(program=hung_mount(0.5)) as daemon:
        job = daemon.submit("print(1)", python="/hung/venv")
        view = daemon.end_of(job)
        text = "its interpreter /hung/venv is on a file system that does not answer"
        assert (view.state, view.why) == ("failed", text)
        assert daemon.end_of(daemon.submit("print(1)")).state == "done"


def test_a_job_whose_file_system_does_not_answer_yet_can_be_cancelled() -> None:
    with private_daemon(program=hung_mount(600)) as daemon:
        job = daemon.submit("print(1)", python="/hung/venv")
        daemon.wait_for(job, "starting")
        daemon.kill()
        daemon.start()
        daemon.wait_for(job, "starting")
        assert daemon.client.cancel(job).state == "cancelled"
        assert daemon.end_of(daemon.submit("print(1)")).state == "done"


def _shims(daemon: PrivateDaemon, job: int, attempt: int) -> list[int]:
    folder = f"{daemon.paths.jobs}/{job}/{attempt}"
    found: list[int] = []

    def there() -> bool:
        found[:] = [
            pid
            for pid in daemon.processes()
            if folder in _words(pid) and any("cluster/shim/run.py" in word for word in _words(pid))
        ]
        return bool(found)

    wait_until(there, 30, "a shim")
    return found


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _variable(pid: int, name: str) -> str | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    found = [v for v in environment if v.startswith(name.encode() + b"=")]
    return found[0].partition(b"=")[2].decode() if found else None


@pytest.mark.needs("root", "unshare")
def test_a_machine_with_another_name_keeps_its_jobs() -> None:
    """A container that is made anew has another host name and the same state."""
    rename = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
    run = [sys.executable, "-m", "wiiiiided.cluster.daemon.main"]
    with private_daemon(program=[*rename, "machine-a", *run]) as daemon:
        job = daemon.submit(FOREVER)
        pids = running(daemon, job)
        daemon.kill()
        daemon.program = [*rename, "machine-b", *run]
        daemon.start()
        assert daemon.client.status().node.name == "machine-a"
        wait_until(lambda: daemon.pids(job) == pids, 30, "it is known again")
        assert daemon.client.cancel(job, now=True).state == "cancelled"


@pytest.mark.needs("root", "mount")
def test_a_full_disk_keeps_jobs_waiting_and_fails_none() -> None:
    with private_daemon(start=False) as daemon:
        jobs = daemon.home / "jobs"
        jobs.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(jobs)]
        subprocess.run(mount, check=True)
        try:
            daemon.start()
            filler = jobs / "filler"
            with filler.open("wb", buffering=0) as file:
                while _wrote(file.fileno()):
                    pass
            waiting = [daemon.submit("print(1)") for _ in range(3)]
            wait_until(lambda: "cannot be started now" in daemon.said(), 30, "it says so")
            assert {daemon.state(job) for job in waiting} == {"starting", "queued"}
            filler.unlink()
            assert {daemon.end_of(job).state for job in waiting} == {"done"}
            daemon.stop()
        finally:
            subprocess.run(["umount", str(jobs)], check=True)


def _wrote(fd: int) -> bool:
    try:
        return os.write(fd, b"x" * 512) > 0
    except OSError:
        return False


def test_a_rank_that_ended_well_does_not_hang(daemon: PrivateDaemon) -> None:
    script = (
        "import os, time\nfrom wiiiiided.torch import progress\nprogress(1)\n"
        "for step in range(50 if os.environ['RANK'] == '0' else 0): progress(step); time.sleep(0.2)"
    )
    # Longer than a busy machine holds up the rank that works, shorter than that one works.
    job = daemon.submit(script, workers=2, policy={"hang_timeout_s": 7.0})
    assert daemon.end_of(job, within_s=100).state == "done"
