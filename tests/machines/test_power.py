"""The machines themselves: what a crash keeps, what a power loss takes, what is left of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.conditions import wait_until
from tests.kit.machines import BIN, CHECKOUT, END_S, Machine

pytestmark = [pytest.mark.needs("root", "machines", "disks"), pytest.mark.timeout(600)]

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
def made() -> Iterator[Machine]:
    with Machine("power", disk=["/srv/disk"]) as machine:
        yield machine


@pytest.fixture
def machine(made: Machine) -> Machine:
    """Switched on, however the test before has ended."""
    if not made.is_on():
        made.boot()
    return made


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
    command = machine.command("sh", "-c", "echo inside; exec sleep 1000")
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, stdin=quiet, stdout=pipe) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"inside\n"
        machine.crash()
        sleeper.wait(timeout=END_S)
    machine.boot()
    assert machine.boot_id() != before
    assert before != Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_machine_has_no_network_but_loopback(machine: Machine) -> None:
    assert machine.run("ls", "/sys/class/net").stdout.split() == ["lo"]


DIE = """
import os, signal
from tests.kit.machines import Machine
machine = Machine("orphan", disk=["/srv/disk"]).__enter__()
image = machine.den_path("disk.0").stat()
print(machine.leader(), machine._id, image.st_dev, image.st_ino, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_when_the_tests_themselves_are_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIE], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, timeout=300
    )
    leader, name, device, inode = done.stdout.split()
    image = (int(device), int(inode))
    wait_until(lambda: not os.path.exists(f"/proc/{leader}"), END_S, "the machine has ended")
    wait_until(lambda: not _cgroups(name), END_S, "its cgroups are gone")
    wait_until(lambda: image not in _images(), END_S, "its loop device is free again")


def _cgroups(name: str) -> list[str]:
    return [
        str(path)
        for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
        for path in root.glob(f"{name}*")
    ]


def _images() -> set[tuple[int, int]]:
    """Device and inode of the files behind loop devices: also others on this host use some."""
    listing = ["losetup", "--list", "--noheadings", "--output", "BACK-MAJ:MIN,BACK-INO"]
    lines = subprocess.run(listing, stdout=subprocess.PIPE, text=True, check=True).stdout
    # One that is freed while it is listed has empty columns.
    found = re.findall(r"^ *(\d+):(\d+) +(\d+) *$", lines, re.MULTILINE)
    return {(os.makedev(int(major), int(minor)), int(inode)) for major, minor, inode in found}
