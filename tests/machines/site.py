"""A machine with the service, as the tests of this folder use it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.kit.conditions import wait_until
from tests.kit.machines import Machine

DROP_IN = "/run/systemd/system/wiiiiided.service.d"
CONFIG = "/etc/wiiiiide/wiiiiided.toml"
ENDED = ("done", "failed", "cancelled")
SECONDS = 60.0  # for anything that takes some on an idle machine

JOB = """
name = "job{number}"
[run]
command = {command}
[resources]
workers_per_node = {workers}
cores_per_worker = 1
[network]
backend = "{backend}"
[policy]
{policy}
"""


class Site:
    """A machine with the service, and what a person does there."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._folders = 0

    # ---- jobs

    def submit(
        self,
        *command: str,
        user: str = "ada",
        files: dict[str, str] | None = None,
        policy: str = "",
        hold: bool = False,
        **resources: Any,
    ) -> int:
        """Queue a job as a person would, with a folder of its own; its number."""
        folder = self.folder(command, user, files or {}, policy, **resources)
        options = ["--json", *(["--hold"] if hold else [])]
        done = self.machine.wiiiiide("submit", *options, f"{folder}/job.toml", user=user)
        return int(json.loads(done.stdout)["id"])

    def folder(
        self,
        command: tuple[str, ...],
        user: str,
        files: dict[str, str] | None = None,
        policy: str = "",
        workers: int = 1,
        backend: str = "wiiiiide",
    ) -> str:
        """A folder with a job file, as a person has it."""
        self._folders += 1
        folder = f"/home/{user}/job{self._folders}"
        self.machine.run("mkdir", folder, user=user)
        job = JOB.format(
            number=self._folders,
            command=json.dumps(command),
            workers=workers,
            backend=backend,
            policy=policy,
        )
        for name, text in {"job.toml": job, **(files or {})}.items():
            self.machine.write(f"{folder}/{name}", text, owner=user)
        return folder

    def show(self, job: int) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.machine.wiiiiide("show", str(job), "--json").stdout)
        return shown

    def state(self, job: int) -> str:
        return str(self.show(job)["job"]["state"])

    def pids(self, job: int) -> list[int]:
        return [rank["pid"] for rank in self.show(job)["ranks"]]

    def running(self, *command: str, **how: Any) -> tuple[int, list[int]]:
        """A job that runs: its number and the pids of its ranks."""
        job = self.submit(*(command or ("sleep", "10000")), **how)
        self._until(job, lambda: self.state(job) == "running" and None not in self.pids(job))
        return job, self.pids(job)

    def goes_on(self, job: int, pids: list[int]) -> None:
        """It runs, with the same processes. A daemon that was just started answers before it has
        heard of them from the shim."""
        assert self.state(job) == "running"
        self._until(job, lambda: None not in self.pids(job))
        assert self.pids(job) == pids

    def restarted(self, job: int) -> None:
        """Until its second attempt runs."""

        def so() -> bool:
            shown = self.show(job)["job"]
            assert shown["state"] not in ENDED, shown["why"]
            return (shown["attempt"], shown["state"]) == (2, "running")

        self._until(job, so)

    def ended(self, job: int, within_s: float = SECONDS) -> dict[str, Any]:
        self._until(job, lambda: self.state(job) in ENDED, within_s)
        return self.show(job)

    def _until(self, job: int, condition: Callable[[], bool], within_s: float = SECONDS) -> None:
        try:
            wait_until(condition, within_s, f"job {job} is where it should be")
        except AssertionError as problem:
            story = self.machine.wiiiiide("show", str(job), check=False).stdout
            raise AssertionError(f"{problem}\n{story}\n{self.machine.journal()}") from None

    def log(self, job: int) -> str:
        return self.machine.wiiiiide("logs", str(job)).stdout

    def alive(self, pids: list[int]) -> bool:
        return all(
            self.machine.run("test", "-d", f"/proc/{pid}", check=False).returncode == 0
            for pid in pids
        )

    # ---- service

    def systemctl(self, *argv: str, check: bool = True) -> str:
        return self.machine.run("systemctl", *argv, check=check).stdout.strip()

    def main_pid(self) -> int:
        return int(self.machine.show("MainPID"))

    def tells(self, pattern: str) -> None:
        """Its log says that: now, or when the journal has taken it in."""
        said = re.compile(pattern)
        what = f"its log says {pattern!r}"
        wait_until(lambda: bool(said.search(self.machine.journal())), SECONDS, what)

    def set(self, *settings: str) -> None:
        """A drop-in of the [Service] section, until the end of the test."""
        self.machine.run("mkdir", "-p", DROP_IN)
        self.machine.write(f"{DROP_IN}/test.conf", "\n".join(("[Service]", *settings, "")))
        self.systemctl("daemon-reload")

    def reset(self) -> None:
        """As it was, whatever a test has done: switched on, the service installed, with default
        settings, the daemon running, no job under way; and no defect in its log."""
        if not self.machine.is_on():
            self.machine.boot()
        self.machine.run("rm", "-rf", DROP_IN, CONFIG)
        self.systemctl("daemon-reload")
        if self.machine.show("UnitFileState") != "enabled":
            self.machine.wiiiiide("service", "install")
        self.systemctl("reset-failed", "wiiiiided", check=False)
        self.systemctl("restart", "wiiiiided")
        wait_until(self._no_jobs, SECONDS, "no job is under way")
        self.machine.no_defects()

    def _no_jobs(self) -> bool:
        """Whether there is none; else those that there are, are cancelled. One may end by itself
        meanwhile, which cancel calls an error."""
        jobs = json.loads(self.machine.wiiiiide("ps", "--json").stdout)["jobs"]
        if jobs:
            ids = [str(job["id"]) for job in jobs]
            self.machine.wiiiiide("cancel", "--now", *ids, check=False)
        return not jobs
