"""Which way a collective takes: inside one host, or in two levels when its group spans several.

    one host        local.*   everything in shared memory
    several hosts   wide.*    shared memory inside each host, one exchange between them

The process group asks here and need not know. The arguments mean the same on both ways.
"""

from __future__ import annotations

from collections.abc import Sequence

from wiiiiided.backend.collectives.local.all_gather import all_gather as local_all_gather
from wiiiiided.backend.collectives.local.all_reduce import SmallLocalAllReduce
from wiiiiided.backend.collectives.local.all_reduce import all_reduce as local_all_reduce
from wiiiiided.backend.collectives.local.all_to_all import all_to_all as local_all_to_all
from wiiiiided.backend.collectives.local.barrier import barrier as local_barrier
from wiiiiided.backend.collectives.local.barrier import monitored_barrier as local_monitored_barrier
from wiiiiided.backend.collectives.local.broadcast import broadcast as local_broadcast
from wiiiiided.backend.collectives.local.reduce_scatter import (
    reduce_scatter as local_reduce_scatter,
)
from wiiiiided.backend.collectives.local.scatter import scatter as local_scatter
from wiiiiided.backend.collectives.wide.all_gather import all_gather as wide_all_gather
from wiiiiided.backend.collectives.wide.all_reduce import SmallWideAllReduce
from wiiiiided.backend.collectives.wide.all_reduce import all_reduce as wide_all_reduce
from wiiiiided.backend.collectives.wide.barrier import barrier as wide_barrier
from wiiiiided.backend.collectives.wide.barrier import monitored_barrier as wide_monitored_barrier
from wiiiiided.backend.collectives.wide.broadcast import broadcast as wide_broadcast
from wiiiiided.backend.collectives.wide.pairwise import all_to_all as wide_all_to_all
from wiiiiided.backend.collectives.wide.pairwise import gather as wide_gather
from wiiiiided.backend.collectives.wide.pairwise import scatter as wide_scatter
from wiiiiided.backend.collectives.wide.reduce_scatter import reduce_scatter as wide_reduce_scatter
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.operation import BatchItem, Plan
from wiiiiided.backend.engine.shared_tensors import PRIVATE, Place, Placement
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import Reduction
from wiiiiided.backend.shm.slots import Array


def ready_all_reduce(
    group: Group, call: CallSignature, x: Array, reduction: Reduction
) -> SmallLocalAllReduce | SmallWideAllReduce:
    """A small all_reduce, made ready once for all calls of its kind."""
    if group.wide is None:
        return SmallLocalAllReduce(group.team, call, reduction.final, x.dtype, x.size)
    return SmallWideAllReduce(group, call, reduction, x.dtype, x.size)


def batch_item(ready: SmallLocalAllReduce | SmallWideAllReduce, x: Array) -> BatchItem | None:
    """A small all_reduce's batch item: between hosts it travels with those queued beside it."""
    return ready.batch_item(x) if isinstance(ready, SmallWideAllReduce) and x.size else None


def all_reduce(
    group: Group,
    call: CallSignature,
    x: Array,
    reduction: Reduction,
    place: Placement = PRIVATE,
    root: int = -1,
) -> Plan:
    """`root` ≥ 0: only that rank gets the result, the others' arrays are not changed."""
    if group.wide is None:
        return local_all_reduce(group.team, call, x, reduction.final, place, root)
    return wide_all_reduce(group, call, x, reduction, root)


def broadcast(
    group: Group, call: CallSignature, x: Array, root: int, place: Place = PRIVATE
) -> Plan:
    """The root's array to all."""
    if group.wide is None:
        return local_broadcast(group.team, call, x, root, place)
    return wide_broadcast(group, call, x, root)


def all_gather(
    group: Group,
    call: CallSignature,
    x: Array,
    outputs: Sequence[Array],
    place: Placement = PRIVATE,
) -> Plan:
    """`outputs[r]` becomes rank r's x."""
    if group.wide is None:
        return local_all_gather(group.team, call, x, outputs, place)
    return wide_all_gather(group, call, x, outputs)


def gather(
    group: Group, call: CallSignature, x: Array, outputs: Sequence[Array], root: int
) -> Plan:
    """`outputs[r]` of the root becomes rank r's x; the others have none."""
    if group.wide is None:
        return local_all_gather(group.team, call, x, outputs)
    return wide_gather(group, call, x, outputs, root)


def scatter(
    group: Group, call: CallSignature, inputs: Sequence[Array], output: Array, root: int
) -> Plan:
    """`inputs[r]` of the root becomes rank r's output; the others have none."""
    if group.wide is None:
        return local_scatter(group.team, call, inputs, output, root)
    return wide_scatter(group, call, inputs, output, root)


def reduce_scatter(
    group: Group,
    call: CallSignature,
    inputs: Sequence[Array],
    output: Array,
    reduction: Reduction,
    whole: Array | None = None,
    place: Placement = PRIVATE,
) -> Plan:
    """`whole` is the inputs as one array, if they are one; `place` says where it lies."""
    if group.wide is None:
        return local_reduce_scatter(group.team, call, inputs, output, reduction.final, whole, place)
    return wide_reduce_scatter(group, call, inputs, output, reduction)


def all_to_all(
    group: Group, call: CallSignature, inputs: Sequence[Array], outputs: Sequence[Array]
) -> Plan:
    """`outputs[r]` becomes what rank r has for this one."""
    if group.wide is None:
        return local_all_to_all(group.team, call, inputs, outputs)
    return wide_all_to_all(group, call, inputs, outputs)


def barrier(group: Group, call: CallSignature) -> Plan:
    """Done when all ranks have called it."""
    return local_barrier(group.team, call) if group.wide is None else wide_barrier(group, call)


def monitored_barrier(group: Group) -> Plan:
    """Done when all have entered; giving up leaves the group whole."""
    if group.wide is None:
        return local_monitored_barrier(group.team)
    return wide_monitored_barrier(group)
