"""`wiiiiide stacks`: where each worker is."""

from __future__ import annotations

from tests.kit.fake_daemon import FakeDaemon
from tests.ui.cli.kit import Cli
from wiiiiided.cluster.rpc import messages as m

DUMPS = m.StackDumps(
    (
        m.StackDump(0, 4711, 'Thread 0x1 (most recent call first):\n  File "x.py", line 3\x1b\n'),
        m.StackDump(1, None, "rank 1 has no fault handler"),
    )
)


def test_each_rank_has_its_own_part(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Stacks, DUMPS)
    result = cli("stacks", "17")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "rank 0, pid 4711\n"
        "  Thread 0x1 (most recent call first):\n"
        '    File "x.py", line 3\\x1b\n'
        "\n"
        "rank 1\n"
        "  rank 1 has no fault handler\n"
    )


def test_in_a_cluster_each_rank_has_its_node(cli: Cli, daemon: FakeDaemon) -> None:
    text = "--- rank 4 pid 7: python train.py\nThread 0x1:\n"
    dumps = (m.StackDump(4, 7, text, "b"), m.StackDump(5, None, "c does not answer", "c\x1b"))
    daemon.answers(m.Stacks, m.StackDumps(dumps))
    assert cli("stacks", "17").out == (
        "b:4, pid 7: python train.py\n  Thread 0x1:\n\nc\\x1b:5\n  c does not answer\n"
    )
    assert [dump["node"] for dump in cli("stacks", "17", "--json").json["dumps"]] == ["b", "c\x1b"]


def test_json(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Stacks, DUMPS)
    found = cli("stacks", "17", "--json").json
    assert found["id"] == 17
    assert [(dump["rank"], dump["pid"]) for dump in found["dumps"]] == [(0, 4711), (1, None)]


def test_a_job_that_does_not_run_is_refused(cli: Cli, daemon: FakeDaemon) -> None:
    daemon.answers(m.Stacks, m.Refusal(1, "job 17 is queued: it has no ranks"))
    assert cli("stacks", "17").code == 1


def test_a_heading_stands_once(cli: Cli, daemon: FakeDaemon) -> None:
    text = "--- rank 0 pid 7: python train.py\nThread 0x1:\n--- rank 0 pid 9: loader\nno handler\n"
    daemon.answers(m.Stacks, m.StackDumps((m.StackDump(0, 7, text),)))
    assert cli("stacks", "17").out == (
        "rank 0, pid 7: python train.py\n  Thread 0x1:\n  --- rank 0 pid 9: loader\n  no handler\n"
    )
