"""The Store that a shim keeps, asked by torch's own client, beside torch's own server."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from wiiiiided.cluster.shim import store_server
from wiiiiided.cluster.shim.store_keys import LIMIT_BYTES, StoreKeys, StoreProtocolError

SERVER = """
from wiiiiided.cluster.shim.loop import ShimLoop
from wiiiiided.cluster.shim.store_server import StoreServer
loop = ShimLoop()
store = StoreServer(loop, on_last_remote=print, on_silence=print)
store.listen()
print(store.port, flush=True)
loop.run()
"""
# torch's client keeps Python's lock while it connects, so no server can be in the same process.
TORCHS = """
import sys
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""
ROOT = Path(store_server.__file__).parents[3]
PATIENCE_S = 60.0  # with a server that does not run for a while


@contextmanager
def serving(program: str) -> Iterator[int]:
    """The port of a server in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(SERVER) as port:
        yield port


@pytest.fixture(scope="module")
def torchs_port() -> Iterator[int]:
    with serving(TORCHS) as port:
        yield port


def client(port: int) -> Any:
    limit = timedelta(seconds=PATIENCE_S)
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=limit)


def raw(port: int, data: bytes = b"") -> socket.socket:
    """A client that says what it likes, after the right beginning."""
    link = socket.create_connection(("127.0.0.1", port))
    link.settimeout(PATIENCE_S)
    link.sendall(b"\0" + struct.pack("=I", store_server.MAGIC) + data)
    return link


def is_cut_off(link: socket.socket) -> bool:
    try:
        return link.recv(100) == b""
    except ConnectionResetError:  # it had not read all
        return True


def outcome(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0].split(",")[0]


def conversation(port: int) -> list[Any]:
    """Every request of the protocol, ordinary and odd ones, and what is answered."""
    store = client(port)
    short, ample = timedelta(milliseconds=50), timedelta(seconds=PATIENCE_S)
    steps: list[Callable[[], Any]] = [
        lambda: store.set("a", "1"),
        lambda: store.get("a"),
        lambda: store.set("a", b"\0\xff"),
        lambda: store.get("a"),
        lambda: store.set("", ""),
        lambda: store.get(""),
        lambda: store.compare_set("a", "x", "y"),
        lambda: store.compare_set("a", b"\0\xff", "y"),
        lambda: store.compare_set("none", "x", "y"),
        lambda: store.check(["none"]),
        lambda: store.compare_set("none", "", "y"),
        lambda: store.compare_set("none", "", "z"),
        lambda: store.add("n", 5),
        lambda: store.add("n", -7),
        lambda: store.get("n"),
        lambda: store.add("n", 2**63 - 1),
        lambda: store.add("n", 2**62),
        lambda: store.check(["a", "n"]),
        lambda: store.check(["a", "missing"]),
        lambda: store.check([]),
        lambda: store.wait(["a", "n"], ample),
        lambda: store.wait([], ample),
        lambda: store.wait(["missing"], short),
        lambda: store.wait(["a", "missing", "missing too"], short),
        lambda: store.append("text", "one"),
        lambda: store.append("text", " two"),
        lambda: store.get("text"),
        lambda: store.multi_set(["m1", "m2"], ["1", "2"]),
        lambda: store.multi_get(["m1", "m2", "m1"]),
        lambda: store.num_keys(),
        lambda: sorted(store.list_keys()),
        lambda: store.delete_key("m1"),
        lambda: store.delete_key("m1"),
        lambda: store.num_keys(),
        lambda: store.queue_len("q"),
        lambda: store.queue_push("q", "first"),
        lambda: store.queue_push("q", "second"),
        lambda: store.queue_len("q"),
        lambda: store.check(["q"]),
        lambda: store.wait(["q"], ample),
        lambda: store.num_keys(),
        lambda: store.queue_pop("q"),
        lambda: store.queue_pop("q", False),
        lambda: store.queue_pop("q", False),
        lambda: store.check(["q"]),
        lambda: store.barrier("b1", 1, ample),
        lambda: store.barrier("b2", 2, short),
        lambda: store.get("b2"),
        lambda: store.barrier("b2", 2, ample),
        lambda: store.barrier("b2", 2, ample),
        lambda: store.get("b2"),
        lambda: store.set("big", b"x" * (8 << 20)),
        lambda: len(store.get("big")),
        lambda: store.set("big", ""),
        lambda: store.multi_set([f"k{n}" for n in range(3000)], ["v" * 100] * 3000),
        lambda: len(b"".join(store.multi_get([f"k{n}" for n in range(3000)]))),
        lambda: store.has_extended_api(),
        lambda: store.get("a"),
    ]
    answers = [outcome(step) for step in steps]
    copy = store.clone()
    copy.set("from the copy", "1")
    answers.append(store.get("from the copy"))
    store.set("word", "abc")
    answers.append(outcome(lambda: store.add("word", 1))[0])
    answers.append(outcome(lambda: copy.get("a")))
    return answers


def test_every_request_is_answered_as_by_torchs_own_server(port: int, torchs_port: int) -> None:
    ours, theirs = conversation(port), conversation(torchs_port)
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert our == their, f"step {number}"


def test_a_waiter_goes_on_when_the_last_key_is_there(port: int) -> None:
    names = ["w1", "w2", "w3"]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(client(port).wait, names) for _ in range(3)]
        other = client(port)
        for name in names:
            assert not any(wait.done() for wait in waiting)
            other.set(name, "1")
        for wait in waiting:
            wait.result(PATIENCE_S)


@pytest.mark.parametrize("how", ["set", "add", "append", "compare_set", "multi_set"])
def test_whatever_makes_a_key_wakes_its_waiter(port: int, how: str) -> None:
    name = f"made by {how}"
    with ThreadPoolExecutor(1) as pool:
        value = pool.submit(client(port).get, name)
        other = client(port)
        action = {
            "set": lambda: other.set(name, "7"),
            "add": lambda: other.add(name, 7),
            "append": lambda: other.append(name, "7"),
            "compare_set": lambda: other.compare_set(name, "", "7"),
            "multi_set": lambda: other.multi_set([name], ["7"]),
        }[how]
        action()
        assert value.result(PATIENCE_S) == b"7"


def test_a_wait_that_timed_out_leaves_nothing_behind(port: int) -> None:
    store = client(port)
    for _ in range(3):
        with pytest.raises(dist.DistStoreError):
            store.wait(["late"], timedelta(milliseconds=20))
    store.set("late", "1")
    assert store.get("late") == b"1"  # and no answer to an old wait comes in between


def test_each_value_of_a_queue_is_popped_once(port: int) -> None:
    count, poppers = 200, 8
    stores = [client(port) for _ in range(poppers)]
    popped: list[bytes] = []

    def pop(store: Any) -> None:
        while True:
            try:
                value = store.queue_pop("work")
            except dist.QueueEmptyError:  # another was quicker after both had been woken
                continue
            if value == b"end":
                return
            popped.append(value)

    threads = [threading.Thread(target=pop, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    pusher = client(port)
    for number in range(count):
        pusher.queue_push("work", str(number))
    for _ in range(poppers):
        pusher.queue_push("work", "end")
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(map(int, popped)) == list(range(count))


def test_many_clients_count_and_meet(port: int) -> None:
    size = 64
    stores = [client(port) for _ in range(size)]

    def work(store: Any) -> int:
        for _ in range(20):
            last = store.add("counter", 1)
        store.barrier("all", size, timedelta(seconds=PATIENCE_S))
        return int(store.get("counter")) + 0 * int(last)

    with ThreadPoolExecutor(size) as pool:
        assert set(pool.map(work, stores)) == {20 * size}


def length(number: int) -> bytes:
    return struct.pack("=q", number)


NONSENSE = {
    "an unknown request": b"\xff",
    "the first unknown request": b"\x13",
    "a second greeting": b"\0" + struct.pack("=I", store_server.MAGIC),
    "a key of a terabyte": b"\x01" + length(2**40),
    "a key of less than nothing": b"\x01" + length(-1),
    "a value of eight gigabytes": b"\x01" + length(1) + b"k" + length(2**33),
    "a list without end": b"\x05" + length(2**50),
    "values that are too many": b"\x0b" + length((1 << 17) + 1),
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_a_client_that_breaks_the_rules_loses_its_own_connection(
    port: int, nonsense: bytes
) -> None:
    good = client(port)
    good.set("still", "here")
    with raw(port, nonsense) as link:
        assert is_cut_off(link)
    assert good.get("still") == b"here"


@pytest.mark.parametrize(
    "greeting", [b"\0abcd", b"\x01", b"GET / HTTP/1.1\r\n\r\n"], ids=["magic", "set", "http"]
)
def test_a_client_of_another_protocol_is_closed(port: int, greeting: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.settimeout(PATIENCE_S)
        link.sendall(greeting)
        assert is_cut_off(link)


def test_requests_in_small_pieces_and_several_at_once_are_answered(port: int) -> None:
    key = length(2) + b"/p"
    requests = b"\x04" + key + length(1) + b"\x04" + key + length(1) + b"\x03" + key
    with raw(port) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in requests:
            link.send(bytes([byte]))
        expected = length(1) + length(2) + length(1) + b"2"
        answer = b""
        while len(answer) < len(expected):
            answer += link.recv(100)
        assert answer == expected


def test_a_client_that_never_reads_holds_no_other_up(port: int) -> None:
    good = client(port)
    good.set("large", b"x" * (1 << 20))
    with raw(port) as link:
        link.setblocking(False)
        request = b"\x03" + length(6) + b"/large"
        try:
            while link.send(request * 100):
                pass
        except BlockingIOError:
            pass
        assert good.get("large") == b"x" * (1 << 20)


def test_a_store_has_an_end(port: int) -> None:
    store = client(port)

    def fill() -> None:
        for number in range(2 * LIMIT_BYTES >> 23):
            store.set(f"fill {number}", b"x" * (8 << 20))
            store.get("fill 0")

    with pytest.raises(RuntimeError):
        fill()
    other = client(port)
    for number in range(2 * LIMIT_BYTES >> 23):
        other.delete_key(f"fill {number}")
    other.set("room again", "1")
    assert other.get("room again") == b"1"


# Says the magic number and pings, as a user of its own; an answer is four bytes.
ASKING = """
import os, socket, struct, sys
os.setuid(int(sys.argv[1]))
with socket.socket() as link:
    try:
        link.connect((b"127.0.0.1", int(sys.argv[2])))
        link.sendall(struct.pack("=BIBI", 0, 0x3C85F7CE, 13, 7))
        print(len(link.recv(4)))
    except ConnectionResetError:
        print(0)
"""


@pytest.mark.needs("root")
def test_another_user_of_the_machine_is_not_served() -> None:
    program = SERVER.replace("loop =", "import os; os.setuid(12345)\nloop =")
    with serving(program) as port:
        served = {}
        for uid in (0, 12345, 12346):
            command = [sys.executable, "-c", ASKING, str(uid), str(port)]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            served[uid] = answer.stdout.strip()
    assert served == {0: "4", 12345: "4", 12346: "0"}


def test_it_listens_on_loopback_alone() -> None:
    with serving(SERVER) as port:
        wanted = f":{port:04X}"
        found = []
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            found += [row[1] for row in rows if row[1].endswith(wanted) and row[3] == "0A"]
        assert found == [f"0100007F{wanted}"]


def test_a_client_that_dies_while_it_waits_is_forgotten() -> None:
    keys = StoreKeys()
    first, second = object(), object()
    assert not keys.wait([b"a", b"b"], first)
    assert not keys.wait([b"a"], second)
    keys.forget(first)
    keys.set(b"a", b"1")
    keys.set(b"b", b"1")
    assert keys.waken == [second]


def test_a_queue_wakes_one_waiter_per_value() -> None:
    keys = StoreKeys()
    waiters = [object() for _ in range(3)]
    for waiter in waiters:
        assert not keys.wait([b"q"], waiter)
    keys.push(b"q", b"1")
    assert keys.waken == waiters[:1]
    keys.push(b"q", b"2")
    assert keys.waken == waiters[:2]


def test_what_is_deleted_and_popped_makes_room() -> None:
    keys = StoreKeys()
    value = b"x" * (LIMIT_BYTES // 2)
    for _ in range(5):
        keys.set(b"a", value)
        keys.push(b"q", value[: LIMIT_BYTES // 3])
        with pytest.raises(StoreProtocolError):
            keys.set(b"b", value)
        with pytest.raises(StoreProtocolError):
            keys.push(b"q", value)
        assert keys.delete(b"a")
        assert keys.pop(b"q")[0] == 1
