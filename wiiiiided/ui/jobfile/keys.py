"""Every key a job file can have: one table, from which the checker, the JSON schema and the
reference in docs/job-file.md are all made.

To add a key: add its field to domain/spec, its line here, and run
`python -m tests.kit.made_docs`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wiiiiided.domain import spec
from wiiiiided.domain.limits import LEAST_ALONE_S, MAX_NODES, MAX_WORKERS
from wiiiiided.ui.jobfile import rules
from wiiiiided.ui.jobfile.compounds import CommandLine, ListKind, Variables
from wiiiiided.ui.jobfile.kinds import (
    Duration,
    Flag,
    NodeCount,
    OneOf,
    Size,
    Text,
    ValueKind,
    Whole,
)

MOST_ID = 2**53 - 1  # what JSON carries exactly
MOST_MEMORY = 1024 << 40
DAY_S = 86400.0

# Signals that mean nothing bad to a program that catches them; SIGKILL and SIGSTOP none can.
WARN_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGINT", "SIGTERM")


class Section(msgspec.Struct, frozen=True):
    """A table of the file, and the part of a JobSpec it becomes."""

    name: str  # dotted; the file itself is ""
    struct: type[Any]
    meaning: str
    example: str  # what to write instead of a plain value

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.name.split(".")) if self.name else ()


class Key(msgspec.Struct, frozen=True):
    """One key. `default` and `example` are TOML; `absent` says in words what no default can."""

    name: str  # dotted
    kind: ValueKind
    meaning: str
    example: str
    default: str = ""
    absent: str = ""
    required: bool = False
    also: tuple[str, ...] = ()  # its names in other programs: for the suggestion only

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.name.split("."))

    @property
    def field(self) -> str:
        """Its name in the spec, where units are in names."""
        return f"{self.path[-1]}_s" if isinstance(self.kind, Duration) else self.path[-1]


_NODE_NAMES = ListKind(Text("a node's name", rules.node, rules.NODE_PATTERN), "names of nodes")

SECTIONS = (
    Section("", spec.JobSpec, "A job of WIIIIIDE: the command, its machines, and how it runs.", ""),
    Section("run", spec.Run, "The command of each rank, and its folder.", "[run]"),
    Section(
        "resources",
        spec.Resources,
        "How many nodes and workers, and which nodes will do.",
        "[resources]",
    ),
    Section("network", spec.Network, "How ranks exchange data.", "[network]"),
    Section(
        "policy",
        spec.Policy,
        "When the job runs, and what happens when it does not behave.",
        "[policy]",
    ),
    Section(
        "policy.restart",
        spec.Restart,
        "When a job that ended badly is started again.",
        "restart = { max = 3 }",
    ),
    Section("output", spec.Output, "Files to bring back, and what the log gets.", "[output]"),
    Section("notify", spec.Notify, "A command that runs when the job reaches a state.", "[notify]"),
)

KEYS = (
    Key(
        "name",
        Text("a name of 1 to 64 characters", rules.name, rules.NAME_PATTERN),
        "The name in `ps`. Need not be unique.",
        '"digits"',
        absent="the name of the folder the file is in",
        also=("job_name", "title"),
    ),
    Key(
        "run.command",
        CommandLine(),
        "The program and its arguments, started once per rank. No shell: nothing is split or "
        "expanded.",
        '["python", "train.py", "--epochs", "5"]',
        required=True,
        also=("cmd", "script", "exec", "argv", "entrypoint"),
    ),
    Key(
        "run.workdir",
        Text("a folder's path", rules.workdir, rules.WORKDIR_PATTERN),
        "The folder that is packed and shipped, and in which the ranks start. Relative to the job "
        "file.",
        '"."',
        default='"."',
        also=("cwd", "working_directory", "chdir"),
    ),
    Key(
        "run.python",
        Text("an absolute path", rules.python, rules.PYTHON_PATTERN),
        "A virtual environment or an interpreter that every node has.",
        '"/srv/venvs/torch"',
        absent="the daemon's own Python",
        also=("venv", "interpreter"),
    ),
    Key(
        "run.env",
        Variables(),
        "Environment variables of every rank, on top of those WIIIIIDE sets.",
        '{ LR = "0.1" }',
        default="{}",
        also=("environment", "environ"),
    ),
    Key(
        "run.pass_env",
        ListKind(
            Text("a variable's name", rules.pass_name, rules.PASS_NAME_PATTERN),
            "names of environment variables",
        ),
        "Variables whose values are taken from the environment of `wiiiiide submit` and never "
        "shown.",
        '["WANDB_API_KEY"]',
        default="[]",
        also=("secrets",),
    ),
    Key(
        "resources.nodes",
        NodeCount(MAX_NODES),
        "How many nodes: a number, a range (as many as are free, at least the first), or all.",
        '"2-4"',
        default="1",
        also=("nnodes", "num_nodes", "hosts"),
    ),
    Key(
        "resources.workers_per_node",
        Whole(1, MAX_WORKERS, ("cores", "gpus")),
        "Ranks on each node: a number, or one per core or GPU of the node.",
        "2",
        default="1",
        also=("workers", "nproc_per_node", "ntasks_per_node", "tasks_per_node", "ranks"),
    ),
    Key(
        "resources.cores_per_worker",
        Whole(1, MAX_WORKERS),
        "Cores that each rank claims. With it, jobs share a node by cores.",
        "4",
        absent="the job has its nodes for itself",
        also=("cpus_per_task", "cpus", "threads"),
    ),
    Key(
        "resources.min_memory",
        Size(MOST_MEMORY),
        "Only nodes with at least so much memory will do.",
        '"8GiB"',
        default='"0B"',
        also=("memory", "mem"),
    ),
    Key(
        "resources.min_cores",
        Whole(0, MAX_WORKERS),
        "Only nodes with at least so many cores will do.",
        "8",
        default="0",
        also=("cores",),
    ),
    Key(
        "resources.min_gpus",
        Whole(0, MAX_WORKERS),
        "Only nodes with at least so many GPUs will do.",
        "1",
        default="0",
        also=("gpus", "gres"),
    ),
    Key(
        "resources.use",
        _NODE_NAMES,
        "Only these nodes will do.",
        '["a", "b", "c"]',
        default="[]",
        absent="any node",
        also=("nodelist", "only"),
    ),
    Key(
        "resources.avoid",
        _NODE_NAMES,
        "These nodes will not do.",
        '["pi"]',
        default="[]",
        also=("exclude",),
    ),
    Key(
        "network.backend",
        OneOf(("wiiiiide", "gloo", "nccl")),
        "The backend the script is to use; ranks find it in `WIIIIIDE_BACKEND`.",
        '"gloo"',
        default='"wiiiiide"',
    ),
    Key(
        "network.codec",
        OneOf(("auto", "none", "lz4")),
        "How data between machines is packed, without loss. `auto` decides by itself.",
        '"none"',
        default='"auto"',
        also=("compression",),
    ),
    Key(
        "network.interface",
        Text(
            'an interface: "auto", "enp3s0" or "192.168.1.0/24"',
            rules.interface,
            rules.INTERFACE_PATTERN,
        ),
        "The interface for gloo or nccl: by route, by its name, or by a network that it is in.",
        '"192.168.1.0/24"',
        default='"auto"',
        also=("ifname", "nic"),
    ),
    Key(
        "network.encrypt",
        Flag(),
        "Whether data between machines is encrypted.",
        "true",
        default="false",
        also=("tls",),
    ),
    Key(
        "network.gradients",
        Text(
            'a gradient codec: "exact", "bf16", "int8", "int4" or "topk:0.01"',
            rules.gradients,
            rules.GRADIENTS_PATTERN,
        ),
        "In how many bits gradients travel between machines, where the script does not say.",
        '"int8"',
        default='"exact"',
    ),
    Key(
        "network.every",
        Whole(1, 100_000, ("auto",)),
        "After how many steps machines exchange what they have learnt, where the script does not "
        "say.",
        "16",
        default="1",
    ),
    Key(
        "policy.priority",
        Whole(0, 100),
        "Higher first; equal ones first come, first served.",
        "80",
        default="50",
        also=("prio", "nice"),
    ),
    Key(
        "policy.after",
        ListKind(Whole(1, MOST_ID, counted="a job's number"), "numbers of jobs"),
        "Jobs that must be done, with success, before this one starts.",
        "[12]",
        default="[]",
        also=("depends_on", "dependencies", "dependency", "needs"),
    ),
    Key(
        "policy.max_time",
        Duration(366 * DAY_S),
        "How long the job may run, all attempts together.",
        '"8h"',
        absent="no limit",
        also=("timeout", "time", "time_limit", "walltime"),
    ),
    Key(
        "policy.warn_before",
        Duration(DAY_S),
        "How long before `max_time` the ranks get `warn_signal`.",
        '"5m"',
        default='"1m"',
        absent="at most a tenth of `max_time`",
    ),
    Key(
        "policy.warn_signal",
        OneOf(WARN_SIGNALS),
        "The signal of that warning. Only ranks that catch it get it.",
        '"SIGUSR2"',
        default='"SIGUSR1"',
        also=("signal",),
    ),
    Key(
        "policy.grace",
        Duration(3600.0),
        "Time between SIGTERM and SIGKILL when the job is ended.",
        '"30s"',
        default='"10s"',
        also=("grace_period", "kill_after"),
    ),
    Key(
        "policy.restart.max",
        Whole(0, 1000),
        "How often the job is started again at most.",
        "3",
        default="0",
        also=("retries", "max_restarts", "attempts"),
    ),
    Key(
        "policy.restart.on",
        ListKind(OneOf(("failure", "hang", "node-lost")), "causes", least=1),
        "After what it is started again.",
        '["failure", "node-lost"]',
        default='["failure", "hang", "node-lost"]',
    ),
    Key(
        "policy.restart.backoff",
        Duration(600.0),
        "Wait before the first restart; it doubles with each, up to ten minutes.",
        '"30s"',
        default='"10s"',
        also=("delay",),
    ),
    Key(
        "policy.hang_timeout",
        Duration(DAY_S * 30),
        "How long a rank may make no progress before the job counts as hanging.",
        '"10m"',
        absent="never",
        also=("stall_timeout", "watchdog"),
    ),
    Key(
        "policy.stop_alone",
        Duration(DAY_S * 30, LEAST_ALONE_S),
        "How long a node's ranks go on while the node cannot reach the coordinator.",
        '"10m"',
        absent="for ever",
        also=("orphan_timeout", "isolation_timeout"),
    ),
    Key(
        "output.collect",
        ListKind(
            Text("a glob", rules.glob, rules.GLOB_PATTERN), "globs inside the working directory"
        ),
        "Files brought back when the job is over, and fetched by `wiiiiide pull`; "
        "`**` crosses folders.",
        '["runs/**", "ckpt/last.pt"]',
        default="[]",
        also=("artifacts", "outputs", "files"),
    ),
    Key(
        "output.checkpoints",
        ListKind(
            Text("a glob", rules.glob, rules.GLOB_PATTERN), "globs inside the working directory"
        ),
        "Files all machines have alike before an attempt that follows another: the set of the "
        "machine that had rank 0.",
        '["ckpt/**"]',
        default="[]",
        also=("checkpoint", "ckpt", "resume"),
    ),
    Key(
        "output.log",
        OneOf(("silent", "normal", "verbose")),
        "How much WIIIIIDE itself writes into the job's log; ranks find it in `WIIIIIDE_LOG`.",
        '"verbose"',
        default='"normal"',
        also=("log_level", "verbosity", "loglevel"),
    ),
    Key(
        "notify.command",
        CommandLine(Text("a string", rules.notice)),
        "A program and its arguments, run as the jobs' user. {id} {name} {state} {code} {reason} "
        "are filled in.",
        '["notify-send", "job {id} {state}"]',
        absent="nothing is run",
    ),
    Key(
        "notify.on",
        ListKind(
            OneOf(("running", "restarting", "done", "failed", "cancelled")), "states", least=1
        ),
        "At which states.",
        '["done", "failed", "cancelled"]',
        default='["done", "failed"]',
        also=("events", "when"),
    ),
)

TABLE = {key.path: key for key in KEYS}
TABLES = {section.path: section for section in SECTIONS}


def inside(table: tuple[str, ...]) -> tuple[str, ...]:
    """All names inside a table: its keys, then its tables."""
    paths = [key.path for key in KEYS] + [section.path for section in SECTIONS if section.path]
    return tuple(path[-1] for path in paths if path[:-1] == table)
