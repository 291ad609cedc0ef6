"""Real machines for tests: systemd booted as process 1, by systemd-nspawn, in half a second.

    pytest ──pipe──► den          unshare: own mounts, own processes. Its process 1 waits for the
                      │           pipe to end, so whatever happens to pytest, all of it goes: what
                      │           ran there is killed, mounts and loop devices end with the
                      │           namespace, cgroups are removed. Nothing is left behind.
                      ├─ /run                 a tmpfs: nothing of the machine is on a real disk
                      ├─ /run/machine/root    overlay: the host's root below, the tmpfs above
                      ├─ /run/machine/disk    ext4 on a loop device, for power losses
                      └─ systemd-nspawn
                           └─ machine         own boot id, hostname, processes; network: lo only,
                                              or that of a host of tests.kit.networks

Three ways to go down:

    shut_down()    as one should: systemd ends everything
    crash()        every process is killed at once. What they wrote stays: the kernel is still there
    power_loss()   the same, and the disk is what its backing file holds at that moment. What was
                   written and not synced is in ext4's page cache, above the file: it is lost
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.kit.conditions import wait_until
from tests.kit.networks import Space

CHECKOUT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent  # where `wiiiiide` and `wiiiiided` of this venv are
DEBIAN = Path("/usr/bin/python3")  # what people install with, as the README has it
VENV = Path("/opt/wiiiiide")  # … and where to
HOME = "/run/machine"  # the machine's things, in the den
DISK_BYTES = 128 << 20
BOOT_S = 120.0
END_S = 60.0  # for processes that were killed, and what the kernel does after them
BOOT_ID = "/proc/sys/kernel/random/boot_id"
BOOT_ID_DROP_IN = "wiiiiided.service.d/boot-id.conf"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSHARE = shlex.split(
    "unshare --mount --propagation private --pid --fork --kill-child --mount-proc"
)
NSPAWN = shlex.split(
    f"systemd-nspawn --quiet --boot --directory={HOME}/root --register=no --keep-unit "
    "--link-journal=no --resolv-conf=off --timezone=off --console=pipe"
)
# Directories that a machine has of its own: what lies there on the host must be bound in.
OWN = ("/tmp", "/run", "/dev", "/proc", "/sys")

# systemd on all hosts as on today's: one unified hierarchy, even where the host still has the old.
DEN = r"""
set -eu
cgroup=/sys/fs/cgroup/$1
mount -t tmpfs -o mode=755 tmpfs /run
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p "$cgroup" /run/systemd/nspawn /run/machine/upper /run/machine/work /run/machine/root
mount -t overlay -o lowerdir=/,upperdir=/run/machine/upper,workdir=/run/machine/work \
    overlay /run/machine/root
echo ready
read -r _ || true
kill -s KILL -- -1 || true
for _ in $(seq 100); do
    find "$cgroup" "/run/machine/memory/$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [ -d "$cgroup" ] || exit 0
    sleep 0.05
done
"""

OLD_MEMORY = r"""
set -eu
mkdir -p /run/machine/memory
mount -t cgroup -o memory none /run/machine/memory
mkdir "/run/machine/memory/$1"
echo "$2" >"/run/machine/memory/$1/memory.limit_in_bytes"
"""

# The disk's own activity is put off, so that only what is synced is sure to be on it: no
# commit of the journal every 5 s, no early allocation for a file that replaces another.
ATTACH = r"""
set -eu
loop=$(losetup --find --show "$1")
mount -o commit=300,noauto_da_alloc "$loop" /run/machine/disk
losetup --detach "$loop"
echo "$loop"
"""


class Machine:
    """A machine with this checkout installed as it is on the host. Use it as a context."""

    def __init__(
        self,
        name: str = "m1",
        disk: Sequence[str] = (),
        network: Space | None = None,
        debian: bool = False,
    ) -> None:
        """`disk` names the directories that lie on a disk of the machine's own; `network` is what
        its cables are plugged into, None: it has none; `debian`: wiiiiided runs on Debian's own
        Python there, where that can be."""
        self.name = name
        self._debian = debian and has_debians_python()
        self.bin = VENV / "bin" if self._debian else BIN
        self.python = (DEBIAN if self._debian else Path(sys.executable)).resolve()
        self._network = network
        self._id = f"wiiiiide-test-{name}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._den: subprocess.Popen[bytes] | None = None
        self._init_pid = 0  # process 1 of the den
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._places = disk
        self._disk: Disk | None = None
        self._binds: list[str] = []

    def __enter__(self) -> Machine:
        try:
            self._settle()
            self._furnish()
            self.boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- power

    def boot(self) -> None:
        """Switch on; returns when systemd has started everything."""
        binds = [f"--bind={bind}" for bind in self._binds]
        network, enter = ["--private-network"], []
        if self._network is not None:  # nspawn is started in it, and names it by itself
            network = ["--network-namespace-path=/proc/self/ns/net"]
            enter = ["nsenter", f"--net=/proc/{self._network.pid}/ns/net", "--"]
        command = shlex.join([*NSPAWN, *network, f"--machine={self.name}", *binds])
        enter_cgroup = f"echo $$ >/sys/fs/cgroup/{self._id}/cgroup.procs"
        script = f"{enter_cgroup} && exec {command} >{HOME}/console 2>&1"
        self._nspawn = subprocess.Popen(
            [*enter, *self._enter_den("sh", "-c", script)], stdin=subprocess.DEVNULL
        )
        try:
            wait_until(self._is_up, BOOT_S, "the machine is up")
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.den_path('console').read_text()}") from None

    def shut_down(self) -> None:
        """Switch off as one should."""
        assert self._nspawn is not None
        self.run("systemctl", "poweroff", "--no-wall", check=False)
        self._nspawn.wait(timeout=120)

    def crash(self) -> None:
        """Every process of the machine dies at once; its files stay as the kernel has them."""
        assert self._nspawn is not None
        if self._nspawn.poll() is None:
            os.kill(self.leader(), signal.SIGKILL)
        self._nspawn.wait(timeout=END_S)

    def power_loss(self) -> None:
        """As a crash, and what had not reached the disk's backing file is lost."""
        assert self._disk is not None
        self.crash()
        self._disk.lose_power()

    def freeze(self) -> None:
        """Not one of its processes gets a turn any more; its kernel still answers."""
        self._set_frozen(True)

    def thaw(self) -> None:
        self._set_frozen(False)

    def _set_frozen(self, frozen: bool) -> None:
        group = f"/sys/fs/cgroup/{self._id}"
        self.in_den("sh", "-c", f"echo {int(frozen)} >{group}/cgroup.freeze")
        events = Path(f"/proc/{self._init_pid}/root{group}/cgroup.events")
        wait_until(lambda: f"frozen {int(frozen)}" in events.read_text(), END_S, "it obeys")

    def close(self) -> None:
        """Everything goes, also what a failed test left."""
        try:
            if self._den is not None:
                self._den.communicate(timeout=END_S)  # ends its stdin, and with that the den
        except subprocess.TimeoutExpired:
            assert self._den is not None
            self._den.kill()  # --kill-child: its process 1 goes too, and with that everything
            self._den.communicate()
            raise
        finally:
            if self._nspawn is not None:
                self._nspawn.wait(timeout=END_S)

    def is_on(self) -> bool:
        return self._nspawn is not None and self._nspawn.poll() is None

    def boot_id(self) -> str:
        return self.run("cat", BOOT_ID).stdout.strip()

    # ---- what one does on a machine

    def run(
        self,
        *argv: str | Path,
        user: str = "root",
        check: bool = True,
        cwd: str = "/",
        timeout_s: float = 120.0,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; when `check`, a failure fails the test with its words."""
        done = subprocess.run(
            self.command(*argv, user=user, cwd=cwd),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode != 0:
            words = f"{done.stdout}\n{done.stderr}".strip()
            raise AssertionError(f"{shlex.join(map(str, argv))} gave {done.returncode}:\n{words}")
        return done

    def wiiiiide(
        self, *argv: str, user: str = "root", **how: object
    ) -> subprocess.CompletedProcess[str]:
        return self.run(self.bin / "wiiiiide", *argv, user=user, **how)  # type: ignore[arg-type]

    def command(self, *argv: str | Path, user: str = "root", cwd: str = "/") -> list[str]:
        """The command line that runs `argv` in the machine, for a Popen of one's own."""
        become: list[str] = []
        if user != "root":
            become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        home = "/root" if user == "root" else f"/home/{user}"
        enter = ["nsenter", f"--target={self.leader()}", "--all", f"--wdns={cwd}", "--"]
        environment = ["env", "-i", f"HOME={home}", f"USER={user}", "LANG=C.UTF-8", f"PATH={PATH}"]
        return [*enter, *become, *environment, *map(str, argv)]

    def write(self, path: str, text: str, *, owner: str = "root", mode: int = 0o644) -> None:
        """A file in the running machine."""
        script = 'umask 077; cat >"$1" && chown "$2:" "$1" && chmod "$3" "$1"'
        self.run("sh", "-c", script, "write", path, owner, f"{mode:o}", stdin=text)

    def journal(self, unit: str = "wiiiiided") -> str:
        """A unit's lines since the machine was booted."""
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit).stdout

    def no_defects(self) -> None:
        """Its daemon has logged no defect."""
        lines = self.journal().splitlines()
        at = next((i for i, line in enumerate(lines) if "defect" in line), None)
        assert at is None, "\n".join([f"{self.name}:", *lines[at : at + 40]])

    def show(self, name: str, unit: str = "wiiiiided") -> str:
        """A property of a unit, as systemd has it now."""
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    @contextmanager
    def memory_limit(self, pid: int, limit: int) -> Iterator[None]:
        """A process of the service gets no more memory than this, and is killed when it wants it.

        Where the machine has the memory controller, the limit is the service's own, and systemd
        sees what the kernel does. Where the host keeps that controller in the old hierarchy, it is
        a cgroup there, for this process alone.
        """
        controllers = self.run("cat", "/sys/fs/cgroup/cgroup.controllers").stdout.split()
        if "memory" in controllers:
            change = ("systemctl", "set-property", "--runtime", "wiiiiided.service")
            try:
                self.run(*change, f"MemoryMax={limit}", "MemorySwapMax=0")
                yield
            finally:
                self.run(*change, "MemoryMax=infinity", "MemorySwapMax=infinity")
            return
        self.in_den("sh", "-c", OLD_MEMORY, "limit", self._id, str(limit))
        group = self.den_path("memory") / self._id
        procs = group / "cgroup.procs"
        try:
            procs.write_text(str(self.host_pid(pid)))
            yield
            wait_until(lambda: not procs.read_text(), END_S, "the process has ended")
        finally:
            for left in procs.read_text().split():  # of a test that failed
                with suppress(ProcessLookupError):
                    (group.parent / "cgroup.procs").write_text(left)
            group.rmdir()
            self.in_den("umount", f"{HOME}/memory")

    def leader(self) -> int:
        """Process 1 of the machine, as the host numbers it."""
        assert self._nspawn is not None
        for child in psutil.Process(self._nspawn.pid).children(recursive=True):
            numbers = _numbers(child.pid)
            if len(numbers) == _depth() + 2 and numbers[-1] == 1:
                return child.pid
        raise ProcessLookupError(f"{self.name} does not run")

    def host_pid(self, pid: int) -> int:
        """The host's number of a process of the machine."""
        leader = self.leader()
        for child in psutil.Process(leader).children(recursive=True):
            if _numbers(child.pid)[-1:] == [pid]:
                return child.pid
        raise ProcessLookupError(f"{self.name} has no process {pid}")

    def processes_of(self, user: str) -> list[psutil.Process]:
        """All that run as a user of the machine, but for those that have ended and are not yet
        reaped. Asked from here: the machine may have no procps."""
        uid = int(self.run("id", "-u", user).stdout)
        found = []
        for child in psutil.Process(self.leader()).children(recursive=True):
            try:
                if child.uids().real == uid and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found

    def den_path(self, name: str) -> Path:
        """A file of the den's, seen from here."""
        return Path(f"/proc/{self._init_pid}/root{HOME}/{name}")

    def in_den(self, *argv: str) -> str:
        done = subprocess.run(self._enter_den(*argv), capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(argv)} gave {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    # ---- inside

    def _enter_den(self, *argv: str) -> list[str]:
        return ["nsenter", f"--target={self._init_pid}", "--mount", "--pid", "--wd=/", "--", *argv]

    def _is_up(self) -> bool:
        assert self._nspawn is not None
        if self._nspawn.poll() is not None:
            raise AssertionError("the machine ended while it booted")
        try:
            state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False
        return state in ("running", "degraded")

    def _settle(self) -> None:
        """The den, and the disk in it."""
        pipe = subprocess.PIPE
        self._den = subprocess.Popen(
            [*UNSHARE, "sh", "-c", DEN, "den", self._id], stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert self._den.stdout is not None
        if self._den.stdout.readline() != b"ready\n":
            raise RuntimeError(f"no den for a machine: {self._den.communicate()[1].decode()}")
        self._init_pid = psutil.Process(self._den.pid).children()[0].pid
        if self._places:
            self._disk = Disk(self)
        for place in self._places:
            name = place.strip("/").replace("/", "-")
            self.in_den("mkdir", f"{HOME}/disk/{name}")
            self._binds.append(f"{HOME}/disk/{name}:{place}")

    def _furnish(self) -> None:
        """The overlay as a machine of its own: the host's services and jobs are not its."""
        root = self.den_path("root")
        (root / "etc/hostname").write_text(f"{self.name}\n")
        (root / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
        units = root / "etc/systemd/system"
        shutil.rmtree(units)
        units.mkdir()
        (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
        quick = root / "etc/systemd/journald.conf.d"
        quick.mkdir(exist_ok=True)
        (quick / "test.conf").write_text("[Journal]\nStorage=volatile\nRateLimitBurst=0\n")
        # A unit with ProtectKernelTunables gets a fresh /proc, without the boot id of nspawn's that
        # the rest of the machine has. On hardware both are the same.
        (root / "etc/tmpfiles.d/boot-id.conf").write_text(f"C /run/boot-id 0444 - - - {BOOT_ID}\n")
        (units / BOOT_ID_DROP_IN).parent.mkdir()
        (units / BOOT_ID_DROP_IN).write_text(
            f"[Service]\nBindReadOnlyPaths=/run/boot-id:{BOOT_ID}\n"
        )
        (root / "etc/fstab").write_text("")  # the host's disks are not this machine's
        for left in ("etc/wiiiiide", "var/lib/wiiiiide", "var/lib/wiiiiide-jobs"):
            shutil.rmtree(root / left, ignore_errors=True)
        for tree in _trees():
            self._bring(tree)
        if self._debian:
            _make_venv(root)

    def _bring(self, tree: Path) -> None:
        """Make a directory of the host's readable for every user in the machine, and only there."""
        inside = self.den_path("root") / tree.relative_to("/")
        if _is_elsewhere(tree):
            own = f"{HOME}/tree-{len(self._binds)}"
            self.in_den("mkdir", "-p", f"{own}/upper", f"{own}/work", f"{own}/root")
            layers = f"lowerdir={tree},upperdir={own}/upper,workdir={own}/work"
            self.in_den("mount", "-t", "overlay", "-o", layers, "overlay", f"{own}/root")
            self._binds.append(f"{own}/root:{tree}")
            _open(self.den_path(Path(own).name) / "root")
            inside.mkdir(parents=True, exist_ok=True)
        for directory in (inside, *list(inside.parents)[: len(tree.parents)]):
            _open(directory)


class Disk:
    """An ext4 file system of the machine's, on a loop device, on a file in the den's tmpfs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        image = f"{HOME}/disk.0"
        machine.in_den("mkdir", f"{HOME}/disk")
        machine.in_den("truncate", f"--size={DISK_BYTES}", image)
        # Lazy initialisation would write in the background for minutes.
        lazy = "lazy_itable_init=0,lazy_journal_init=0"
        machine.in_den("mkfs.ext4", "-q", "-E", lazy, image)
        self._image = image
        self._loop = self._attach()

    def _attach(self) -> str:
        return self._machine.in_den("sh", "-c", ATTACH, "attach", self._image)

    def lose_power(self) -> None:
        """Go on with a copy of the backing file as it is now, before anything is unmounted."""
        after = f"{HOME}/disk.{int(self._image.rpartition('.')[2]) + 1}"
        self._copy(Path(self._image).name, Path(after).name)
        self._machine.in_den("umount", f"{HOME}/disk")  # writes what was unsynced, to the old file
        self._machine.in_den("rm", self._image)
        self._image = after
        self._loop = self._attach()

    def _copy(self, source: str, target: str) -> None:
        """The kernel may write back while we copy: a copy counts when nothing was written."""
        for _ in range(20):
            before = self._writes()
            shutil.copyfile(self._machine.den_path(source), self._machine.den_path(target))
            if before == self._writes():
                return
        raise AssertionError("the disk is written to all the time; what does it?")

    def _writes(self) -> tuple[str, str]:
        """Writes completed and requests under way, as the block layer counts them."""
        fields = Path(f"/sys/block/{Path(self._loop).name}/stat").read_text().split()
        return fields[4], fields[8]


def _trees() -> Iterator[Path]:
    """The tree of a Python of this venv: the venv, its base, this checkout; none inside another."""
    wanted = {Path(p).resolve() for p in (sys.prefix, sys.base_prefix, CHECKOUT)}
    for tree in sorted(wanted):
        if not any(tree != other and tree.is_relative_to(other) for other in wanted):
            yield tree


def has_debians_python() -> bool:
    """Whether there is one that can load what this venv has, compiled as it is for one version."""
    version = "import sys; print(*sys.version_info[:2])"
    asked = [DEBIAN, "-c", version]
    if not DEBIAN.exists():
        return False
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    return said == [str(number) for number in sys.version_info[:2]]


def _make_venv(root: Path) -> None:
    """One of Debian's Python in the machine, with the packages that the tests' own has."""
    venv = root / VENV.relative_to("/")
    subprocess.run([DEBIAN, "-m", "venv", "--without-pip", venv], check=True)
    packages = sysconfig.get_path("purelib")
    (own,) = venv.glob("lib/python*/site-packages")
    # Not the directory's name alone: what its own .pth files name is wanted as well.
    (own / "tests.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    for name, module in (("wiiiiide", "ui.cli"), ("wiiiiided", "cluster.daemon")):
        program = venv / "bin" / name
        program.write_text(
            f"#!{VENV}/bin/python3\nimport sys\nfrom wiiiiided.{module}.main import main\n"
            "sys.exit(main())\n"
        )
        program.chmod(0o755)


def _is_elsewhere(tree: Path) -> bool:
    """Whether an overlay of the root file system does not show this directory."""
    return tree.stat().st_dev != Path("/").stat().st_dev or str(tree).startswith(OWN)


def _open(directory: Path) -> None:
    mode = directory.stat().st_mode
    if mode & 0o055 != 0o055:
        directory.chmod(mode | 0o055)


def _numbers(pid: int) -> list[int]:
    """A process's numbers, from the outermost namespace this process sees to its own."""
    try:
        with open(f"/proc/{pid}/status") as file:
            line = next(line for line in file if line.startswith("NSpid:"))
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(number) for number in line.split()[1:]]


def _depth() -> int:
    """How many namespaces deep /proc is: 1 where it is this process's own."""
    return len(_numbers(os.getpid()))
