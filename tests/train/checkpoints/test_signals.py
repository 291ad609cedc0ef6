"""A signal asks for a checkpoint: warn_signal and SIGTERM, on one rank or on all."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.kit.ranks import Outcome, Rank, note, run_ranks, watch_ranks
from tests.kit.shims import Attempt
from tests.train.checkpoints.trained import Trained
from wiiiiided.torch import Between
from wiiiiided.train.checkpoints import signals
from wiiiiided.train.checkpoints.signals import StopSignals
from wiiiiided.train.checkpoints.writer import NAME

HANDLES = "TEST_HANDLES_SIGTERM"

# Under torchrun under a shim, with a worker of a DataLoader: the shim sends SIGTERM to all of them.
PROGRAM = """
import sys
import torch
import torch.distributed as dist
import wiiiiided.torch as wide

dist.init_process_group("wiiiiide")
x = torch.randn(64, 4)
data = wide.Batches(torch.utils.data.TensorDataset(x), 8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run = wide.parallel(model, optimizer, data=data, save=sys.argv[1], save_every="1h")
run.resume()
batches = data.loader(num_workers=1)
for epoch in range(1_000_000):
    for (batch,) in batches:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if epoch == 1 and dist.get_rank() == 0:
        print("trains", flush=True)
"""


class Sender:
    """Sends ranks a signal once each of them has made so many steps."""

    def __init__(self, ranks: list[int], number: signal.Signals, after: int = 4) -> None:
        self._ranks, self._number, self._after = ranks, number, after

    def __call__(self, outcomes: list[Outcome], elapsed_s: float) -> None:
        if self._ranks and all(len(one.notes) >= self._after for one in outcomes):
            for rank in self._ranks:
                os.kill(outcomes[rank].pid, self._number)
            self._ranks = []


def _trains(me: Rank, base: str, hosts: str, options: dict[str, Any]) -> list[int]:
    """Steps until every host has a file, or a signal ends it; the signals that its handler got."""
    folder, handled = Path(base) / hosts[me.rank], list[int]()
    trained = Trained(str(folder), save_every="1h", **options)
    trained.run.resume()
    if HANDLES in os.environ:
        signal.signal(signal.SIGTERM, lambda number, _: handled.append(number))
    has_file = torch.zeros(1)
    for x, y, _ in (batch for _ in range(1000) for batch in trained.data):
        loss: Any = nn.functional.mse_loss(trained.model(x.repeat(2, 1)), y.repeat(2, 1))
        loss.backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()
        trained.scheduler.step()
        note(trained.run.state_dict()["step"])
        has_file[0] = bool(list(folder.glob("*.wide")))
        dist.all_reduce(has_file, dist.ReduceOp.MIN)
        if has_file:
            break
    return handled


def _saved_steps(folder: Path) -> list[int]:
    return [int(NAME.fullmatch(path.name)[1]) for path in folder.glob("*.wide")]  # type: ignore[index]


def _steps_of(outcome: Outcome) -> list[Any]:
    return [step for _, step in outcome.notes]


@pytest.mark.parametrize("options", [{}, {"between": Between(every=3)}])
def test_sigterm_on_one_rank_has_all_hosts_save_and_ends_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    sender = Sender([1], signal.SIGTERM)
    outcomes = watch_ranks(_trains, "ab", str(tmp_path), "ab", options, during=sender)
    assert outcomes[1].exit_code == -signal.SIGTERM, outcomes
    last = _steps_of(outcomes[1])[-1]
    assert _saved_steps(tmp_path / "a") == _saved_steps(tmp_path / "b") == [last]
    ((step, lr),) = run_ranks(_resumed, 1, str(tmp_path / "b"), options)
    assert (step, lr) == (
        last,
        pytest.approx(0.01 * 0.7 ** (last // 3)),
    )  # the scheduler's step is in it


def _resumed(me: Rank, base: str, options: dict[str, Any]) -> tuple[int, float]:
    trained = Trained(base, **options)
    return trained.run.resume(), float(trained.scheduler.get_last_lr()[0])


def test_the_warn_signal_has_a_run_save_and_go_on(tmp_path: Path) -> None:
    sender = Sender([1], signal.SIGUSR2)
    env = {"WIIIIIDE_WARN_SIGNAL": "SIGUSR2"}
    outcomes = watch_ranks(_trains, "aa", str(tmp_path), "aa", {}, env=env, during=sender)
    assert [one.exit_code for one in outcomes] == [0, 0], outcomes
    (step,) = _saved_steps(tmp_path / "a")
    assert step in _steps_of(outcomes[0])[:-1]


def test_a_scripts_own_handler_is_called_and_decides(tmp_path: Path) -> None:
    sender = Sender([0, 1], signal.SIGTERM)
    env = {HANDLES: "1"}
    outcomes = watch_ranks(_trains, "aa", str(tmp_path), "aa", {}, env=env, during=sender)
    assert [one.value for one in outcomes] == [[signal.SIGTERM]] * 2, outcomes
    assert len(_saved_steps(tmp_path / "a")) == 1


def test_a_trial_ends_at_sigterm(tmp_path: Path) -> None:
    sender = Sender([0, 1], signal.SIGTERM)
    env = {"WIIIIIDE_PROBE": "1"}
    outcomes = watch_ranks(_trains, "aa", str(tmp_path), "aa", {}, env=env, during=sender)
    assert [one.exit_code for one in outcomes] == [-signal.SIGTERM] * 2, outcomes
    assert not list(tmp_path.glob("*/*"))


def test_a_job_of_torchrun_with_loader_workers_saves_when_it_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(tmp_path / "train.py"), str(tmp_path / "ckpt")]
    with Attempt(tmp_path / "attempt", command, grace_s=40.0) as attempt:
        attempt.start()
        attempt.wait_for("trains")
        attempt.listen().send(do="stop", grace_s=40.0, reason="cancelled by ada")
        attempt.end()
        said = "\n".join(attempt.texts(0, "err"))
        steps = _saved_steps(tmp_path / "ckpt")
        assert len(steps) == 1, said
        assert f"SIGTERM: saved after step {steps[0]}, and this rank ends" in said, said
        assert "Traceback (most recent call last)" not in said.partition("SIGTERM: saved")[0], said


# -- the handlers alone ----


def _body(me: Rank, body: Callable[[], Any]) -> Any:
    return body()


def _alone(body: Callable[[], Any]) -> Outcome:
    (outcome,) = watch_ranks(_body, 1, body, backend=None)
    return outcome


def _twice() -> None:
    asked = StopSignals("SIGUSR1", print)
    asked.listen()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)  # as a shim and a torchrun below it send them
    note(asked.asked)
    signals._AGAIN_S = 0.0  # type: ignore[misc]
    os.kill(os.getpid(), signal.SIGTERM)
    note("not reached")


def test_a_later_sigterm_ends_a_rank_that_makes_no_more_steps() -> None:
    outcome = _alone(_twice)
    assert (outcome.exit_code, _steps_of(outcome)) == (-signal.SIGTERM, ["SIGTERM"])


def _forks() -> int:
    asked = StopSignals("SIGUSR1", print)
    asked.listen()
    mine, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.write(theirs, b".")  # a signal before this is lost, as with any handler in Python
        time.sleep(30)
        os._exit(0)
    os.read(mine, 1)
    os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_still_ends_at_sigterm() -> None:
    assert _alone(_forks).value == -signal.SIGTERM


def _leaves_alone() -> list[Any]:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    asked = StopSignals("SIGUSR1", print)
    asked.listen()
    during = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    ignored = signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    asked.forget()
    elsewhere = StopSignals("SIGUSR1", print)
    thread = threading.Thread(target=elsewhere.listen)
    thread.start()
    thread.join()
    return [during, ignored, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL]


def test_what_a_script_ignores_stays_so_and_handlers_go_with_the_run() -> None:
    assert _alone(_leaves_alone).value == [False, True, True]
