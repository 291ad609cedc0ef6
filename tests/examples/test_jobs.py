"""The job folders of examples/, each run by a private daemon as a user would have it run."""

from __future__ import annotations

import os
import re
import signal
import tarfile
from pathlib import Path
from typing import IO, cast

import pytest

from tests.kit.conditions import wait_until
from tests.kit.daemons import PrivateDaemon, private_daemon
from tests.kit.jobfiles import read_file
from wiiiiided.cluster.archive.pack import pack

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/job.toml"))


def submit(daemon: PrivateDaemon, folder: str, *sets: str, resumes: int | None = None) -> int:
    """What `wiiiiide submit examples/FOLDER/job.toml --set … --resume …` does."""
    spec = read_file(EXAMPLES / folder / "job.toml", sets)
    packed = pack(str(EXAMPLES / folder))
    try:
        return daemon.client.submit(spec, packed, {}, resumes=resumes).id
    finally:
        packed.remove()


def test_there_is_a_job_for_each_way_to_train() -> None:
    assert FOLDERS == [
        "ddp",
        "fsdp",
        "language-model",
        "parallel",
        "resume",
        "torchrun-script",
        "uneven",
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_job_file_is_right_and_its_script_is_there(folder: str) -> None:
    spec = read_file(EXAMPLES / folder / "job.toml")
    assert spec.name == folder
    assert spec.run.command[0] == "python"
    assert (EXAMPLES / folder / spec.run.command[1]).is_file()


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_readme_has_a_section_on_every_folder(folder: str) -> None:
    assert f"## [{folder}]({folder}/)" in (EXAMPLES / "README.md").read_text()


def test_the_language_model_speaks_to_people_and_takes_its_backend_from_the_job() -> None:
    with private_daemon() as daemon:
        job = submit(daemon, "language-model", "run.env.STEPS=4", "network.backend=gloo")
        end = daemon.end_of(job, within_s=100)
        lines = daemon.output(job)
        assert (end.state, end.code) == ("done", 0), lines
        assert any("parameters, 2 ranks" in line for line in lines), lines
        assert any("step    4/4  loss" in line for line in lines), lines


# Folder, command, what rank 0 says first, when there is a checkpoint, and when it resumes. They go
# on long enough after that to be killed in the middle.
RESUMING = [
    ("ddp", '"ddp.py"', r"step +100/", r"step +100/", r"goes on after step (\d+)"),
    ("parallel", '"parallel.py"', r"step +100/", r"step +100/", r"goes on after step (\d+)"),
    (
        *("fsdp", '"fsdp.py", "--steps", "120", "--save-every", "10"'),
        *(r"step +10/", r"step +10/", r"goes on after step (\d+)"),
    ),
    (
        *("torchrun-script", '"elastic.py", "--epochs", "50"'),
        *(r"epoch +1/", r"epoch +2/", r"resumes after epoch (\d+)"),
    ),
]


@pytest.mark.parametrize(
    ("folder", "command", "first", "saved", "resumed"),
    [
        # One here, all in make soak; that each resumes, test_several_machines shows as well.
        pytest.param(*case, id=case[0], marks=() if case[0] == "ddp" else pytest.mark.soak)
        for case in RESUMING
    ],
)
def test_a_killed_rank_is_started_again_and_goes_on_from_its_checkpoint(
    folder: str, command: str, first: str, saved: str, resumed: str
) -> None:
    sets = (f'run.command=["python", {command}]', "policy.restart.backoff=100ms")
    with private_daemon() as daemon:
        job = submit(daemon, folder, *sets)

        def has_saved() -> bool:
            assert daemon.state(job) in ("starting", "running"), daemon.output(job)
            return any(re.search(saved, line) for line in daemon.output(job))

        wait_until(has_saved, 60, "there is a checkpoint")
        os.kill(daemon.pids(job)[1], signal.SIGKILL)
        end = daemon.end_of(job, within_s=100)
        lines = daemon.output(job, attempt=2)
        assert (end.state, end.attempt) == ("done", 2), lines
        steps = [int(found[1]) for line in lines if (found := re.search(resumed, line))]
        assert steps, lines
        assert min(steps) > 0
        assert not any(re.search(first, line) for line in lines), "it began anew"
        story = " ".join(line.text for line in daemon.client.show(job).story)
        assert "SIGKILL" in story
        assert collected(daemon, job) == set(
            read_file(EXAMPLES / folder / "job.toml").output.collect
        )


@pytest.mark.soak
def test_another_job_goes_on_with_another_number_of_ranks() -> None:
    quick = ("run.env.PAUSE=0", "run.env.SAVE_EVERY=10")
    with private_daemon() as daemon:
        first = submit(daemon, "resume", *quick, "run.env.EPOCHS=1")
        assert daemon.end_of(first, within_s=100).state == "done", daemon.output(first)
        more = ("run.env.EPOCHS=2", "resources.workers_per_node=3")
        second = submit(daemon, "resume", *quick, *more, resumes=first)
        assert daemon.end_of(second, within_s=100).state == "done", daemon.output(second)
        lines = daemon.output(second)
        assert lines[0] == "3 ranks go on after step 40, in epoch 1", lines
        assert not [line for line in lines if line.startswith("epoch   0")], lines


def collected(daemon: PrivateDaemon, job: int) -> set[str]:
    """The names that `wiiiiide pull` would bring."""
    with (
        daemon.client.pull(job) as blob,
        tarfile.open(fileobj=cast("IO[bytes]", blob), mode="r|") as archive,
    ):
        return {os.path.normpath(member.name) for member in archive if member.isfile()}
