"""What a rank finds in its environment, compared with what torchrun gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.kit.shims import Attempt
from wiiiiided.cluster.shim import environment, protocol

SCRIPT = """
import json, os, sys
with open(f"{sys.argv[1]}-{os.environ['RANK']}", "w") as file:
    json.dump(dict(os.environ), file)
"""

# What torchrun's agent has for itself and its workers inherit.
OF_THE_AGENT = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}


def read(front: str) -> list[dict[str, str]]:
    return [json.loads(Path(f"{front}-{rank}").read_text()) for rank in range(2)]


def under_torchrun(folder: Path) -> list[dict[str, str]]:
    """The environments of two ranks of the real torchrun."""
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    subprocess.run(
        [*command, str(folder / "script.py"), str(folder / "torchrun")],
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        check=True,
    )
    return read(f"{folder}/torchrun")


def under_the_shim(folder: Path) -> list[dict[str, str]]:
    argv = [sys.executable, "-c", SCRIPT, str(folder / "shim")]
    with Attempt(folder / "job", argv, workers=2) as attempt:
        assert attempt.run().code == 0
    return read(f"{folder}/shim")


def test_a_rank_has_every_variable_that_torchrun_sets(tmp_path: Path) -> None:
    theirs, ours = under_torchrun(tmp_path), under_the_shim(tmp_path)
    for rank in range(2):
        missing = set(theirs[rank]) - set(ours[rank]) - OF_THE_AGENT
        assert not missing
        for name in (
            *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE"),
            *("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "OMP_NUM_THREADS"),
            *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"),
            *("TORCHELASTIC_MAX_RESTARTS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
            "TORCHELASTIC_SIGNALS_TO_HANDLE",
        ):
            assert ours[rank][name] == theirs[rank][name], name


def order(**fields: object) -> protocol.LaunchOrder:
    standard = {
        "job": 17,
        "attempt": 2,
        "name": "x",
        "argv": ["true"],
        "work": "/w",
        "env": {},
        "world_size": 5,
        "first_rank": 3,
        "workers": 2,
        "node": "b",
    }
    return protocol.LaunchOrder(**{**standard, **fields})  # type: ignore[arg-type]


def test_ranks_of_the_second_node_know_their_place() -> None:
    made = environment.for_rank(
        order(node_index=1, nodes=2, restart_count=1, max_restarts=3), 4, "/j/17/2", 1234, ""
    )
    expected = {
        "RANK": "4",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_PORT": "1234",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_ERROR_FILE": "/j/17/2/error-4.json",
        "WIIIIIDE_JOB_ID": "17",
        "WIIIIIDE_ATTEMPT": "2",
        "WIIIIIDE_ATTEMPT_DIR": "/j/17/2",
        "WIIIIIDE_STATS": "/j/17/2/stats-4",
        "WIIIIIDE_STACKS": "/j/17/2/stacks-4",
        "WIIIIIDE_WORK": "/w",
    }
    assert expected.items() <= made.items()
    assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "WIIIIIDE_SECRETS"} & set(made)


def test_ranks_of_several_machines_look_for_the_store_at_their_own_machines_port() -> None:
    several = {"node_index": 1, "nodes": 2, "head": "10.0.0.1:9461", "interface": "eth7"}
    made = environment.for_rank(
        order(door="10.0.0.2:9462", listener_uid=77, **several), 4, "/a", 0, ""
    )
    expected = {
        "MASTER_ADDR": "10.0.0.2",
        "MASTER_PORT": "9462",
        "WIIIIIDE_DOOR": "10.0.0.2:9462",
        "WIIIIIDE_DAEMON_UID": "77",
        "GLOO_SOCKET_IFNAME": "eth7",
        "NCCL_SOCKET_IFNAME": "eth7",
    }
    assert expected.items() <= made.items()
    given = {"GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": "x", "WIIIIIDE_DOOR": "x"}
    made = environment.for_rank(order(door="[fd00::2]:1", env=given, **several), 4, "/a", 0, "")
    assert (made["MASTER_ADDR"], made["MASTER_PORT"]) == ("fd00::2", "1")
    assert made["WIIIIIDE_DOOR"] == "[fd00::2]:1"
    assert (made["GLOO_SOCKET_IFNAME"], made["NCCL_SOCKET_IFNAME"]) == ("eth0", "eth7")


def test_a_job_on_one_machine_of_several_stays_on_it() -> None:
    made = environment.for_rank(order(door="10.0.0.2:9462"), 3, "/a", 0, "")
    assert made["MASTER_ADDR"] == "10.0.0.2"
    assert made["GLOO_SOCKET_IFNAME"] == made["NCCL_SOCKET_IFNAME"] == "lo"


def test_a_machine_alone_has_no_endpoint() -> None:
    made = environment.for_rank(order(), 3, "/a", 1, "")
    assert not {"WIIIIIDE_DOOR", "WIIIIIDE_DAEMON_UID"} & set(made)


def test_the_job_has_its_way_in_what_is_a_matter_of_taste() -> None:
    given = {
        "OMP_NUM_THREADS": "7",
        "PYTHONUNBUFFERED": "",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "LR": "0.1",
    }
    made = environment.for_rank(order(env=given, threads=3), 3, "/a", 1, "")
    assert given.items() <= made.items()
    assert made["NCCL_SOCKET_IFNAME"] == "lo"
    assert environment.for_rank(order(threads=3), 3, "/a", 1, "")["OMP_NUM_THREADS"] == "3"


def test_the_job_cannot_break_what_makes_ranks_meet() -> None:
    given = {"RANK": "0", "MASTER_ADDR": "example.org", "WIIIIIDE_ATTEMPT_DIR": "/else"}
    made = environment.for_rank(order(env=given), 3, "/a", 1, "/proc/1/fd/3")
    assert (made["RANK"], made["MASTER_ADDR"]) == ("3", "127.0.0.1")
    assert (made["WIIIIIDE_ATTEMPT_DIR"], made["WIIIIIDE_SECRETS"]) == ("/a", "/proc/1/fd/3")


def test_a_path_for_python_is_kept_behind_ours() -> None:
    made = environment.for_rank(order(env={"PYTHONPATH": "/x:/y"}), 3, "/a", 1, "")
    assert made["PYTHONPATH"] == f"{environment.BOOTSTRAP}:/x:/y"
    assert environment.for_rank(order(), 3, "/a", 1, "")["PYTHONPATH"] == environment.BOOTSTRAP
    assert os.listdir(environment.BOOTSTRAP)[0].endswith(("sitecustomize.py", "__pycache__"))
