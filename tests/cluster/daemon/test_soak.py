"""Five hundred short jobs while the daemon is killed at random: none orphaned, lost, or run twice.

submitting, cancelling, releasing ──► daemon ──► shims ──► ranks ──► marks
                                        ▲
                 SIGKILL or SIGTERM at any moment, also while it starts;
                 started again at once or after a while

WIIIIIDE_SOAK_SEED=7    the jobs and the kills of an earlier run; its timing is its own
WIIIIIDE_SOAK_JOBS=50   fewer jobs
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.daemon import soaking
from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_daemon
from wiiiiided.cluster.archive.pack import pack

JOBS = int(os.environ.get("WIIIIIDE_SOAK_JOBS", "500"))
SEED = int(os.environ.get("WIIIIIDE_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
ENDS_WITHIN_S = 300.0


def kill_at_random(daemon: PrivateDaemon, chance: random.Random, done: threading.Event) -> int:
    """Until the others are done; how often. The daemon runs when this returns."""
    kills = 0
    while not done.is_set():
        soon = chance.random() < 0.3  # while it starts, adopts, or sends what waited
        done.wait(chance.uniform(0.0, 0.5) if soon else chance.uniform(0.5, 3.0))
        daemon.stop(signal.SIGKILL if chance.random() < 0.8 else signal.SIGTERM)
        kills += 1
        if chance.random() < 0.4:
            done.wait(chance.uniform(0.0, 1.5))
        daemon.start(wait=False)
    wait_until(daemon.answers, 30, "the daemon answers after the last kill")
    return kills


def what_is_wrong(daemon: PrivateDaemon, users: soaking.Users, marks: Path) -> list[str]:
    """Everything that must not be, in sentences."""
    by_job: dict[str, set[str]] = defaultdict(set)
    found = []
    for path in marks.iterdir():
        by_job[path.name.split("-")[0]].add(path.name)
    found += [f"run twice: {name}" for name in sorted(by_job.pop("twice", ()))]
    jobs = {view.id: view for view in daemon.client.jobs(ended=2 * JOBS).jobs}
    lost = sorted(users.acknowledged - jobs.keys())
    found += [f"lost: job {job} was acknowledged" for job in lost]
    names = sorted(int(view.name) for view in jobs.values())
    if names != list(range(JOBS)):
        found.append(f"submitted once each, and there: {names}")
    for job, view in sorted(jobs.items()):
        plan = users.plans[int(view.name)]
        told = [line.text for line in daemon.client.show(job).story]
        problems = soaking.wrong(plan, view, by_job.pop(str(job), set()))
        starts = sum(text.startswith("starting on ") for text in told)
        if starts != view.attempt:
            problems.append(f"was placed {starts} times for {view.attempt} attempts")
        found += [f"job {job} ({plan}) {problem}; {told}" for problem in problems]
    found += [f"job {job} ran, and nobody knows it" for job in by_job]
    return found


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_hundreds_of_jobs_survive_hundreds_of_kills(capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    chance = random.Random(SEED)
    cores = len(os.sched_getaffinity(0))
    plans = [soaking.draw(chance, number, cores) for number in range(JOBS)]
    with capsys.disabled():
        print(f"\nsoak: {JOBS} jobs, seed {SEED}", flush=True)
    with private_daemon(start=False) as daemon, ThreadPoolExecutor(1) as thread:
        daemon.paths.config.write_text(f"[limits]\nkeep = {2 * JOBS}\n")
        marks, work = daemon.home / "marks", daemon.home / "work"
        marks.mkdir()
        work.mkdir()
        (work / "rank.py").write_text(soaking.RANK_PROGRAM)
        packed = pack(str(work))
        users = soaking.Users(daemon.client, plans, str(marks), packed)
        daemon.start()
        try:
            working = thread.submit(users.work)
            kills = kill_at_random(daemon, chance, users.done)
            working.result()
        finally:
            users.done.set()
            packed.remove()
        wait_until(lambda: not daemon.client.jobs().jobs, ENDS_WITHIN_S, "every job is over")
        problems = what_is_wrong(daemon, users, marks)
        daemon.no_process_is_left()
        said = daemon.said()
    with capsys.disabled():
        print(
            f"soak: {len(users.acknowledged)} submits acknowledged, {users.cut_off} cut off, "
            f"{kills} kills, {time.monotonic() - begin:.0f} s",
            flush=True,
        )
    assert not problems, f"seed {SEED}: " + "\n".join(problems)
    assert "a defect" not in said, said
    assert "Traceback" not in said, said
    assert kills > JOBS / 25, "the daemon was hardly ever killed"
