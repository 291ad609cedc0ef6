"""A job over several machines: how its ranks find the Store, with nothing of it listening."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.shim.test_training import DDP
from tests.kit.allocations import HOST, Machine, allocations
from tests.kit.daemons import free_port
from tests.kit.shims import Attempt, helper
from wiiiiided.cluster.shim import protocol

# A client of the Store without a group: what it prints is the test's.
STORE = """
import os, sys, time
from datetime import timedelta
import torch.distributed as dist
rank = int(os.environ["RANK"])
def client():
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False,
                         timeout=timedelta(seconds=60))
"""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    ports = [free_port(HOST) for _ in range(2)]  # they wait while a daemon is away
    with (
        Machine(tmp_path / "a", number=ports[0]) as first,
        Machine(tmp_path / "b", number=ports[1]) as second,
    ):
        yield first, second


def python(program: str) -> list[str]:
    return [sys.executable, "-c", STORE + program]


def tcp_listeners(attempt: Attempt) -> list[str]:
    """Of every process of the attempt."""
    shim = psutil.Process(attempt.shims[0].pid)
    found = [one for each in (shim, *shim.children(True)) for one in each.net_connections("inet")]
    return [str(one.laddr) for one in found if one.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=pytest.mark.soak), "wiiiiide"])
def test_a_script_made_for_torchrun_trains_over_two_machines(
    machines: tuple[Machine, Machine], backend: str
) -> None:
    with allocations([sys.executable, "-c", DDP, backend], *machines, workers=2) as both:
        for share in both:
            share.start()
        for share in both:
            assert share.end().code == 0, share.lines(share.order.first_rank)
        for rank in range(4):
            assert both[rank // 2].texts(rank) == [f"trained {rank} of 4"]


def test_nothing_of_a_job_on_several_machines_listens_on_tcp(
    machines: tuple[Machine, Machine],
) -> None:
    program = """
import torch
dist.init_process_group("wiiiiide")
dist.all_reduce(torch.ones(1000))
print("connected", flush=True)
client().wait(["never"])
"""
    with allocations(python(program), *machines) as both:
        for share in both:
            share.start()
        for rank, share in enumerate(both):
            share.wait_for("connected", rank)
        assert [tcp_listeners(share) for share in both] == [[], []]
        with Attempt(
            machines[0].job_dirs.job(8), ["sleep", "1000"]
        ) as alone:  # the look can find one
            alone.start()
            alone.listen().phase("running")
            assert len(tcp_listeners(alone)) == 1
            alone.listen().send(do="stop", grace_s=0, reason="seen")
            alone.end()
        for share in both:
            share.listen().send(do="stop", grace_s=0, reason="seen")
            share.end()


class Tap:
    """A man in the middle on the path to a port: passes everything on, and keeps what was said."""

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._server = socket.create_server((HOST, 0))
        self.endpoint = f"{HOST}:{self._server.getsockname()[1]}"
        self.heard: list[bytes] = []
        self._open = [self._server]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._to)
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pass_on, args=ends))
                    self._threads[-1].start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.heard.append(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._open:
            end.close()


@pytest.mark.parametrize("encrypt", [False, True])
def test_what_goes_to_the_store_can_be_read_on_the_way_unless_the_job_encrypts(
    machines: tuple[Machine, Machine], encrypt: bool
) -> None:
    """Small and large, both ways, and several at once on one connection."""
    program = """
store = client()
store.set(f"word {rank}", "a word of rank %d " % rank * 100_000)
theirs = store.get(f"word {1 - rank}")
assert theirs == b"a word of rank %d " % (1 - rank) * 100_000
for number in range(200):
    store.set(f"{rank} {number}", b"x" * number)
assert [store.get(f"{1 - rank} {n}") for n in range(200)] == [b"x" * n for n in range(200)]
store.set(f"done {rank}", "")
store.wait([f"done {1 - rank}"])
print("met", flush=True)
"""
    with contextlib.closing(Tap(machines[0].endpoint)) as tap:
        both = allocations(python(program), *machines, head=tap.endpoint, encrypt=encrypt)
        with both as (here, there):
            for share in (here, there):
                share.start()
            assert (here.end().code, there.end().code) == (0, 0), there.lines(1)
            assert here.texts(0) == there.texts(1) == ["met"]
        heard = b"".join(tap.heard)
    assert len(heard) > 3_000_000, "most of it was not heard"
    assert (b"a word of rank" in heard) != encrypt


def test_a_rank_waits_for_an_allocation_begun_later(
    machines: tuple[Machine, Machine],
) -> None:
    program = """
print("begun", flush=True)
store = client()
store.set(f"rank {rank}", "here")
store.wait(["rank 0", "rank 1"])
print("met", flush=True)
"""
    with allocations(python(program), *machines) as (here, there):
        there.start()
        there.wait_for("begun", 1)
        assert not (here.path / protocol.ENDPOINT).exists()
        here.start()
        assert (here.end().code, there.end().code) == (0, 0)
        assert here.texts(0) == there.texts(1) == ["begun", "met"]


# Between two lines, a test does something to it.
STEPS = """
def until(step):
    print(f"before {step}", flush=True)  # in one piece
    while not os.path.exists(step):
        time.sleep(0.01)
"""


def step(both: tuple[Attempt, Attempt], name: str) -> None:
    """Let both ranks do their next step, once both have come to it."""
    for rank, share in enumerate(both):
        share.wait_for(f"before {name}", rank)
    for share in both:
        (Path(share.order.work) / name).touch()


def test_a_restart_of_the_daemons_disturbs_no_rank(machines: tuple[Machine, Machine]) -> None:
    program = """
store = client()
until("use")
assert store.add("one by one", 1) in (1, 2)
until("connect")
print("connecting", flush=True)
client().set(f"again {rank}", "1")
store.wait(["again 0", "again 1"])
until("leave")
"""
    with allocations(python(STEPS + program), *machines) as both:
        for share in both:
            share.start()
        for rank, share in enumerate(both):
            share.wait_for("before use", rank)
        for machine in machines:
            machine.stop()
        step(both, "use")  # the connections of before need no daemon
        step(both, "connect")  # a new one waits for it
        for rank, share in enumerate(both):
            share.wait_for("connecting", rank)
        for machine in machines:
            machine.start()
        step(both, "leave")
        for share in both:
            assert share.end().code == 0


def test_the_head_daemon_alone_may_restart_while_a_rank_connects(
    machines: tuple[Machine, Machine],
) -> None:
    program = """
until("connect")
if rank == 1:
    print("connecting", flush=True)
client().set(f"rank {rank}", "1")
until("leave")
"""
    with allocations(python(STEPS + program), *machines) as both:
        for share in both:
            share.start()
        for rank, share in enumerate(both):
            share.wait_for("before connect", rank)
        machines[0].stop()
        step(both, "connect")
        both[1].wait_for("connecting", 1)
        machines[0].start()
        step(both, "leave")
        for share in both:
            assert share.end().code == 0


def test_when_the_store_dies_its_clients_elsewhere_know_at_once(
    machines: tuple[Machine, Machine],
) -> None:
    program = """
store = client()
print("connected", flush=True)
try:
    store.wait(["never"])
except dist.DistNetworkError:
    print("ended", flush=True)
"""
    with allocations(python(program), *machines) as (here, there):
        here.start()
        there.start()
        here.wait_for("connected", 0)
        there.wait_for("connected", 1)
        began = time.monotonic()
        here.shims[0].kill()
        there.wait_for("ended", 1)
        assert time.monotonic() - began < 20.0  # and not after the 60 s that it would wait
        assert there.end().code == 0
        assert helper("--cleanup", str(here.path)).returncode == 0


def test_each_job_of_a_machine_has_its_own_store(machines: tuple[Machine, Machine]) -> None:
    program = """
store = client()
store.set("whose", os.environ["WIIIIIDE_JOB_ID"])
until("look")
print(store.get("whose").decode(), flush=True)
"""
    argv = python(STEPS + program)
    first = machines[0]
    with first.allocation(argv, job=21) as one, first.allocation(argv, job=22) as other:
        for share in (one, other):
            share.start()
        for share in (one, other):
            share.wait_for("before look")
        for share in (one, other):
            (Path(share.order.work) / "look").touch()
            assert share.end().code == 0
        assert one.texts() == ["before look", "21"]
        assert other.texts() == ["before look", "22"]


def test_a_child_of_a_rank_is_of_the_job_too(machines: tuple[Machine, Machine]) -> None:
    program = """
if os.fork() == 0:
    os.setsid()
    client().set("child", "here")
    os._exit(0)
client().wait(["child"])
print("seen", flush=True)
"""
    with machines[0].allocation(python(program)) as attempt:
        assert attempt.run().code == 0
        assert attempt.texts() == ["seen"]


def test_machines_may_have_ipv6_addresses(tmp_path: Path) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    program = """
client().set(f"rank {rank}", "here")
client().wait(["rank 0", "rank 1"])
print(os.environ["MASTER_ADDR"], flush=True)
"""
    with (
        Machine(tmp_path / "a", "::1") as first,
        Machine(tmp_path / "b", "::1") as second,
        allocations(python(program), first, second) as both,
    ):
        for share in both:
            share.start()
        for rank, share in enumerate(both):
            assert share.end().code == 0
            assert share.texts(rank) == ["::1"]


def test_the_store_stays_for_ranks_that_need_longer(machines: tuple[Machine, Machine]) -> None:
    program = """
store = client()
store.set(f"rank {rank}", "here")
store.wait(["rank 0", "rank 1"])
if rank == 1:
    until("look")
    assert store.get("rank 0") == b"here"
    print("read", flush=True)
"""
    with allocations(python(STEPS + program), *machines) as (here, there):
        here.start()
        listener = here.listen()
        there.start()
        listener.until(lambda line: line["ranks"][0]["code"] == 0)
        there.wait_for("before look", 1)
        (Path(there.order.work) / "look").touch()
        assert there.end().code == 0
        assert there.texts(1)[-1] == "read"
        assert here.end().code == 0


def test_a_store_that_stays_for_others_goes_when_it_is_stopped(
    machines: tuple[Machine, Machine],
) -> None:
    program = """
store = client()
store.set(f"rank {rank}", "here")
store.wait(["rank 0", "rank 1"])
print("met", flush=True)
if rank == 1:
    time.sleep(1000)
"""
    with allocations(python(program), *machines, grace_s=1000.0) as (here, there):
        here.start()
        listener = here.listen()
        there.start()
        listener.until(lambda line: line["ranks"][0]["code"] == 0)
        assert not (here.path / protocol.EXIT).exists()
        listener.send(do="stop", reason="enough")
        end = here.end()
        assert (end.code, end.codes) == (0, {"0": 0})  # what it had done, it had done
        there.listen().send(do="stop", grace_s=0, reason="enough")
        there.end()


def test_an_allocation_without_its_key_does_not_begin(machines: tuple[Machine, Machine]) -> None:
    with allocations(["true"], *machines) as (_, there):
        (there.path / protocol.KEY).unlink()
        end = there.run()
        assert (end.code, end.codes) == (125, {})
        assert "key" in end.reason


def test_nothing_is_left_of_an_endpoint(machines: tuple[Machine, Machine]) -> None:
    with machines[0].allocation(["true"]) as attempt:
        assert attempt.run().code == 0
        assert not (attempt.path / protocol.ENDPOINT).exists()
        left = [path for path in attempt.path.iterdir() if path.is_socket()]
        assert left == []


def test_a_frozen_shim_does_not_hold_up_the_clients_of_others(
    machines: tuple[Machine, Machine],
) -> None:
    first = machines[0]
    argv = python("client().set('a', 'b')\nprint('done', flush=True)")
    with (
        first.allocation(["sleep", "1000"], job=31) as frozen,
        first.allocation(argv, job=30) as other,
    ):
        frozen.start()
        frozen.listen().phase("running")
        frozen.shims[0].send_signal(signal.SIGSTOP)
        other.start()
        other.wait_for("done")
        assert other.end().code == 0
        frozen.shims[0].send_signal(signal.SIGCONT)
        frozen.listen().send(do="stop", grace_s=0, reason="seen")
        frozen.end()
