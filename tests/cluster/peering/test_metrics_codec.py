"""Metrics of a node on the wire: small, whole, and believed only as far as they can be true."""

from __future__ import annotations

import base64
import contextlib
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from tests.metrics.samples import sample
from wiiiiided.cluster.monitoring.metrics_pusher import WHY_BYTES
from wiiiiided.cluster.peering import metrics_codec
from wiiiiided.cluster.peering.messages import MetricsUpdate, decode_from_member, encode
from wiiiiided.cluster.peering.metrics_codec import (
    PEERS,
    NodeMetrics,
    Observed,
    PackedMetrics,
    pack,
    unpack,
)
from wiiiiided.domain.metrics import RankSample, TrainingMetrics

WEEK_S = 7 * 86400
WHY = (
    "lz4 takes 38 % off and 412 MB/s on 2 threads, the link has 117 MB/s: a piece of 1 MiB is "
    "there after 5.6 ms instead of 8.9 ms; looked at again after every 256 MiB that went by"
)


def busy(rank: int, at: float, chance: random.Random) -> RankSample:
    """A rank after a week at 1 Gbit: like its neighbours, and a bit off in everything."""
    off = chance.uniform(0.99, 1.01)
    operations, steps = 41 * WEEK_S, 8 * WEEK_S
    return sample(
        rank,
        at - rank * 0.0001,
        pid=1_234_567 + 3 * rank,
        operations=operations - chance.randrange(2),
        shm_bytes=2_000_000_000 * WEEK_S + chance.randrange(100_000),
        wire_out=int(120e6 * WEEK_S * off),
        wire_in=int(119e6 * WEEK_S * off),
        wire_out_raw=int(240e6 * WEEK_S * off),
        wire_in_raw=int(241e6 * WEEK_S * off),
        exchange_s=0.3 * WEEK_S * off,
        waiting_s=0.2 * WEEK_S * off,
        encode_s=0.04 * WEEK_S * off,
        decode_s=0.03 * WEEK_S * off,
        waited_for={peer: WEEK_S * chance.random() / 10 for peer in range(24) if peer != rank},
        codec="lz4",
        codec_why=WHY,
        step=steps - chance.randrange(2),
        total=10_000_000,
        samples=256 * steps - 256 * chance.randrange(2),
        loss=0.41 + chance.random() / 100,
        memory=int(30e9 * off),
        said_at=at - chance.random(),
        cpu=2 * off,
        cpu_s=2 * WEEK_S * off,
        training=TrainingMetrics(
            noise_scale=1912.345,
            share=chance.random() / 4,
            wanted_share=0.125,
            speed_spread=3.1,
            balance_gain=1.5,
            round_steps=16.0,
            round_compute=0.93,
            own_steps=True,
        ),
    )


def test_eight_ranks_after_a_week_are_about_a_kilobyte() -> None:
    chance, at = random.Random(7), 1_234_567.891
    found = [Observed(busy(rank, at, chance), WEEK_S + rank / 7) for rank in range(8)]
    ranks = PackedMetrics(123_456, 12, pack(at, found), (3, "lz4", WHY[:WHY_BYTES]))
    message = MetricsUpdate(NodeMetrics(at, 0.713, 0.384, False, (ranks,)))
    assert len(encode(message)) <= 1200
    assert decode_from_member(encode(message)) == message


def test_what_was_packed_comes_out_to_the_millisecond() -> None:
    chance, at = random.Random(3), 5000.0
    found = [Observed(busy(rank, at, chance), 3.25) for rank in range(8)]
    for sent, come in zip(found, unpack(at, pack(at, found)), strict=True):
        old, new = sent.sample, come.sample
        assert come.lived_s == 3.25
        for name in ("rank", "pid", "operations", "failed", "shm_bytes", "step", "total"):
            assert getattr(new, name) == getattr(old, name)
        for name in ("wire_out", "wire_in", "wire_out_raw", "wire_in_raw", "samples"):
            assert getattr(new, name) == getattr(old, name)
        for name in ("at", "exchange_s", "waiting_s", "encode_s", "decode_s", "said_at"):
            assert getattr(new, name) == pytest.approx(getattr(old, name), abs=0.0011)
        assert new.loss == pytest.approx(old.loss, rel=1e-6)
        assert new.memory == pytest.approx(old.memory, abs=1024)
        assert new.cpu == pytest.approx(old.cpu, abs=0.01)
        assert new.cpu_s == pytest.approx(old.cpu_s, abs=0.01)
        for name in TrainingMetrics.__struct_fields__:
            told, heard = getattr(old.training, name), getattr(new.training, name)
            assert heard == (None if told is None else pytest.approx(told, abs=1e-6))
        longest = sorted(old.waited_for, key=lambda peer: -old.waited_for[peer])[:PEERS]
        assert set(new.waited_for) == set(longest)


def test_what_is_not_known_stays_so() -> None:
    silent = sample(5, 10.0, measured=False, diverged=True)
    (come,) = unpack(10.0, pack(10.0, [Observed(silent)]))
    assert come == Observed(silent)


def test_nothing_is_nothing() -> None:
    assert unpack(1.0, pack(1.0, [])) == []


@pytest.mark.parametrize("loss", [0.0, -1.5, 1e-30, 1e300, -1e300])
def test_any_loss_travels(loss: float) -> None:
    (come,) = unpack(1.0, pack(1.0, [Observed(sample(loss=loss))]))
    assert come.sample.loss == pytest.approx(max(-3.4e38, min(3.4e38, loss)), rel=1e-6)


def columns(*more: int) -> str:
    """A row by hand: rank 0, process 7, then what a test wants, then zeros."""
    row = [0, 7, *more]
    words = [*row, *[0] * (metrics_codec.COLUMNS - len(row))]
    data = bytearray()
    metrics_codec._put(data, metrics_codec.COLUMNS)
    for word in words:
        metrics_codec._put(data, 2 * word if word >= 0 else -2 * word - 1)
    return base64.b85encode(data).decode()


LARGE = 1 << 61


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("not \\ base 85", "bad base85"),
        (base64.b85encode(b"\x00").decode(), "rows of 0 columns"),
        (base64.b85encode(b"\xff\x7f").decode(), "rows of 16383 columns"),
        (base64.b85encode(b"\x05\x01\x02").decode(), "within a row"),
        (base64.b85encode(b"\x01\x80").decode(), "within a number"),
        (base64.b85encode(b"\x01" + b"\xff" * 20).decode(), "without an end"),
        (columns(0, 0, -1), ">= 0"),
        (columns(0, 0, LARGE), "<="),
        (columns(0, LARGE), "<="),
        (columns(0, 0, *[0] * 7, LARGE), "<="),
        (columns(0, 0, *[0] * 11, LARGE), "<="),
        (columns(0, 0, *[0] * 14, LARGE), "<="),
        (columns(0, 0, *[0] * 17, 1 << 40), "<="),
        (columns(4, 0, *[0] * 17, 0x7FC00000), "no number"),
        (columns(4, 0, *[0] * 17, 0x7F800000), "no number"),
        ("0" * (1 << 21), "too much"),
    ],
)
def test_what_cannot_be_true_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unpack(1.0, text)


@pytest.mark.parametrize("pid", [0, -1, 1 << 31])
def test_a_process_that_is_none_is_refused(pid: int) -> None:
    with pytest.raises(ValueError, match="at `\\$\\[1\\]`"):
        unpack(1.0, pack(1.0, [Observed(sample(pid=pid))]))


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_clock_that_is_none_is_refused(at: float) -> None:
    with pytest.raises(ValueError, match="clock"):
        unpack(at, pack(1.0, []))


def test_more_ranks_than_a_machine_can_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = pack(1.0, [Observed(sample(rank)) for rank in range(5)])
    monkeypatch.setattr(metrics_codec, "RANKS", 4)
    with pytest.raises(ValueError, match="more than 4 ranks"):
        unpack(1.0, text)
    assert len(unpack(1.0, pack(1.0, [Observed(sample(rank)) for rank in range(5)]))) == 4


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_metrics_that_can_be_or_are_refused(data: bytes) -> None:
    found: list[Observed] = []
    with contextlib.suppress(ValueError):
        found = unpack(100.0, base64.b85encode(data).decode())
    for one in found:
        msgspec.json.encode(one.sample)
        assert min(getattr(one.sample, name) for name in ("operations", "waiting_s")) >= 0


def with_columns(count: int, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> str:
    """As another version packs it: with so many columns."""
    row = metrics_codec._row

    def other(at: float, one: Observed) -> list[int]:
        return [*astuple(row(at, one)), *[77] * 50][:count]

    monkeypatch.setattr(metrics_codec, "_row", other)
    monkeypatch.setattr(metrics_codec.msgspec.structs, "astuple", tuple)
    monkeypatch.setattr(metrics_codec, "COLUMNS", count)
    text = pack(1.0, [Observed(sample(rank, 1.0, **fields)) for rank in (0, 1)])
    monkeypatch.undo()
    return text


def test_a_version_with_more_columns_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    text = with_columns(metrics_codec.COLUMNS + 4, monkeypatch, operations=5, waited_for={1: 2.0})
    expected = [sample(rank, 1.0, operations=5, waited_for={1: 2.0}) for rank in (0, 1)]
    assert [one.sample for one in unpack(1.0, text)] == expected


def test_a_version_with_fewer_columns_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = metrics_codec.RankRow.__struct_fields__.index("peer1")
    text = with_columns(fewer, monkeypatch, operations=5, waited_for={1: 2.0})
    found = [replace(sample(rank, 1.0, operations=5)) for rank in (0, 1)]
    assert [one.sample for one in unpack(1.0, text)] == found
