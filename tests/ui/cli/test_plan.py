"""`wiiiiide plan`: a trial, rows, and what is written into the job file. The daemon is a fake."""

from __future__ import annotations

import json
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.fake_daemon import FakeConnection, FakeDaemon, ended, line, machine, view
from tests.ui.cli.kit import Cli, Program
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.plan import PROBE, PairLine, RankLine, spell
from wiiiiided.ui.cli import trial

JOB = """\
# mine
name = "digits"
[run]
command = ["python", "train.py"]
pass_env = ["WANDB_API_KEY"]
[resources]
nodes = 2  # both
[output]
collect = ["runs/**"]
[notify]
command = ["mail"]
"""
CODED = {"exact": 8 / 94e6, "int8": 2 / 94e6, "int4": 1 / 94e6}


def rank(step_s: float = 0.084, samples: float = 16.0, **changes: object) -> str:
    fields = {
        "steps": 60,
        "step_s": step_s,
        "samples": samples,
        "gradient_bytes": 26_000_000,
        "memory": 1 << 28,
        "way": "parallel",
        "coded": True,
        "fixed": "",
        "shares": False,
        "shape": "0123456789abcdef",
        **changes,
    }
    return spell(RankLine(**fields))  # type: ignore[arg-type]


class TrialDaemon:
    """Runs what is submitted: says what a rank, or a pair, would."""

    def __init__(self, daemon: FakeDaemon) -> None:
        self.daemon = daemon
        self.specs: dict[int, m.Submit] = {}
        self.says: dict[str, list[str]] = defaultdict(lambda: ["epoch 1", rank()])
        self.links = [spell(PairLine(0, 1, 0.001, CODED, 94e6))]
        self.state, self.why, self.error = "running", "runs on a", ""
        self.steps_taken = threading.Event()
        self.on_submit: Callable[[], None] = lambda: None
        views = (machine("a", coordinator=True), machine("b"), machine("c", state="lost"))
        daemon.answers(m.ListNodes, m.NodeList("lab", views))
        daemon.does(m.Submit, self._submit)
        daemon.does(m.Why, self._why)
        daemon.does(m.Logs, self._logs)
        daemon.does(m.Show, self._show)
        daemon.does(m.Cancel, lambda asked, link: link.say(ended(asked.id, "cancelled", None)))
        daemon.answers(m.ForgetTrial, m.EndOfAnswers())
        daemon.answers(m.KeepPlan, m.EndOfAnswers())

    def _submit(self, asked: m.Submit, link: FakeConnection) -> None:
        number = 20 + len(self.specs)
        self.specs[number] = asked
        self.on_submit()
        link.say(m.Submitted(number, "runs"))

    def _why(self, asked: m.Why, link: FakeConnection) -> None:
        link.say(m.JobReason(asked.id, self.state, self.why, self.error))

    def _logs(self, asked: m.Logs, link: FakeConnection) -> None:
        spec = self.specs[asked.id].spec
        texts = self.links if spec.run.env[PROBE] == "links" else self.says[spec.resources.use[0]]
        link.say(m.LogLines(tuple(line(text) for text in texts)), m.EndOfAnswers())
        self.steps_taken.set()

    def _show(self, asked: m.Show, link: FakeConnection) -> None:
        link.say(m.JobDetail(view(asked.id, nodes=("a", "b")), {}, (), (), ""))

    @property
    def is_empty(self) -> bool:
        """Whether every job was cancelled and forgotten."""
        forgotten = {asked.id for asked in self.daemon.asked(m.ForgetTrial)}
        cancelled = {asked.id for asked in self.daemon.asked(m.Cancel)}
        return forgotten == cancelled == set(self.specs)


@pytest.fixture
def trials(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> TrialDaemon:
    monkeypatch.setattr(trial, "LOOK_S", 0.01)
    return TrialDaemon(daemon)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    made.mkdir()
    (made / "job.toml").write_text(JOB)
    (made / "train.py").write_text("print(1)")
    return made


def test_rows_are_measured_predicted_and_one_is_recommended(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    shown = cli("plan", str(folder), "--yes")
    assert shown.code == 0, shown.err
    head, *rows = shown.out.splitlines()
    assert head.split() == ["WAY", "SAMPLES/S", "GAIN", "WHY"]
    assert rows[0].split() == ["one", "machine", "(a)", "190"]
    assert rows[1].startswith("a b, every step, exact")
    assert rows[1].endswith("the link between a and b carries 26 MB a step in 2.21 s")
    (best,) = (row for row in rows if "recommended" in row)
    assert best.startswith("a b, every ")
    assert "← recommended: computes 9" in best
    assert "step 84 ms on a, 84 ms on b; 94 Mbit/s a-b; 26 MB of gradients" in shown.err
    assert f'for {folder}/job.toml: network.gradients = "int8", network.every = ' in shown.err
    assert (folder / "job.toml").read_text() == JOB
    assert trials.is_empty


def test_a_batch_of_all_machines_is_said_to_be_divided(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    own = "each machine adds its own batch"
    assert own in cli("plan", str(folder), "--yes").err
    for name in "ab":
        trials.says[name] = [rank(shares=True, data=True, global_batch=True)]
    shown = cli("plan", str(folder), "--yes", "--json")
    assert own not in shown.err
    assert "the batch is that of all machines together" in " ".join(shown.json["notes"])
    exact = next(row for row in shown.json["rows"] if len(row["nodes"]) == 2)
    assert exact["samples_per_s"] == pytest.approx(16 / (0.042 + 0.001 + 26e6 * 8 / 94e6))


HALVED = {"shares": True, "data": True, "global_batch": True, "part_samples": 8.0}


def test_a_part_of_a_batch_needs_what_was_measured_of_half_of_it(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    trials.says["a"] = [rank(more=True, **HALVED), rank(part_s=0.082, **HALVED)]
    trials.says["b"] = [rank(part_s=0.083, **HALVED)]
    shown = cli("plan", str(folder), "--yes", "--json")
    assert "batch" not in " ".join(shown.json["notes"])
    (row,) = (row for row in shown.json["rows"] if row["recommended"])
    assert row["nodes"] == ["a"]
    assert (shown.json["machines"][0]["part_s"], shown.json["machines"][1]["part_s"]) == (
        0.082,
        0.083,
    )
    text = cli("plan", str(folder), "--yes").err
    assert "step 84 ms (of half a batch 82 ms) on a, 84 ms (of half a batch 83 ms) on b" in text


def test_half_batches_that_take_too_long_are_done_without(
    cli: Cli, trials: TrialDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "MORE_S", 0.05)
    trials.says["a"] = [rank(more=True, **HALVED)]
    trials.says["b"] = [rank(part_s=0.083, **HALVED)]
    shown = cli("plan", str(folder), "--yes")
    assert shown.code == 0, shown.err
    assert "the fixed cost of a step on a was not measured" in shown.err


def test_a_script_that_cannot_take_half_a_batch_is_planned_from_its_whole_ones(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    trials.state, trials.error = "failed", "RuntimeError: shape '[16, 4]' is invalid"
    for name in "ab":
        trials.says[name] = [rank(more=True, shares=True, data=True, global_batch=True)]
    shown = cli("plan", str(folder), "--yes")
    assert shown.code == 0, shown.err
    assert "the fixed cost of a step on a b was not measured" in shown.err


def test_the_trial_is_the_job_without_what_would_be_noticed_elsewhere(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    assert cli("plan", str(folder), "--yes").code == 0
    first, second, links = (asked.spec for asked in trials.specs.values())
    assert [spec.resources.use for spec in (first, second)] == [("a",), ("b",)]
    assert (first.run.command, first.run.env) == (("python", "train.py"), {PROBE: "1"})
    assert links.resources.nodes == (2, 2)
    assert links.run.command[:3] == ("python", "-m", "wiiiiided.torch.link_probe")
    for spec in (first, second, links):
        assert (spec.run.pass_env, spec.output.collect, spec.notify.command) == ((), (), ())
        assert spec.policy.max_time_s
        assert (spec.policy.restart.max, spec.name) == (0, "plan: digits")
    assert all(asked.secrets == {} for asked in trials.specs.values())


def test_json_has_the_rows(cli: Cli, trials: TrialDaemon, folder: Path) -> None:
    found = cli("plan", str(folder), "--yes", "--json").json
    row = next(row for row in found["rows"] if row["recommended"])
    assert set(row) == {"nodes", "every", "gradients", "samples_per_s", "recommended", "why"}
    assert (row["nodes"], row["gradients"]) == (["a", "b"], "int8")
    assert [one["name"] for one in found["machines"]] == ["a", "b"]


def test_what_was_found_is_kept_by_name_and_shape(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    cli("plan", str(folder), "--yes")
    (kept,) = trials.daemon.asked(m.KeepPlan)
    assert (kept.name, kept.plan.shape) == ("digits", "0123456789abcdef")
    assert any(row.recommended for row in kept.plan.rows)


def test_apply_writes_as_little_as_possible(cli: Cli, trials: TrialDaemon, folder: Path) -> None:
    assert cli("plan", str(folder), "--yes", "--apply").code == 0
    text = (folder / "job.toml").read_text()
    assert text.startswith(JOB)
    added = text.removeprefix(JOB).split("\n")
    assert added[1] == "[network]"
    assert 'gradients = "int8"' in added
    again = cli("plan", str(folder), "--yes", "--apply")
    assert (again.code, (folder / "job.toml").read_text()) == (0, text)
    assert "job.toml has the recommended values already" in again.err


AUTO = '[network]\ngradients = "int8"\nevery = "auto"\n'


def test_auto_stays_where_seldom_exchanges_are_recommended(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    (folder / "job.toml").write_text(JOB + AUTO)
    shown = cli("plan", str(folder), "--yes", "--apply")
    assert 'note: every = "auto" stays: the next run begins with 64 steps between' in shown.err
    assert (folder / "job.toml").read_text() == JOB + AUTO
    coded = CODED | {codec: CODED[codec] / 100 for codec in ("int8", "int4")}
    trials.links = [spell(PairLine(0, 1, 0.001, coded, 94e6))]
    shown = cli("plan", str(folder), "--yes", "--apply")
    assert '"auto" stays' not in shown.err  # every step is recommended: there is nothing to tune
    assert "every = 1" in (folder / "job.toml").read_text()


def test_auto_of_the_script_begins_with_what_was_found_for_its_codec(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    says = {"fixed": "Between(every='auto')", "gradients": "exact", "every": "auto"}
    for name in "ab":
        trials.says[name] = [rank(**says)]
    shown = cli("plan", str(folder), "--yes", "--json")
    (row,) = (row for row in shown.json["rows"] if row["recommended"])
    assert (row["gradients"], row["every"]) == ("int8", 64)
    assert "the next run begins with 256 steps" in shown.json["notes"][-1]


def test_use_one_machine_is_applied_to_the_resources(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    trials.says["b"] = [rank(way="ddp", coded=False)]
    trials.says["a"] = [rank(way="ddp", coded=False)]
    shown = cli("plan", str(folder), "--yes", "--apply")
    assert "← recommended: use one machine: the best of several gives 0." in shown.out
    assert "trains with DistributedDataParallel" in shown.err
    text = (folder / "job.toml").read_text()
    assert text == JOB.replace("nodes = 2  # both\n", "nodes = 1  # both\n").replace(
        "[resources]\n", '[resources]\nuse = ["a"]\n'
    )


def test_a_script_that_says_it_itself_is_left_alone(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    for name in "ab":
        trials.says[name] = [rank(fixed="Between(every=4)")]
    shown = cli("plan", str(folder), "--yes", "--apply")
    assert "the script itself says Between(every=4)" in shown.err
    assert (folder / "job.toml").read_text() == JOB


def test_a_script_that_fails_is_told_by_its_exception(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    trials.state, trials.error = "failed", "ValueError: no such data"
    trials.says["a"] = trials.says["b"] = []
    shown = cli("plan", str(folder), "--yes")
    assert (shown.code, shown.out) == (1, "")
    assert "wiiiiide: the trial failed on a: ValueError: no such data\n" in shown.err
    assert trials.is_empty


def test_a_script_that_misses_a_variable_is_told_that_a_trial_does_not_get_it(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    trials.state, trials.error = "failed", "KeyError: 'WANDB_API_KEY'"
    trials.says["a"] = trials.says["b"] = []
    shown = cli("plan", str(folder), "--yes")
    assert "failed on a: KeyError: 'WANDB_API_KEY': a trial does not get run.pass_env" in shown.err


def test_what_keeps_machines_from_a_trial_is_said_before_it(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    (folder / "job.toml").write_text(JOB.replace("nodes = 2", "nodes = 1"))
    shown = cli("plan", str(folder))  # which has no terminal to ask on
    assert "note: the job asks for one machine; --nodes all tries 2" in shown.err
    trials.daemon.answers(m.ListNodes, m.NodeList("", (machine("a"),)))
    shown = cli("plan", str(folder), "--yes")
    assert shown.err.index("note: there is no other machine") < shown.err.index("plan runs")
    assert shown.err.count("there is no other machine") == 1
    found = cli("plan", str(folder), "--yes", "--json").json
    assert found["notes"][0].startswith("there is no other machine")
    shown = cli("plan", str(folder), "--nodes", "2")
    assert "--nodes 2: one machine can run the job; wiiiiide nodes lists them" in shown.err


def test_a_script_without_steps_is_told_so(
    cli: Cli, trials: TrialDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "RUN_S", 0.05)
    trials.says["b"] = ["loading"]
    shown = cli("plan", str(folder), "--yes")
    assert shown.code == 1
    assert "the script made no steps on b that could be measured within 0 s" in shown.err
    assert trials.is_empty


def test_a_script_that_ends_too_early_is_told_so(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    trials.state, trials.says["a"] = "done", ["that was all"]
    shown = cli("plan", str(folder), "--yes")
    assert shown.code == 1
    assert "the script ended on a before its steps could be measured" in shown.err


def test_a_machine_that_is_away_is_named(cli: Cli, trials: TrialDaemon, folder: Path) -> None:
    shown = cli("plan", str(folder), "--nodes", "a,c", "--yes")
    assert shown.code == 7
    assert "c is away: " in shown.err
    shown = cli("plan", str(folder), "--nodes", "a,x", "--yes")
    assert (shown.code, "there is no machine x" in shown.err) == (6, True)
    assert cli("plan", str(folder), "--nodes", "7", "--yes").code == 7
    assert trials.specs == {}
    shown = cli("plan", str(folder), "--nodes", "all", "--yes")
    assert "note: left out: c is away" in shown.err


def test_a_wrong_job_file_runs_nothing(cli: Cli, trials: TrialDaemon, folder: Path) -> None:
    (folder / "job.toml").write_text("nme = 1")
    shown = cli("plan", str(folder), "--yes")
    assert (shown.code, "nme" in shown.err) == (3, True)
    assert trials.specs == {}


def test_without_a_terminal_the_trial_has_to_be_wanted(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    shown = cli("plan", str(folder))
    assert (shown.code, "--yes runs the trial" in shown.err) == (2, True)
    assert trials.specs == {}


def test_on_a_terminal_it_asks_before_it_runs_and_before_it_writes(
    program: Program, trials: TrialDaemon, folder: Path
) -> None:
    shown = program.on_terminal("plan", str(folder), typed="n\n")
    assert (shown.code, trials.specs) == (1, {})
    assert "run it? [y/N]" in shown.out
    shown = program.on_terminal("plan", str(folder), typed="y\ny\n", width=160)
    assert shown.code == 0
    assert "recommended" in shown.out
    assert "job.toml? [y/N]" in shown.out
    assert "gradients" in (folder / "job.toml").read_text()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_trial_that_is_ended_leaves_nothing(
    program: Program, trials: TrialDaemon, folder: Path, end: signal.Signals
) -> None:
    trials.says["a"] = trials.says["b"] = ["loading"]
    process = program.start("plan", str(folder), "--yes")
    wait_until(trials.steps_taken.is_set, 30, "the trial is watched")
    process.send_signal(end)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the trial was ended; nothing of it is left" in err
    assert trials.is_empty


def test_a_queued_trial_is_removed_when_its_terminal_goes_away(
    program: Program, trials: TrialDaemon, folder: Path
) -> None:
    asked = threading.Event()

    def why(request: m.Why, link: FakeConnection) -> None:
        link.say(m.JobReason(request.id, "queued", "waits for a, which runs job 3"))
        asked.set()

    trials.daemon.does(m.Why, why)
    process = program.start("plan", str(folder), "--yes")
    wait_until(asked.is_set, 30, "the trial waits")
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert trials.is_empty


def test_a_job_that_cannot_be_forgotten_keeps_no_other(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    refused = {20: m.Refusal(1, "job 20 is not over")}

    def forget(request: m.ForgetTrial, link: FakeConnection) -> None:
        link.say(refused.get(request.id, m.EndOfAnswers()))

    trials.daemon.does(m.ForgetTrial, forget)
    shown = cli("plan", str(folder), "--yes")
    assert shown.code == 0
    assert "note: job 20 of the trial could not be removed yet" in shown.err
    assert {asked.id for asked in trials.daemon.asked(m.ForgetTrial)} == {20, 21, 22}


def test_a_folder_that_is_shipped_for_long_is_waited_for(
    cli: Cli, trials: TrialDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "RUN_S", 0.05)
    told: list[str] = []

    def why(asked: m.Why, link: FakeConnection) -> None:
        told.append("")
        state = "starting" if len(told) < 40 else "running"
        link.say(m.JobReason(asked.id, state, "the folder is shipped to a"))

    trials.daemon.does(m.Why, why)
    shown = cli("plan", str(folder), "--yes", "--json")
    assert shown.code == 0, shown.err
    said = "the trial on a has not begun yet: the folder is shipped to a; Ctrl-C gives it up"
    assert shown.err.count(said) == 1


def test_a_machine_that_goes_away_while_a_trial_starts_is_named(
    cli: Cli, trials: TrialDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "RUN_S", 0.05)
    trials.state = "starting"
    trials.on_submit = lambda: trials.daemon.answers(
        m.ListNodes, m.NodeList("lab", (machine("a", state="lost", why="silent"), machine("b")))
    )
    shown = cli("plan", str(folder), "--yes")
    assert shown.code == 1
    assert "a is away: silent; plan without it (--nodes)" in shown.err
    assert trials.is_empty


def test_a_trial_that_waits_for_its_turn_says_why(
    cli: Cli, trials: TrialDaemon, folder: Path
) -> None:
    told: list[str] = []

    def why(asked: m.Why, link: FakeConnection) -> None:
        told.append("")
        state = "queued" if len(told) < 4 else "running"
        link.say(m.JobReason(asked.id, state, "waits for a, which runs job 3"))

    trials.daemon.does(m.Why, why)
    shown = cli("plan", str(folder), "--yes", "--json")
    assert json.loads(shown.out)["rows"]
    assert shown.err.count("waits for its turn: waits for a, which runs job 3") == 2
