"""Metrics of ranks on other nodes: read there, sent, checked, and put together here."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cluster.monitoring.two_nodes import DAY, Clock, TwoNodes
from tests.metrics.samples import sample
from wiiiiided.backend.shm import stats
from wiiiiided.cluster.allocation.shim_process import Shim
from wiiiiided.cluster.monitoring.metrics_pusher import EVERY_S, IDLE_S, MetricsPusher
from wiiiiided.cluster.peering.metrics_codec import (
    NodeMetrics,
    Observed,
    PackedMetrics,
    pack,
    unpack,
)
from wiiiiided.cluster.shim.control_lines import RankState, read_report
from wiiiiided.domain.metrics import Rates
from wiiiiided.metrics.snapshot import Health
from wiiiiided.ui.report.ranks import nodes_of
from wiiiiided.ui.report.summary import slowest_of


@pytest.fixture
def site(tmp_path: Path) -> Iterator[TwoNodes]:
    made = TwoNodes(tmp_path)
    made.begin()
    yield made
    made.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[TwoNodes]:
    """With a limit to silence."""
    made = TwoNodes(tmp_path, policy={"hang_timeout_s": 30.0})
    made.begin()
    yield made
    made.close()


def now_of(site: TwoNodes) -> Any:
    return site.tracker.live[site.job, 1].attempt_metrics.now()


def test_ranks_of_all_nodes_are_one_job(site: TwoNodes) -> None:
    site.work(10)
    now = now_of(site)
    assert [(rank.rank, rank.node) for rank in now.ranks] == [
        (0, "a"),
        (1, "a"),
        (2, "b"),
        (3, "b"),
    ]
    assert now.rates.operations == pytest.approx(40, rel=0.01)
    assert now.rates.samples == pytest.approx(4 * 32, rel=0.01)
    assert now.step == 10


def test_the_straggler_is_found_wherever_it_is(site: TwoNodes) -> None:
    site.work(40, late=3)
    late = now_of(site).straggler
    assert (late.rank, late.node) == (3, "b")
    assert late.why.startswith("rank 3 on b costs +100 % step time")


def test_a_record_has_the_ranks_of_all_nodes_to_their_last_count(site: TwoNodes) -> None:
    site.work(5)
    for rank in range(4):
        site.pages[rank].words[stats.OPERATIONS] += rank
    record = site.end()
    assert [rank.node for rank in record.ranks] == ["a", "a", "b", "b"]
    assert [rank.totals.operations for rank in record.ranks] == [50, 51, 52, 53]
    assert (record.state, record.nodes, record.workers) == ("done", ("a", "b"), 4)


def test_a_report_names_the_slow_node_and_sums_each(site: TwoNodes) -> None:
    site.work(30, late=3)
    record = site.end()
    assert [(node.name, node.ranks, node.samples) for node in nodes_of(record)] == [
        ("a", 2, 30 * 2 * 32),
        ("b", 2, 30 * 2 * 32),
    ]
    slowest = slowest_of(record)
    assert slowest is not None
    assert (slowest.rank, slowest.node) == (3, "b")


def test_a_rank_elsewhere_is_counted_from_its_birth(site: TwoNodes) -> None:
    site.work(2)
    record = site.end()
    assert sum(p.span * p.rates.operations for p in record.points) == pytest.approx(80, rel=0.01)


def test_a_rank_that_was_born_before_the_first_sample_is_not(site: TwoNodes) -> None:
    site.now += 100
    site.tracker = site.new_coordinator()
    site.tracker.update(site.world.state)
    site.work(3)
    record = site.tracker.latest(site.job)
    assert record is not None
    assert max(point.rates.operations for point in record.points) < 41


def test_an_attempt_that_has_no_rank_here_is_followed_too(site: TwoNodes) -> None:
    site.work(3)
    site.world.ended_on(site.job, "a")
    site.tracker.update(site.world.state)
    assert site.tracker._here() == {}
    site.work(3)
    assert now_of(site).ranks[2].step == 6


def test_what_comes_while_no_link_stands_is_made_up_for_by_the_next(site: TwoNodes) -> None:
    site.work(5)
    site.linked = False
    site.work(20)
    assert len(now_of(site).ranks) == 4
    assert not now_of(site).ranks[2].rates.measured
    site.linked = True
    site.work(3)
    assert now_of(site).ranks[2].rates.operations == pytest.approx(10, rel=0.01)
    assert site.end().ranks[2].totals.operations == 280


def test_two_messages_between_two_samples_are_one(site: TwoNodes) -> None:
    site.work(3)
    for _ in range(3):
        site.now += 0.1
        site.count(2)
        site.push()
    assert site.tracker.sample() == {"a", "b"}
    assert now_of(site).ranks[2].step == 6
    assert site.tracker.sample() == {"a"}


# ---- what is not believed


def forged(site: TwoNodes, *found: Observed, at: float = 5000.0, attempt: int = 1) -> None:
    ranks = PackedMetrics(site.job, attempt, pack(at, found))
    site.tracker.take("b", NodeMetrics(at, 0.5, 0.5, False, (ranks,)))
    site.tracker.sample()


def test_a_node_speaks_for_its_own_ranks_alone(
    site: TwoNodes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            forged(site, Observed(sample(2, 5000.0)), Observed(sample(0, 5000.0, operations=9)))
            forged(site)
    assert [rank.rank for rank in now_of(site).ranks] == [0, 1]
    assert [record.getMessage() for record in caplog.records] == [
        f"metrics of node b are dropped: ranks of job {site.job} that do not run there"
    ]


def test_a_node_without_an_allocation_speaks_for_no_rank(site: TwoNodes) -> None:
    ranks = PackedMetrics(site.job, 1, pack(5.0, [Observed(sample(2, 5.0))]))
    site.tracker.take("c", NodeMetrics(5.0, None, None, False, (ranks,)))
    site.tracker.sample()
    assert [rank.rank for rank in now_of(site).ranks] == [0, 1]


@pytest.mark.parametrize("attempt", [0, 2])
def test_another_attempt_is_not_this_one(
    site: TwoNodes, attempt: int, caplog: pytest.LogCaptureFixture
) -> None:
    forged(site, Observed(sample(2, 5000.0)), attempt=attempt)
    assert [rank.rank for rank in now_of(site).ranks] == [0, 1]
    assert not caplog.records  # it may have ended a moment ago


def test_bytes_that_are_no_metrics_are_dropped_with_a_line(
    site: TwoNodes, caplog: pytest.LogCaptureFixture
) -> None:
    bad = NodeMetrics(5.0, None, None, False, (PackedMetrics(site.job, 1, "~~~"),))
    site.tracker.take("b", bad)
    assert "metrics of node b are dropped: " in caplog.text
    site.work(2)
    assert len(now_of(site).ranks) == 4


def test_counters_and_clocks_of_a_process_do_not_fall(site: TwoNodes) -> None:
    forged(site, Observed(sample(2, 5000.0, operations=50)))
    forged(site, Observed(sample(2, 5001.0, operations=49)), at=5001.0)
    forged(site, Observed(sample(2, 4999.0, operations=60)), at=4999.0)
    assert site.tracker.live[site.job, 1].attempt_metrics.ranks[2][1].operations == 50
    forged(site, Observed(sample(2, 5002.0, operations=60)), at=5002.0)
    assert site.tracker.live[site.job, 1].attempt_metrics.ranks[2][1].operations == 60
    forged(site, Observed(sample(2, 1.0, operations=1, pid=9999)), at=1.0)  # another process
    assert site.tracker.live[site.job, 1].attempt_metrics.ranks[2][1].operations == 1


def test_a_codec_is_untrusted_text(site: TwoNodes) -> None:
    ranks = pack(5.0, [Observed(sample(2, 5.0))])
    codec = (2, "lz4\x1b[2J" + "x" * 99, "why\n" + "y" * 999)
    figures = PackedMetrics(site.job, 1, ranks, codec)
    site.tracker.take("b", NodeMetrics(5.0, None, None, False, (figures,)))
    site.tracker.sample()
    rank = now_of(site).ranks[2]
    assert (rank.codec, rank.codec_why[:5]) == ("lz4?[2Jxxxxxxxxx", "why?y")
    assert len(rank.codec_why) == 300


# ---- what is sent


def test_codecs_are_said_of_one_rank_in_a_message_and_changes_first(site: TwoNodes) -> None:
    site.pages[2].use_codec("lz4", "because")
    site.pages[3].use_codec("none", "it is not worth it")
    site.work(4)
    said = [figures.attempts[0].codec for figures in site.sent]
    assert said == [
        (2, "lz4", "because"),
        (3, "none", "it is not worth it"),
        (2, "lz4", "because"),
        (3, "none", "it is not worth it"),
    ]
    site.pages[3].use_codec("lz4", "now it is")
    site.work(2)
    assert site.sent[4].attempts[0].codec == (3, "lz4", "now it is")
    assert site.sent[5].attempts[0].codec == (2, "lz4", "because")
    assert [rank.codec for rank in now_of(site).ranks] == ["", "", "lz4", "lz4"]


def test_a_long_reason_is_cut(site: TwoNodes) -> None:
    site.pages[2].use_codec("lz4", "ü" * 200)
    site.work(1)
    codec = site.sent[0].attempts[0].codec
    assert codec is not None
    assert codec[2] == "ü" * 90


def test_an_allocation_that_ends_sends_its_last_count_and_is_forgotten(site: TwoNodes) -> None:
    site.work(2)
    site.pages[3].words[stats.OPERATIONS] += 7
    site.pusher.last(site.job, 1)
    (last,) = site.sent[-1].attempts
    assert [one.sample.operations for one in unpack(site.sent[-1].at, last.ranks)] == [20, 27]
    site.following.clear()
    site.push()
    assert site.sent[-1].attempts == ()


def pusher(site: TwoNodes, clock: Clock) -> tuple[MetricsPusher, list[float]]:
    sent: list[float] = []
    machine: Any = SimpleNamespace(look=lambda: Health())
    send = lambda figures: sent.append(clock.now)  # noqa: E731
    made = MetricsPusher(site.reader, lambda: site.following, machine, clock.as_loop, send)
    return made, sent


def test_metrics_are_sent_once_a_second_with_jobs_and_seldom_without(site: TwoNodes) -> None:
    clock = Clock()
    made, sent = pusher(site, clock)
    made.start()
    clock.advance(3.5)
    assert sent == [1000.0 + EVERY_S * n for n in range(4)]
    jobs = dict(site.following)
    site.following.clear()
    made.changed()
    sent.clear()
    clock.advance(2 * IDLE_S + 2.0)
    assert sent == [1003.0 + IDLE_S, 1003.0 + 2 * IDLE_S]
    site.following.update(jobs)
    made.changed()
    sent.clear()
    clock.advance(0.5)
    assert sent == [clock.now - 0.5]  # long enough ago: at once
    made.close()
    clock.advance(10)
    assert len(sent) == 1


def test_a_new_link_hears_everything_at_once(site: TwoNodes) -> None:
    clock = Clock()
    made, sent = pusher(site, clock)
    made.start()
    clock.advance(0.3)
    made.start()
    clock.advance(0.0)
    assert sent == [1000.0, 1000.3]


def test_a_defect_in_looking_stops_nothing_and_is_told_once(
    site: TwoNodes, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    made, sent = pusher(site, clock)
    made.send = lambda figures: 1 // 0
    made.start()
    clock.advance(5)
    made.send = lambda figures: sent.append(clock.now)
    clock.advance(1)
    assert len(sent) == 1
    assert sum("a defect while looking" in record.message for record in caplog.records) == 1


# ---- hangs


def test_a_rank_that_falls_silent_on_a_member_is_reported_from_there(watched: TwoNodes) -> None:
    watched.work(5)
    watched.work(29, silent=(3,))
    assert watched.hung == []
    watched.work(1, silent=(3,))
    (event,) = watched.hung
    assert (event.id, event.attempt, event.rank, event.silent_s) == (watched.job, 1, 3, 30.0)
    assert event.at == watched.now + DAY
    watched.work(10, silent=(3,))
    assert [event.silent_s for event in watched.hung] == [30.0, 35.0, 40.0]
    watched.work(10)
    assert len(watched.hung) == 3


def test_a_rank_that_never_did_anything_is_not_silent(watched: TwoNodes) -> None:
    watched.work(100, silent=(2,))
    assert watched.hung == []


def test_a_rank_that_is_over_does_not_count_as_silent(watched: TwoNodes) -> None:
    watched.work(5)
    watched.shims[watched.job, 1].over = {3}
    watched.work(100, silent=(3,))
    assert watched.hung == []


def test_an_allocation_that_is_over_is_not_hung(watched: TwoNodes) -> None:
    watched.work(5)
    del watched.shims[watched.job, 1]
    watched.work(100, silent=(2, 3))
    assert watched.hung == []


def test_without_a_hang_timeout_no_rank_is_watched(site: TwoNodes) -> None:
    site.work(5)
    site.work(100, silent=(2, 3))
    assert site.hung == []


def test_a_job_that_is_being_stopped_is_not_hung(watched: TwoNodes) -> None:
    watched.work(5)
    watched.world.cancel(watched.job)
    watched.following[watched.job, 1] = watched.world.job(watched.job)
    watched.work(100, silent=(2, 3))
    assert watched.hung == []


def test_a_hang_here_is_reported_by_the_coordinator_itself(watched: TwoNodes) -> None:
    hung: list[Any] = []
    watched.report = hung.append
    watched.work(5)
    watched.work(30, silent=(1, 3))
    assert [event.rank for event in hung] == [1]
    assert [event.rank for event in watched.hung] == [3]


def test_the_silence_of_an_allocation_that_has_ended_here_is_none(watched: TwoNodes) -> None:
    hung: list[Any] = []
    watched.report = hung.append
    watched.work(5)
    watched.world.ended_on(watched.job, "a")
    watched.tracker.update(watched.world.state)
    watched.work(60, silent=(0, 1))
    assert hung == []


def test_memory_of_ranks_elsewhere_comes_along(site: TwoNodes) -> None:
    site.shims[site.job, 1].ranks = (RankState(2, os.getpid()), RankState(3))
    site.work(2)
    ranks = now_of(site).ranks
    assert ranks[2].memory > 1 << 20
    assert ranks[2].cpu is not None
    assert ranks[3].memory is None


def test_ranks_that_never_write_are_known_by_what_they_use(tmp_path: Path) -> None:
    site = TwoNodes(tmp_path)
    try:
        told = tuple(RankState(rank, os.getpid()) for rank in range(4))
        site.shims[site.job, 1].ranks = told
        site.work(20)
        now = now_of(site)
        assert [(rank.rank, rank.node) for rank in now.ranks] == [
            *((0, "a"), (1, "a"), (2, "b"), (3, "b"))
        ]
        assert now.memory == sum(rank.memory for rank in now.ranks)
        assert now.cpu is not None
        assert (now.step, now.straggler, now.rates) == (None, None, Rates(measured=False))
        points = site.tracker.latest(site.job).points
        assert len(points) >= 3
        assert points[-1].memory == now.memory
    finally:
        site.close()


def test_what_scripts_report_by_name_comes_along(site: TwoNodes) -> None:
    for rank, page in site.pages.items():
        page.admit(["accuracy", "lr"])
        page.say(1, None, None, None, {"accuracy": rank / 4, "lr": 0.1})
    site.work(3)
    now = now_of(site)
    assert now.metrics == {"accuracy": pytest.approx(0.375), "lr": pytest.approx(0.1)}
    assert now.ranks[3].metrics["accuracy"] == 0.75
    site.pages[3].say(1, None, None, None, {"lr": float("nan")})
    site.work(1)
    assert now_of(site).metrics["lr"] is None
    assert site.tracker.latest(site.job).points[-1].metrics["accuracy"] == pytest.approx(0.375)


def test_names_of_metrics_from_elsewhere_are_not_believed(site: TwoNodes) -> None:
    site.work(2)
    (figures,) = site.sent[-1].attempts
    names = ["fine", 'x"} 1', "\x1b[31m", *(f"m{n}" for n in range(20))]
    hostile = {2: dict.fromkeys(names, 1.0), 0: {"not_there": 1.0}}
    site.tracker.take("b", replace(site.sent[-1], attempts=(replace(figures, metrics=hostile),)))
    site.work(1)
    known = site.tracker.live[site.job, 1].metrics
    assert set(known[2]) <= {"fine", *(f"m{n}" for n in range(20))}
    assert len(known[2]) <= 8
    assert 0 not in known


def test_metrics_of_many_ranks_are_told_by_turns(site: TwoNodes, monkeypatch: Any) -> None:
    monkeypatch.setattr("wiiiiided.cluster.monitoring.metrics_pusher.METRIC_RANKS", 1)
    for rank in (2, 3):
        site.pages[rank].admit(["accuracy"])
    site.work(4)
    told = [list(sent.attempts[0].metrics) for sent in site.sent if sent.attempts]
    assert told[-4:] in ([[2], [3], [2], [3]], [[3], [2], [3], [2]])


def test_a_machines_own_metrics_are_rounded(site: TwoNodes) -> None:
    site.push()
    assert replace(site.sent[-1], at=0.0, attempts=()) == NodeMetrics(0.0, 0.512, 0.25, False)


def test_a_status_that_a_job_made_up_names_no_rank(watched: TwoNodes) -> None:
    shim = Shim(watched.job_dirs["b"], watched.job, 1, lambda: None, lambda: 0.0)
    forged = [{"code": 1}, {"rank": [], "code": 1}, {"rank": 2, "code": 0}, {"rank": 3}, 5]
    shim._heard(read_report(json.dumps({"event": "status", "ranks": forged}).encode()))
    assert shim.over == {2}


def test_a_job_that_cannot_be_looked_at_hides_no_other(
    watched: TwoNodes, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        ranks: tuple[Any, ...] = ()

        @property
        def over(self) -> set[int]:
            raise KeyError("rank")

    key = (watched.job + 1, 1)
    job = replace(watched.world.job(watched.job), id=key[0])
    others = dict(watched.following)
    watched.following.clear()
    watched.following.update({key: job, **others})
    watched.shims[key] = Broken()
    watched.work(5)
    assert [each.job for each in watched.sent[-1].attempts] == [watched.job]
    watched.work(31, silent=(3,))
    assert {event.id for event in watched.hung} == {watched.job}
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"a defect while looking at job {key[0]}; it goes on"]


def test_ranks_of_another_machine_that_train_at_other_steps_are_named_once(
    site: TwoNodes,
) -> None:
    """They count 1,450 steps more, from the beginning on, and are in step with the others."""
    told: list[Any] = []

    def report(event: Any) -> None:
        told.append(event)
        site.world.feed(event)
        site.tracker.update(site.world.state)

    site.report = report
    site.begin()
    for rank in (2, 3):
        site.pages[rank].words[stats.OPERATIONS] += 14500
    site.work(60)
    (event,) = told
    assert "rank 2 on b is 1,450 steps ahead, rank 3 on b is 1,450 steps ahead" in event.apart
    assert event.apart in site.world.why(site.job)
