"""`wide.parallel`: N ranks are one process with the N-fold batch, whatever the optimizer."""

from __future__ import annotations

import copy
import io
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.kit.ranks import Rank, run_ranks
from wiiiiided.errors import Mismatch, UsageError
from wiiiiided.torch import parallel
from wiiiiided.train import layout

BATCH = 4
# How a small model is laid out, so that it takes the ways that otherwise only large ones take:
# "cut": every rank updates a slice; "private": and its own gradients are not copied.
WORLDS = [
    *((1, ""), (2, ""), (3, "cut"), ("ab", "cut"), ("aab", ""), ("aabc", "cut")),
    *((1, "private"), (2, "private"), (3, "private")),
]


class Net(nn.Module):
    """Two layers of awkward sizes, a weight that is used twice, one that is not used."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(13, 37, dtype=dtype)
        self.middle = nn.Linear(37, 37, dtype=dtype)
        self.last = nn.Linear(37, 5, dtype=dtype)
        self.tied = self.middle.weight
        self.unused = nn.Parameter(torch.ones(7, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.middle(torch.tanh(self.first(x))))
        return self.last(torch.nn.functional.linear(hidden, self.tied))


def _seeded(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind()


def _data(step: int, size: int, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    make = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH * size, 13, generator=make, dtype=torch.float64)
    y = torch.randn(BATCH * size, 5, generator=make, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def _mine(me: Rank, tensor: torch.Tensor) -> torch.Tensor:
    return tensor[me.rank * BATCH : (me.rank + 1) * BATCH]


def _loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def _close(a: Any, b: Any, what: str, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol, msg=lambda text: f"{what}: {text}")


def _same_weights(me: Rank, model: nn.Module) -> None:
    """All ranks of all hosts have the same bits."""
    for name, parameter in model.named_parameters():
        mine = parameter.detach().flatten().clone().view(torch.uint8)
        first = mine.clone()
        dist.broadcast(first, 0)
        assert torch.equal(mine, first), f"rank {me.rank}: {name} differs from rank 0's"


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-3),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-3),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-3),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "counting": lambda p: Counting(p),
}


class Counting(torch.optim.Optimizer):
    """One of the many in the world: looks at whole gradients, keeps numbers and new tensors."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                state["mean"] = 0.9 * state.get("mean", torch.zeros_like(p)) + 0.1 * p.grad
                state["norm"] = float(p.grad.norm())
                p.sub_(state["mean"], alpha=group["lr"] / (1 + state["norm"]) / state["count"])


class Keeping(torch.optim.Optimizer):
    """Keeps what cannot be shared; its step takes no closure."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.grad is not None:
                self.state[p]["seen"] = [1]


def _lay_out_as(way: str) -> None:
    if way:
        layout.WHOLE = 1  # type: ignore[misc]
    if way == "private":
        layout.PRIVATE_BYTES = 64  # type: ignore[misc]


def _as_one_process(me: Rank, way: str) -> None:
    _lay_out_as(way)
    for name, make in OPTIMIZERS.items():
        model, plain = _seeded(Net), _seeded(Net)
        optimizer, reference = make(model.parameters()), make(plain.parameters())
        parallel(model, optimizer)
        for step in range(4):
            x, y = _data(step, me.size)
            _loss(model, _mine(me, x), _mine(me, y)).backward()
            _loss(plain, x, y).backward()
            for each in (optimizer, reference):
                each.step()
                each.zero_grad()
        tolerance = 1e-3 if name in ("rprop", "adamax", "adadelta") else 1e-4
        for (key, a), b in zip(
            model.state_dict().items(), plain.state_dict().values(), strict=True
        ):
            _close(a, b, f"{name}: {key}", tolerance, 1e-5)
        mine, theirs = optimizer.state_dict(), reference.state_dict()
        assert mine["param_groups"] == theirs["param_groups"], name
        assert mine["state"].keys() == theirs["state"].keys(), name
        for i, state in theirs["state"].items():
            assert mine["state"][i].keys() == state.keys(), name
            for key, value in state.items():
                _close(mine["state"][i][key], value, f"{name}: {key}", 1e-3, 1e-5)
        _same_weights(me, model)


@pytest.mark.parametrize(("world", "way"), WORLDS)
def test_ranks_equal_one_process_with_the_whole_batch(world: int | str, way: str) -> None:
    run_ranks(_as_one_process, world, way)


def _train(me: Rank, model: nn.Module, optimizer: Any, steps: range, size: int = 0) -> None:
    for step in steps:
        x, y = _data(step, size or me.size)
        _loss(model, _mine(me, x), _mine(me, y)).backward()
        optimizer.step()
        optimizer.zero_grad()


def _accumulated(me: Rank) -> None:
    """Several backwards and one step exchange once; so does a closure."""
    model, plain = _seeded(Net), _seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    run = parallel(model, optimizer)

    def backwards(net: nn.Module, part: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(())
        for step in range(3):
            x, y = _data(step, me.size)
            with run.no_sync():
                loss = _loss(net, part(x), part(y)) / 3
                loss.backward()
            total += loss.detach()
        return total

    for _ in range(3):
        optimizer.zero_grad()
        loss = optimizer.step(lambda: backwards(model, lambda t: _mine(me, t)))
        assert float(loss) > 0
        reference.zero_grad()
        reference.step(lambda: backwards(plain, lambda t: t))
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        _close(a, b, "accumulated")


def _weighted(me: Rank) -> None:
    """A rank whose batch is shorter counts less; one without a batch not at all."""
    model, plain = _seeded(Net), _seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    run = parallel(model, optimizer)
    counts = [BATCH - 2 * (rank % 2) for rank in range(me.size)]
    if me.size > 2:
        counts[0] = 0
        average = run._gradients.average
        if me.rank == 0:  # it comes late to the averaging: nothing of it may be lost
            run._gradients.average = lambda *given: (time.sleep(0.2), average(*given))  # type: ignore[method-assign]
    ends = [sum(counts[: rank + 1]) for rank in range(me.size)]
    for step in range(3):
        x, y = _data(step, me.size)
        own = slice(ends[me.rank] - counts[me.rank], ends[me.rank])
        if counts[me.rank]:
            _loss(model, x[own], y[own]).backward()
        run.samples(counts[me.rank])
        optimizer.step()
        optimizer.zero_grad()
        _loss(plain, x[: ends[-1]], y[: ends[-1]]).backward()
        reference.step()
        reference.zero_grad()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        _close(a, b, "weighted")
    _same_weights(me, model)


def _clipped(me: Rank) -> None:
    for kind in (2.0, 1.0, float("inf")):
        model, plain = _seeded(Net), _seeded(Net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        reference = torch.optim.SGD(plain.parameters(), lr=0.5, momentum=0.9)
        run = parallel(model, optimizer)
        for step in range(3):
            x, y = _data(step, me.size)
            _loss(model, _mine(me, x), _mine(me, y)).backward()
            norm = run.clip_grad_norm_(0.05, kind)
            _loss(plain, x, y).backward()
            _close(
                norm,
                nn.utils.clip_grad_norm_(plain.parameters(), 0.05, kind),
                f"norm {kind} {step}",
                1e-4,
            )
            if step == 1:  # the usual way to leave a step out
                optimizer.zero_grad()
                reference.zero_grad()
                continue
            for each in (optimizer, reference):
                each.step()
                each.zero_grad()
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            _close(a, b, f"clipped by the {kind} norm", 1e-4)
        _same_weights(me, model)


def _groups_and_schedulers(me: Rank) -> None:
    """Parameter groups, a scheduler made before and one after, freezing and unfreezing, hooks."""
    model, plain = _seeded(Net), _seeded(Net)
    seen: list[str] = []

    def make(net: Any) -> tuple[Any, list[Any]]:
        net.first.requires_grad_(False)
        optimizer = torch.optim.AdamW(
            [
                {"params": [*net.first.parameters(), net.unused], "lr": 1e-3},
                {"params": [*net.middle.parameters(), *net.last.parameters()], "weight_decay": 0.1},
            ],
            lr=1e-2,
        )
        before = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        if net is model:
            parallel(net, optimizer)
            optimizer.register_step_pre_hook(
                lambda o, a, k: seen.append(str([len(g["params"]) for g in o.param_groups]))
            )
        after = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return optimizer, [before, after]

    (optimizer, schedulers), (reference, others) = make(model), make(plain)
    for step in range(5):
        if step == 2:
            model.first.requires_grad_(True)  # type: ignore[union-attr]
            plain.first.requires_grad_(True)  # type: ignore[union-attr]
        x, y = _data(step, me.size)
        _loss(model, _mine(me, x), _mine(me, y)).backward()
        _loss(plain, x, y).backward()
        for each in (optimizer, reference):
            each.step()
            each.zero_grad()
        for scheduler in [*schedulers, *others]:
            scheduler.step()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        _close(a, b, "groups", 1e-4, 1e-5)
    assert seen == ["[3, 4]"] * 5
    assert isinstance(optimizer, torch.optim.AdamW)
    assert type(optimizer).__name__ == "AdamW"
    assert optimizer.state_dict()["state"].keys() == reference.state_dict()["state"].keys()


def _half_precision_and_strides(me: Rank) -> None:
    """bfloat16, two dtypes in one model, a convolution in channels_last."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last), nn.Flatten())  # type: ignore[call-overload]
    model.append(nn.Linear(8 * 4 * 4, 6, dtype=torch.bfloat16))
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    parallel(model, optimizer)
    assert model[0].weight.stride() == plain[0].weight.stride()
    for step in range(3):
        x = torch.randn(2 * me.size, 3, 6, 6, generator=torch.Generator().manual_seed(step))

        def loss(net: Any, part: torch.Tensor) -> torch.Tensor:
            hidden = net[1](net[0](part.to(memory_format=torch.channels_last)))
            return net[2](hidden.bfloat16()).float().pow(2).mean()

        loss(model, x[2 * me.rank : 2 * me.rank + 2]).backward()
        loss(plain, x).backward()
        for each in (optimizer, reference):
            each.step()
            each.zero_grad()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert a.dtype == b.dtype
        _close(a.float(), b.float(), str(a.dtype), 2e-2, 2e-3)
    _same_weights(me, model)


def _ways_of_training(me: Rank) -> None:
    """Autocast with a scaler, gradient checkpointing, evaluation in between, copies of a model."""
    model, plain = _seeded(Net), _seeded(Net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    parallel(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        x, y = _data(step, me.size)
        if step == 2 and me.rank == me.size - 1:  # inf on one rank: a step that none makes
            x = x * float("inf")
        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            run_in = torch.utils.checkpoint.checkpoint(model, _mine(me, x), use_reentrant=False)
            loss = nn.functional.mse_loss(run_in, _mine(me, y))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step != 2:
            _loss(plain, x, y).backward()
            reference.step()
            reference.zero_grad()
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        _close(a, b, "scaled", 1e-3, 1e-5)
    average = copy.deepcopy(model)  # as for a moving average: an ordinary, private model
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.zero_()
    average(x).sum().backward()
    assert type(average.first.weight.grad) is torch.Tensor
    assert float(model.first.weight.abs().sum()) > 0  # type: ignore[union-attr,operator]
    kept = io.BytesIO()
    torch.save(model, kept)
    kept.seek(0)
    _close(torch.load(kept, weights_only=False)(x), model(x), "pickled")


def _buffers(me: Rank) -> None:
    """Rank 0's buffers are all ranks' in a training forward; evaluation has no meeting."""
    model = nn.Sequential(nn.Linear(13, 5), nn.BatchNorm1d(5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel(model, optimizer)
    for step in range(3):
        x, y = _data(step, me.size)
        _loss(model, _mine(me, x) + me.rank, _mine(me, y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model(x)
    mean = model[1].running_mean.clone()  # type: ignore[union-attr,operator]
    model.eval()
    if me.rank == 0:
        model(x)
    first = mean.clone()
    dist.broadcast(first, 0)
    model.train()
    model(x)
    assert me.rank == 0 or not torch.equal(mean, torch.zeros(5))


def _compiled(me: Rank) -> None:
    """torch.compile of a model whose weights are shared, with buffers to broadcast."""
    model, plain = _seeded(Net), _seeded(Net)
    model.register_buffer("count", torch.zeros(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    parallel(model, optimizer)
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(3):
        x, y = _data(step, me.size)
        _loss(compiled, _mine(me, x), _mine(me, y)).backward()  # type: ignore[arg-type]
        _loss(plain, x, y).backward()
        for each in (optimizer, reference):
            each.step()
            each.zero_grad()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        _close(a, b, "compiled")


@pytest.mark.parametrize(
    ("world", "way"), [(1, ""), (3, ""), ("aab", "cut"), (2, "cut"), (3, "private")]
)
def test_the_ways_programs_train(world: int | str, way: str) -> None:
    run_ranks(_every_way, world, way)


def _every_way(me: Rank, way: str) -> None:
    _lay_out_as(way)
    for body in (
        *(_accumulated, _weighted, _clipped, _groups_and_schedulers),
        *(_half_precision_and_strides, _ways_of_training, _buffers, _compiled),
    ):
        body(me)


# -- state ----


class Scaled(Net):
    """With a parameter that is one number, as a temperature is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def _saved_and_loaded(me: Rank) -> None:
    for make in (
        lambda p: torch.optim.AdamW(p, lr=1e-2),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), foreach=False),
        OPTIMIZERS["adafactor"],
        OPTIMIZERS["counting"],
    ):
        _saved_and_loaded_by(me, make)


def _saved_and_loaded_by(me: Rank, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    model = _seeded(Scaled)
    optimizer = make(model.parameters())
    parallel(model, optimizer)
    _train(me, model, optimizer, range(3))
    # On one rank alone, while the others wait for it in their next step.
    saved = None
    if me.rank == 0:
        kept = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
        kept.seek(0)
        saved = torch.load(kept)
        assert kept.getbuffer().nbytes < 4 * 3 * sum(p.numel() for p in model.parameters()) + 30000
        alone = _seeded(Scaled)
        single = make(alone.parameters())
        alone.load_state_dict(saved["model"])
        single.load_state_dict(saved["optimizer"])
    _train(me, model, optimizer, range(3, 6))
    later = copy.deepcopy(model.state_dict())
    dist.barrier()
    # Back to step 3, loaded by rank 0 alone; then the same steps give the same weights.
    if me.rank == 0:
        assert saved is not None
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        model.state_dict()  # a look at them changes nothing
        _same_state(optimizer.state_dict(), saved["optimizer"])
    dist.barrier()
    if len(set(_hosts(me))) > 1:
        return  # the other hosts take the weights over at the next step: their forward is older
    _train(me, model, optimizer, range(3, 6))
    for key, value in model.state_dict().items():
        assert torch.equal(value, later[key]), key
    # And by all ranks, into a new model at once.
    again = _seeded(Scaled)
    other = make(again.parameters())
    box = [saved]
    dist.broadcast_object_list(box)
    again.load_state_dict(box[0]["model"])  # type: ignore[index]
    other.load_state_dict(box[0]["optimizer"])  # type: ignore[index]
    parallel(again, other)
    _train(me, again, other, range(3, 6))
    for key, value in again.state_dict().items():
        assert torch.equal(value, later[key]), key
    _same_state(other.state_dict(), optimizer.state_dict())
    _same_state(copy.deepcopy(other).state_dict(), optimizer.state_dict())
    everywhere = [None] * me.size
    dist.all_gather_object(everywhere, optimizer.state_dict())
    for theirs in everywhere:
        _same_state(theirs, optimizer.state_dict())  # type: ignore[arg-type]


def _same_state(a: dict[str, Any], b: dict[str, Any]) -> None:
    def shown(saved: dict[str, Any]) -> dict[int, dict[str, str]]:
        states = saved["state"].items()
        return {i: {key: str(value) for key, value in state.items()} for i, state in states}

    assert shown(a) == shown(b)


def _loaded_on_one_rank(me: Rank) -> None:
    """Settings go to all, a learning rate in a tensor too; numbers keep their type; buffers are
    rank 0's, so another rank alone cannot load them."""
    model = _seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    parallel(model, optimizer)
    _train(me, model, optimizer, range(1))
    if me.rank == 0:
        state = optimizer.state_dict()
        state["param_groups"][0]["lr"] = torch.tensor(0.5)
        optimizer.load_state_dict(state)
    _train(me, model, optimizer, range(1, 2))
    assert float(optimizer.param_groups[0]["lr"]) == 0.5
    _same_weights(me, model)

    model = nn.Linear(13, 5)
    turning = Turning(model.parameters())
    parallel(model, turning)
    for step in range(3):
        _train(me, model, turning, range(step, step + 1))
        values = {state["value"] for state in turning.state_dict()["state"].values()}
        assert values == {step if step < 2 else 0.4}

    model = nn.Sequential(nn.Linear(13, 5), nn.BatchNorm1d(5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parallel(model, optimizer)
    if me.rank == 1:
        model.load_state_dict(model.state_dict())
    _raises(UsageError, "rank 1 has loaded a model with buffers", optimizer.step)


class Turning(torch.optim.Optimizer):
    """Keeps a number that is whole first, and then is not."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        self._steps = 0

    def step(self) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.grad is not None:
                self.state[p]["value"] = self._steps if self._steps < 2 else 0.4
        self._steps += 1


def test_what_one_rank_loads_is_taken_over_by_all_or_refused() -> None:
    run_ranks(_loaded_on_one_rank, 2)


def _loaded_on_another_host(me: Rank) -> None:
    """A load, then a clip: the other host's weights come with the first meeting."""
    model = _seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer)
    if me.rank == 0:
        model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
    x, y = _data(0, me.size)
    _loss(model, _mine(me, x), _mine(me, y)).backward()
    run.clip_grad_norm_(1.0)
    optimizer.step()
    _same_weights(me, model)


def test_a_load_on_one_host_reaches_the_others_at_the_next_meeting() -> None:
    run_ranks(_loaded_on_another_host, "aab")


def _hosts(me: Rank) -> list[str]:
    import os

    found = [None] * me.size
    dist.all_gather_object(found, os.environ.get("WIIIIIDE_HOST_ID", ""))
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("world", [1, 3, "aab"])
def test_state_is_whole_on_one_rank_and_loads_on_one_or_all(world: int | str) -> None:
    run_ranks(_saved_and_loaded, world)


# -- what must not be silently wrong ----


def _raises(kind: type[Exception], words: str, body: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=words):
        body()


def _gradients_between(me: Rank) -> None:
    model = _seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer)
    x, y = _data(0, me.size)
    before = copy.deepcopy(model.state_dict())
    _loss(model, _mine(me, x), _mine(me, y)).backward()
    weight = model.first.weight  # type: ignore[union-attr]
    for read in (
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        lambda: weight.grad.norm(),  # type: ignore[union-attr,operator]
        lambda: weight.grad.clone(),  # type: ignore[union-attr,operator]
        lambda: weight.grad + 1,  # type: ignore[operator]
        lambda: torch.zeros_like(weight).add_(weight.grad),  # type: ignore[arg-type]
        lambda: weight.grad.add_(weight.grad),  # type: ignore[union-attr,operator]
    ):
        _raises(UsageError, "run.clip_grad_norm_", read)
    optimizer.zero_grad()
    optimizer.step()  # discarded: nothing to do
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key
    # Replaced, scaled and zeroed gradients count.
    _loss(model, _mine(me, x), _mine(me, y)).backward()
    for parameter in model.parameters():
        parameter.grad = None
    weight.grad = torch.full_like(weight, 2.0)  # type: ignore[arg-type,assignment]
    optimizer.step()
    _close(weight, before["first.weight"] - 0.2, "replaced")
    _raises(UsageError, "averaged already", lambda: _loss(model, x, y).backward())
    optimizer.zero_grad()
    weight.grad = torch.full_like(weight, 2.0)  # type: ignore[arg-type,assignment]
    run.clip_grad_norm_(1e9)
    optimizer.zero_grad(set_to_none=True)
    _loss(model, _mine(me, x), _mine(me, y)).backward()
    optimizer.step()
    for _ in range(2):  # the other way to zero, after a step and in the middle
        optimizer.zero_grad(set_to_none=False)
        _loss(model, _mine(me, x), _mine(me, y)).backward()
        run.clip_grad_norm_(1e9)
        optimizer.zero_grad(set_to_none=False)
        _loss(model, _mine(me, x), _mine(me, y)).backward()
        optimizer.step()
    optimizer.zero_grad()
    _loss(model, _mine(me, x), _mine(me, y)).backward()
    weight.grad = torch.full_like(weight, 2.0)  # type: ignore[arg-type,assignment]
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    _close(weight.grad, torch.full_like(weight, 2.0 / scaler.get_scale()), "unscaled")  # type: ignore[arg-type]
    optimizer.zero_grad()
    _same_weights(me, model)


def _writes_from_outside(me: Rank) -> None:
    model = _seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer)
    first = model.first  # type: ignore[assignment]
    assert isinstance(first, nn.Linear)
    with run.modify(), torch.no_grad():
        first.weight.mul_(2.0)
    _close(first.weight, 2 * _seeded(Net).first.weight, "modified once")  # type: ignore[union-attr,operator]
    _train(me, model, optimizer, range(1))
    _same_weights(me, model)
    dist.barrier()
    with torch.no_grad():
        first.weight.mul_(1.5)
    _raises(UsageError, r"first.weight was changed.*run.modify", optimizer.step)
    run._shared.weights.remember()
    dist.barrier()
    first.weight.data.mul_(1.5)  # no version tells of this one
    dist.barrier()
    _raises(UsageError, r"first.weight was changed.*run.modify", optimizer.step)
    run._shared.weights.remember()
    dist.barrier()
    first.weight.data = first.weight.data.clone()
    _raises(UsageError, r"memory of first.weight was replaced", optimizer.step)


def _disagreements(me: Rank) -> None:
    model = _seeded(Net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer)
    x, y = _data(0, me.size)
    _loss(model, x, y).backward()
    if me.rank:
        run.samples(3)
    _raises(Mismatch, r"rank 0 did not call run.samples", optimizer.step)
    run.samples(3)
    optimizer.param_groups[0]["lr"] = 0.1 + me.rank
    _raises(Mismatch, r"lr=0.1 on rank 0 and lr=1.1 on rank 1", optimizer.step)
    other = nn.Linear(3, 4 + me.rank)
    image = nn.Conv2d(3, 4, 2)
    if me.rank:
        image = image.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for different, words in (
        (other, r"weight float32\[4, 3\] in group 0; rank 1 weight float32\[5, 3\] in group 0"),
        (image, r"weight float32\[4, 3, 2, 2\] in group 0; rank 1 .* with strides"),
    ):
        _raises(
            Mismatch,
            words,
            lambda net=different: parallel(net, torch.optim.SGD(net.parameters(), lr=0.1)),  # type: ignore[misc]
        )
    groups = [{"params": [p]} for p in nn.Linear(3, 3).parameters()]
    held = nn.ParameterList([group["params"][0] for group in groups])
    turned = groups[::-1] if me.rank else groups
    _raises(
        Mismatch,
        "in group 0; rank 1 .* in group 1",
        lambda: parallel(held, torch.optim.SGD(turned, lr=0.1)),
    )


def _refused(me: Rank) -> None:
    model = _seeded(Net)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    part = torch.optim.SGD(model.first.parameters(), lr=0.1)  # type: ignore[union-attr]
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    _raises(UsageError, "not the model's", lambda: parallel(model, stranger))
    _raises(UsageError, "does not have tied", lambda: parallel(model, part))
    _raises(
        UsageError,
        "wrapped in DistributedDataParallel",
        lambda: parallel(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1)),
    )
    _raises(UsageError, "LBFGS", lambda: parallel(model, torch.optim.LBFGS(model.parameters())))
    for made, words in (
        (nn.Linear(2, 2, device="meta"), "lies on meta"),
        (nn.Linear(2, 2, dtype=torch.complex64), "complex64"),
    ):
        _raises(
            UsageError,
            words,
            lambda made=made: parallel(made, torch.optim.SGD(made.parameters(), lr=0.1)),  # type: ignore[misc]
        )
    _raises(UsageError, "updates='often'", lambda: parallel(model, sgd, updates="often"))
    gloo = dist.new_group(backend="gloo")
    _raises(
        UsageError,
        'needs a group of the backend "wiiiiide"',
        lambda: parallel(model, sgd, group=gloo),
    )
    norm = nn.Embedding(4, 3, max_norm=1.0)
    _raises(
        UsageError, "max_norm", lambda: parallel(norm, torch.optim.SGD(norm.parameters(), lr=0.1))
    )
    parallel(model, sgd)
    _raises(UsageError, "once is enough", lambda: parallel(model, sgd))
    twin = copy.deepcopy(model)
    parallel(twin, torch.optim.SGD(twin.parameters(), lr=0.1))
    lists = Keeping(twin.parameters())
    twin = nn.Linear(2, 2, bias=False)
    lists = Keeping(twin.parameters())
    parallel(twin, lists)
    twin(torch.ones(1, 2)).sum().backward()
    _raises(UsageError, "Keeping keeps 'seen' as a list", lists.step)
    sgd.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    _raises(UsageError, "add_param_group", sgd.step)
    sparse = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SGD(sparse.parameters(), lr=0.1)
    parallel(sparse, optimizer)
    _raises(UsageError, "is sparse", lambda: sparse(torch.tensor([1])).sum().backward())


def _careful(me: Rank, way: str) -> None:
    _lay_out_as(way)
    for body in (_gradients_between, _writes_from_outside, _disagreements, _refused):
        body(me)


@pytest.mark.parametrize(("world", "way"), [(2, ""), ("aab", ""), (2, "private")])
def test_nothing_is_silently_wrong(world: int | str, way: str) -> None:
    run_ranks(_careful, world, way)
