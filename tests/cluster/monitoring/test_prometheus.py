"""A snapshot for Prometheus: the format to the letter, and nothing invented."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.kit.fake_daemon import ended, status, view
from tests.kit.prometheus import parse
from wiiiiided.cluster.monitoring import prometheus
from wiiiiided.cluster.monitoring.prometheus import FAMILIES, RANKS, absent, exposition
from wiiiiided.cluster.rpc import messages as m
from wiiiiided.domain.metrics import JobNow, NodeNow, RankNow, Rates, Straggler, TrainingMetrics

DASHBOARD = Path(__file__).parents[3] / "docs/grafana.json"
ME = (("job_id", "17"), ("name", "digits"))
RATES = Rates(
    steps=2.0,
    samples=64.0,
    operations=10.0,
    shm=1e6,
    wire_out=100.0,
    wire_in=100.0,
    wire_out_raw=300.0,
    wire_in_raw=300.0,
    exchange=0.25,
    waiting=0.1,
    encode=0.02,
    decode=0.01,
)
NODE = NodeNow(
    "a", "ok", cores=8, memory=1 << 34, cpu=0.5, memory_used=0.25, rates=RATES, codec="lz4"
)
TOLD = TrainingMetrics(
    noise_scale=1900.0,
    share=0.25,
    speed_spread=3.0,
    balance_gain=1.5,
    round_steps=16.0,
    round_compute=0.93,
)
NOW = JobNow(
    17,
    RATES,
    step=300,
    total=1000,
    loss=0.412,
    eta_s=350.0,
    memory=1 << 30,
    straggler=Straggler(1, "b", 0.41, "rank 1"),
    cpu=3.5,
    metrics={"accuracy": 0.91, "lr": None},
    ranks=(
        RankNow(0, "a", RATES, memory=1 << 29, cpu=1.5, training=TOLD),
        RankNow(1, "b", RATES, training=replace(TOLD, noise_scale=2100.0)),
    ),
)


def snapshot(
    *jobs: m.JobRow, nodes: tuple[NodeNow, ...] = (NODE,), problem: str = ""
) -> m.Snapshot:
    return m.Snapshot(1_000_300.5, 1.0, "lab", nodes, jobs, problem)


def test_what_ranks_use_and_report_is_written_with_their_labels() -> None:
    page = exposition(snapshot(m.JobRow(view(), NOW)), status())
    me = 'job_id="17",name="digits"'
    assert f'wiiiiide_rank_cpu_cores{{{me},rank="0",node="a"}} 1.5\n' in page
    assert f'wiiiiide_rank_memory_bytes{{{me},rank="0",node="a"}} 536870912\n' in page
    assert 'rank="1",node="b"} ' in page  # the straggler; of what it uses nothing is known
    assert page.count("wiiiiide_rank_cpu_cores{") == 1
    assert f'wiiiiide_rank_share_ratio{{{me},rank="0",node="a"}} 0.25\n' in page
    assert f'wiiiiide_job_metric{{{me},metric="accuracy"}} 0.91\n' in page
    assert f'wiiiiide_job_metric{{{me},metric="lr"}} NaN\n' in page


def test_series_of_ranks_are_limited() -> None:
    many = tuple(RankNow(rank, "a", RATES, cpu=1.0) for rank in range(RANKS))
    rows = [m.JobRow(view(number), replace(NOW, ranks=many)) for number in (1, 2)]
    page = exposition(snapshot(*rows), status())
    assert page.count("wiiiiide_rank_cpu_cores{") == RANKS


def families(*jobs: m.JobRow, **more: Any) -> dict[str, dict[Any, float]]:
    page = parse(exposition(snapshot(*jobs, **more), status()))
    return {name: family.samples for name, family in page.items()}


def test_a_running_job_has_all_its_metrics() -> None:
    found = families(m.JobRow(view(), NOW))
    job = {name.removeprefix("wiiiiide_job_"): found[name] for name in found if "_job_" in name}
    assert job.pop("state") == {(*ME, ("owner", "ada"), ("state", "running")): 1}
    assert len(job.pop("metric")) == 2
    assert job.pop("straggler_behind_ratio") == {(*ME, ("rank", "1"), ("node", "b")): 0.41}
    assert {name: samples[ME] for name, samples in job.items()} == {
        "workers": 2,
        "attempts_total": 1,
        "submitted_timestamp_seconds": 1_000_000,
        "started_timestamp_seconds": 1_000_010,
        "step": 300,
        "steps_planned": 1000,
        "loss": 0.412,
        "remaining_seconds": 350,
        "memory_bytes": 1 << 30,
        "cpu_cores": 3.5,
        "noise_scale_samples": 2000,
        "speed_spread_ratio": 3,
        "balance_gain_ratio": 1.5,
        "samples_per_second": 64,
        "steps_per_second": 2,
        "operations_per_second": 10,
        "shm_bytes_per_second": 1e6,
        "wire_sent_bytes_per_second": 100,
        "wire_received_bytes_per_second": 100,
        "wire_sent_raw_bytes_per_second": 300,
        "wire_received_raw_bytes_per_second": 300,
        "exchange_ratio": 0.25,
        "waiting_ratio": 0.1,
        "encode_ratio": 0.02,
        "decode_ratio": 0.01,
        "codec_ratio": 3,
    }


def test_every_family_can_be_written_and_is_explained() -> None:
    page = parse(exposition(snapshot(m.JobRow(view(), NOW)), status()))
    assert set(page) == set(FAMILIES)
    assert all(family.help.endswith(".") for family in page.values())


def test_what_is_not_known_is_left_out() -> None:
    found = families(m.JobRow(view(), JobNow(17, Rates())), nodes=(NodeNow("a", "idle"),))
    for name in ("step", "steps_planned", "loss", "remaining_seconds", "codec_ratio"):
        assert f"wiiiiide_job_{name}" not in found
    for name in ("cpu_ratio", "memory_used_ratio", "samples_per_second", "codec"):
        assert f"wiiiiide_node_{name}" not in found


def test_of_a_lost_node_only_its_loss_is_told() -> None:
    gone = NodeNow("b", "lost", age_s=90.0, cores=4, cpu=0.5, rates=RATES)
    found = families(nodes=(NODE, gone))
    assert found["wiiiiide_node_up"] == {(("node", "a"),): 1, (("node", "b"),): 0}
    assert found["wiiiiide_node_age_seconds"][(("node", "b"),)] == 90
    about = {
        name for name, samples in found.items() for labels in samples if ("node", "b") in labels
    }
    assert about == {f"wiiiiide_node_{name}" for name in ("up", "state", "age_seconds")}


def test_a_queued_job_has_no_rates_and_an_ended_one_nothing() -> None:
    waiting = view(18, state="queued", started_at=None, attempt=0)
    found = families(m.JobRow(waiting), m.JobRow(ended(16)))
    numbers = {dict(labels).get("job_id") for samples in found.values() for labels in samples}
    assert numbers == {None, "18"}
    assert not [name for name in found if "_job_" in name and "per_second" in name]


def test_so_many_jobs_have_series_of_their_own_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prometheus, "JOBS", 3)
    found = families(*(m.JobRow(view(number)) for number in range(1, 10)))
    assert [dict(labels)["job_id"] for labels in found["wiiiiide_job_state"]] == ["1", "2", "3"]
    counted = m.DaemonStatus(**{**_fields(status()), "counts": {"queued": 7, "running": 2}})
    page = parse(exposition(snapshot(), counted))["wiiiiide_jobs"].samples
    assert page[(("state", "queued"),)] == 7
    assert page[(("state", "held"),)] == 0
    assert (("state", "done"),) not in page


def test_a_member_counts_the_jobs_of_the_coordinator() -> None:
    member = m.DaemonStatus(**{**_fields(status()), "role": "member", "counts": {"queued": 9}})
    rows = (m.JobRow(view(17)), m.JobRow(view(18, state="queued")), m.JobRow(ended(16)))
    page = parse(exposition(snapshot(*rows), member))["wiiiiide_jobs"].samples
    assert page[(("state", "queued"),)] == page[(("state", "running"),)] == 1
    assert page[(("state", "held"),)] == 0
    longer = msgspec.structs.replace(snapshot(*rows), more=3)
    assert "wiiiiide_jobs" not in parse(exposition(longer, member))


def test_a_loss_may_be_no_number() -> None:
    for loss in (math.nan, math.inf, -math.inf):
        text = exposition(snapshot(m.JobRow(view(), JobNow(17, Rates(), loss=loss))), status())
        (found,) = parse(text)["wiiiiide_job_loss"].samples.values()
        assert found == loss or (found != found and loss != loss)


def test_a_problem_is_a_flag() -> None:
    assert families()["wiiiiide_daemon_problem"] == {(): 0}
    assert families(problem="disk full")["wiiiiide_daemon_problem"] == {(): 1}


def test_without_a_daemon_there_is_one_line() -> None:
    page = parse(absent())
    assert {name: family.samples for name, family in page.items()} == {"wiiiiide_up": {(): 0}}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ('a "quoted" \\ name\\n', 'a "quoted" \\ name\\n'),
        ("x\n# TYPE y gauge\ny 1", "x?# TYPE y gauge?y 1"),
        ("\x1b[2J\u202e\ud800", "?[2J??"),
        ("Zoë 🚀", "Zoë 🚀"),
        ("y" * 500, "y" * 128),
    ],
)
def test_a_name_cannot_break_out_of_its_label(name: str, shown: str) -> None:
    found = families(m.JobRow(view(name=name, owner=name)))
    (labels,) = found["wiiiiide_job_state"]
    assert (dict(labels)["name"], dict(labels)["owner"]) == (shown, shown)


@given(st.text(st.characters(), max_size=80), st.floats(), st.floats(), st.integers())
def test_any_name_and_any_number_make_a_sound_page(
    name: str, first: float, second: float, step: int
) -> None:
    rates = Rates(steps=first, wire_out=second, wire_in=first)
    node = NodeNow(name, "ok", cpu=second, codec=name)
    job = m.JobRow(view(name=name), JobNow(17, rates, step=step, loss=first))
    text = exposition(snapshot(job, nodes=(node,)), status())
    parse(text)
    text.encode()


# ---- the dashboard


def _fields(message: m.DaemonStatus) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def queries() -> list[str]:
    board = dashboard()
    asked = [str(one["query"]) for one in board["templating"]["list"]]
    return asked + [target["expr"] for p in board["panels"] for target in p.get("targets", ())]


def test_the_dashboard_asks_only_for_what_is_written() -> None:
    asked = {name for query in queries() for name in re.findall(r"wiiiiide_\w+", query)}
    assert len(asked) > 15
    assert asked <= set(FAMILIES)


def test_the_dashboard_asks_by_labels_that_exist() -> None:
    page = parse(exposition(snapshot(m.JobRow(view(), NOW)), status()))
    known = {name: {n for labels in f.samples for n, _ in labels} for name, f in page.items()}
    for query in queries():
        for name, chosen in re.findall(r"(wiiiiide_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)\s*=~?", chosen)) <= known[name], query


def test_the_dashboard_is_sound() -> None:
    board = dashboard()
    assert board["schemaVersion"] >= 36
    assert board["id"] is None  # Grafana gives it one
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    places = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & places, f"{panel['title']} lies over another"
        places |= taken
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["description"].endswith(".")


def test_the_dashboard_shows_what_matters() -> None:
    asked = " ".join(queries())
    for name in (
        *("job_samples_per_second", "job_steps_per_second", "job_loss", "job_exchange_ratio"),
        *("job_straggler_behind_ratio", "job_wire_sent_bytes_per_second", "job_codec_ratio"),
        *("job_wire_received_bytes_per_second", "node_cpu_ratio", "node_memory_used_ratio"),
    ):
        assert f"wiiiiide_{name}" in asked
