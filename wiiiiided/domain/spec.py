"""A job's settings, after its file has been read and checked: numbers, not words.

A JobSpec is made by `jobfile` (or by a program), travels in `cluster/rpc/messages`, lies in the
store, and is read by everything that places, starts or shows a job. Durations are seconds and sizes
are bytes here; "8h" and "8GiB" exist only in the file. Everything is frozen: a job's spec never
changes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

NodesWanted = tuple[int, int | None]  # at least, at most; (1, None) is "all"


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of a spec's parts: unknown fields are refused, defaults are not written down."""


class Run(Struct, frozen=True):
    """The command of each rank, and its folder."""

    command: tuple[str, ...]  # argv; no shell
    workdir: str = "."  # relative to the job file; its content is shipped
    python: str | None = None  # a venv or an interpreter; None: the daemon's own
    env: dict[str, str] = {}
    pass_env: tuple[str, ...] = ()  # names; their values travel apart and are never shown


class Resources(Struct, frozen=True):
    """How many nodes and workers, and which nodes will do."""

    nodes: NodesWanted = (1, 1)
    workers_per_node: int | Literal["cores", "gpus"] = 1
    cores_per_worker: int | None = None  # None: the job has its nodes for itself
    min_memory: int = 0
    min_cores: int = 0
    min_gpus: int = 0
    use: tuple[str, ...] = ()  # empty: any node
    avoid: tuple[str, ...] = ()


class Network(Struct, frozen=True, forbid_unknown_fields=False):
    """How ranks talk to each other. A member of an earlier release passes over keys it lacks."""

    backend: Literal["wiiiiide", "gloo", "nccl"] = "wiiiiide"
    codec: Literal["auto", "none", "lz4"] = "auto"
    interface: str = "auto"  # of gloo or nccl: a name, or a network in CIDR form
    encrypt: bool = False
    gradients: str = "exact"  # the default of wide.Between(gradients=…)
    every: int | str = 1  # the default of wide.Between(every=…): a number of steps, or "auto"


RestartCause = Literal["failure", "hang", "node-lost"]


class Restart(Struct, frozen=True):
    """When a job that ended badly is started again by itself."""

    max: int = 0
    on: tuple[RestartCause, ...] = ("failure", "hang", "node-lost")
    backoff_s: float = 10.0  # before the first restart; doubles, up to ten minutes


class Policy(Struct, frozen=True):
    """When a job runs, and what happens when it does not behave."""

    priority: int = 50  # 0 … 100; higher first, then first come first served
    after: tuple[int, ...] = ()  # jobs that must be done first
    max_time_s: float | None = None  # of running, all attempts together
    warn_before_s: float = 60.0  # before max_time: ranks that catch warn_signal get it
    warn_signal: str = "SIGUSR1"
    grace_s: float = 10.0  # between SIGTERM and SIGKILL
    restart: Restart = Restart()
    hang_timeout_s: float | None = None
    stop_alone_s: float | None = None  # an allocation that hears nothing of the cluster ends itself


class Output(Struct, frozen=True):
    """Which files `pull` brings back, which ones a restart needs, and how much WIIIIIDE itself
    writes into the job's log."""

    collect: tuple[str, ...] = ()  # globs in the working directory; "**" crosses folders
    log: Literal["silent", "normal", "verbose"] = "normal"
    checkpoints: tuple[str, ...] = ()  # globs: what all machines have alike before an attempt


NotifyOn = Literal["running", "restarting", "done", "failed", "cancelled"]


class Notify(Struct, frozen=True):
    """A command to run, as the jobs' user, when the job reaches one of these states."""

    command: tuple[str, ...] = ()  # {id} {name} {state} {code} {reason} are filled in
    on: tuple[NotifyOn, ...] = ("done", "failed")


class JobSpec(Struct, frozen=True):
    """A whole job file."""

    name: str
    run: Run
    resources: Resources = Resources()
    network: Network = Network()
    policy: Policy = Policy()
    output: Output = Output()
    notify: Notify = Notify()
