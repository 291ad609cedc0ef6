"""Good and bad job files: what the checker says of each, and whether a schema can see it, too."""

from __future__ import annotations

from typing import NamedTuple

RUN = '[run]\ncommand = ["python", "train.py"]\n'

COMPLETE = """\
name = "digits"
[run]
command = ["python", "train.py", "--epochs", "5", ""]
workdir = "../digits"
python = "/srv/venvs/torch"
env = { OMP_NUM_THREADS = "1", WIIIIIDE_LOG = "verbose", "odd name.x" = "" }
pass_env = ["WANDB_API_KEY", "_x1"]
[resources]
nodes = "2-4"
workers_per_node = "cores"
cores_per_worker = 2
min_memory = "8GiB"
min_cores = 4
min_gpus = 1
use = ["a", "b", "node-3.lan"]
avoid = ["pi"]
[network]
backend = "gloo"
codec = "lz4"
interface = "192.168.1.0/24"
encrypt = true
gradients = "topk:0.01"
every = "auto"
[policy]
priority = 100
after = [12, 13]
max_time = "8h"
warn_before = "1m30s"
warn_signal = "SIGTERM"
grace = "500ms"
hang_timeout = "10m"
stop_alone = "15s"
[policy.restart]
max = 3
on = ["failure", "node-lost"]
backoff = "10s"
[output]
collect = ["runs/**", "ckpt/last.pt", "..data/*", "**"]
[notify]
command = ["notify-send", "job {id} {state}", "${HOME} { print } {}"]
on = ["running", "restarting", "done", "failed", "cancelled"]
"""

GOOD = {
    "least": RUN,
    "complete": COMPLETE,
    "empty lists": RUN
    + "pass_env = []\nenv = {}\n[resources]\nuse = []\navoid = []\n[policy]\nafter = []\n"
    + "restart = {}\n[output]\ncollect = []\n[notify]\n",
    "all nodes": RUN + '[resources]\nnodes = "all"\nuse = ["a"]\n',
    "a range of one": RUN + '[resources]\nnodes = "2-2"\n',
    "one node": RUN + "[resources]\nnodes = 1\nworkers_per_node = 4096\n",
    "interface by name": RUN + '[network]\ninterface = "enp3s0.100"\n',
    "network of IPv6": RUN + '[network]\ninterface = "fd00::/8"\n',
    "dotted keys": 'run.command = ["x"]\npolicy.restart.max = 0\nrun.env.A = "1"\n',
    "a path with blanks": '[run]\ncommand = ["./my program"]\n',
    "restart never": RUN + "[policy]\nrestart = { max = 0, on = ['hang'] }\npriority = 0\n",
    "name in other letters": 'name = "größe 1 – ñ"\n' + RUN,
    "no memory": RUN + '[resources]\nmin_memory = "0B"\n',
    "a log in full": RUN + '[output]\nlog = "verbose"\n',
}


class Bad(NamedTuple):
    text: str
    says: tuple[str, ...]
    schema_sees: bool = True


class Seen(NamedTuple):
    """A command in a folder with these files, and what is said of its words: "[1]: …", and of what
    only may be wrong "note: [1]: …"."""

    command: str
    files: tuple[str, ...] = ("train.py",)  # a ! before one that is executable
    says: tuple[str, ...] = ()
    more: str = ""  # of the job file


BAD = {
    # ---- keys and tables
    "nothing at all": Bad(
        "",
        (
            (
                "job.toml: run.command: missing; every job needs it; "
                'add command = ["python", "train.py", "--epochs", "5"] to [run]'
            ),
        ),
    ),
    "no command": Bad(
        '\n[run]\nworkdir = "."\n',
        (
            (
                "job.toml:2: run.command: missing; every job needs it; "
                'add command = ["python", "train.py", "--epochs", "5"] to [run]'
            ),
        ),
    ),
    "unknown key": Bad(
        RUN + "\n[resources]\nworker_per_node = 2\n",
        ("job.toml:5: resources.worker_per_node: unknown key; did you mean workers_per_node?",),
    ),
    "unknown key with hyphens": Bad(
        RUN + "[policy]\nMax-Time = '8h'\n",
        ("job.toml:4: policy.Max-Time: unknown key; did you mean max_time?",),
    ),
    "unknown table": Bad(
        RUN + "[resource]\nnodes = 1\nfoo = 2\n",
        ("job.toml:3: resource: unknown table; did you mean [resources]?",),
    ),
    "key of another table": Bad(
        'command = ["x"]\n' + RUN,
        ("job.toml:1: command: unknown key; did you mean run.command?",),
    ),
    "name below a table": Bad(
        RUN + 'name = "x"\n',
        ("job.toml:3: run.name: unknown key; did you mean name, above the first [table]?",),
    ),
    "table of another table": Bad(
        RUN + "[restart]\nmax = 3\n",
        ("job.toml:3: restart: unknown table; did you mean [policy.restart]?",),
    ),
    "key of another program": Bad(
        RUN + "[policy]\ntimeout = '8h'\n[resources]\nnproc_per_node = 2\n",
        (
            "job.toml:4: policy.timeout: unknown key; did you mean max_time?",
            "job.toml:6: resources.nproc_per_node: unknown key; did you mean workers_per_node?",
        ),
    ),
    "key like no other": Bad(
        RUN + "[output]\nzzz = 1\n",
        ("job.toml:4: output.zzz: unknown key; known here: collect, checkpoints, log",),
    ),
    "key with dots in quotes": Bad(
        '"run.command" = ["x"]\n' + RUN,
        ('job.toml:1: "run.command": unknown key; did you mean run.command?',),
    ),
    "list of tables": Bad(
        RUN + "[[policy]]\npriority = 1\n",
        ("job.toml:3: policy: there is only one such table; write [policy], not [[policy]]",),
    ),
    "value for a table": Bad(
        RUN + "[policy]\nrestart = 3\n",
        (
            (
                "job.toml:4: policy.restart: expected a table, found the number 3; "
                "write restart = { max = 3 }"
            ),
        ),
    ),
    "run is no table": Bad(
        'run = "python train.py"\n',
        ('job.toml:1: run: expected a table, found the text "python train.py"; write [run]',),
    ),
    # ---- name
    "empty name": Bad(
        'name = ""\n' + RUN,
        ("job.toml:1: name: is empty; name the job, or leave the key out",),
    ),
    "long name": Bad(
        f'name = "{"n" * 65}"\n' + RUN,
        (
            (
                "job.toml:1: name: has 65 characters; at most 64 are possible; "
                f'for example "{"n" * 64}"'
            ),
        ),
    ),
    "name with an escape code": Bad(
        'name = "a\\u001b[31m"\n' + RUN,
        ('job.toml:1: name: "a\\x1b[31m" has characters that cannot be printed; leave them out',),
    ),
    "name with a blank": Bad(
        'name = " a"\n' + RUN,
        ('job.toml:1: name: " a" begins or ends with a blank; leave it out',),
    ),
    "name as a number": Bad(
        "name = 17\n" + RUN,
        (
            (
                "job.toml:1: name: expected a name of 1 to 64 characters, found the number 17; "
                'write "17", in quotes'
            ),
        ),
    ),
    # ---- run
    "command as a string": Bad(
        "[run]\ncommand = \"python train.py --name 'a b'\"\n",
        (
            (
                "job.toml:2: run.command: expected a list of strings, found the text "
                "\"python train.py --name 'a b'\"; "
                'write ["python", "train.py", "--name", "a b"]'
            ),
        ),
    ),
    "command for a shell": Bad(
        '[run]\ncommand = "a | b > c"\n',
        (
            (
                'job.toml:2: run.command: expected a list of strings, found the text "a | b > c"; '
                'write ["sh", "-c", "a | b > c"]'
            ),
        ),
    ),
    "command with an open quote": Bad(
        '[run]\ncommand = "echo \'a"\n',
        (
            (
                'job.toml:2: run.command: expected a list of strings, found the text "echo \'a"; '
                'for example command = ["python", "train.py", "--epochs", "5"]'
            ),
        ),
    ),
    "empty command": Bad(
        "[run]\ncommand = []\n",
        (
            (
                "job.toml:2: run.command: an empty list; expected a list of strings; "
                'for example command = ["python", "train.py", "--epochs", "5"]'
            ),
        ),
    ),
    "empty program": Bad(
        '[run]\ncommand = ["", "x"]\n',
        (
            (
                "job.toml:2: run.command[0]: the program's name is empty; "
                'for example command = ["python", "train.py", "--epochs", "5"]'
            ),
        ),
        schema_sees=False,
    ),
    "command line in one string": Bad(
        '[run]\ncommand = ["python train.py"]\n',
        (
            (
                'job.toml:2: run.command[0]: "python train.py" is no program: no shell splits it; '
                'write ["python", "train.py"]'
            ),
        ),
        schema_sees=False,
    ),
    "numbers in a command": Bad(
        '[run]\ncommand = [\n  "x",\n  "--lr",\n  0.1,\n  5,\n]\n',
        (
            (
                "job.toml:5: run.command[2]: expected a string, found the number 0.1; "
                'write "0.1", in quotes'
            ),
            (
                "job.toml:6: run.command[3]: expected a string, found the number 5; "
                'write "5", in quotes'
            ),
        ),
    ),
    "zero character": Bad(
        '[run]\ncommand = ["x", "a\\u0000b"]\n',
        (
            (
                "job.toml:2: run.command[1]: has a zero character (\\u0000), which no program can "
                'be given; for example command = ["python", "train.py", "--epochs", "5"]'
            ),
        ),
    ),
    "empty workdir": Bad(
        RUN + 'workdir = ""\n',
        ('job.toml:3: run.workdir: is empty; write "." for the folder of the job file',),
    ),
    "workdir at home": Bad(
        RUN + 'workdir = "~/x"\n',
        ('job.toml:3: run.workdir: "~/x": ~ is not expanded; write the whole path',),
    ),
    "python not absolute": Bad(
        RUN + 'python = ".venv/bin/python"\n',
        (
            (
                'job.toml:3: run.python: ".venv/bin/python" is not an absolute path, so it would '
                'differ from node to node; for example python = "/srv/venvs/torch"'
            ),
        ),
    ),
    "variables that are no strings": Bad(
        RUN + "[run.env]\nLR = 0.1\nN = 3\nFAST = true\nDAY = 2024-05-01\nL = ['x']\n",
        (
            (
                'job.toml:4: run.env.LR: expected a string, found the number 0.1; write "0.1", '
                "in quotes"
            ),
            'job.toml:5: run.env.N: expected a string, found the number 3; write "3", in quotes',
            'job.toml:6: run.env.FAST: expected a string, found true; write "true", in quotes',
            (
                "job.toml:7: run.env.DAY: expected a string, found the date or time 2024-05-01; "
                'for example env = { LR = "0.1" }'
            ),
            (
                "job.toml:8: run.env.L: expected a string, found a list; "
                'for example env = { LR = "0.1" }'
            ),
        ),
    ),
    "names of variables": Bad(
        RUN + '[run.env]\n"A=B" = "c"\n"" = "x"\n"a\\u0000" = "y"\n',
        (
            'job.toml:4: run.env."A=B": a variable\'s name has no \'=\'; write A = "B"',
            'job.toml:5: run.env."": a variable without a name; for example env = { LR = "0.1" }',
            (
                'job.toml:6: run.env."a\\x00": a variable\'s name has characters that cannot be '
                'printed; for example env = { LR = "0.1" }'
            ),
        ),
    ),
    "variables that WIIIIIDE sets": Bad(
        RUN
        + '[run.env]\nRANK = "0"\nTORCHELASTIC_X = ""\nWIIIIIDE_HOME = "/x"\nMASTER_PORT = "1"\n',
        (
            'job.toml:4: run.env.RANK: "RANK" is set by WIIIIIDE for every rank; leave it out',
            (
                'job.toml:5: run.env.TORCHELASTIC_X: "TORCHELASTIC_X" is set by WIIIIIDE for every '
                "rank; leave it out"
            ),
            (
                'job.toml:6: run.env.WIIIIIDE_HOME: "WIIIIIDE_HOME" is set by WIIIIIDE for every '
                "rank; leave it out"
            ),
            (
                'job.toml:7: run.env.MASTER_PORT: "MASTER_PORT" is set by WIIIIIDE for every rank; '
                "leave it out"
            ),
        ),
    ),
    "env is no table": Bad(
        RUN + 'env = ["A=1"]\n',
        (
            (
                'job.toml:3: run.env: expected a table of strings, { NAME = "value" }, found a '
                'list; for example env = { LR = "0.1" }'
            ),
        ),
    ),
    "names that cannot be passed": Bad(
        RUN + 'pass_env = ["$TOKEN", "A=b", "x y", "WORLD_SIZE", "OK", "OK"]\n',
        (
            'job.toml:3: run.pass_env[0]: "$TOKEN" is not a variable\'s name; did you mean TOKEN?',
            'job.toml:3: run.pass_env[1]: "A=b" has a value; only names are listed here; write "A"',
            (
                'job.toml:3: run.pass_env[2]: "x y" is not a variable\'s name; '
                'for example pass_env = ["WANDB_API_KEY"]'
            ),
            (
                'job.toml:3: run.pass_env[3]: "WORLD_SIZE" is set by WIIIIIDE for every rank; '
                "leave it out"
            ),
            'job.toml:3: run.pass_env[5]: "OK" is listed twice; leave one out',
        ),
    ),
    "passed and set": Bad(
        RUN + 'env = { A = "1" }\npass_env = ["B", "A"]\n',
        ('job.toml:4: run.pass_env[1]: "A" is set in run.env, too; leave one of them out',),
        schema_sees=False,
    ),
    "one name for a list": Bad(
        RUN + 'pass_env = "A, B"\n',
        (
            (
                "job.toml:3: run.pass_env: expected a list of names of environment variables, "
                'found the text "A, B"; write ["A", "B"]'
            ),
        ),
    ),
    # ---- resources
    "nodes the wrong way round": Bad(
        RUN + '[resources]\nnodes = "4-2"\n',
        ('job.toml:4: resources.nodes: "4-2" begins with the larger number; did you mean "2-4"?',),
        schema_sees=False,
    ),
    "no nodes": Bad(
        RUN + "[resources]\nnodes = 0\n",
        ("job.toml:4: resources.nodes: 0 is not within 1 to 1024; choose 1 to 1024",),
    ),
    "nodes in quotes": Bad(
        RUN + '[resources]\nnodes = "3"\n',
        (
            (
                'job.toml:4: resources.nodes: expected a number of nodes: 3, "2-4" or "all", '
                'found the text "3"; did you mean 3?'
            ),
        ),
    ),
    "no workers": Bad(
        RUN + "[resources]\nworkers_per_node = 0\n",
        ("job.toml:4: resources.workers_per_node: 0 is less than 1; choose 1 to 4096",),
    ),
    "too many workers": Bad(
        RUN + "[resources]\nworkers_per_node = 4097\n",
        ("job.toml:4: resources.workers_per_node: 4097 is more than 4096; choose 1 to 4096",),
    ),
    "workers by a word": Bad(
        RUN + '[resources]\nworkers_per_node = "core"\n',
        (
            (
                "job.toml:4: resources.workers_per_node: expected a whole number from 1 to 4096 or "
                '"cores" or "gpus", found the text "core"; did you mean "cores"?'
            ),
        ),
    ),
    "number in quotes": Bad(
        RUN + '[resources]\ncores_per_worker = "4"\n',
        (
            (
                "job.toml:4: resources.cores_per_worker: expected a whole number from 1 to 4096, "
                'found the text "4"; did you mean 4, without quotes?'
            ),
        ),
    ),
    "a fraction of a core": Bad(
        RUN + "[resources]\ncores_per_worker = 0.5\nmin_cores = 2.0\n",
        (
            (
                "job.toml:4: resources.cores_per_worker: expected a whole number from 1 to 4096, "
                "found the number 0.5; for example cores_per_worker = 4"
            ),
            (
                "job.toml:5: resources.min_cores: expected a whole number from 0 to 4096, "
                "found the number 2.0; did you mean 2?"
            ),
        ),
    ),
    "memory without a unit": Bad(
        RUN + "[resources]\nmin_memory = 8\n",
        (
            (
                'job.toml:4: resources.min_memory: expected a size such as "8GiB" or "512MB", '
                'found the number 8; did you mean "8GiB"?'
            ),
        ),
    ),
    "too much memory": Bad(
        RUN + '[resources]\nmin_memory = "2000TiB"\n',
        (
            (
                'job.toml:4: resources.min_memory: "2000TiB" is more than the most, 1024TiB; '
                'for example min_memory = "8GiB"'
            ),
        ),
        schema_sees=False,
    ),
    "used and avoided": Bad(
        RUN + '[resources]\nuse = ["a", "b"]\navoid = ["c", "b"]\n',
        ('job.toml:5: resources.avoid[1]: "b" is in resources.use, too; leave one of them out',),
        schema_sees=False,
    ),
    "too few used": Bad(
        RUN + '[resources]\nnodes = 3\nuse = ["a", "b"]\n',
        (
            (
                "job.toml:4: resources.nodes: at least 3 nodes are wanted, but resources.use names "
                "only 2; name 3 or more, or want fewer"
            ),
        ),
        schema_sees=False,
    ),
    "no name of a node": Bad(
        RUN + '[resources]\nuse = ["a b"]\n',
        (
            (
                'job.toml:4: resources.use[0]: "a b" cannot be a node\'s name; '
                "a node is called as its host is, up to the first dot"
            ),
        ),
    ),
    # ---- network
    "choices": Bad(
        RUN + '[network]\nbackend = "glo"\ncodec = "GZIP"\nencrypt = 8\n',
        (
            (
                'job.toml:4: network.backend: "glo" is not one of "wiiiiide", "gloo", "nccl"; '
                'did you mean "gloo"?'
            ),
            (
                'job.toml:5: network.codec: "GZIP" is not one of "auto", "none", "lz4"; '
                'for example codec = "none"'
            ),
            (
                "job.toml:6: network.encrypt: expected true or false, found the number 8; "
                "for example encrypt = true"
            ),
        ),
    ),
    "how machines exchange": Bad(
        RUN + '[network]\ngradients = "int7"\nevery = 0\n',
        (
            (
                'job.toml:4: network.gradients: "int7" is no gradient codec; choose "exact", '
                '"bf16", "int8", "int4", "topk:0.01"'
            ),
            "job.toml:5: network.every: 0 is less than 1; choose 1 to 100000",
        ),
    ),
    "a part of a gradient": Bad(
        RUN + '[network]\ngradients = "topk:0.7"\n',
        (
            (
                'job.toml:4: network.gradients: "topk:0.7" is no gradient codec; choose "exact", '
                '"bf16", "int8", "int4", "topk:0.01"'
            ),
        ),
    ),
    "long interface": Bad(
        RUN + '[network]\ninterface = "a-very-long-name"\n',
        (
            (
                'job.toml:4: network.interface: "a-very-long-name" is longer than the 15 '
                "characters of an interface; ip -brief link lists them"
            ),
        ),
    ),
    "interface with a blank": Bad(
        RUN + '[network]\ninterface = "eth 0"\n',
        (
            (
                'job.toml:4: network.interface: "eth 0" cannot be an interface; '
                "ip -brief link lists them"
            ),
        ),
    ),
    "address for a network": Bad(
        RUN + '[network]\ninterface = "192.168.1.5"\n',
        (
            (
                'job.toml:4: network.interface: "192.168.1.5" is one address; '
                'did you mean "192.168.1.0/24"?'
            ),
        ),
        schema_sees=False,
    ),
    "network with a host": Bad(
        RUN + '[network]\ninterface = "192.168.1.5/24"\n',
        (
            (
                'job.toml:4: network.interface: "192.168.1.5/24" is not a network: 192.168.1.5/24 '
                'has host bits set; did you mean "192.168.1.0/24"?'
            ),
        ),
        schema_sees=False,
    ),
    "no network": Bad(
        RUN + '[network]\ninterface = "lan/24"\n',
        (
            (
                "job.toml:4: network.interface: \"lan/24\" is not a network: 'lan/24' does not "
                'appear to be an IPv4 or IPv6 network; for example interface = "192.168.1.0/24"'
            ),
        ),
    ),
    "flag in quotes": Bad(
        RUN + '[network]\nencrypt = "yes"\n',
        (
            (
                'job.toml:4: network.encrypt: expected true or false, found the text "yes"; '
                "did you mean true?"
            ),
        ),
    ),
    # ---- policy
    "priority": Bad(
        RUN + "[policy]\npriority = 101\n",
        ("job.toml:4: policy.priority: 101 is more than 100; choose 0 to 100",),
    ),
    "a number of a thousand digits": Bad(
        RUN + f"[policy]\npriority = {'9' * 1000}\n",
        (
            (
                "job.toml:4: policy.priority: a number of more than 60 digits is more than 100; "
                "choose 0 to 100"
            ),
        ),
    ),
    "true is no number": Bad(
        RUN + "[policy]\npriority = true\n",
        (
            (
                "job.toml:4: policy.priority: expected a whole number from 0 to 100, found true; "
                "for example priority = 80"
            ),
        ),
    ),
    "after": Bad(
        RUN + '[policy]\nafter = [0, "7", 3, 3]\n',
        (
            "job.toml:4: policy.after[0]: 0 is less than 1; for example after = [12]",
            (
                "job.toml:4: policy.after[1]: expected a job's number, 1 or more, found the text "
                '"7"; did you mean 7, without quotes?'
            ),
            "job.toml:4: policy.after[3]: 3 is listed twice; leave one out",
        ),
    ),
    "one job for a list": Bad(
        RUN + "[policy]\nafter = 12\n",
        (
            (
                "job.toml:4: policy.after: expected a list of numbers of jobs, found the number "
                "12; write [12]"
            ),
        ),
    ),
    "a job's number in quotes": Bad(
        RUN + '[policy]\nafter = "3, #14"\n',
        (
            (
                "job.toml:4: policy.after: expected a list of numbers of jobs, found the text "
                '"3, #14"; write [3, 14]'
            ),
        ),
    ),
    "times without a unit": Bad(
        RUN + '[policy]\nmax_time = 8\ngrace = "10 sec"\nhang_timeout = inf\n',
        (
            (
                'job.toml:4: policy.max_time: expected a duration such as "90s" or "1h30m", at '
                'most "366d", found the number 8; did you mean "8s"?'
            ),
            (
                'job.toml:5: policy.grace: expected a duration such as "90s" or "1h30m", at most '
                '"1h", found the text "10 sec"; did you mean "10s"?'
            ),
            (
                'job.toml:6: policy.hang_timeout: expected a duration such as "90s" or "1h30m", at '
                'most "30d", found the number inf; for example hang_timeout = "10m"'
            ),
        ),
    ),
    "alone for less than a restart takes": Bad(
        RUN + '[policy]\nstop_alone = "5s"\n',
        (
            (
                'job.toml:4: policy.stop_alone: "5s" is less than the least, 15s; for example '
                'stop_alone = "10m"'
            ),
        ),
        schema_sees=False,
    ),
    "no time": Bad(
        RUN + '[policy]\nmax_time = "0s"\n',
        (
            (
                'job.toml:4: policy.max_time: "0s" is no time at all; it must be more; '
                "or leave the key out"
            ),
        ),
    ),
    "too much time": Bad(
        RUN + '[policy]\ngrace = "2h"\n',
        ('job.toml:4: policy.grace: "2h" is more than the most, 1h; for example grace = "30s"',),
        schema_sees=False,
    ),
    "warned too early": Bad(
        RUN + '[policy]\nmax_time = "1h"\nwarn_before = "90m"\n',
        (
            (
                "job.toml:5: policy.warn_before: is not shorter than max_time, 1h; "
                "warn later, or allow more time"
            ),
        ),
        schema_sees=False,
    ),
    "signals": Bad(
        RUN + '[policy]\nwarn_signal = "SIGKILL"\n',
        (
            (
                'job.toml:4: policy.warn_signal: "SIGKILL" is not one of "SIGUSR1", "SIGUSR2", '
                '"SIGHUP", "SIGINT", "SIGTERM"; for example warn_signal = "SIGUSR2"'
            ),
        ),
    ),
    "restart": Bad(
        RUN + "[policy.restart]\nmax = 1001\non = []\nbackoff = '1h'\n",
        (
            "job.toml:4: policy.restart.max: 1001 is more than 1000; choose 0 to 1000",
            (
                "job.toml:5: policy.restart.on: an empty list; expected a list of causes, each one "
                'of "failure", "hang", "node-lost"; for example on = ["failure", "node-lost"]'
            ),
            (
                'job.toml:6: policy.restart.backoff: "1h" is more than the most, 10m; '
                'for example backoff = "30s"'
            ),
        ),
    ),
    "restart without a number": Bad(
        RUN + "[policy]\nrestart = { on = ['node_lost'], backoff = '1s' }\n",
        (
            (
                "job.toml:4: policy.restart: max is missing, so nothing is ever restarted and on "
                "has no use; for example restart = { max = 3 }"
            ),
            (
                'job.toml:4: policy.restart.on[0]: "node_lost" is not one of "failure", "hang", '
                '"node-lost"; did you mean "node-lost"?'
            ),
        ),
    ),
    # ---- output and notify
    "log of no tier": Bad(
        RUN + '[output]\nlog = "debug"\n',
        (
            (
                'job.toml:4: output.log: "debug" is not one of "silent", "normal", "verbose"; '
                'for example log = "verbose"'
            ),
        ),
    ),
    "log said twice": Bad(
        RUN + 'env = { WIIIIIDE_LOG = "verbose" }\n[output]\nlog = "silent"\n',
        (
            (
                "job.toml:5: output.log: run.env sets WIIIIIDE_LOG, which is the same; "
                "leave one of them out"
            ),
        ),
        schema_sees=False,
    ),
    "globs": Bad(
        RUN + '[output]\ncollect = ["/tmp/x", "a/../b", "runs/", "./a", ".", "", "~/x"]\n',
        (
            (
                'job.toml:4: output.collect[0]: "/tmp/x" is not inside the working directory; '
                'write it from there, as in "tmp/x"'
            ),
            (
                'job.toml:4: output.collect[1]: "a/../b" leaves the working directory; '
                'write it from there, as in "a/b"'
            ),
            'job.toml:4: output.collect[2]: "runs/" is a folder, not its files; write "runs/**"',
            'job.toml:4: output.collect[3]: "./a" has a part that is only "."; write "a"',
            'job.toml:4: output.collect[4]: "." is a folder, not its files; write "**"',
            'job.toml:4: output.collect[5]: is empty; write "**" for everything',
            (
                'job.toml:4: output.collect[6]: "~/x" is not inside the working directory; '
                'write it from there, as in "x"'
            ),
        ),
    ),
    "placeholders": Bad(
        RUN + '[notify]\ncommand = ["notify-send", "{jobid}"]\n',
        (
            (
                "job.toml:4: notify.command[1]: {jobid} is not a placeholder; there are {id} "
                "{name} {state} {code} {reason}; other braces need a blank inside"
            ),
        ),
        schema_sees=False,
    ),
    "states": Bad(
        RUN + '[notify]\ncommand = ["x"]\non = ["fail"]\n',
        (
            (
                'job.toml:5: notify.on[0]: "fail" is not one of "running", "restarting", "done", '
                '"failed", "cancelled"; did you mean "failed"?'
            ),
        ),
    ),
    "no notice": Bad(
        RUN + '[notify]\non = ["done"]\n',
        (
            (
                "job.toml:4: notify.on: nothing is run at these states: notify.command is missing; "
                'add command = ["notify-send", "job {id} {state}"]'
            ),
        ),
        schema_sees=False,
    ),
    "too many elements": Bad(
        RUN + f"[policy]\nafter = {list(range(1, 1002))}\n",
        ("job.toml:4: policy.after: has 1001 elements; at most 1000 are possible; list fewer",),
    ),
    "too long for a start": Bad(
        f'[run]\ncommand = ["x", "{"a" * 100_000}"]\nenv = {{ A = "{"b" * 40_000}" }}\n',
        (
            (
                "job.toml:1: run: command and env together have 140006 bytes; at most 131072 are "
                "possible; put long texts into a file of the working directory"
            ),
        ),
        schema_sees=False,
    ),
    "python and its option in one word": Bad(
        '[run]\ncommand = ["python -u", "train.py", "a b"]\n',
        (
            (
                'job.toml:2: run.command[0]: "python -u" is no program: no shell splits it; '
                'write ["python", "-u", "train.py", "a b"]'
            ),
        ),
        schema_sees=False,
    ),
    "warned of nothing": Bad(
        RUN + '[policy]\nwarn_before = "5m"\n',
        (
            (
                "job.toml:4: policy.warn_before: max_time is missing, so no warning ever comes; "
                'add max_time = "8h", or leave it out'
            ),
        ),
        schema_sees=False,
    ),
    "torchrun in every rank": Bad(
        '[run]\ncommand = ["torchrun", "--nproc-per-node=2", "train.py", "--lr", "1"]\n'
        "[resources]\nworkers_per_node = 2\n",
        (
            (
                "job.toml:2: run.command: torchrun starts ranks itself, and is started 2 times on "
                "a node: each would be a training of its own, over the same checkpoints; "
                'write ["python", "train.py", "--lr", "1"], or workers_per_node = 1'
            ),
        ),
        schema_sees=False,
    ),
    "a launcher as a module": Bad(
        '[run]\ncommand = ["python", "-m", "torch.distributed.run", "-m", "pkg"]\n'
        '[resources]\nworkers_per_node = "cores"\n',
        (
            (
                "job.toml:2: run.command: torch.distributed.run starts ranks itself, and is "
                "started for each of its cores on a node: each would be a training of its own, "
                "over the same checkpoints; write workers_per_node = 1"
            ),
        ),
        schema_sees=False,
    ),
    "torchrun of one node on several": Bad(
        '[run]\ncommand = ["/opt/bin/torchrun", "--nnodes", "1", "train.py"]\n'
        "[resources]\nnodes = 3\n",
        (
            (
                "job.toml:2: run.command: torchrun without --nnodes knows its own node alone, and "
                "several start it: each would be a training of its own, over the same "
                'checkpoints; write ["python", "train.py"], or nodes = 1'
            ),
        ),
        schema_sees=False,
    ),
}

LOOKED = {
    # ---- nothing is said of these
    "a script": Seen('["python", "train.py"]'),
    "a script behind options": Seen('["python3", "-uW", "error", "-X", "dev", "-Bu", "train.py"]'),
    "a script of another Python": Seen('["/srv/venv/bin/python3.12", "./train.py"]'),
    "a script from the root": Seen('["python", "/srv/shared/train.py"]', ()),
    "a program from the root": Seen('["/srv/bin/prepare"]', ()),
    "a line for a shell": Seen('["sh", "-c", "make gen.py && python gen.py"]', ()),
    "a program in a word": Seen('["python", "-c", "print(1)"]', ()),
    "a shell's script": Seen('["bash", "-eo", "pipefail", "run/all.sh"]', ("run/all.sh",)),
    "a shell's script in PATH": Seen('["sh", "env"]', ()),
    "a script that another program makes": Seen('["env", "A=1", "python", "gen.py"]', ()),
    "a program of the folder": Seen('["./train.sh", "x"]', ("!train.sh",)),
    "a module": Seen('["python", "-m", "train"]'),
    "a module of a package": Seen(
        '["python", "-um", "pkg.train"]', ("pkg/__init__.py", "pkg/train.py")
    ),
    "a package that runs": Seen('["python", "-m", "pkg"]', ("pkg/__init__.py", "pkg/__main__.py")),
    "a package without a beginning": Seen('["python", "-m", "pkg.other"]', ("pkg/train.py",)),
    "a module that is installed": Seen('["python", "-m", "msgspec.inspect"]', ()),
    "a folder that runs": Seen('["python", "."]', ("__main__.py",)),
    "a Python that is not here": Seen('["python3.99", "train.py"]'),
    "torchrun once": Seen('["torchrun", "--nproc-per-node=2", "train.py"]'),
    "torchrun that knows of all": Seen(
        '["torchrun", "--nnodes=3", "train.py"]', more="[resources]\nnodes = 3\n"
    ),
    "torchrun told by a variable": Seen(
        '["torchrun", "train.py"]', more="env = {PET_NNODES = '3'}\n[resources]\nnodes = 3\n"
    ),
    "what git ignores, and is wanted": Seen(
        '["python", "train.py"]',
        ("train.py", ".git/HEAD", ".gitignore=*.py", ".wiiiiideignore=!train.py"),
    ),
    # ---- what will not be there
    "no script": Seen(
        '["python", "-u", "train.py"]',
        (),
        ('[2]: "train.py" is not in the working directory; add it, or correct the name',),
    ),
    "a script in another folder": Seen(
        '["python", "train.py"]',
        ("src/train.py",),
        (('[1]: "train.py" is not in the working directory; did you mean "src/train.py"?'),),
    ),
    "a script of a like name": Seen(
        '["torchrun", "tarin.py"]',
        ("train.py",),
        ('[1]: "tarin.py" is not in the working directory; did you mean "train.py"?',),
    ),
    "no script for a shell": Seen(
        '["bash", "-e", "run.sh"]',
        (),
        ('[2]: "run.sh" is not in the working directory; add it, or correct the name',),
    ),
    "a script outside": Seen(
        '["python", "../train.py"]',
        says=(
            (
                '[1]: "../train.py" leads out of the working directory, and only that is '
                "shipped; set run.workdir to a folder that has it inside"
            ),
        ),
    ),
    "a script at home": Seen(
        '["python", "~/train.py"]',
        says=('[1]: "~/train.py": no shell expands it; write the whole path',),
    ),
    "a folder": Seen(
        '["python", "src"]',
        ("src/train.py",),
        (
            (
                '[1]: "src" is a folder without a __main__.py, which Python cannot run; '
                "name the script in it"
            ),
        ),
    ),
    "no program of the folder": Seen(
        '["./train.sh"]',
        (),
        ('[0]: "./train.sh" is not in the working directory; add it, or correct the name',),
    ),
    "a program that may not be run": Seen(
        '["./train.sh", "x"]',
        ("train.sh",),
        (
            (
                '[0]: "./train.sh" is not executable; chmod +x ./train.sh, or '
                'write ["bash", "./train.sh", "x"]'
            ),
        ),
    ),
    "a script for a program": Seen(
        '["train.py", "x"]',
        says=(
            (
                '[0]: "train.py" is searched for in PATH, not in the working directory; '
                'write ["python", "train.py", "x"]'
            ),
        ),
    ),
    "misspelled": Seen(
        '["pyhton", "train.py"]',
        says=('[0]: there is no program "pyhton"; did you mean "python"?',),
    ),
    "unknown here": Seen(
        '["no-such-program-here", "train.py"]',
        (),
        (
            (
                'note: [0]: "no-such-program-here" is not in PATH here; '
                "every node must have it in its own"
            ),
        ),
    ),
    "no module of a package": Seen(
        '["python", "-m", "pkg.tarin"]',
        ("pkg/__init__.py", "pkg/train.py"),
        (
            (
                '[2]: there is no module "pkg.tarin" in the working directory; '
                'did you mean "pkg.train"?'
            ),
        ),
    ),
    "a package that does not run": Seen(
        '["python", "-m", "pkg"]',
        ("pkg/__init__.py",),
        (
            (
                '[2]: the package "pkg" has no __main__.py, so -m cannot run it; '
                "add one, or name a module in it"
            ),
        ),
    ),
    "a file for a module": Seen(
        '["python", "-m", "pkg/train.py"]',
        says=(
            (
                '[2]: "pkg/train.py" is the name of a file, and -m takes a module\'s; '
                'write "pkg.train"'
            ),
        ),
    ),
    "a module that is nowhere here": Seen(
        '["python", "-m", "no_such_module_here"]',
        (),
        (
            (
                'note: [2]: the module "no_such_module_here" is neither in the working '
                "directory nor installed here; the Python of every node must have it"
            ),
        ),
    ),
    "what git ignores": Seen(
        '["python", "gen/train.py"]',
        ("gen/train.py", ".git/HEAD", ".gitignore=# made\ngen/"),
        (
            (
                '[1]: "gen/train.py" is not shipped: .gitignore leaves gen/ out by its '
                "line gen/; add the line !/gen/ to .wiiiiideignore, which counts first"
            ),
        ),
    ),
    "what is ignored here": Seen(
        '["python", "train.py"]',
        ("train.py", ".wiiiiideignore=*.py"),
        (
            (
                '[1]: "train.py" is not shipped: .wiiiiideignore leaves train.py out by '
                "its line *.py; take that line out, or add !/train.py below it"
            ),
        ),
    ),
    "a Python that is never shipped": Seen(
        '[".venv/bin/python", "train.py"]',
        ("train.py", "!.venv/bin/python"),
        (
            (
                '[0]: ".venv/bin/python" is not shipped: .venv/ never is; '
                "set run.python to the environment's whole path, or rename it"
            ),
        ),
    ),
    "no script for a launcher": Seen(
        '["python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "tarin.py"]',
        says=('[5]: "tarin.py" is not in the working directory; did you mean "train.py"?',),
    ),
    "everything at once": Seen(
        '["pyhton", "-u", "tarin.py"]',
        ("train.py",),
        (
            '[0]: there is no program "pyhton"; did you mean "python"?',
            '[2]: "tarin.py" is not in the working directory; did you mean "train.py"?',
            "job.toml:4: policy.priorty: unknown key; did you mean priority?",
        ),
        "[policy]\npriorty = 1\n",
    ),
}
