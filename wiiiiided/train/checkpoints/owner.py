"""The owner of checkpoints: jobs that save to one folder leave each other's files alone.

    ckpt/step-….host-0.MODEL.wide                 of a run by hand; of a job, in its own directory
    /data/step-….host-0.MODEL.job-17-19a2….wide   of a job, in a folder elsewhere

A file in a job's working directory is its own, whatever job wrote it: the daemon has brought it
there for `--resume`, or it came with the submitted folder. A folder elsewhere is anyone's. Under
the daemon a run takes up there what the same job has saved, in an earlier attempt, and what a run
by hand has; it goes on from another job only if it is told so. The job has its part in the file's
name, since two jobs have a step 100 each, and stands in the head, since files are copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from wiiiiided.config import JobHere

_BETWEEN = ".job-"  # in a name: the model's digest, and the job


@dataclass(frozen=True)
class FileOwner:
    """A model of one run, and the folder that it saves to."""

    model: str  # its digest
    job: JobHere | None = None
    is_apart: bool = False  # a job's, and the folder is not: its working directory is elsewhere

    @classmethod
    def of(cls, model: str, folder: Path, job: JobHere | None) -> FileOwner:
        """The owner of this run's files; `job`: None without a daemon."""
        is_apart = job is not None and not folder.resolve().is_relative_to(Path(job.work).resolve())
        return cls(model, job, is_apart)

    @property
    def job_name(self) -> str:
        """The job's name in the heads of files; "" without a job."""
        return "" if self.job is None else self.job.name

    @property
    def series(self) -> str:
        """The series in the names of files: only old files of the same one are removed."""
        return f"{self.model}{_BETWEEN}{self.job_name}" if self.is_apart else self.model

    def takes(self, job: str) -> bool:
        """Whether the run may go on from a file of this job."""
        if self.job is None or not self.is_apart:
            return True
        return job in ("", self.job.name) or _number(job) == self.job.resumes

    def passes_over(self, folder: Path, jobs: Iterable[str]) -> str:
        """A sentence about the files of jobs that it does not take."""
        numbers = sorted({_number(job) for job in jobs}, key=lambda number: (len(number), number))
        named = f"job {numbers[0]}" if len(numbers) == 1 else f"jobs {', '.join(numbers)}"
        last = numbers[-1]
        return (
            f"{folder} has checkpoints of {named}, which this job leaves alone. A job goes on from "
            f"another's with `wiiiiide submit --resume {last}`; where they are in a folder "
            f'elsewhere, as these, with WIIIIIDE_RESUMES = "{last}" in its run.env'
        )


def model_of(series: str) -> str:
    """The model's digest."""
    return series.partition(_BETWEEN)[0]


def job_of(series: str) -> str:
    """The job; "": the name does not say one."""
    return series.partition(_BETWEEN)[2]


def _number(job: str) -> str:
    return job.partition("-")[0]
