"""The owner of the numbered job directories: the machine itself, or the cluster it is in.

    <jobs>/17                 a job of the queue that this machine works for now
    <jobs>/before-lab/17      the machine's own, from before it joined lab; back when it leaves
    <jobs>/left-lab/17        what it had run for lab
    <jobs>/.whose             {"cluster": "lab", "coming_back": false}; missing: the machine's own

Job 17 of a cluster is not job 17 that the machine had before. Directories move one at a time, and
the marker changes only when all have moved: after a crash the next daemon moves the rest.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from wiiiiided.cluster.shim.protocol import write_durably
from wiiiiided.domain.json_decoder import json_decoder
from wiiiiided.errors import HostError

MARKER = ".whose"


class Marker(msgspec.Struct, frozen=True):
    """Which cluster the numbered directories belong to."""

    cluster: str
    coming_back: bool = False  # the machine's own are on their way back from before-…


_decode = json_decoder(Marker)


def assign_job_dirs(jobs: Path, cluster: str) -> None:
    """Make the numbered directories those of `cluster`; empty: the machine's own."""
    try:
        said = _marker(jobs)
        if said is not None and (said.cluster != cluster or said.coming_back):
            _give_back(jobs, said)
            said = None
        if cluster and said is None:
            _move(jobs, jobs / f"before-{cluster}")
            _mark(jobs, Marker(cluster))
    except OSError as problem:
        text = f"cannot put the job directories in {jobs} in order: {problem.strerror}"
        raise HostError(text) from problem


def _give_back(jobs: Path, said: Marker) -> None:
    if not said.coming_back:
        _move(jobs, _unused(jobs, f"left-{said.cluster}"))
        _mark(jobs, Marker(said.cluster, coming_back=True))
    before = jobs / f"before-{said.cluster}"
    if before.is_dir():
        _move(before, jobs)
        before.rmdir()
    (jobs / MARKER).unlink()


def _move(source: Path, target: Path) -> None:
    for name in sorted(os.listdir(source)):
        if name.isdecimal():
            target.mkdir(mode=0o700, exist_ok=True)
            os.rename(source / name, target / name)


def _unused(jobs: Path, name: str) -> Path:
    """A directory for what a cluster leaves behind: each membership has one of its own."""
    path, number = jobs / name, 2
    while path.exists():
        path, number = jobs / f"{name}-{number}", number + 1
    return path


def _marker(jobs: Path) -> Marker | None:
    """Read the marker; None: there is none, the directories are the machine's own."""
    try:
        return _decode((jobs / MARKER).read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as problem:
        text = f"{jobs / MARKER} cannot be read ({problem}): it names the cluster of the jobs there"
        raise HostError(f'{text}; write {{"cluster": "NAME"}} again') from None


def _mark(jobs: Path, marker: Marker) -> None:
    directory = os.open(jobs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        write_durably(directory, MARKER, msgspec.json.encode(marker), 0o600)
    finally:
        os.close(directory)
