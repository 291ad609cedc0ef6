"""A job with network.encrypt on two machines: its ranks meet in TLS, with what their daemons made.

What passes on the way is looked at in tests/cluster/shim/test_store_route.py.
"""

from __future__ import annotations

from tests.kit.daemons import private_cluster
from wiiiiided.cluster.shim import protocol
from wiiiiided.domain.spec import Network

TOGETHER = """
import torch, torch.distributed as dist
dist.init_process_group("wiiiiide")
x = torch.ones(4)
dist.all_reduce(x)
print(x[0].item(), flush=True)
dist.destroy_process_group()
"""


def test_ranks_of_two_machines_meet_in_tls() -> None:
    with private_cluster(2) as daemons:
        a, _ = daemons
        job = a.submit(TOGETHER, nodes=2, cores=1, network=Network(encrypt=True))
        view = a.end_of(job)
        assert view.state == "done", view.why
        assert a.output(job) == ["2.0", "2.0"]
        made = [(one.paths.jobs / str(job) / "1" / protocol.PEM).exists() for one in daemons]
        assert made == [True, False]  # for the one Store, on the first node
