"""The machines themselves: what a crash keeps, what a power loss takes, what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.machines import BIN, CHECKOUT, Machine

pytestmark = pytest.mark.needs("root", "machines", "disks")

WRITE = """
import os, sys
directory, name, how = sys.argv[1:]
os.chdir(directory)
with open(name + ".new", "w") as file:
    file.write("words")
    file.flush()
    if how == "synced":
        os.fsync(file.fileno())
os.rename(name + ".new", name)
if how == "synced":
    os.fsync(os.open(".", os.O_RDONLY))
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with Machine("power", disk=["/srv/disk"]) as machine:
        yield machine


def write(machine: Machine, name: str, how: str) -> None:
    machine.run(BIN / "python", "-c", WRITE, "/srv/disk", name, how)


def names(machine: Machine) -> set[str]:
    return set(machine.run("ls", "/srv/disk").stdout.split()) - {"lost+found"}


def test_a_power_loss_takes_what_was_not_synced_and_nothing_else(machine: Machine) -> None:
    write(machine, "kept", "synced")
    write(machine, "lost", "unsynced")
    assert {"kept", "lost"} <= names(machine)
    machine.power_loss()
    machine.boot()
    assert "kept" in names(machine)
    assert machine.run("cat", "/srv/disk/kept").stdout == "words"
    assert "lost" not in names(machine)


def test_a_crash_keeps_what_was_not_synced(machine: Machine) -> None:
    write(machine, "unsynced", "unsynced")
    machine.crash()
    machine.boot()
    assert machine.run("cat", "/srv/disk/unsynced").stdout == "words"


def test_a_crash_ends_every_process_and_gives_a_new_boot_id(machine: Machine) -> None:
    before = machine.boot_id()
    sleeper = subprocess.Popen(machine.command("sleep", "1000"), stdin=subprocess.DEVNULL)
    machine.crash()
    sleeper.wait(timeout=30)
    machine.boot()
    assert machine.boot_id() != before
    assert before != Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_machine_has_no_network_but_loopback(machine: Machine) -> None:
    assert machine.run("ls", "/sys/class/net").stdout.split() == ["lo"]


DIE = """
import os, signal
from tests.kit.machines import Machine
machine = Machine("orphan", disk=["/srv/disk"]).__enter__()
print(machine.leader(), machine._id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_when_the_tests_themselves_are_killed() -> None:
    loops = _loops()
    done = subprocess.run(
        [sys.executable, "-c", DIE], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, timeout=60
    )
    leader, name = done.stdout.split()
    wait_until(lambda: not os.path.exists(f"/proc/{leader}"), 30, "the machine has ended")
    wait_until(lambda: not _cgroups(name), 30, "its cgroups are gone")
    wait_until(lambda: _loops() <= loops, 30, "its loop device is free again")


def _cgroups(name: str) -> list[str]:
    return [
        str(path)
        for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
        for path in root.glob(f"{name}*")
    ]


def _loops() -> set[str]:
    return {path.parent.name for path in Path("/sys/block").glob("loop*/loop")}
