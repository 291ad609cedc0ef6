"""The machine measured on, and the source: a number without that says little.

Results are published, so nothing here may name the host or show a path of this machine.
"""

import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
_BUSY_LOAD = 0.5
NO_COMMIT, _DIRTY = "none (not a committed tree)", " (dirty)"
_ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.+@~-]+/)+([\w.+@~-]+)")


def scrub(text: str) -> str:
    """Takes the host's name and absolute paths out of a text that goes into the results."""
    text = text.replace(f"{ROOT}/", "").replace(str(ROOT), ".")
    for name in {socket.gethostname(), socket.getfqdn()} - {"", "localhost"}:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "this-host", text)
    return _ABSOLUTE_PATH.sub(r"\1", text)


def command() -> str:
    """The command that was given, as it reads from the project's own folder."""
    script = Path(sys.argv[0]).resolve()
    shown = str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name
    return scrub(shlex.join(["python", shown, *sys.argv[1:]]))


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def version_of(package: str) -> str:
    # Asked of the metadata: importing torch only to print its version would cost seconds.
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def open_mpi_version() -> str:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        return "absent"
    shown = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    first = (shown.stdout.splitlines() or ["unknown"])[0]
    return first.removeprefix("mpirun (Open MPI)").strip()


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit() -> str:
    """The commit measured, marked dirty where the tree differs from it.

    The results' own folder does not count: writing them must not make the next run dirty. Nor do
    files that git does not know, unless they are code that a run may have imported.
    """
    name = _git("rev-parse", "--short=12", "HEAD")
    if name is None:
        return NO_COMMIT
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    code = ("wiiiiided/*.py", "bench/*.py", "tests/*.py")
    new = _git("ls-files", "--others", "--exclude-standard", "--", *code)
    return f"{name}{_DIRTY}" if changed or new else name


def unrepeatable(commit: str) -> str | None:
    """Why a result of this `commit` could not be repeated and so is not kept, or None."""
    if commit == NO_COMMIT:
        return "results name their commit, and git knows none here: run it in a clone, or --no-save"
    if commit.endswith(_DIRTY):
        return "the tree differs from its commit, which results name: commit first, or --no-save"
    return None


def file_system(path: str) -> str:
    """The kind of file system a path lies on: what a write to the disk costs depends on it."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    whole = os.path.realpath(path)
    over = [m for m in mounts if os.path.commonpath([whole, m[1]]) == m[1]]
    # The longest is the nearest; of two in the same place, the later one is seen.
    return max(enumerate(over), key=lambda one: (len(one[1][1]), one[0]))[1][2]


def about() -> dict[str, str]:
    """Everything a reader needs to judge or repeat a run."""
    return {
        "cpu": cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "open_mpi": open_mpi_version(),
        "load_at_start": f"{os.getloadavg()[0]:.2f}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "command": command(),
    }


def busy_notes(facts: dict[str, str]) -> list[str]:
    """A reader must know when something else was running: spinning contenders suffer most."""
    load = float(facts["load_at_start"])
    if load < _BUSY_LOAD:
        return []
    return [f"the machine was already busy when the run began (load {load:.2f})"]
