"""Checkpoints: saved beside training, whole or not at all, and resumed at any number of ranks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import resource
import signal
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from wiiiiided.config import JobHere
from wiiiiided.errors import HostError, UsageError
from wiiiiided.torch import Batches, Between, Parallel, parallel
from wiiiiided.train import balance, sync_step
from wiiiiided.train.checkpoints import exchange, file, safetensors, saving, writer
from wiiiiided.train.checkpoints.exchange import FileExchange
from wiiiiided.train.checkpoints.owner import FileOwner
from wiiiiided.train.checkpoints.policy import SavePolicy
from wiiiiided.train.checkpoints.writer import NAME, prune

LENGTH, BATCH, EPOCHS = 42, 8, 2  # six steps an epoch, of which the last has two samples
STEPS = 12


class Trained:
    """A model in training, with all that a checkpoint has to hold."""

    def __init__(self, folder: str, **options: Any) -> None:
        source = torch.Generator().manual_seed(3)
        x = torch.randn(LENGTH, 6, generator=source)
        self.data = Batches(TensorDataset(x, x[:, :3].sin(), torch.arange(LENGTH)), BATCH, 1)
        torch.manual_seed(11)
        self.model = nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Linear(40, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.7)
        self.run: Parallel = parallel(
            self.model,
            self.optimizer,
            data=self.data,
            scheduler=self.scheduler,
            save=folder,
            **{"save_every": 4, **options},
        )

    def train(self, until: int = STEPS, dropout: float = 0.3) -> list[tuple[int, float, list[int]]]:
        """Steps up to this one, each with its loss and the samples of this rank."""
        made: list[tuple[int, float, list[int]]] = []
        for _ in range(self.data.epoch, EPOCHS):
            for x, y, ids in self.data:
                mine = ids.tolist()[: self.data.samples_of_step()]
                found = nn.functional.dropout(self.model(torch.cat([x, x + 0.1])), dropout)
                loss = nn.functional.mse_loss(found, torch.cat([y, y]))
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()
                step = self.run.state_dict()["step"]
                made.append((step, loss.item(), mine))
                if step == until:
                    return made
        return made

    def bits(self) -> list[Any]:
        """Weights and optimizer state, and what the scheduler has made of the learning rate."""
        kept = self.optimizer.state_dict()["state"]
        tensors = [*self.model.parameters(), *(v for s in kept.values() for v in s.values())]
        return [self.scheduler.get_last_lr(), *(t.detach().tolist() for t in tensors)]


def _folder(me: Rank, base: str, hosts: str) -> str:
    return f"{base}/{hosts[me.rank]}"


def _whole_run(me: Rank, base: str) -> tuple[list[Any], list[Any]]:
    trained = Trained(base)
    assert trained.run.resume() == 0
    return trained.train(), trained.bits()


def _until(me: Rank, base: str, hosts: str, until: int, options: dict[str, Any]) -> list[Any]:
    trained = Trained(_folder(me, base, hosts), **options)
    trained.run.resume()
    made = trained.train(until)
    trained.run.save()
    return made


def _go_on(
    me: Rank, base: str, hosts: str, step: int, options: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    trained = Trained(_folder(me, base, hosts), **options)
    assert trained.run.resume() == step
    return trained.train(dropout=0.3), trained.bits()


@pytest.mark.parametrize("until", [5, 6])  # in the middle of an epoch, and at its end
def test_a_resumed_run_equals_an_undisturbed_one_to_the_last_bit(
    tmp_path: Path, until: int
) -> None:
    undisturbed = run_ranks(_whole_run, 2, str(tmp_path / "whole"))
    before = run_ranks(_until, "aa", str(tmp_path), "aa", until, {})
    after = run_ranks(_go_on, "aa", str(tmp_path), "aa", until, {})
    for first, (rest, bits), (losses, wanted) in zip(before, after, undisturbed, strict=True):
        assert first + rest == losses
        assert bits == wanted


def _state(me: Rank, base: str, hosts: str, options: dict[str, Any]) -> tuple[int, list[Any]]:
    trained = Trained(_folder(me, base, hosts), **options)
    step = trained.run.resume()
    return step, trained.bits()


@pytest.mark.parametrize("between", ["every step", "int8", "seldom"])
def test_any_number_of_ranks_and_hosts_goes_on_from_the_same_state(
    tmp_path: Path, between: str
) -> None:
    how = {"every step": None, "int8": Between("int8"), "seldom": Between(every=2)}[between]
    options = {"between": how}
    run_ranks(_until, "aab", str(tmp_path), "aab", 5, options)
    (step, wanted), *_ = run_ranks(_state, "a", str(tmp_path), "a", options)
    assert step == 5
    for hosts in ("aaa", "ca", "ab"):  # host c has nothing of its own
        found = run_ranks(_state, hosts, str(tmp_path), hosts, options)
        assert [one for one, _ in found] == [5] * len(hosts)
        for rank, (_, bits) in enumerate(found):
            if between != "seldom" or hosts[rank] != "b":  # the optimizer's state is a host's own
                assert bits == wanted
    seen = run_ranks(_go_on, "ca", str(tmp_path), "ca", 5, options)
    trained = [n for made, _ in seen for _, _, ids in made for n in ids]
    assert len(trained) == EPOCHS * LENGTH - 5 * BATCH


def _apart(me: Rank, base: str, hosts: str, dropout: float, options: dict[str, Any]) -> list[Any]:
    trained = Trained(_folder(me, base, hosts), **options)
    trained.run.resume()
    trained.train(5, dropout)
    trained.run.save()
    return trained.bits()


@pytest.mark.parametrize("between", ["int8", "seldom"])
def test_hosts_that_went_on_apart_from_each_other_go_on_from_one_state(
    tmp_path: Path, between: str
) -> None:
    options = {"between": {"int8": Between("int8"), "seldom": Between(every=2)}[between]}
    base = str(tmp_path)
    run_ranks(_until, "ab", base, "ab", 2, options)
    (wanted,) = run_ranks(_apart, "a", base, "a", 0.3, options)
    (other,) = run_ranks(_apart, "b", base, "b", 0.0, options)
    assert other != wanted
    for step, bits in run_ranks(_state, "ab", base, "ab", options):
        assert step == 5
        assert bits == wanted


def _without_token(path: Path) -> None:
    """As it was written before files had one, and a job."""
    said = rb', "(?:token|job)": "[0-9a-f]*"'
    raw, count = re.subn(said, lambda m: b" " * len(m[0]), path.read_bytes())
    assert count == 2
    digest = hashlib.sha256(raw[writer.DIGESTED_FROM :]).digest()
    path.write_bytes(writer.MAGIC + digest + raw[writer.DIGESTED_FROM :])


def test_files_without_a_token_are_resumed_each_by_its_own_host(tmp_path: Path) -> None:
    run_ranks(_until, "ab", str(tmp_path), "ab", 5, {"between": Between("int8")})
    for path in (*_files(tmp_path / "a"), *_files(tmp_path / "b")):
        _without_token(path)
        assert file.check(path, None).token == ""
    before = _files(tmp_path / "b")
    found = run_ranks(_state, "ab", str(tmp_path), "ab", {"between": Between("int8")})
    assert [step for step, _ in found] == [5, 5]
    assert _files(tmp_path / "b") == before  # nothing was sent


def test_hosts_that_share_a_folder_have_each_their_files_there(tmp_path: Path) -> None:
    for until in (5, 7):
        run_ranks(_until, "ab", str(tmp_path), "ss", until, {"keep": 2})
    names = [path.name[:22] for path in _files(tmp_path / "s")]
    assert names == [f"step-000000000{n}.host-{h}" for n in (5, 7) for h in (0, 1)]
    assert not list(tmp_path.glob("s/*.tmp"))


def _is_sent_what_cannot_be_read(me: Rank, base: str) -> str:
    exchange = FileExchange(dist.group.WORLD, dist.group.WORLD.engine_group)  # type: ignore[union-attr]
    there = file.NewestFile(Path(base), 1)  # a folder
    mine = file.NewestFile() if me.rank else there
    with pytest.raises(HostError) as caught:
        exchange.bring(mine, Path(base) / "b", "x.wide", None)
    return str(caught.value)


def test_a_file_that_its_host_cannot_read_is_named_on_all_ranks(tmp_path: Path) -> None:
    for said in run_ranks(_is_sent_what_cannot_be_read, "ab", str(tmp_path)):
        assert said.startswith("rank 0 cannot take over the state of step 1: ")
        assert "Is a directory" in said
    assert not list(tmp_path.glob("b/*"))


def _saves_by_time(me: Rank, base: str) -> list[str]:
    saving.time.monotonic = lambda: 60.0 * len(made)  # type: ignore[attr-defined]
    made: list[int] = []
    trained = Trained(base, save_every="2m", keep=2)
    trained.run.resume()
    for x, y, _ in trained.data:
        made.append(1)
        nn.functional.mse_loss(trained.model(torch.cat([x, x + 1])), torch.cat([y, y])).backward()
        trained.run.clip_grad_norm_(1.0)
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        if trained.run._saver is not None:
            trained.run._saver._end_writer()
    dist.barrier()
    return sorted(os.listdir(base))


def test_time_is_that_of_rank_0_and_old_files_go(tmp_path: Path) -> None:
    first, *_ = run_ranks(_saves_by_time, 2, str(tmp_path))
    assert [int(NAME.fullmatch(name)[1]) for name in first] == [2, 4]  # type: ignore[index]


# -- kills ----


class Schedule(NamedTuple):
    """How the attempts of a run go about it."""

    seed: int
    every: int
    accumulate: int = 1  # batches a step
    is_uneven: bool = False  # ranks say speeds that are far apart, and others in every step

    @classmethod
    def of(cls, seed: int) -> Schedule:
        """Seed 7 has all that one run can have; of the others each has some of it."""
        if seed == 7:
            return cls(seed, 1, 2, True)
        chance = random.Random(seed)
        every = chance.choice([1, 1, 2, 3])
        return cls(seed, 1, chance.choice([1, 2, 4]), True) if every == 1 else cls(seed, every)


def _say_other_speeds(me: Rank, seed: int) -> None:
    """Ranks hear at once, and in each step, of speeds that were not measured."""
    chance = random.Random(100 * seed + me.rank)
    balance.Balance.__init__.__defaults__ = (0.0, 0.0)
    speed = property(lambda clock: balance.RankSpeed(chance.uniform(1.0, 8.0), 1.0))
    balance.StepClock.speed = speed  # type: ignore[assignment,method-assign]
    sync_step.is_told = lambda step: True


def _killed(me: Rank, base: str, hosts: str, how: Schedule) -> None:
    if how.is_uneven:
        _say_other_speeds(me, how.seed)
    options: dict[str, Any] = {"save_every": 2, "between": Between(every=how.every)}
    trained = Trained(_folder(me, base, hosts), **options)
    note(("resumed", trained.run.resume()))
    batches, got = 0, list[tuple[int, int]]()  # epoch and sample
    for _ in range(trained.data.epoch, EPOCHS):
        for x, y, ids in trained.data:
            mine = ids.tolist()[: trained.data.samples_of_step() - len(got)]
            got += [(trained.data.epoch, number) for number in mine]
            loss = nn.functional.mse_loss(trained.model(torch.cat([x, x])), torch.cat([y, y]))
            loss.backward()
            batches += 1
            if batches % how.accumulate == 0:
                _noted_step(trained, got, how)
    if batches % how.accumulate:  # a rank may have got nothing in them
        _noted_step(trained, got, how)
    note(("done",))


def _noted_step(trained: Trained, got: list[tuple[int, int]], how: Schedule) -> None:
    """A step with these samples, told before it is made: after it a kill may come first."""
    if how.every == 1:
        note(("step", trained.run.state_dict()["step"] + 1, got.copy(), trained.run.shares))
    trained.optimizer.step()
    trained.optimizer.zero_grad()
    trained.scheduler.step()
    step = trained.run.state_dict()["step"]
    if how.every > 1:
        note(("step", step, got.copy(), trained.run.shares))
    got.clear()
    if step % 3 == 0:
        trained.run.save()


class Killer:
    """Kills one rank once it has said so many things."""

    def __init__(self, rank: int, after: int) -> None:
        self._rank, self._after = rank, after

    def __call__(self, outcomes: list[Outcome], elapsed_s: float) -> None:
        victim = outcomes[self._rank]
        if len(victim.notes) >= self._after and victim.exit_code is None:
            with contextlib.suppress(ProcessLookupError):  # killed, and not looked at yet
                os.kill(victim.pid, signal.SIGKILL)


_SCHEDULES = [7, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 120))]


@pytest.mark.parametrize("seed", _SCHEDULES)
def test_kills_and_other_numbers_of_hosts_lose_and_double_no_sample(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    resumed: list[int] = []
    trained: dict[int, list[tuple[int, int]]] = {}  # by step, as the last attempt at it had it
    attempts = ["abc", "ab", "cab", "a", "aab"]
    if seed != 7:
        chance.shuffle(attempts)
    how, shares = Schedule.of(seed), set[tuple[float, ...]]()
    for hosts in (*attempts, "ba"):
        kills = Killer(chance.randrange(len(hosts)), chance.randrange(3, 8))
        during = None if hosts == "ba" else kills
        outcomes = watch_ranks(_killed, hosts, str(tmp_path), hosts, how, during=during)
        started = [said[1] for o in outcomes for _, said in o.notes if said[0] == "resumed"]
        assert len(set(started)) <= 1
        resumed += started[:1]
        if started:
            trained = {step: ids for step, ids in trained.items() if step <= started[0]}
        for outcome in outcomes:
            for said in (said for _, said in outcome.notes if said[0] == "step"):
                trained.setdefault(said[1], []).extend(said[2])
                shares.add(said[3])
    assert any(max(found) > 2 * min(found) for found in shares) or seed != 7
    assert all(("done",) in [said for _, said in o.notes] for o in outcomes), outcomes
    assert max(resumed) > 0 or seed != 7  # each may have been killed before its first save
    seen = [sample for samples in trained.values() for sample in samples]
    assert sorted(seen) == [(epoch, n) for epoch in range(EPOCHS) for n in range(LENGTH)]


class Large:
    """A run whose files have some chunks, so that a writer can be met in the middle of one."""

    def __init__(self, folder: str) -> None:
        torch.manual_seed(5)
        self.model = nn.Linear(1024, 2048)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.run = parallel(self.model, self.optimizer, save=folder, save_every=1, keep=9)

    def forward(self) -> torch.Tensor:
        """The step before it is saved as this begins."""
        found: torch.Tensor = self.model(torch.ones(1, 1024)).square().mean()
        return found

    def step(self) -> None:
        self.forward().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> tuple[int, str]:
        """Of which step, and their digest."""
        raw = self.model.weight.detach().numpy().tobytes()
        return self.run.state_dict()["step"], hashlib.sha256(raw).hexdigest()


def _writer_of(run: Parallel) -> subprocess.Popen[str]:
    assert run._saver is not None
    ((_, process),) = run._saver._writing
    return process


def _grows_to(folder: Path, size: int, process: subprocess.Popen[str]) -> None:
    """Return once the file that is being written has so many bytes, or the writer is done."""
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # it has been renamed
            if any(path.stat().st_size > size for path in folder.glob("*.tmp")):
                return


def _kills_writers(me: Rank, base: str, seed: int, together: bool) -> list[str]:
    """The writer of every other step is killed, until it was so in the middle of a file."""
    if together:
        os.setpgid(0, 0)
    chance, folder, halves = random.Random(seed), Path(base), list[str]()
    large = Large(base)
    large.run.resume()
    large.step()
    note(large.weights())
    large.run.save()
    size = max(path.stat().st_size for path in folder.glob("*.wide"))
    while len(halves) < 2:
        large.step()
        note(large.weights())
        large.run.save()  # the last good one, unless the writer of the next is too fast
        large.step()
        note(large.weights())
        loss = large.forward()
        process = _writer_of(large.run)
        _grows_to(folder, chance.randrange(size), process)
        if together:
            os.killpg(0, signal.SIGKILL)
        process.kill()
        process.wait()
        halves += [path.name for path in folder.glob("*.tmp")]
        loss.backward()
        large.optimizer.step()
        large.optimizer.zero_grad()
        note(large.weights())
        large.run.save()
        assert not list(folder.glob("*.tmp"))
    return halves


def _goes_on(me: Rank, base: str) -> tuple[int, tuple[int, str]]:
    large = Large(base)
    resumed = large.run.resume(), large.weights()
    large.step()
    large.run.save()
    return resumed


@pytest.mark.parametrize("together", [False, True])
def test_a_writer_that_is_killed_in_the_middle_of_a_file_leaves_the_last_good_one(
    tmp_path: Path, together: bool
) -> None:
    halves = 0
    for seed in range(20):
        (outcome,) = watch_ranks(_kills_writers, 1, str(tmp_path), seed, together)
        assert outcome.exit_code == (-signal.SIGKILL if together else 0), outcome
        halves += len(list(tmp_path.glob("*.tmp"))) if together else len(outcome.value)
        good = _files(tmp_path)
        for path in good:
            file.check(path, None)
        step = file.read_head(good[-1]).step
        wanted = dict(said for _, said in outcome.notes)[step]
        assert run_ranks(_goes_on, 1, str(tmp_path)) == [(step, (step, wanted))]
        assert not list(tmp_path.glob("*.tmp"))
        if halves >= 2:
            return
    pytest.fail("no writer was killed in the middle of a file")


# -- jobs that save to one folder ----

MODEL = "0123456789abcdef"


def _job(number: int, work: Path, resumes: str = "") -> JobHere:
    return JobHere(f"{number}-19a2b3c4d5e", str(work), resumes)


def _put(folder: Path, step: int, job: JobHere | None, keep: int | None = None) -> Path:
    owner = FileOwner.of(MODEL, folder, job)
    head = file.FileHead(step, 0, 1, 1, MODEL, job=owner.job_name)
    path = folder / head.name(owner.series)
    writer.write(str(path), file.FileImage.of(head, {"step": step}).chunks(), 0, keep)
    return path


def _found(folder: Path, job: JobHere | None) -> tuple[int, tuple[str, ...]]:
    found = file.newest(folder, FileOwner.of(MODEL, folder, job), 0)
    return found.step, found.passed_over


def test_jobs_in_one_folder_go_on_from_their_own_files_alone(tmp_path: Path) -> None:
    folder, work = tmp_path / "all", tmp_path / "work"
    folder.mkdir()
    first, second, third = (_job(number, work) for number in (9, 17, 18))
    kept = [_put(folder, step, first, keep=2) for step in (100, 200, 300)][1:]
    assert _put(folder, 200, second, keep=1).exists()
    assert all(path.exists() for path in kept)
    assert _found(folder, first)[0] == 300
    assert _found(folder, second)[0] == 200
    step, (said,) = _found(folder, third)
    assert step == 0
    assert said.startswith(f"{folder} has checkpoints of jobs 9, 17, which this job leaves alone.")
    assert "wiiiiide submit --resume 17" in said
    assert _found(folder, _job(18, work, resumes="9"))[0] == 300
    assert _found(folder, None)[0] == 300  # a run by hand
    _put(folder, 50, None)
    assert _found(folder, third)[0] == 50


def test_a_jobs_half_and_damaged_files_are_left_to_it(tmp_path: Path) -> None:
    folder, work = tmp_path / "all", tmp_path / "work"
    folder.mkdir()
    theirs = _put(folder, 300, _job(9, work))
    os.truncate(theirs, 100)
    half = folder / f"{theirs.name}.0-{'0' * 16}.tmp"
    half.touch()
    mine = _put(folder, 100, _job(17, work), keep=1)
    assert _found(folder, _job(17, work))[0] == 100
    assert sorted(folder.iterdir()) == sorted([mine, theirs, half])


def test_a_jobs_file_that_was_copied_is_known_by_its_head(tmp_path: Path) -> None:
    folder, work = tmp_path / "all", tmp_path / "work"
    for path in (folder, work):
        path.mkdir()
    path = _put(work, 100, _job(9, work))
    assert path.name == f"step-0000000100.host-0.{MODEL}.wide"
    path.replace(folder / path.name)
    assert _found(folder, _job(17, work))[0] == 0
    assert _found(folder, _job(9, work))[0] == 100


def test_all_that_lies_in_a_jobs_directory_is_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "work" / "ckpt"
    folder.mkdir(parents=True)
    _put(folder, 100, _job(9, tmp_path / "work"))
    assert _found(folder, _job(17, tmp_path / "work")) == (100, ())
    _put(folder, 200, _job(17, tmp_path / "work"), keep=1)
    assert [path.name[:15] for path in _files(folder)] == ["step-0000000200"]


def test_jobs_with_one_folder_begin_each_for_itself(tmp_path: Path) -> None:
    base, work = str(tmp_path / "all"), str(tmp_path / "work")
    os.mkdir(work)
    jobs = [{"WIIIIIDE_JOB": f"{n}-1", "WIIIIIDE_WORK": work} for n in (9, 17)]
    for job in jobs:
        run_ranks(_until, "ab", base, "ss", 5, {"keep": 1}, env=job)
    names = [path.name for path in _files(tmp_path / "all" / "s")]
    assert len(names) == 4  # of two jobs on two hosts
    for job in jobs:
        found = run_ranks(_state, "ab", base, "ss", {}, env=job)
        assert [step for step, _ in found] == [5, 5]
        assert found[0][1] == found[1][1]
    assert [path.name for path in _files(tmp_path / "all" / "s")] == names


# -- damaged files, full disks ----


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.wide"))


def _saves_each(me: Rank, base: str, steps: list[int]) -> None:
    trained = Trained(base, save_every="1h", keep=9)
    for step in steps:
        trained.train(step)
        trained.run.save()


def _resumes(me: Rank, base: str) -> tuple[int, list[str]]:
    said: list[str] = []
    saving.log.warn = lambda who, text: said.append(text)  # type: ignore[assignment]
    return Trained(base).run.resume(), said


def test_damaged_and_foreign_files_are_named_and_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    run_ranks(_saves_each, 1, str(folder), [2, 3, 5, 8, 11])
    found = _files(folder)
    assert len(found) == 5
    with open(found[-1], "r+b") as damaged:
        damaged.seek(-100, os.SEEK_END)
        damaged.write(b"\xff\x00" * 5)
    os.truncate(found[-2], found[-2].stat().st_size - 1)
    found[-3].write_bytes(b"not at all")
    with open(found[-4], "r+b") as half:
        half.write(bytes(40))
    foreign = folder / f"step-9999999999.host-0.{'0' * 16}.wide"
    foreign.write_bytes(found[0].read_bytes())
    (folder / "mine.wide").write_bytes(b"?")
    ((step, said),) = run_ranks(_resumes, 1, str(folder))
    assert step == int(NAME.fullmatch(found[-5].name)[1])  # type: ignore[index]
    text = "\n".join(said)
    for path, why in zip(
        [*reversed(found[-4:]), foreign, folder / "mine.wide"],
        [
            *("its digest is another", "cut off or damaged", "is no checkpoint"),
            *("was not written to its end", "is of another model", "no checkpoint by its name"),
        ],
        strict=True,
    ):
        assert any(str(path) in line and why in line for line in said), (why, text)
    assert foreign.exists()
    assert not found[-1].exists()


def _full_disk(me: Rank, base: str, synchronous: bool) -> tuple[int, list[str]]:
    said: list[str] = []
    saving.log.warn = lambda who, text: said.append(text)  # type: ignore[assignment]
    if synchronous:
        saving.available_bytes = lambda: 0  # type: ignore[assignment]
    trained = Trained(base)
    trained.run.resume()
    trained.train(3)
    trained.run.save()
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    made = trained.train(5)
    trained.run.save()
    return made[-1][0], said


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_full_disk_is_a_warning_and_the_last_good_one_stays(
    tmp_path: Path, synchronous: bool
) -> None:
    ((step, said),) = run_ranks(_full_disk, 1, str(tmp_path), synchronous)
    assert step == 5
    assert any("could not be saved: File too large" in line for line in said), said
    assert any("while the ranks wait" in line for line in said) == synchronous
    assert [path.name[:15] for path in _files(tmp_path)] == ["step-0000000003"]
    assert not list(tmp_path.glob("*.tmp"))
    ((step, _),) = run_ranks(_resumes, 1, str(tmp_path))
    assert step == 3


def _little_room(me: Rank, base: str) -> list[tuple[int, str]]:
    """Steps and what was said after them, as the disk has less and less room."""
    said: list[str] = []
    saving.log.warn = lambda who, text: said.append(text)  # type: ignore[assignment]
    trained = Trained(f"{base}/ckpt")
    trained.run.resume()
    disk, told = os.statvfs(base), list[tuple[int, str]]()
    for step, free in ((2, 600 << 20), (3, 500 << 20)):
        blocks = free // disk.f_frsize
        now = os.statvfs_result([*disk[:3], blocks, blocks, *disk[5:]])
        saving.os.statvfs = lambda path, now=now: now  # type: ignore[misc]
        trained.train(step)
        trained.run.save()
        told.append((trained.run.state_dict()["step"], "".join(said)))
    return told


def test_a_job_leaves_the_room_on_its_disk_that_the_daemon_leaves(tmp_path: Path) -> None:
    for work, lacks in ((tmp_path, True), (Path("/proc"), False)):  # the latter: another disk
        folder = tmp_path / str(lacks)
        folder.mkdir()
        job = {"WIIIIIDE_JOB": "9-1", "WIIIIIDE_WORK": str(work)}
        ((first, second),) = run_ranks(_little_room, 1, str(folder), env=job)
        assert first == (2, "")
        step, said = second
        assert step == 3
        assert len(_files(folder / "ckpt")) == (1 if lacks else 2)
        if lacks:
            assert f"could not be saved: the disk of {folder}/ckpt lacks 13 MiB" in said
            assert "it takes 1 MiB, and 512 MiB stay free there. Training goes on" in said


def _cannot_fork(me: Rank, base: str) -> tuple[int, list[str]]:
    said: list[str] = []
    saving.log.warn = lambda who, text: said.append(text)  # type: ignore[assignment]

    def refused(*args: Any, **options: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    saving.subprocess.Popen = refused  # type: ignore[assignment,misc]
    trained = Trained(base)
    made = trained.train(5)
    trained.run.save()
    return made[-1][0], said


def test_a_writer_that_cannot_start_is_a_warning(tmp_path: Path) -> None:
    for step, said in run_ranks(_cannot_fork, 2, str(tmp_path)):
        assert step == 5
        assert not said or "could not be saved: Resource temporarily unavailable" in said[0]


def _no_folder(me: Rank, base: str) -> list[str]:
    said = []
    for call in (lambda made: made.run.resume(), lambda made: made.train(1)):
        with pytest.raises((UsageError, HostError)) as caught:
            call(Trained(base))
        said.append(str(caught.value))
    return said


def test_a_folder_that_cannot_be_read_is_one_sentence_on_all_ranks(tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    path.touch()
    why = f"{path} cannot be read: Not a directory"
    for said in run_ranks(_no_folder, 2, str(path)):
        assert said == [f"rank 0 cannot look for checkpoints: {why}", why]


def _other_data(me: Rank, base: str) -> bool:
    trained = Trained(base)
    trained.data.seed = 9
    before = trained.bits()
    with pytest.raises(UsageError, match="the seed is 1 in the saved state and 9 here"):
        trained.run.resume()
    return before == trained.bits()


def test_a_checkpoint_of_other_data_is_refused_before_anything_is_taken(tmp_path: Path) -> None:
    run_ranks(_until, "aa", str(tmp_path), "aa", 2, {})
    assert run_ranks(_other_data, 2, str(tmp_path / "a")) == [True, True]


def _begins_anew(me: Rank, base: str) -> str:
    with pytest.raises(UsageError, match=r"call run\.resume\(\)") as caught:
        Trained(base).train(1)
    return str(caught.value)


def test_an_earlier_runs_files_are_not_mixed_with_a_new_ones(tmp_path: Path) -> None:
    run_ranks(_until, "a", str(tmp_path), "a", 2, {})
    run_ranks(_begins_anew, 2, str(tmp_path / "a"))


def _exports(me: Rank, base: str) -> None:
    trained = Trained(f"{base}/ckpt")
    if me.rank == 0:
        trained.run.export(f"{base}/model.safetensors")
        raw = Path(f"{base}/model.safetensors").read_bytes()
        (size,) = struct.unpack_from("<Q", raw)
        head = json.loads(raw[8 : 8 + size])
        for name, value in trained.model.state_dict().items():
            begin, end = head[name]["data_offsets"]
            found = raw[8 + size + begin : 8 + size + end]
            assert head[name]["shape"] == list(value.shape)
            assert found == value.contiguous().numpy().tobytes()
    dist.barrier()


def test_the_model_is_exported_as_safetensors(tmp_path: Path) -> None:
    run_ranks(_exports, 2, str(tmp_path))


def _exports_in_a_trial(me: Rank, base: str) -> None:
    trained = Trained(f"{base}/ckpt")
    trained.run.export(f"{base}/model.safetensors")
    trained.model.register_buffer("odd", torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(UsageError, match=r"odd is torch\.complex64"):
        trained.run.export(f"{base}/model.safetensors")


def test_a_trial_exports_nothing(tmp_path: Path) -> None:
    run_ranks(_exports_in_a_trial, 1, str(tmp_path), env={"WIIIIIDE_PROBE": "1"})
    assert not os.listdir(tmp_path)


def _without_a_batch(me: Rank, base: str) -> list[str]:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = parallel(model, optimizer, save=base, save_every=1)
    run.resume()
    for step in range(4):
        has_batch = me.rank == 0 or step == 0
        run.samples(2.0 * has_batch)
        if has_batch:
            model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    run.save()
    return os.listdir(base)


def test_a_rank_without_a_batch_saves_with_the_others(tmp_path: Path) -> None:
    names, *_ = run_ranks(_without_a_batch, 2, str(tmp_path))
    assert any(name.startswith("step-0000000004") for name in names)


# -- in this process ----


def _image(step: int = 7) -> file.FileImage:
    head = file.FileHead(step, 0, 1, 1, "0123456789abcdef")
    return file.FileImage.of(head, {"model": {"w": torch.arange(5000.0)}, "step": step})


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    image = _image()
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    saving.writer.write(str(path), image.chunks(), 0, 1)
    assert path.stat().st_size == image.nbytes
    assert file.check(path, "0123456789abcdef").step == 7
    found = file.load(path)
    assert found["step"] == 7
    assert torch.equal(found["model"]["w"], torch.arange(5000.0))


def test_what_a_killed_writer_leaves_is_no_checkpoint_and_goes_with_the_next(
    tmp_path: Path,
) -> None:
    image, model = _image(8), "0123456789abcdef"
    mine = tmp_path / f"step-0000000007.host-0.{model}.wide.123.tmp"
    theirs = tmp_path / f"step-0000000007.host-1.{model}.wide.123.tmp"
    for left in (mine, theirs):
        left.write_bytes(image.front)
    found = file.newest(tmp_path, FileOwner(model), 0)
    assert found == file.NewestFile()
    path = tmp_path / f"step-0000000008.host-0.{model}.wide"
    saving.writer.write(str(path), image.chunks(), 0, 1)
    assert file.newest(tmp_path, FileOwner(model), 0).step == 8
    assert not mine.exists()
    assert theirs.exists()  # that host's writer may be at work


def _age(path: Path, seconds: float) -> None:
    at = path.stat().st_mtime - seconds
    os.utime(path, (at, at))


def test_half_files_of_other_hosts_go_once_nothing_is_written_to_them(tmp_path: Path) -> None:
    model, other = "0123456789abcdef", "f" * 16
    random = "0" * 16
    live, dead = (f"step-0000000007.host-{n}.{model}.wide.1-{random}.tmp" for n in (1, 2))
    received = f"step-0000000007.host-3.{model}.wide.0-{random}.tmp"  # host 3's, sent to this one
    taken = f".taken.{model}.wide.0-{random}.tmp"
    foreign = f"step-0000000007.host-0.{other}.wide.0-{random}.tmp"
    for name in (live, dead, received, taken, foreign, "notes.tmp"):
        (tmp_path / name).touch()
    for name in (dead, foreign, "notes.tmp"):
        _age(tmp_path / name, 4000)
    path = tmp_path / f"step-0000000008.host-0.{model}.wide"
    writer.write(str(path), _image(8).chunks(), 0, 1)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, live, foreign, "notes.tmp"])


def test_of_damaged_files_the_newest_stays(tmp_path: Path) -> None:
    names = [f"step-{step:010}.host-0.{'0123456789abcdef'}.wide.damaged" for step in (3, 9, 5)]
    other = f"step-0000000001.host-0.{'f' * 16}.wide.damaged"
    for name in (*names, other):
        (tmp_path / name).touch()
    path = tmp_path / f"step-0000000008.host-0.{'0123456789abcdef'}.wide"
    writer.write(str(path), _image(8).chunks(), 0, 1)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, names[1], other])


def test_two_writers_of_one_number_do_not_touch_each_others_bytes(tmp_path: Path) -> None:
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    image = _image()
    both = [writer._writing(str(path), image.chunks(), host, None) for host in (0, 0)]
    for pieces in both:
        next(pieces)
    assert len(list(tmp_path.glob("*.tmp"))) == 2
    for pieces in both:
        deque(pieces, maxlen=0)
        assert file.check(path, None).step == 7
    assert os.listdir(tmp_path) == [path.name]


def test_a_rename_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        writer.write(str(path), _image().chunks(), 0, 1)
    assert os.listdir(tmp_path) == [path.name]


def test_an_export_that_fails_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        safetensors.export({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    assert not os.listdir(tmp_path)


def _keeps_received(path: Path) -> None:
    half = Path(f"{path}.tmp")
    writer.write(str(half), _image().chunks(), 0, None)
    assert exchange._keep(half, path, None) == ""


@pytest.mark.parametrize(
    "make",
    [
        lambda path: writer.write(str(path), _image().chunks(), 0, None),
        lambda path: safetensors.export({"w": torch.ones(3)}, path),
        _keeps_received,
    ],
    ids=["written", "exported", "received"],
)
def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_all_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    path, made = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide", list[str]()
    fsync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        made.append("folder" if os.readlink(f"/proc/self/fd/{fd}") == str(tmp_path) else "file")
        fsync(fd)

    def renamed(source: Any, target: Any) -> None:
        made.append("rename" if Path(target) == path else "other")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    make(path)
    assert made[made.index("rename") - 1 :] in (
        ["file", "rename", "folder"],
        ["folder", "rename", "folder"],  # received: the folder knows the half file too
    )


def test_the_parent_of_a_new_folder_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(writer, "sync_folder", synced.append)
    writer.make_folder(tmp_path / "a" / "b")
    writer.make_folder(tmp_path / "a" / "b")
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    assert (tmp_path / "a" / "b").is_dir()


def test_a_head_that_makes_no_sense_is_a_damaged_file(tmp_path: Path) -> None:
    head = b"[" * 100_000
    raw = struct.pack("<QQQ", len(head), 0, 64 + len(head)) + head
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    path.write_bytes(writer.MAGIC + hashlib.sha256(raw).digest() + raw)
    found = file.newest(tmp_path, FileOwner("0123456789abcdef"), 0)
    assert found.path is None
    assert "its head makes no sense" in found.passed_over[0]


def test_a_step_that_is_no_number_is_a_damaged_file(tmp_path: Path) -> None:
    image = _image()
    front = image.front.replace(b'"step": 7', b'"step":[]')
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    writer.write(str(path), [front, *list(image.chunks())[1:]], 0, 1)
    assert (
        "its head makes no sense"
        in file.newest(tmp_path, FileOwner("0123456789abcdef"), 0).passed_over[0]
    )


# -- the writer's priority ----


def test_a_writer_gives_way_until_it_is_told_that_ranks_wait() -> None:
    told, teller = os.pipe()
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[tuple[int, bool]] = []

    def pieces() -> Iterator[None]:
        for _ in range(3):
            seen.append(_here())
            yield
        os.write(teller, b"now")
        while seen[-1] != (mine, True):  # the thread goes on until it has heard
            seen.append(_here())
            yield

    def _here() -> tuple[int, bool]:
        is_main = threading.current_thread() is threading.main_thread()
        return os.getpriority(os.PRIO_PROCESS, 0), is_main

    writer.yielding(pieces(), told)
    assert seen[:3] == [(min(mine + writer._NICE, 19), False)] * 3
    assert seen[-1] == (mine, True)
    os.close(told)
    os.close(teller)


def test_a_writer_that_nobody_waits_for_ends_by_itself_and_says_what_went_wrong() -> None:
    told, teller = os.pipe()
    made: list[int] = []

    def pieces() -> Iterator[None]:
        for n in range(5):
            made.append(n)
            yield
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        writer.yielding(pieces(), told)
    assert made == [*range(5)]
    os.close(told)
    os.close(teller)


# A writer that only says what it was told.
_LISTENER = """
import sys
said = sys.stdin.read()
with open(sys.argv[3] + ".told", "w") as file:
    file.write(said)
"""


def _is_told(me: Rank, base: str) -> list[str]:
    listener = Path(base) / "listener.py"
    listener.write_text(_LISTENER)
    writer.__file__ = str(listener)
    trained = Trained(f"{base}/ckpt", save_every=2)
    trained.train(3)  # the writer of step 2 is at work
    trained.run.save()
    return sorted(path.read_text() for path in Path(base).glob("ckpt/*.told"))


def test_a_save_that_ranks_wait_for_tells_the_writer_and_the_one_before_it(tmp_path: Path) -> None:
    assert run_ranks(_is_told, 1, str(tmp_path)) == [["now", "now"]]


def test_a_newer_format_is_passed_over_and_left_alone(tmp_path: Path) -> None:
    image = _image()
    newer = image.front.replace(b'"format": 1', b'"format": 2')
    path = tmp_path / "step-0000000007.host-0.0123456789abcdef.wide"
    saving.writer.write(str(path), [newer, *list(image.chunks())[1:]], 0, 1)
    found = file.newest(tmp_path, FileOwner("0123456789abcdef"), 0)
    assert found.path is None
    assert "a newer wiiiiided wrote it" in found.passed_over[0]
    assert path.exists()


def test_pruning_leaves_newer_and_other_models_files(tmp_path: Path) -> None:
    names = [f"step-{step:010}.host-{host}.{'a' * 16}.wide" for step in range(5) for host in (0, 1)]
    other = f"step-0000000000.host-0.{'b' * 16}.wide"
    for name in (*names, other, "notes.txt"):
        (tmp_path / name).touch()
    prune(tmp_path / names[6], 0, 2)  # step 3
    assert sorted(os.listdir(tmp_path)) == sorted([*names[4:], other, "notes.txt"])


@pytest.mark.parametrize(
    "given", [{"every": "soon"}, {"every": 0}, {"every": True}, {"keep": 0}, {"folder": 3}]
)
def test_what_cannot_be_a_policy_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SavePolicy(**{"folder": "ckpt", **given})
