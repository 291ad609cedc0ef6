"""A member whose coordinator is off: what people there see and can do, and what comes of it.

Two real daemons on one machine, each on a loopback address of its own.
"""

from __future__ import annotations

import threading

from tests.kit.conditions import wait_until
from tests.kit.daemons import private_cluster
from wiiiiided.cluster.allocation.job_dirs import CANCELLED
from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.domain.spec import Restart

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begun", flush=True)
time.sleep(1000)
"""


def test_a_job_cancelled_without_its_coordinator_ends_cancelled_through_crashes_of_both() -> None:
    with private_cluster(2) as (a, b):
        policy = {"restart": Restart(max=3, backoff_s=0.0), "grace_s": 3.0}
        job = b.submit(STUBBORN, use=("b",), policy=policy)
        b.wait_for(job, "running")
        wait_until(lambda: b.output(job) == ["begun"], 60, "it has begun")
        a.kill()
        said: list[str] = []
        client = Client(b.paths, notice=said.append)
        listed = client.jobs()
        assert said[0].startswith("waiting up to 4 s for the coordinator ")
        assert "(127.0.0.2:" in said[0]
        assert said[-1] == listed.partial
        assert [(one.id, one.state) for one in listed.jobs] == [(job, "running")]
        detail = client.show(job)
        assert [rank.state for rank in detail.ranks] == ["running"]
        assert b.output(job) == ["begun"]

        asked = threading.Thread(target=_cancelled, args=(client, job))
        asked.start()
        kept = b.paths.jobs / str(job) / CANCELLED
        wait_until(kept.exists, 60, "it is on the disk")
        b.kill()  # in the job's grace: the shim may have heard of it, or not
        b.start()
        b.no_process_is_left()
        asked.join(60)
        assert client.show(job).job.why.startswith("cancelled by ")

        a.start()
        view = a.end_of(job)
        assert (view.state, view.attempt) == ("cancelled", 1)
        assert view.why.endswith(" on b")
        wait_until(lambda: not kept.exists(), 60, "b need not remember it any more")
        again = a.client.requeue(job)
        assert again.state != "cancelled"
        a.wait_for(job, "running")
        b.kill()
        b.start()  # which tells nothing of the old cancellation
        wait_until(lambda: b.client.status().linked, 60, "b is heard")
        assert a.state(job) == "running"
        assert b.client.cancel(job, now=True).state == "cancelled"


def _cancelled(client: Client, job: int) -> None:
    try:
        client.cancel(job)
    except ClientError:
        pass  # its daemon was killed meanwhile
