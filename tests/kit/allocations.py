"""Two machines of a cluster on one: each with its one port, its jobs' directories and its shims.

with Machine(folder / "a") as first, Machine(folder / "b") as second:
    with allocations(argv, first, second) as (here, there):
        here.start()                        # as `kit.shims.Attempt`
        there.start()
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tests.kit.port_mux import Port
from tests.kit.shims import Attempt
from wiiiiided.cluster.shim import protocol
from wiiiiided.cluster.trust.signing_request import self_signed

JOB = 7
KEY = bytes(range(32))
HOST = "127.0.0.1"


class Machine(Port):
    """A machine's one port, and the allocations on it."""

    @property
    def endpoint(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.number}"

    def allocation(self, argv: Sequence[str], **fields: Any) -> Attempt:
        """An allocation here, its key in place."""
        job = fields.setdefault("job", JOB)
        env = {"WIIIIIDE_HOST_ID": f"host-{self.number}"}  # they are apart, for the backend too
        made = Attempt(
            self.job_dirs.job(job), argv, env=env, door=self.endpoint, interface="lo", **fields
        )
        (made.path / protocol.KEY).write_bytes(KEY)
        if made.order.encrypt and not made.order.node_index:
            (made.path / protocol.PEM).write_text(self_signed())
        self.live.add((job, 1))
        return made


@contextlib.contextmanager
def allocations(
    argv: Sequence[str], first: Machine, second: Machine, workers: int = 1, **fields: Any
) -> Iterator[tuple[Attempt, Attempt]]:
    """A job's allocation on each machine, the Store on the first."""
    same = {
        "workers": workers,
        "world_size": 2 * workers,
        "nodes": 2,
        "head": first.endpoint,
        **fields,
    }
    with (
        first.allocation(argv, **same) as here,
        second.allocation(argv, first_rank=workers, node_index=1, **same) as there,
    ):
        yield here, there
