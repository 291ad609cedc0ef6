"""The environment of a rank: everything torchrun gives, so that scripts made for it run unchanged.

The values follow torch.distributed.run with one agent per machine and one role, "default". Its
workers are clients of a Store that the agent keeps, here `store_server`. They look for it

    on a machine alone     on loopback, at a port of the shim's
    on one of several      at this machine's own one port: its daemon passes the connection on to
                           the shim, which has the Store or a proxy to it (`store_proxy`)

A job's own variables (order.env) overrule the defaults, but not what makes the ranks find each
other.
"""

from __future__ import annotations

import os.path

from wiiiiided.cluster.shim.protocol import LaunchOrder, host_and_port

# Its `sitecustomize` runs in every Python of a job, and says at its top what it does.
BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bootstrap")

MARK = "WIIIIIDE_ATTEMPT_DIR"  # the cleanup finds an attempt's processes by it


def for_rank(
    order: LaunchOrder, rank: int, attempt: str, port: int, secrets: str
) -> dict[str, str]:
    """All variables of one rank. `port` is the Store's on loopback, for a machine alone; `secrets`
    is the path of their file, empty when the job has none."""
    return {
        **_defaults(order),
        **order.env,
        **_torchrun(order, rank, port),
        **_own(order, rank, attempt, secrets),
    }


def _defaults(order: LaunchOrder) -> dict[str, str]:
    """Defaults that the job may overrule."""
    defaults = {
        "OMP_NUM_THREADS": str(order.threads),
        "PYTHONUNBUFFERED": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    }
    # A job on one machine listens on loopback only.
    if interface := "lo" if order.nodes == 1 else order.interface:
        defaults["GLOO_SOCKET_IFNAME"] = defaults["NCCL_SOCKET_IFNAME"] = interface
    return defaults


def _torchrun(order: LaunchOrder, rank: int, port: int) -> dict[str, str]:
    host, port = host_and_port(order.door) if order.door else ("127.0.0.1", port)
    return {
        "LOCAL_RANK": str(rank - order.first_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(order.node_index),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(order.workers),
        "WORLD_SIZE": str(order.world_size),
        "GROUP_WORLD_SIZE": str(order.nodes),
        "ROLE_WORLD_SIZE": str(order.world_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(order.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(order.max_restarts),
        "TORCHELASTIC_RUN_ID": f"wiiiiide-{order.job}",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _own(order: LaunchOrder, rank: int, attempt: str, secrets: str) -> dict[str, str]:
    given = order.env.get("PYTHONPATH")
    own = {
        "TORCHELASTIC_ERROR_FILE": f"{attempt}/error-{rank}.json",
        "WIIIIIDE_JOB_ID": str(order.job),
        "WIIIIIDE_ATTEMPT": str(order.attempt),
        MARK: attempt,
        "WIIIIIDE_WORK": order.work,
        "WIIIIIDE_STATS": f"{attempt}/stats-{rank}",
        "WIIIIIDE_STACKS": f"{attempt}/stacks-{rank}",
        "PYTHONPATH": f"{BOOTSTRAP}:{given}" if given else BOOTSTRAP,
    }
    if order.door:
        own["WIIIIIDE_DOOR"] = order.door
        own["WIIIIIDE_DAEMON_UID"] = str(order.listener_uid)
    if secrets:
        own["WIIIIIDE_SECRETS"] = secrets
    return own
