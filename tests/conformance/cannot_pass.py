"""The tests of the suite that the backend cannot pass, each with the reason.

A name belongs here only if nothing in the backend could make the test pass. A test checks that
every name is one the census would otherwise run.
"""

from __future__ import annotations

CANNOT_PASS: dict[str, str] = {
    "test_monitored_barrier_gloo": (
        "torch.distributed.monitored_barrier refuses every backend whose name is not gloo."
    ),
    "test_monitored_barrier_gloo_subgroup": (
        "torch.distributed.monitored_barrier refuses every backend whose name is not gloo."
    ),
    "test_monitored_barrier_failure_order": (
        "torch.distributed.monitored_barrier refuses every backend whose name is not gloo."
    ),
    "test_monitored_barrier_gloo_rank_0_timeout": (
        "It asks for gloo's own wording of the error; ours names the ranks that are missing."
    ),
    "test_monitored_barrier_wait_all_ranks": (
        "torch.distributed.monitored_barrier refuses every backend whose name is not gloo."
    ),
}
