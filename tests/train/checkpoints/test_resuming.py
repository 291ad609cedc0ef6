"""A run goes on from its checkpoint, at any number of ranks and hosts, and from no other file."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.kit.ranks import Rank, run_ranks
from tests.train.checkpoints.trained import (
    BATCH,
    EPOCHS,
    LENGTH,
    Trained,
    files_in,
    folder_of,
    resume_found,
    state_of,
    train_until,
)
from wiiiiided.errors import HostError, UsageError
from wiiiiided.torch import Between
from wiiiiided.train.checkpoints import file, writer
from wiiiiided.train.checkpoints.exchange import FileExchange
from wiiiiided.train.checkpoints.writer import NAME


def _whole_run(me: Rank, base: str) -> tuple[list[Any], list[Any]]:
    trained = Trained(base)
    assert trained.run.resume() == 0
    return trained.train(), trained.bits()


def _go_on(
    me: Rank, base: str, hosts: str, step: int, options: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    trained = Trained(folder_of(me, base, hosts), **options)
    assert trained.run.resume() == step
    return trained.train(dropout=0.3), trained.bits()


@pytest.mark.parametrize("until", [5, 6])  # in the middle of an epoch, and at its end
def test_a_resumed_run_equals_an_undisturbed_one_to_the_last_bit(
    tmp_path: Path, until: int
) -> None:
    undisturbed = run_ranks(_whole_run, 2, str(tmp_path / "whole"))
    before = run_ranks(train_until, "aa", str(tmp_path), "aa", until, {})
    after = run_ranks(_go_on, "aa", str(tmp_path), "aa", until, {})
    for first, (rest, bits), (losses, wanted) in zip(before, after, undisturbed, strict=True):
        assert first + rest == losses
        assert bits == wanted


@pytest.mark.parametrize("between", ["every step", "int8", "seldom"])
def test_any_number_of_ranks_and_hosts_goes_on_from_the_same_state(
    tmp_path: Path, between: str
) -> None:
    how = {"every step": None, "int8": Between("int8"), "seldom": Between(every=2)}[between]
    options = {"between": how}
    run_ranks(train_until, "aab", str(tmp_path), "aab", 5, options)
    (step, wanted), *_ = run_ranks(state_of, "a", str(tmp_path), "a", options)
    assert step == 5
    for hosts in ("aaa", "ca", "ab"):  # host c has nothing of its own
        found = run_ranks(state_of, hosts, str(tmp_path), hosts, options)
        assert [one for one, _ in found] == [5] * len(hosts)
        for rank, (_, bits) in enumerate(found):
            if between != "seldom" or hosts[rank] != "b":  # the optimizer's state is a host's own
                assert bits == wanted
    seen = run_ranks(_go_on, "ca", str(tmp_path), "ca", 5, options)
    trained = [n for made, _ in seen for _, _, ids in made for n in ids]
    assert len(trained) == EPOCHS * LENGTH - 5 * BATCH


def _apart(me: Rank, base: str, hosts: str, dropout: float, options: dict[str, Any]) -> list[Any]:
    trained = Trained(folder_of(me, base, hosts), **options)
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
    run_ranks(train_until, "ab", base, "ab", 2, options)
    (wanted,) = run_ranks(_apart, "a", base, "a", 0.3, options)
    (other,) = run_ranks(_apart, "b", base, "b", 0.0, options)
    assert other != wanted
    for step, bits in run_ranks(state_of, "ab", base, "ab", options):
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
    run_ranks(train_until, "ab", str(tmp_path), "ab", 5, {"between": Between("int8")})
    for path in (*files_in(tmp_path / "a"), *files_in(tmp_path / "b")):
        _without_token(path)
        assert file.check(path, None).token == ""
    before = files_in(tmp_path / "b")
    found = run_ranks(state_of, "ab", str(tmp_path), "ab", {"between": Between("int8")})
    assert [step for step, _ in found] == [5, 5]
    assert files_in(tmp_path / "b") == before  # nothing was sent


def test_hosts_that_share_a_folder_have_each_their_files_there(tmp_path: Path) -> None:
    for until in (5, 7):
        run_ranks(train_until, "ab", str(tmp_path), "ss", until, {"keep": 2})
    names = [path.name[:22] for path in files_in(tmp_path / "s")]
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


def _saves_each(me: Rank, base: str, steps: list[int]) -> None:
    trained = Trained(base, save_every="1h", keep=9)
    for step in steps:
        trained.train(step)
        trained.run.save()


def test_damaged_and_foreign_files_are_named_and_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    run_ranks(_saves_each, 1, str(folder), [2, 3, 5, 8, 11])
    found = files_in(folder)
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
    ((step, said),) = run_ranks(resume_found, 1, str(folder))
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


def _other_data(me: Rank, base: str) -> bool:
    trained = Trained(base)
    trained.data.seed = 9
    before = trained.bits()
    with pytest.raises(UsageError, match="the seed is 1 in the saved state and 9 here"):
        trained.run.resume()
    return before == trained.bits()


def test_a_checkpoint_of_other_data_is_refused_before_anything_is_taken(tmp_path: Path) -> None:
    run_ranks(train_until, "aa", str(tmp_path), "aa", 2, {})
    assert run_ranks(_other_data, 2, str(tmp_path / "a")) == [True, True]


def _begins_anew(me: Rank, base: str) -> str:
    with pytest.raises(UsageError, match=r"call run\.resume\(\)") as caught:
        Trained(base).train(1)
    return str(caught.value)


def test_an_earlier_runs_files_are_not_mixed_with_a_new_ones(tmp_path: Path) -> None:
    run_ranks(train_until, "a", str(tmp_path), "a", 2, {})
    run_ranks(_begins_anew, 2, str(tmp_path / "a"))
