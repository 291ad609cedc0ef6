"""`wide.Batches`: one order for any number of ranks, and a cursor that counts what was trained."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset

from tests.kit.ranks import Rank, run_ranks
from wiiiiided.errors import UsageError
from wiiiiided.torch import Batches, mapped, parallel, shared_dataset
from wiiiiided.train.data.batches import HostPlace
from wiiiiided.train.data.rounds import HostSizes

LENGTH = 103
X = torch.arange(LENGTH, dtype=torch.float32)[:, None] * torch.ones(3)


class Plain:
    """The least that a map-style data set has."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> int:
        assert type(number) is int
        return number


class Grouped(Plain):
    """One that can fetch several at once."""

    def __getitems__(self, numbers: list[int]) -> list[int]:
        return [self[number] for number in numbers]


def at(rank: int, ranks: int, dataset: Any = None, **options: Any) -> Batches:
    """As if this were one of so many ranks."""
    data = Batches(Plain() if dataset is None else dataset, **{"batch_size": 16, **options})
    data._place = lambda: (rank, ranks)  # type: ignore[method-assign]
    return data


def forked(workers: int) -> dict[str, Any]:
    """The options of a DataLoader with so many workers."""
    context = multiprocessing.get_context("fork") if workers else None
    return {"num_workers": workers, "multiprocessing_context": context}


def ids(batch: Any) -> list[int]:
    found: list[int] = batch.tolist()
    return found


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_halved_batches_are_handed_out_from_the_next_one_on(workers: int | None) -> None:
    whole = [ids(batch) for batch in at(1, 2)]
    data = at(1, 2)
    loop = iter(data if workers is None else data.loader(**forked(workers)))
    found = [ids(next(loop)) for _ in range(2)]
    data.halve()
    for batch in loop:
        found.append(ids(batch))
        assert data.samples_of_step() == len(batch)
    assert found[:2] == whole[:2]  # what workers have fetched ahead is not among the others
    assert found[2:] == [part[: -(-len(part) // 2)] for part in whole[2:]]


# -- the order ----


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_global_batches_are_the_same_for_any_number_of_ranks(shuffle: bool) -> None:
    alone = [ids(batch) for batch in at(0, 1, shuffle=shuffle, seed=4)]
    assert sorted(itertools.chain(*alone)) == [*range(LENGTH)]
    assert (sorted(alone[0]) == alone[0]) is not shuffle
    for ranks in (2, 3, 16):
        parts = [
            [ids(batch) for batch in at(rank, ranks, shuffle=shuffle, seed=4)]
            for rank in range(ranks)
        ]
        whole = [list(itertools.chain(*batch)) for batch in zip(*parts, strict=True)]
        assert whole[:-1] == alone[:-1]
        assert sorted(set(whole[-1])) == sorted(alone[-1])


def test_seed_and_epoch_decide() -> None:
    def order(**options: Any) -> list[int]:
        return list(itertools.chain(*map(ids, at(0, 1, **options))))

    assert order(seed=1) == order(seed=1) == order(seed=1, batch_size=7)
    assert order(seed=1) != order(seed=2)
    data = at(0, 1)
    first, second = (list(itertools.chain(*map(ids, data))) for _ in range(2))
    assert first != second
    assert data.epoch == 2
    data.set_epoch(1)
    assert list(itertools.chain(*map(ids, data))) == second


@pytest.mark.parametrize(("drop_last", "batches"), [(False, 7), (True, 6)])
def test_len_is_the_batches_of_an_epoch(drop_last: bool, batches: int) -> None:
    data = at(0, 1, drop_last=drop_last)
    assert len(data) == len(data.loader()) == len(list(data)) == batches
    assert len(list(data)) == batches  # of the next epoch too


def test_a_rank_without_a_sample_gets_one_that_does_not_count() -> None:
    short = LENGTH % 16  # 7 samples for 8 ranks
    last: list[tuple[list[int], int]] = []
    for rank in range(8):
        data = at(rank, 8)
        data.attach()
        for batch in data:
            found = ids(batch), data.samples_of_step()
            data.committed()
        last.append(found)
    assert [samples for _, samples in last].count(0) == 8 - short
    counted = [number for numbers, samples in last for number in numbers[:samples]]
    assert len(counted) == short
    assert all(len(numbers) == 1 for numbers, _ in last)
    assert {numbers[0] for numbers, samples in last if not samples} == {counted[0]}
    assert last[0][1] == 1  # rank 0, whose buffers count, is never the one


# -- what a batch is ----


def _datasets(folder: Path) -> Iterator[tuple[str, Any]]:
    np.savez(folder / "x.npz", x=X.numpy(), y=np.arange(LENGTH))
    yield "tuple", TensorDataset(X, torch.arange(LENGTH))
    yield "tuple", shared_dataset(lambda: (X, torch.arange(LENGTH)))
    yield "dict", mapped(folder / "x.npz")
    yield "tuple", [(X[number], number) for number in range(LENGTH)]


@pytest.mark.parametrize("workers", [0, 1])
def test_any_map_style_data_set_is_collated(tmp_path: Path, workers: int) -> None:
    for kind, dataset in _datasets(tmp_path):
        expected = [ids(batch) for batch in at(1, 2)]
        data = at(1, 2, dataset)
        loop = data.loader(**forked(workers)) if workers else data
        for numbers, batch in zip(expected, loop, strict=True):
            x, y = batch.values() if kind == "dict" else batch
            assert y.tolist() == numbers
            assert torch.equal(x, X[numbers])


def test_samples_are_fetched_together_where_a_data_set_can() -> None:
    assert [ids(b) for b in at(0, 2, Grouped())] == [ids(b) for b in at(0, 2)]


def test_a_collate_fn_gets_samples() -> None:
    data = at(0, 1, TensorDataset(X, torch.arange(LENGTH)))
    for batch in data.loader(collate_fn=lambda samples: [int(y) for _, y in samples]):
        assert all(type(number) is int for number in batch)


# -- the cursor ----


def test_a_batch_counts_when_the_next_one_is_asked_for() -> None:
    data = at(0, 1)
    batches = iter(data)
    next(batches)
    assert data.state_dict()["position"] == 0
    assert data.samples_of_step() == 16
    next(batches)
    assert data.state_dict()["position"] == 16


def test_a_loop_that_is_left_goes_on_with_what_was_not_trained() -> None:
    whole = [ids(batch) for batch in at(0, 1)]
    data = at(0, 1)
    for number, _ in enumerate(data):
        if number == 3:
            break
    assert [ids(batch) for batch in data] == whole[3:]
    data = at(0, 1)
    for number, _ in enumerate(data):
        data.committed()
        if number == 3:
            break
    assert [ids(batch) for batch in data] == whole[4:]


def test_the_epoch_is_that_of_the_next_loop_also_after_a_break() -> None:
    data = Batches(TensorDataset(torch.arange(8)), 4, shuffle=False)
    loops = 0
    while data.epoch < 2:
        loops += 1
        for number, _ in enumerate(data):
            assert data.epoch == loops - 1
            data.committed()
            if number == 1:  # left at its last batch, which was trained
                break
    assert (loops, data.epochs_done) == (2, 2.0)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_workers_fetched_ahead_counts_as_not_seen(workers: int) -> None:
    whole = [ids(batch) for batch in at(0, 1)]
    data = at(0, 1)
    loader = data.loader(**forked(workers))
    for number, batch in enumerate(loader):
        assert ids(batch) == whole[number]
        data.committed()
        if number == 1:
            break
    state = data.state_dict()
    assert (state["epoch"], state["position"]) == (0, 32)
    assert [ids(batch) for batch in loader] == whole[2:]
    fresh = at(0, 1)
    fresh.load_state_dict(state)
    assert [ids(batch) for batch in fresh] == whole[2:]


def test_a_step_counts_all_batches_since_the_last_one() -> None:
    data = at(1, 3)
    data.attach()
    steps = []
    for number, batch in enumerate(itertools.chain(data, data)):  # two epochs of 7 batches
        del batch
        if number % 4 == 3:
            samples = data.samples_of_step()
            data.committed()
            steps.append((samples, data.state_dict()["epoch"], data.state_dict()["position"]))
    # batches of rank 1 of 3: 5 samples each, of the last one 2
    assert steps == [(20, 0, 64), (5 + 5 + 2 + 5, 1, 16), (20, 1, 80)]
    assert data.epoch == 2
    assert data.samples_of_step() == 5 + 2


def test_the_state_goes_on_at_another_number_of_ranks_and_batch_size() -> None:
    order = list(itertools.chain(*map(ids, at(0, 1, seed=9))))
    data = at(0, 1, seed=9)
    for number, _ in enumerate(data):
        data.committed()
        if number == 1:
            break
    state = data.state_dict()
    parts = []
    for rank in range(2):
        again = at(rank, 2, seed=9, batch_size=10)
        again.load_state_dict(state)
        assert again.state_dict()["generation"] == 1
        parts.append([ids(batch) for batch in again])
    assert [number for pair in zip(*parts, strict=True) for part in pair for number in part] == (
        order[32:] + order[102:] * (len(order[32:]) % 10 == 1)
    )


def test_a_rest_that_is_left_out_is_passed_over_after_a_resume() -> None:
    data = at(0, 1, drop_last=True)
    data.load_state_dict({**data.state_dict(), "position": LENGTH - 5})
    assert len(list(data)) == 6
    assert data.state_dict()["epoch"] == 2


def test_set_epoch_keeps_the_place_in_the_epoch_that_goes_on() -> None:
    data = at(0, 1)
    data.load_state_dict({**data.state_dict(), "epoch": 3, "position": 32})
    data.set_epoch(3)
    assert len(list(data)) == 5
    data.set_epoch(4)
    assert len(list(data)) == 7


def test_one_loop_at_a_time() -> None:
    data = at(0, 1)
    first = iter(data)
    next(first)
    next(iter(data))
    with pytest.raises(UsageError, match="another one over the same"):
        next(first)
    second = iter(data)
    next(second)
    data.load_state_dict(data.state_dict())
    with pytest.raises(UsageError, match="load_state_dict was called"):
        next(second)


# -- a DataLoader of the script's own ----


def _own(data: Batches, workers: int) -> Any:
    return DataLoader(data.dataset, batch_sampler=data.batch_sampler, **forked(workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_over_the_sampler_gets_the_same_batches(workers: int) -> None:
    whole = [[ids(batch) for batch in data] for data in [at(1, 2)] for _ in range(2)]
    data = at(1, 2)
    loader = _own(data, workers)
    next(iter(loader))  # a look at a batch changes nothing
    assert len(loader) == len(data)
    for epoch in range(2):
        data.set_epoch(epoch)
        found = []
        for batch in loader:
            data.got_batch()
            assert (data.epoch, data.samples_of_step()) == (epoch, len(batch))
            found.append(ids(batch))
            data.committed()
        assert found == whole[epoch]
        assert data.epoch == data.epochs_done == epoch + 1
    assert data.state_dict()["position"] == 0


def test_a_data_set_that_takes_lists_is_asked_for_whole_batches() -> None:
    data = at(1, 2, TensorDataset(X))
    loader = DataLoader(data.dataset, sampler=data.batch_sampler, batch_size=None)
    assert [batch[0].tolist() for batch in loader] == [
        x.tolist() for (x,) in at(1, 2, data.dataset)
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("says_so", [True, False])
def test_what_a_data_loader_has_fetched_and_not_given_out_comes_again(
    workers: int, says_so: bool
) -> None:
    data = at(0, 1)
    trained: list[int] = []
    for number, batch in enumerate(_own(data, workers)):
        data.got_batch()
        if number == 3:
            break
        trained += ids(batch)
        if says_so:
            data.committed()
    assert data.state_dict()["position"] == 3 * 16
    again = at(0, 1)
    again.load_state_dict(data.state_dict())
    for batch in _own(again, workers):
        again.got_batch()
        trained += ids(batch)
    next(iter(again))  # without committed() the last batch counts when another loop begins
    assert again.epochs_done == 1
    assert sorted(trained) == [*range(LENGTH)]


def test_batches_without_a_step_at_an_epochs_end_count_with_the_next_step() -> None:
    data, got = at(0, 1), 0  # seven batches an epoch, two a step
    for epoch in range(2):
        for batch in _own(data, 0):
            assert data.epoch == epoch
            data.got_batch()
            got += 1
            if got == 8:
                assert data.samples_of_step() == LENGTH % 16 + len(batch)
            if got % 2 == 0:
                data.committed()
    assert (data.epochs_done, data.samples_of_step()) == (2, 0)


def test_batches_that_are_fetched_stay_divided_as_they_are() -> None:
    data, sizes = at(0, 2), []
    for _ in range(2):
        for batch in _own(data, 0):
            data.got_batch()
            data.divide((0.25, 0.75))
            sizes.append(len(batch))
            data.committed()
    assert sizes == [8] * 6 + [4] + [4] * 6 + [2]


def test_a_loop_that_does_not_tell_what_it_gets_is_told_so() -> None:
    data = at(0, 1)
    loader = _own(data, 0)
    batches = iter(loader)
    next(batches)
    for step in (data.committed, data.samples_of_step):
        with pytest.raises(UsageError, match=r"call data\.got_batch\(\) for each batch"):
            step()
    assert len(list(loader)) == 7
    with pytest.raises(UsageError, match=r"call data\.got_batch\(\) for each batch"):
        next(iter(loader))
    with pytest.raises(UsageError, match=r"no batch of data\.batch_sampler is there"):
        at(0, 1).got_batch()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda data: {"batch_sampler": data},
        lambda data: {"sampler": data},
        lambda data: {"batch_sampler": BatchSampler(data, 4, False)},
    ],
)
def test_batches_are_no_sampler(wrong: Any, workers: int) -> None:
    data = at(0, 1)
    loader = DataLoader(Plain(), **wrong(data), **forked(workers))
    with pytest.raises(UsageError, match=r"batch_sampler=data\.batch_sampler"):
        next(iter(loader))


def test_batches_that_change_in_a_loop_have_no_sampler() -> None:
    with pytest.raises(UsageError, match='batch_size="auto" changes batches'):
        iter(Batches(Plain(), "auto", between=(2, 9)).batch_sampler)
    data = at(0, 1)
    data.begin_rounds(0, HostSizes((8,), (2,)), HostPlace(0, 1))
    with pytest.raises(UsageError, match="every=H changes batches"):
        next(iter(_own(data, 0)))


# -- what is refused ----


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_the_steps_of_all_epochs_are_known_once_their_number_is() -> None:
    data = Batches(list(range(22)), 8, epochs=4)  # three batches an epoch
    assert data.total_steps(0) is None
    batches = iter(data)
    next(batches)
    data.committed()
    assert data.total_steps(1) == 12
    next(batches), next(batches)
    data.committed()  # both in one step: two steps for three batches
    assert data.total_steps(2) == 8
    assert data.total_steps(3) == 12
    for _ in range(4):
        list(data)
        data.committed()
    assert data.total_steps(15) == 15  # the script goes on longer than it said
    assert Batches(list(range(22)), 8).total_steps(1) is None


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Batches(Stream()), "Stream is an IterableDataset"),
        (lambda: Batches(iter([])), "list_iterator is none"),
        (lambda: Batches({1, 2}), "set is none"),
        (lambda: Batches([]), "has 0 samples: there is no batch"),
        (lambda: Batches([1], drop_last=True), "drop_last leaves it out"),
        (lambda: Batches([1], batch_size=0), "batch_size=0 is not"),
        (lambda: Batches([1], batch_size=True), "batch_size=True is not"),
        (lambda: Batches([1], seed=-1), "seed=-1 is not"),
        (lambda: Batches([1], epochs=0), "epochs=0 is not"),
        (lambda: Batches([1]).set_epoch(-1), "an epoch is"),
        (lambda: Batches([1]).loader(shuffle=True), "wide.Batches decides shuffle"),
        (lambda: Batches([1]).loader(in_order=False), "in another order"),
        (lambda: Batches([1]).load_state_dict({"epoch": 1}), "no state of wide.Batches"),
    ],
)
def test_what_cannot_be_gets_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"length": 7}, "samples of the data set is 7 in the saved state and 103 here"),
        ({"seed": 5}, "the seed is 5 in the saved state and 0 here"),
        ({"shuffle": False}, "shuffle is False in the saved state and True here"),
        ({"format": 9}, "format is 9 in the saved state and 1 here"),
        ({"position": 104}, "there is no sample 104"),
        ({"position": "1"}, "no state of wide.Batches"),
    ],
)
def test_the_state_of_another_order_is_refused_with_both_values(
    changed: dict[str, Any], sentence: str
) -> None:
    data = at(0, 1)
    with pytest.raises(UsageError, match=sentence):
        data.load_state_dict({**data.state_dict(), **changed})


def test_a_billion_samples_need_no_list() -> None:
    data = at(2, 8, Plain(10**9), batch_size=1024)
    batches = iter(data)
    assert len(set(ids(next(batches)) + ids(next(batches)))) == 256


# -- ranks ----


def _train(me: Rank) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    data = Batches(TensorDataset(X.double() / LENGTH), batch_size=20, seed=3)
    data.attach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run = parallel(model, optimizer) if dist.is_initialized() else None
    for _ in range(2):
        for (x,) in data:
            (model(x) - x.sum(1, keepdim=True).sin()).square().mean().backward()
            if run is not None:
                run.samples(data.samples_of_step())
            optimizer.step()
            data.committed()
            optimizer.zero_grad()
    assert data.state_dict()["epoch"] == 2
    return [value for p in model.parameters() for value in p.flatten().tolist()]


@pytest.mark.parametrize("world", [3, 5, "aab"])
def test_ranks_train_what_one_process_trains(world: int | str) -> None:
    """The last batch has 3 samples: of five ranks two have one that does not count."""
    alone = torch.tensor(_train(Rank(0, 1, "")))
    for found in run_ranks(_train, world):
        torch.testing.assert_close(torch.tensor(found), alone, rtol=1e-9, atol=1e-12)


def _own_loader(me: Rank) -> list[float]:
    data = Batches(TensorDataset(X), batch_size=20, seed=3)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    run = parallel(model, optimizer, data=data)
    loader = DataLoader(data.dataset, batch_sampler=data.batch_sampler, **forked(1))
    batches, seen = iter(loader), list[float]()
    model(next(batches)[0]).mean().backward()
    with pytest.raises(UsageError, match=r"call data\.got_batch\(\)"):
        optimizer.step()
    optimizer.zero_grad()
    del batches
    for (x,) in loader:
        data.got_batch()
        seen += x[: data.samples_of_step(), 0].tolist()
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if len(seen) > 20:
            break
    again = Batches(TensorDataset(X), batch_size=30, seed=3)
    again.load_state_dict(run.state_dict()["data"])
    for (x,) in DataLoader(again.dataset, batch_sampler=again.batch_sampler):
        again.got_batch()
        seen += x[: again.samples_of_step(), 0].tolist()
        again.committed()
    return seen


def test_ranks_train_every_sample_once_over_a_data_loader_of_their_own() -> None:
    first, second = run_ranks(_own_loader, 2)
    assert sorted(first + second) == [*range(LENGTH)]


def _too_many(me: Rank) -> None:
    with pytest.raises(UsageError, match="batch_size=1 is that of all 2 ranks together"):
        iter(Batches([1, 2], batch_size=1))
    alone = dist.new_group([0])
    if me.rank:
        with pytest.raises(UsageError, match="no member of the group"):
            iter(Batches([1, 2], group=alone))
    else:
        assert next(iter(Batches([1, 2], group=alone, shuffle=False))).tolist() == [1, 2]


def test_the_group_says_which_part_is_this_ranks() -> None:
    run_ranks(_too_many, 2)
