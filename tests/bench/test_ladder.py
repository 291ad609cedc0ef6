"""The ladder: each stage says what was said to it, trains as one process does, and is measured."""

from __future__ import annotations

import importlib
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
STAGES = range(6)
MB = 1 << 20


@pytest.fixture
def ladder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of bench/lib/ladder, which import each other from `lib`."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    names = ("channel", "contenders", "counts", "heritage", "messages", "server", "stage_node")
    names = (*names, "table", "work")
    return SimpleNamespace(**{n: importlib.import_module(f"lib.ladder.{n}") for n in names})


def connected(ladder: Any, stage: Any) -> tuple[Any, Any]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return ladder.channel.Channel(one, stage), ladder.channel.Channel(other, stage)


def assert_same(found: Any, given: Any) -> None:
    if isinstance(given, dict):
        assert found.keys() == given.keys()
        for name in given:
            assert_same(found[name], given[name])
    elif isinstance(given, torch.Tensor):
        assert (found.dtype, found.requires_grad) == (given.dtype, given.requires_grad)
        assert found.shape == given.shape
        assert torch.equal(found, given)
    else:
        assert found == given


# ---- messages


@pytest.mark.parametrize("number", STAGES)
@pytest.mark.parametrize("kind", ["gradients", "weights"])
def test_a_message_comes_back_as_it_was(ladder: Any, number: int, kind: str) -> None:
    stage = ladder.contenders.STAGES[number]
    given = {kind: {"0.bias": torch.randn(20), "0.weight": torch.randn(20, 64)}, "loss": 2.3}
    codec, payload, plain_bytes = ladder.messages.pack(stage, given)
    found, size = ladder.messages.unpack(codec, payload)
    assert_same(found, given)
    assert size == plain_bytes


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4).bfloat16(),
        torch.randn(3, 4).half(),
        torch.randn(6, 4).t(),  # not contiguous
        torch.randn(6, 4)[:, 1],
        torch.tensor(7),
        torch.empty(0, 5),
        torch.tensor([True, False]),
        torch.randn(2, requires_grad=True),
    ],
    ids=["bfloat16", "half", "transposed", "column", "scalar", "empty", "bool", "requires_grad"],
)
def test_a_direct_tensor_keeps_what_it_is(ladder: Any, tensor: torch.Tensor) -> None:
    stage = ladder.contenders.STAGES[-1]
    codec, payload, _ = ladder.messages.pack(stage, {"x": tensor})
    assert b"torch_tensor" in ladder.contenders.CODECS[codec].decompress(payload)
    assert_same(ladder.messages.unpack(codec, payload)[0], {"x": tensor})


@pytest.mark.parametrize(
    ("number", "threshold", "gradients", "others"),
    [
        (1, None, "PLAIN", "PLAIN"),
        (2, 0, "ZLIB_1", "ZLIB_9"),
        (3, 1 * MB, "ZLIB_1", "ZLIB_9"),
        (4, MB // 2, "ZLIB_1", "ZLIB_9"),
        (5, MB // 2, "LZ4", "LZ4"),
        (6, 1 * MB, "LZ4", "LZ4"),
    ],
)
def test_a_stage_compresses_what_its_document_says(
    ladder: Any, number: int, threshold: int | None, gradients: str, others: str
) -> None:
    contenders = ladder.contenders
    stage = contenders.STAGES[number - 1]
    assert stage.codec_for(False, 10) is getattr(contenders, others)
    assert stage.codec_for(True, 16 * MB) is getattr(contenders, gradients)
    if threshold is not None:
        assert stage.codec_for(True, threshold) is contenders.PLAIN
        assert stage.codec_for(True, threshold + 1) is getattr(contenders, gradients)


# ---- sockets


@pytest.mark.parametrize("number", STAGES)
def test_a_channel_carries_more_than_one_piece_and_counts_it(ladder: Any, number: int) -> None:
    one, other = connected(ladder, ladder.contenders.STAGES[number])
    given = {"gradients": {"large": torch.randn(3 * MB // 4)}, "loss": 1.0}
    sender = threading.Thread(target=one.send, args=(given,))
    sender.start()
    assert_same(other.receive(), given)
    sender.join()
    assert one.costs.wire_bytes == other.costs.wire_bytes > 0
    assert one.costs.plain_bytes == other.costs.plain_bytes >= 3 * MB
    one.close()
    with pytest.raises(ConnectionError, match="closed"):
        other.receive()
    other.close()


@pytest.mark.parametrize("number", STAGES)
def test_a_node_and_the_server_train_as_one_process(ladder: Any, number: int) -> None:
    stage, work = ladder.contenders.STAGES[number], ladder.work
    server = ladder.server.ParameterServer(stage)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=lambda: server.serve(listener.accept()[0]))
        serving.start()
        node = ladder.stage_node.StageNode(stage, listener.getsockname()[1])
    for _ in range(3):
        node.step()
    # The server hands out a batch only after it has applied the gradient before.
    node._channel.receive()
    node.close()
    serving.join()

    alone = work.network()
    optimizer = work.optimizer(alone)
    for inputs, labels in work.batches()[:3]:
        optimizer.zero_grad()
        work.backward(alone, inputs, labels)
        optimizer.step()
    assert_same(dict(server.model.state_dict()), dict(alone.state_dict()))


# ---- what is shown


def test_the_row_has_the_least_and_the_most_node_over_all_rounds(ladder: Any) -> None:
    def one_round(*batches: int) -> Any:
        nodes = [ladder.counts.Count(n, 2.0, 10**6, 2 * 10**6, 0.5, 0.1, None) for n in batches]
        return ladder.counts.LadderRound(nodes, 700_000_000, 2.25)

    direct, bound = ladder.contenders.STAGES[-1], ladder.contenders.BOUND
    taken = {direct: [one_round(100, 300), one_round(200, 400)]}
    taken[bound] = [one_round(400, 400), one_round(400, 400)]
    sheet = ladder.table.sheet(taken, 2, 4.0)
    row = dict(zip(sheet.columns, sheet.rows[0], strict=True))
    assert row == {
        "": "6 direct tensor",
        "in 2024": "812",
        "batches/s": "250\n(200–300)",
        "to the bound": "0.62×",
        "MB/s": "1.0",
        "network time": "1.00–1.00 s",
        "compression time": "0.20–0.20 s",
        "ratio": "2.00",
        "memory": "700 MB",
        "batches a node": "300–700",
        "loss": "2.250",
    }
    assert ladder.table.notes(taken)[1:] == []
    assert not ladder.table.targets(taken).measures
    taken[ladder.contenders.SYNC] = [one_round(500, 500), one_round(700, 700)]
    verdicts = [each.ask(judged=True) for each in ladder.table.targets(taken).measures]
    assert verdicts == ["≥ 2.00×: met", "≥ 0.60×: met"]
    taken[bound] = [one_round(400, 400), one_round(4000, 4000)]
    assert "unsteady" in ladder.table.notes(taken)[1]
    assert ladder.table.notes(taken)[1].endswith(": without any exchange")


def test_the_page_shows_the_tables_that_are_kept(ladder: Any) -> None:
    heritage = ladder.heritage
    page = heritage.PAGE.read_text()
    renew = "PYTHONPATH=bench .venv/bin/python -m lib.ladder.heritage"
    assert heritage.renewed(page, heritage.kept()) == page, f"renew docs/heritage.md: {renew}"


def test_two_nodes_of_a_stage_and_of_today_are_measured_in_one_run() -> None:
    argv = [sys.executable, "bench/ladder.py", "--no-save", "--nodes", "2", "--rounds", "1"]
    argv += ["--seconds", "0.2", "--only", "6 direct,4 backwards,without"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^  (6|wide|without).* ([\d,]+)–([\d,]+)   \d\.\d{3}  $", done.stdout, re.M)
    assert [name for name, _, _ in rows] == ["6", "wide", "without"]
    # Ranks that go together have trained as many batches: they have ended together.
    assert rows[1][1] == rows[1][2]
    assert "0.80×" in done.stdout
