"""The environment of a process, read once into frozen values: a worker's, a daemon's, a client's.

This is the only module of the package that reads os.environ, so that everything a user can turn
stands on this page; autoload, which imports nothing, looks for WIIIIIDE_PROBE itself. Bad
values are refused by name: a mistyped number must not be a silent default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from wiiiiided.errors import UsageError


@dataclass(frozen=True)
class OnePort:
    """Where a rank's machine is reached from others: a daemon's port, for all ranks of all jobs."""

    address: str  # WIIIIIDE_DOOR: 10.0.0.5:9461, [fd00::5]:9461
    port: int
    job: int  # WIIIIIDE_JOB_ID
    attempt: int  # WIIIIIDE_ATTEMPT
    directory: str  # WIIIIIDE_ATTEMPT_DIR: endpoints are made there, and the key lies there
    daemon_uid: int  # WIIIIIDE_DAEMON_UID: may hand over connections, as root and our own may

    @classmethod
    def read(cls, env: Mapping[str, str]) -> OnePort | None:
        """The port of this rank's daemon; None where the rank listens by itself."""
        endpoint = env.get("WIIIIIDE_DOOR", "")
        if not endpoint:
            return None
        host, _, port = endpoint.rpartition(":")
        return cls(
            address=host.removeprefix("[").removesuffix("]"),
            port=_whole(port, f"the port in WIIIIIDE_DOOR={endpoint!r}", 65535),
            job=_whole(env.get("WIIIIIDE_JOB_ID", ""), "WIIIIIDE_JOB_ID", 2**63),
            attempt=_whole(env.get("WIIIIIDE_ATTEMPT", ""), "WIIIIIDE_ATTEMPT", 2**32 - 1),
            directory=env.get("WIIIIIDE_ATTEMPT_DIR", ""),
            daemon_uid=_whole(env.get("WIIIIIDE_DAEMON_UID", "0"), "WIIIIIDE_DAEMON_UID", 2**32),
        )


@dataclass(frozen=True)
class JobHere:
    """The job that a rank belongs to, for what it keeps in files."""

    name: str  # WIIIIIDE_JOB: its number, and when it was submitted: no other job has both
    work: str  # WIIIIIDE_WORK: its working directory
    resumes: str  # WIIIIIDE_RESUMES: the number of the job that it goes on from

    @classmethod
    def read(cls, env: Mapping[str, str]) -> JobHere | None:
        """The job of this rank; None without a daemon."""
        name, work = env.get("WIIIIIDE_JOB", ""), env.get("WIIIIIDE_WORK", "")
        if not (name and work):
            return None
        if not re.fullmatch("[0-9]+-[0-9a-f]+", name, re.ASCII):
            raise UsageError(f"WIIIIIDE_JOB={name!r} is not a number and a time: 17-19a2b3c4d5e")
        return cls(name, work, _plain(env, "WIIIIIDE_RESUMES").strip())


@dataclass(frozen=True)
class Config:
    """A worker's settings from outside; every field names its variable."""

    stall_warning_s: float = 5.0  # WIIIIIDE_STALL_WARNING_S: name the missing ranks after this long
    spin: str = "auto"  # WIIIIIDE_SPIN: auto | always | never; how to wait before sleeping
    stats_file: str | None = None  # WIIIIIDE_STATS: a file whose first page takes the counters
    log: str = "normal"  # WIIIIIDE_LOG: silent | normal | verbose
    interface: str = ""  # WIIIIIDE_INTERFACE: name, address or network to reach other hosts by
    codec: str = "auto"  # WIIIIIDE_CODEC: auto | none | lz4; what travels between hosts
    checksum: str = "auto"  # WIIIIIDE_CHECKSUM: auto | on | off; a sum over each payload
    tls: bool = False  # WIIIIIDE_TLS: off | on; encrypt what travels between hosts
    keep_memory: bool = True  # WIIIIIDE_KEEP_MEMORY: on | off; freed memory stays for the next step
    adopt: bool = True  # WIIIIIDE_ADOPT: on | off; DDP's buckets move into shared memory
    gradients: str = ""  # WIIIIIDE_GRADIENTS: the default of wide.Between(gradients=…)
    every: str = ""  # WIIIIIDE_EVERY: the default of wide.Between(every=…)
    warn_signal: str = "SIGUSR1"  # WIIIIIDE_WARN_SIGNAL: asks a run that saves for a checkpoint
    every_start: str = ""  # WIIIIIDE_EVERY_START: 16@digest, what `plan` found for a model's shape
    probe: bool = False  # WIIIIIDE_PROBE=1: a trial of `wiiiiide plan`, in which nothing is saved
    host_id: str = ""  # WIIIIIDE_HOST_ID: for tests: ranks with different ones are apart
    store_host: str = ""  # MASTER_ADDR: where the Store is, for the choice of an address
    one_port: OnePort | None = None  # WIIIIIDE_DOOR and others: under a cluster's daemon
    job: JobHere | None = None  # WIIIIIDE_JOB and others: under a daemon

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Config:
        """The configuration in this process's environment (or the one given)."""
        env = os.environ if environ is None else environ
        return cls(
            stall_warning_s=_seconds(env, "WIIIIIDE_STALL_WARNING_S", cls.stall_warning_s),
            spin=_choice(env, "WIIIIIDE_SPIN", ("auto", "always", "never")),
            stats_file=env.get("WIIIIIDE_STATS") or None,
            log=_choice(env, "WIIIIIDE_LOG", ("normal", "silent", "verbose")),
            interface=env.get("WIIIIIDE_INTERFACE", "").strip(),
            codec=_choice(env, "WIIIIIDE_CODEC", ("auto", "none", "lz4")),
            checksum=_choice(env, "WIIIIIDE_CHECKSUM", ("auto", "on", "off")),
            tls=_choice(env, "WIIIIIDE_TLS", ("off", "on")) == "on",
            keep_memory=_choice(env, "WIIIIIDE_KEEP_MEMORY", ("on", "off")) == "on",
            adopt=_choice(env, "WIIIIIDE_ADOPT", ("on", "off")) == "on",
            gradients=env.get("WIIIIIDE_GRADIENTS", "").strip(),
            every=env.get("WIIIIIDE_EVERY", "").strip(),
            warn_signal=_choice(env, "WIIIIIDE_WARN_SIGNAL", _WARN_SIGNALS),
            every_start=env.get("WIIIIIDE_EVERY_START", "").strip(),
            probe=env.get("WIIIIIDE_PROBE", "") == "1",
            host_id=_plain(env, "WIIIIIDE_HOST_ID"),
            store_host=env.get("MASTER_ADDR", ""),
            one_port=OnePort.read(env),
            job=JobHere.read(env),
        )


# The signals that policy.warn_signal of a job file may be.
_WARN_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM")


def node_index(environ: Mapping[str, str] | None = None) -> int:
    """The number of this rank's machine in its job, as torchrun says it."""
    env = os.environ if environ is None else environ
    return _whole(env.get("GROUP_RANK", "0"), "GROUP_RANK", 2**31)


SOCKET_PATH_BYTES = 107  # of sockaddr_un.sun_path, less its closing zero


@dataclass(frozen=True)
class Paths:
    """Where a daemon keeps what it has, and where its clients find it.

    system   the service: one per machine, jobs run as a user of their own
    user     a person's own daemon: XDG directories, jobs run as that person
    private  everything under WIIIIIDE_HOME, for a demo, a test or a second daemon
    """

    mode: Literal["system", "user", "private"]
    socket: Path
    state: Path  # the daemon's alone, 0700: the store, archives, secrets
    jobs: Path  # what jobs write: logs, working directories
    config: Path  # wiiiiided.toml; need not exist

    @classmethod
    def system(cls) -> Paths:
        return cls(
            mode="system",
            socket=Path("/run/wiiiiide/wiiiiided.sock"),
            state=Path("/var/lib/wiiiiide"),
            jobs=Path("/var/lib/wiiiiide-jobs"),
            config=Path("/etc/wiiiiide/wiiiiided.toml"),
        )

    @classmethod
    def private(cls, home: str) -> Paths:
        if not home.startswith("/"):
            raise UsageError(f"WIIIIIDE_HOME={home!r} must be an absolute path")
        root = Path(home)
        socket = root / "wiiiiided.sock"
        if len(os.fsencode(socket)) > SOCKET_PATH_BYTES:
            raise UsageError(
                f"WIIIIIDE_HOME={home!r} is too long: a socket's path has at most "
                f"{SOCKET_PATH_BYTES} bytes, {socket} has {len(os.fsencode(socket))}. "
                "Choose a shorter directory"
            )
        return cls("private", socket, root / "state", root / "jobs", root / "wiiiiided.toml")

    @classmethod
    def user(cls, environ: Mapping[str, str] | None = None) -> Paths:
        """A person's own daemon: WIIIIIDE_HOME where it is set, else the XDG directories."""
        env = os.environ if environ is None else environ
        if home := env.get("WIIIIIDE_HOME"):
            return cls.private(home)
        base = Path(env.get("HOME") or "/")
        run = Path(env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
        state = Path(env.get("XDG_STATE_HOME") or base / ".local/state") / "wiiiiide"
        config = Path(env.get("XDG_CONFIG_HOME") or base / ".config") / "wiiiiide"
        if not run.is_dir():  # no login session, as under sudo or cron
            run = state
        return cls(
            mode="user",
            socket=run / "wiiiiide" / "wiiiiided.sock",
            state=state / "daemon",
            jobs=state / "jobs",
            config=config / "wiiiiided.toml",
        )

    @classmethod
    def for_client(cls, environ: Mapping[str, str] | None = None) -> Paths:
        """The daemon a command talks to: this person's own where it has a socket, else the
        machine's."""
        own = cls.user(environ)
        # Not Path.exists: that raises where a directory on the way may not be entered.
        return own if own.mode == "private" or os.path.exists(own.socket) else cls.system()


def colour_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether terminals may get colours: NO_COLOR is not set, and TERM is not a dumb one."""
    env = os.environ if environ is None else environ
    return not env.get("NO_COLOR") and env.get("TERM", "") not in ("", "dumb")


def completion_asked(variable: str, environ: Mapping[str, str] | None = None) -> str:
    """The words a shell wants completed, as typer's scripts say it; empty when a person calls."""
    return (os.environ if environ is None else environ).get(variable, "")


def colour_count(environ: Mapping[str, str] | None = None) -> int:
    """How many colours the terminal is said to have; 0 where none are wanted."""
    env = os.environ if environ is None else environ
    if not colour_wanted(env):
        return 0
    if env.get("COLORTERM", "") in ("truecolor", "24bit"):
        return 1 << 24
    return 256 if "256" in env.get("TERM", "") else 16


def terminal_known(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the terminal is said to be one whose cursor can be moved."""
    return (os.environ if environ is None else environ).get("TERM", "") not in ("", "dumb")


def under_journal(environ: Mapping[str, str] | None = None, stderr: int = 2) -> bool:
    """Whether stderr goes to systemd's journal: JOURNAL_STREAM has its device and inode. One that
    was inherited, and leads elsewhere now, does not count."""
    env = os.environ if environ is None else environ
    try:
        found = os.fstat(stderr)
    except OSError:  # it is closed
        return False
    return env.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def passed(names: tuple[str, ...], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The values of run.pass_env; what is not set is left out."""
    env = os.environ if environ is None else environ
    return {name: env[name] for name in names if name in env}


# The part of the daemon's environment for jobs: its user, paths and locale.
INHERITED = (
    *("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "CUDA_VISIBLE_DEVICES"),
)


def inherited(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The part of the daemon's environment that its jobs get."""
    env = os.environ if environ is None else environ
    return {name: env[name] for name in env if name in INHERITED or name.startswith("LC_")}


@dataclass(frozen=True)
class Notification:
    """How systemd wants to hear from its service; empty where it does not."""

    socket: str = ""  # NOTIFY_SOCKET
    watchdog_s: float = 0.0  # WATCHDOG_USEC, when it is meant for this process

    @classmethod
    def take(cls) -> Notification:
        """Read the variables and remove them: no child may speak in the service's name."""
        socket = os.environ.pop("NOTIFY_SOCKET", "")
        usec = os.environ.pop("WATCHDOG_USEC", "")
        pid = os.environ.pop("WATCHDOG_PID", "")
        mine = not pid or pid == str(os.getpid())
        watchdog_s = int(usec) / 1e6 if usec.isdigit() and mine else 0.0
        return cls(socket, watchdog_s)


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise UsageError(
            f"{name}={text!r} is not a number of seconds above 0; unset it for {default:g}"
        )
    return value


def _whole(text: str, what: str, most: int) -> int:
    """A number that only the daemon writes."""
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most):
        raise UsageError(f"{what} is not a whole number up to {most}: {text[:40]!r}")
    return int(text)


def _plain(env: Mapping[str, str], name: str) -> str:
    text = env.get(name, "")
    if not (text.isascii() and text.isprintable() and len(text) <= 64):
        raise UsageError(f"{name}={text!r} must be at most 64 plain characters")
    return text


def _choice(env: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = env.get(name) or choices[0]
    if text not in choices:
        raise UsageError(f"{name}={text!r} is not one of {', '.join(choices)}")
    return text
