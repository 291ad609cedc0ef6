"""torch.profiler shows the operations: name, shapes, bytes and group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.kit.ranks import Rank, run_ranks


def _profiled(me: Rank) -> dict[str, list[Any]]:
    subgroup = dist.new_group([0, 1], group_desc="pair")
    model = DistributedDataParallel(nn.Linear(10, 10, bias=False))
    x, parts = torch.ones(1000), [torch.empty(1000) for _ in range(me.size)]
    with torch.profiler.profile(record_shapes=True) as profiler:
        dist.broadcast(x, 0)
        dist.all_gather(parts, x, group=subgroup)
        dist.all_reduce(x, async_op=True).wait()
        if me.rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        dist.barrier()
        model(torch.ones(10)).sum().backward()
    dist.all_reduce(x)  # the profiler has ended
    path = Path(me.folder) / f"trace{me.rank}.json"
    profiler.export_chrome_trace(str(path))
    found: dict[str, list[Any]] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event.get("name", "").startswith("wiiiiide:"):
            found.setdefault(event["name"].removeprefix("wiiiiide:"), []).append(event)
    averages = {event.key: event.count for event in profiler.key_averages()}
    assert averages["wiiiiide:all_reduce"] == 2  # by hand, and DDP's bucket
    assert dist.get_world_size() == 2
    return found


def test_every_collective_is_in_the_table_and_in_the_trace_with_bytes_and_group() -> None:
    for rank, found in enumerate(run_ranks(_profiled, 2)):
        message = ("send", "recv")[rank]
        assert found.keys() == {
            *("broadcast", "all_gather", "barrier", "all_reduce", "all_reduce (begun)"),
            *(message, f"{message} (begun)"),
        }
        args = found["broadcast"][0]["args"]
        assert (args["bytes"], args["Input Dims"]) == (4000, [[1000]])
        gathered = found["all_gather"][0]["args"]
        assert (gathered["bytes"], gathered["Input Dims"]) == (8000, [[1000], [1000]])
        assert gathered["group"] != args["group"]
        begun = [event["args"]["bytes"] for event in found["all_reduce (begun)"]]
        assert begun == [4000, 400]
        assert all("finished" not in e["args"] for events in found.values() for e in events)
