"""The process group torch.distributed talks to: every collective, under both of torch 2.13's names.

Each method does the same four things: check the arguments, flatten the tensors, describe the call
in words (equal on all ranks, or it is a mismatch), and hand a plan to the progress loop. A blocking
call (opts.asyncOp is false) is driven to its end in the caller's thread; an async one only
enqueued, because DDP calls us from inside backward.
"""

# torch's stubs describe the overloads of its C++ class, not what it calls on a Python subclass.
# mypy: disable-error-code="override, assignment, attr-defined, call-arg, arg-type"

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from wiiiiided import log
from wiiiiided.autoload import BACKEND
from wiiiiided.backend.collectives import dispatch
from wiiiiided.backend.collectives.local.all_reduce import SmallLocalAllReduce
from wiiiiided.backend.collectives.wide.all_reduce import SmallWideAllReduce
from wiiiiided.backend.engine import process as processes
from wiiiiided.backend.engine.group import Group
from wiiiiided.backend.engine.join import join
from wiiiiided.backend.engine.mailbox import ANY
from wiiiiided.backend.engine.operation import BatchItem, Operation, Plan
from wiiiiided.backend.engine.shared_tensors import PRIVATE, Place, Placement
from wiiiiided.backend.shm.board import CallSignature
from wiiiiided.backend.shm.kernels import Reduction, carrier, dtype_code, dtype_name
from wiiiiided.backend.shm.kernels import reduction as kernel
from wiiiiided.backend.shm.slots import SMALL_BYTES, Array
from wiiiiided.errors import UsageError
from wiiiiided.torch.adoption import Adoption
from wiiiiided.torch.arguments import (
    Tensors,
    describe,
    one_by_one,
    only,
    packed,
    reduction,
    scaled,
    split,
    split_rows,
)
from wiiiiided.torch.flat import CopyBack, flatten, flatten_each, plain, same_shape_dtype
from wiiiiided.torch.profile import profiled, record, record_until_done
from wiiiiided.torch.sparse import sparse_all_reduce
from wiiiiided.torch.work import WiiiiideWork, let_go

Begin = Callable[[Operation], None]

# Described calls that are kept, and small all_reduces that stand ready: a program has few kinds,
# and one that has many must not grow for it.
_MOST_CALLS = 4096
_MOST_READY = 256


class WiiiiideProcessGroup(dist.ProcessGroup):
    """A torch.distributed process group whose ranks meet in shared memory."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self._group = group
        self._name = group.membership.name
        self._desc = "undefined"
        self._calls: dict[tuple[Any, ...], CallSignature] = {}
        self._reductions: dict[tuple[str, torch.dtype], Reduction] = {}
        self._ready: dict[
            tuple[str, torch.dtype, int], SmallLocalAllReduce | SmallWideAllReduce
        ] = {}
        self._adoption = Adoption(
            group.driver.config.adopt and group.wide is None and group.size > 1, group.driver.page
        )
        # The result of a blocking call when it is done: no caller holds it, so one serves all.
        finished = Operation(group, "done", 0)
        finished.finish()
        self._done = WiiiiideWork(finished, [])

    # -- all_reduce, reduce, broadcast ----

    def allreduce(self, tensors: Tensors, opts: Any = None) -> WiiiiideWork:
        opts = opts or dist.AllreduceOptions()
        tensor = only(tensors)
        op, scale = reduction(opts.reduceOp, tensors)
        ready = self._ready.get((op, tensor.dtype, tensor.numel()))
        if ready is not None and plain(tensor):  # small, and called before
            x = carrier(tensor)
            item = dispatch.batch_item(ready, x) if opts.asyncOp else None
            return self._launch("all_reduce", x.nbytes, ready.plan(x), tensors, opts, [], item)
        if tensor.layout is torch.sparse_coo:
            plan = sparse_all_reduce(self._group, tensor, op)
            return self._launch("all_reduce", 0, plan, list(tensors), opts, [])
        copy_backs: list[CopyBack] = []
        x = flatten(tensor, copy_backs)
        call, combine = self._call("all_reduce", tensor, op), self._reduction(op, tensor.dtype)
        place: Placement = self._place(tensor, x)
        if place == PRIVATE and scale is None and plain(tensor):
            place = self._adoption.bucket(tensor, x.nbytes)
        plan = dispatch.all_reduce(self._group, call, x, combine, place)
        if scale is not None:
            plan = scaled([(x, tensor.dtype)], scale, plan)
        elif x.nbytes <= SMALL_BYTES:
            if len(self._ready) >= _MOST_READY:
                self._ready.clear()
            ready = dispatch.ready_all_reduce(self._group, call, x, combine)
            self._ready[op, tensor.dtype, x.size] = ready
        return self._launch("all_reduce", x.nbytes, plan, list(tensors), opts, copy_backs)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> WiiiiideWork:
        opts = opts or dist.AllreduceCoalescedOptions()
        op, scale = reduction(opts.reduceOp, tensors)
        copy_backs: list[CopyBack] = []
        parts = packed(tensors, copy_backs)
        plan = one_by_one(
            [
                dispatch.all_reduce(
                    self._group,
                    self._call_of("all_reduce", dtype, x.size, op),
                    x,
                    self._reduction(op, dtype),
                )
                for x, dtype in parts
            ]
        )
        if scale is not None:
            plan = scaled(parts, scale, plan)
        nbytes = sum(x.nbytes for x, _ in parts)
        return self._launch("all_reduce", nbytes, plan, list(tensors), opts, copy_backs)

    def reduce(self, tensors: Tensors, opts: Any = None) -> WiiiiideWork:
        opts = opts or dist.ReduceOptions()
        tensor, root = only(tensors), self._root(opts.rootRank)
        op, scale = reduction(opts.reduceOp, tensors)
        copy_backs: list[CopyBack] = []
        x = flatten(tensor, copy_backs if root == self._group.rank else None)
        if scale is not None and root != self._group.rank:
            x = x.copy()  # only the root's tensor may change
        combine = self._reduction(op, tensor.dtype)
        call = self._call("reduce", tensor, op, root)
        plan = dispatch.all_reduce(self._group, call, x, combine, root=root)
        if scale is not None:
            plan = scaled([(x, tensor.dtype)], scale, plan)
        return self._launch("reduce", x.nbytes, plan, list(tensors), opts, copy_backs)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> WiiiiideWork:
        opts = opts or dist.BroadcastOptions()
        tensor, root = only(tensors), self._root(opts.rootRank)
        copy_backs: list[CopyBack] = []
        x = flatten(tensor, copy_backs if root != self._group.rank else None)
        call = self._call("broadcast", tensor, "", root)
        place = self._place(tensor, x)
        plan = dispatch.broadcast(self._group, call, x, root, place)
        return self._launch("broadcast", x.nbytes, plan, list(tensors), opts, copy_backs)

    # -- gathering and scattering ----

    def allgather(
        self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> WiiiiideWork:
        outputs, tensor = list(only(output_tensors)), only(input_tensors)
        self._check_list("all_gather", outputs, tensor)
        return self._gather_into([(outputs, tensor)], [outputs], opts)

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None
    ) -> WiiiiideWork:
        # output_lists[r][i] is what rank r has for input i
        jobs = []
        for i, tensor in enumerate(input_list):
            outputs = [from_rank[i] for from_rank in output_lists]
            self._check_list("all_gather", outputs, tensor)
            jobs.append((outputs, tensor))
        return self._gather_into(jobs, [list(outputs) for outputs in output_lists], opts)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> WiiiiideWork:
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> WiiiiideWork:
        copy_backs: list[CopyBack] = []
        steps = []
        for output, tensor in zip(outputs, inputs, strict=True):
            size = self._group.size
            if output.numel() != tensor.numel() * size or output.dtype != tensor.dtype:
                raise UsageError(
                    f"all_gather into one tensor needs {tensor.numel() * size} elements of "
                    f"{dtype_name(tensor.dtype)}; the output has {output.numel()} of "
                    f"{dtype_name(output.dtype)}"
                )
            parts = split(flatten(output, copy_backs), size)
            steps.append(self._gather_step(parts, tensor))
        return self._launch_gather(steps, list(outputs), opts, copy_backs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> WiiiiideWork:
        opts = opts or dist.GatherOptions()
        tensor, root = only(input_tensors), self._root(opts.rootRank)
        outputs = list(output_tensors[0]) if output_tensors and root == self._group.rank else []
        if root == self._group.rank:
            self._check_list("gather", outputs, tensor)
        copy_backs: list[CopyBack] = []
        arrays = flatten_each(outputs, copy_backs)
        x, call = flatten(tensor), self._call("gather", tensor, "", root)
        if _overlaps(x, arrays, root):
            x = x.copy()
        plan = dispatch.gather(self._group, call, x, arrays, root)
        return self._launch("gather", x.nbytes, plan, outputs, opts, copy_backs)

    def scatter(
        self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None
    ) -> WiiiiideWork:
        opts = opts or dist.ScatterOptions()
        output, root = only(output_tensors), self._root(opts.rootRank)
        inputs = list(input_tensors[0]) if input_tensors and root == self._group.rank else []
        if root == self._group.rank:
            self._check_list("scatter", inputs, output)
        copy_backs: list[CopyBack] = []
        arrays, out = flatten_each(inputs, None), flatten(output, copy_backs)
        call = self._call("scatter", output, "", root)
        plan = dispatch.scatter(self._group, call, arrays, out, root)
        return self._launch("scatter", out.nbytes, plan, list(output_tensors), opts, copy_backs)

    def _gather_into(
        self, jobs: Sequence[tuple[list[torch.Tensor], torch.Tensor]], results: Any, opts: Any
    ) -> WiiiiideWork:
        copy_backs: list[CopyBack] = []
        steps = [self._gather_step(flatten_each(outs, copy_backs), tensor) for outs, tensor in jobs]
        return self._launch_gather(steps, results, opts, copy_backs)

    def _gather_step(self, outputs: Sequence[Array], tensor: torch.Tensor) -> tuple[Plan, int]:
        x = flatten(tensor)
        place = self._place_in_pool(tensor, x)
        if _overlaps(x, outputs, self._group.rank):
            x, place = x.copy(), PRIVATE
        call = self._call("all_gather", tensor)
        return dispatch.all_gather(
            self._group, call, x, outputs, place
        ), x.nbytes * self._group.size

    def _launch_gather(
        self, steps: list[tuple[Plan, int]], results: Any, opts: Any, copy_backs: list[CopyBack]
    ) -> WiiiiideWork:
        plan = one_by_one([plan for plan, _ in steps])
        nbytes = sum(size for _, size in steps)
        opts = opts or dist.distributed_c10d.AllgatherOptions()
        return self._launch("all_gather", nbytes, plan, results, opts, copy_backs)

    # -- reduce_scatter ----

    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None
    ) -> WiiiiideWork:
        output, inputs = only(output_tensors), list(only(input_tensors))
        self._check_list("reduce_scatter", inputs, output)
        step = (flatten_each(inputs, None), None, output)
        return self._reduce_scatter([step], list(output_tensors), opts)

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> WiiiiideWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> WiiiiideWork:
        size, steps = self._group.size, []
        for output, tensor in zip(outputs, inputs, strict=True):
            if tensor.numel() != output.numel() * size or output.dtype != tensor.dtype:
                raise UsageError(
                    f"reduce_scatter of one tensor needs {output.numel() * size} elements of "
                    f"{dtype_name(output.dtype)}; the input has {tensor.numel()} of "
                    f"{dtype_name(tensor.dtype)}"
                )
            whole = flatten(tensor)
            place = self._place_in_pool(tensor, whole)
            steps.append((split(whole, size), (whole, place), output))
        return self._reduce_scatter(steps, list(outputs), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(self, steps: Any, results: Any, opts: Any) -> WiiiiideWork:
        opts = opts or dist.ReduceScatterOptions()
        op, scale = reduction(opts.reduceOp, results)
        copy_backs: list[CopyBack] = []
        parts: list[Plan] = []
        nbytes = 0
        for inputs, whole, output in steps:
            array, place = whole or (None, (0, 0))
            if scale is not None:  # the inputs must not change
                inputs, array, place = [x.copy() for x in inputs], None, (0, 0)
            call = self._call("reduce_scatter", output, op)
            combine = self._reduction(op, output.dtype)
            out = flatten(output, copy_backs)
            plan = dispatch.reduce_scatter(self._group, call, inputs, out, combine, array, place)
            if scale is not None:
                plan = scaled([(x, output.dtype) for x in inputs], scale, plan)
            parts.append(plan)
            nbytes += out.nbytes * self._group.size
        return self._launch("reduce_scatter", nbytes, one_by_one(parts), results, opts, copy_backs)

    # -- all_to_all ----

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> WiiiiideWork:
        outputs, inputs = list(output_tensors), list(input_tensors)
        if len(outputs) != self._group.size or len(inputs) != self._group.size:
            raise UsageError(
                f"all_to_all needs {self._group.size} tensors in and out, one for each rank; "
                f"got {len(inputs)} and {len(outputs)}"
            )
        copy_backs: list[CopyBack] = []
        sources, targets = flatten_each(inputs, None), flatten_each(outputs, copy_backs)
        return self._all_to_all(sources, targets, inputs[0].dtype, outputs, opts, copy_backs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> WiiiiideWork:
        size = self._group.size
        copy_backs: list[CopyBack] = []
        sources = split_rows("input", flatten(input), input, input_split_sizes, size)
        target = flatten(output, copy_backs)
        targets = split_rows("output", target, output, output_split_sizes, size)
        return self._all_to_all(sources, targets, input.dtype, [output], opts, copy_backs)

    alltoall_base = all_to_all_single

    def _all_to_all(
        self,
        inputs: list[Array],
        outputs: list[Array],
        dtype: torch.dtype,
        results: list[torch.Tensor],
        opts: Any,
        copy_backs: list[CopyBack],
    ) -> WiiiiideWork:
        if any(x.dtype != inputs[0].dtype for x in [*inputs, *outputs]):
            raise UsageError("all_to_all needs inputs and outputs of one dtype")
        call = self._call_of("all_to_all", dtype, -1)
        plan = dispatch.all_to_all(self._group, call, inputs, outputs)
        nbytes = sum(x.nbytes for x in inputs)
        opts = opts or dist.AllToAllOptions()
        return self._launch("all_to_all", nbytes, plan, results, opts, copy_backs)

    # -- messages ----

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> WiiiiideWork:
        tensor, tag = only(tensors), _tag(tag)
        data, code = flatten(tensor).view(np.uint8), dtype_code(tensor.dtype)
        to = self._root(dst)

        def begin(op: Operation) -> None:
            self._group.mailbox.send(op, to, tag, code, data)

        return self._launch_message("send", data.nbytes, begin, tensors, [])

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> WiiiiideWork:
        return self._receive(tensors, self._root(src), tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> WiiiiideWork:
        return self._receive(tensors, ANY, tag)

    def _receive(self, tensors: Tensors, source: int, tag: int) -> WiiiiideWork:
        tensor, tag = only(tensors), _tag(tag)
        copy_backs: list[CopyBack] = []
        data, code = flatten(tensor, copy_backs).view(np.uint8), dtype_code(tensor.dtype)

        def begin(op: Operation) -> None:
            self._group.mailbox.receive(op, source, tag, code, data)

        return self._launch_message("recv", data.nbytes, begin, tensors, copy_backs)

    def _launch_message(
        self, name: str, nbytes: int, begin: Begin, tensors: Tensors, copy_backs: list[CopyBack]
    ) -> WiiiiideWork:
        op = Operation(self._group, name, nbytes, begin=begin)
        return self._submit(op, list(tensors), copy_backs)

    # -- barriers ----

    def barrier(self, opts: Any = None) -> WiiiiideWork:
        call = self._call_of("barrier", None, -1)
        plan = dispatch.barrier(self._group, call)
        return self._launch("barrier", 0, plan, [], opts or dist.BarrierOptions(), [])

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = True
    ) -> None:
        """Wait for all ranks; on timeout name every missing one. The group stays usable."""
        seconds = timeout.total_seconds() if timeout is not None else None
        plan = dispatch.monitored_barrier(self._group)
        name = "monitored_barrier"
        op = Operation(self._group, name, 0, plan, harmless=True, timeout_s=seconds)
        self._submit(op, [], []).wait()

    # -- identity and end ----

    def getBackendName(self) -> str:
        return BACKEND

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    def getGroupDesc(self) -> str:
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        """Where torch looks for a device it may use by itself (checkpoints, state dicts)."""
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        return self if device.type == "cpu" else super()._get_backend(device)

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether `allocate_tensor` gives memory that is worth asking for."""
        return self._adoption.allowed and device.type == "cpu"

    def allocate_tensor(
        self, size: int, *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """A buffer for collectives; FSDP2 asks after set_allocate_memory_from_process_group_…."""
        return self._adoption.allocate(size, dtype)

    @property
    def engine_group(self) -> Group:
        """The engine group behind this one, for `shared_empty` and tests."""
        return self._group

    def shutdown(self) -> None:
        """Leave the group: what is under way here fails; memory and sockets are given back."""
        group = self._group
        if group.problem() is not None and group.process.card.pid != os.getpid():
            return  # a forked child has nothing to give back
        if group.loop.is_inside():  # a signal handler: the call goes on when it is over, and fails
            group.driver.soon(group.close)
            return
        if not group.closed:
            self._ready.clear()  # they hold views of the group's memory
            self._adoption.release()
            let_go()
            group.loop.call(group.close)
            processes.leave(group.process)

    def abort(self) -> None:
        """Leave at once, as `shutdown` does: nothing here waits for others."""
        self.shutdown()

    # -- machinery ----

    def begin(
        self, name: str, nbytes: int, plan: Plan, results: Any, copy_backs: list[CopyBack]
    ) -> WiiiiideWork:
        """A plan of this group that torch has no name for, enqueued."""
        return self._submit(Operation(self._group, name, nbytes, plan), results, copy_backs)

    def _launch(
        self,
        name: str,
        nbytes: int,
        plan: Plan,
        results: Any,
        opts: Any,
        copy_backs: list[CopyBack],
        item: BatchItem | None = None,
    ) -> WiiiiideWork:
        group, seq = self._group, self._group.number()

        def make() -> Operation:
            timeout_s = opts.timeout.total_seconds()
            op = Operation(
                group, name, nbytes, plan, timeout_s=timeout_s if timeout_s > 0 else None, seq=seq
            )
            op.copy_backs, op.batch_item = copy_backs, item
            return op

        if opts.asyncOp or group.problem() is not None:
            return self._submit(make(), results, copy_backs)
        if profiled():
            with record(name, nbytes, self._name, results):
                op = group.loop.run_inline(group, plan, nbytes, make)
        else:
            op = group.loop.run_inline(group, plan, nbytes, make)
        if op is not None:
            return WiiiiideWork(op, results)
        for copy_back in copy_backs:
            copy_back()
        return self._done

    def _submit(self, op: Operation, results: Any, copy_backs: list[CopyBack]) -> WiiiiideWork:
        op.copy_backs = copy_backs
        problem = self._group.problem()
        if problem is not None:
            op.finish(self._group.error_for(op, problem))
        else:
            self._group.loop.submit(op)
        work = WiiiiideWork(op, results)
        if profiled():
            record_until_done(work, op.name, op.nbytes, self._name, results)
        return work

    def _place(self, tensor: torch.Tensor, x: Array) -> Place:
        """Where a tensor lies that is used as it is; what goes through a copy lies nowhere."""
        shared = self._group.team.shared
        if shared.empty or not plain(tensor):
            return PRIVATE
        return shared.place(tensor.data_ptr(), x.nbytes)

    def _place_in_pool(self, tensor: torch.Tensor, x: Array) -> Placement:
        """The same for a tensor that may lie in a buffer that this group has allocated."""
        place = self._place(tensor, x)
        return self._adoption.buffer(tensor) if place == PRIVATE and plain(tensor) else place

    def _call(self, name: str, tensor: torch.Tensor, op: str = "", root: int = -1) -> CallSignature:
        return self._call_of(name, tensor.dtype, tensor.numel(), op, root)

    def _call_of(
        self, name: str, dtype: torch.dtype | None, count: int, op: str = "", root: int = -1
    ) -> CallSignature:
        key = (name, dtype, count, op, root)
        call = self._calls.get(key)
        if call is None:
            if not self._calls:
                self._tell_of_mixture()
            if len(self._calls) >= _MOST_CALLS:
                self._calls.clear()
            call = self._calls[key] = CallSignature.of(describe(*key))
        return call

    def _tell_of_mixture(self) -> None:
        """torch gives a group written in Python every device, whatever it was asked for."""
        asked = str(dist.distributed_c10d._world.pg_backend_config.get(self, ""))
        others = [pair for pair in asked.split(",") if pair and not pair.endswith(f":{BACKEND}")]
        if others:
            log.warn(
                self._group.who,
                f"asked for as {asked}, but torch gives the whole group to a backend written in "
                f"Python: {' and '.join(others)} is not used, tensors of every device go through "
                f"{BACKEND}. For another backend make another group: dist.new_group(backend=…)",
            )

    def _reduction(self, op: str, dtype: torch.dtype) -> Reduction:
        found = self._reductions.get((op, dtype))
        if found is None:
            found = self._reductions[op, dtype] = kernel(op, dtype, self._group.size)
        return found

    def _root(self, rank: int) -> int:
        if not 0 <= rank < self._group.size:
            raise UsageError(f"there is no rank {rank} in a group of {self._group.size}")
        return rank

    def _check_list(self, name: str, tensors: Tensors, like: torch.Tensor) -> None:
        if len(tensors) != self._group.size:
            raise UsageError(
                f"{name} needs a list of {self._group.size} tensors, one for each rank; "
                f"got {len(tensors)}"
            )
        same_shape_dtype(name, [like, *tensors])


def _tag(tag: int) -> int:
    """The tag of a message; UsageError if it does not fit into a frame."""
    if not -(2**31) <= tag < 2**31:
        raise UsageError(f"a tag of {tag}: it has 32 bits, from -2147483648 to 2147483647")
    return tag


def _overlaps(x: Array, outputs: Sequence[Array], own: int) -> bool:
    """Whether another rank's part would be received over an input that is still to be sent; in its
    own place it may lie."""
    return any(k != own and np.may_share_memory(x, part) for k, part in enumerate(outputs))


def create(options: Any, backend_options: Any = None) -> WiiiiideProcessGroup:
    """The function torch.distributed calls for init_process_group("wiiiiide") and new_group."""
    timeout_s = options.timeout.total_seconds()
    group = join(
        options.store,
        options.group_rank,
        options.group_size,
        timeout_s,
        options.group_id or "world",
        options.global_ranks_in_group,
    )
    return WiiiiideProcessGroup(group)
