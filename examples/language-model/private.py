"""A daemon of the demo's own: started, used like any other, and gone without a trace afterwards.

    /tmp/wiiiiide-demo-x/          WIIIIIDE_HOME, removed in the end
        daemon.log                 what it says
        wiiiiided.sock, state/, jobs/

A daemon's jobs outlive it on purpose. So the demo cancels them first; where the daemon is dead it
turns to their supervisors, the shims, which take their ranks with them.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from stop import Failed, StopRequest

from wiiiiided.cluster.client import Client, ClientError
from wiiiiided.config import Paths

PROGRAM = (sys.executable, "-m", "wiiiiided.cluster.daemon.main")  # `wiiiiided`
COMMAND = (sys.executable, "-m", "wiiiiided.ui.cli.main")  # `wiiiiide`
PLACE = "/tmp"  # and not TMPDIR: a socket's path has at most 107 bytes
START_S = 30.0
COMMAND_S = 60.0
LEAVE_S = 10.0
QUOTED_LINES = 8


class PrivateDaemon:
    """Use as a context: daemon, jobs and directory are gone when it is left, however it is."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop
        self.home = Path(tempfile.mkdtemp(prefix="wiiiiide-demo-", dir=PLACE))
        self.client = Client(Paths.private(str(self.home)))
        self.log = self.home / "daemon.log"
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "PrivateDaemon":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def start(self) -> None:
        """Returns when it answers."""
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                PROGRAM,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends it in order
            )
        deadline = time.monotonic() + START_S
        while not self.answers():
            self.stop.check()
            self.check()
            if time.monotonic() > deadline:
                raise Failed(f"The daemon gave no answer for {START_S:.0f} s.", self.last_lines())
            time.sleep(0.02)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        return {**kept, "WIIIIIDE_HOME": str(self.home)}

    def answers(self) -> bool:
        try:
            self.client.status()
        except ClientError:
            return False
        return True

    def check(self) -> None:
        """Raise if the daemon has died."""
        code = None if self.process is None else self.process.poll()
        if code is not None:
            raise Failed(f"The daemon {describe_end(code)}.", self.last_lines())

    def last_lines(self) -> list[str]:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return text.splitlines()[-QUOTED_LINES:]

    def wiiiiide(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command as if it were typed."""
        return subprocess.run(
            [*COMMAND, *arguments],
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            start_new_session=True,
        )

    def submit(self, arguments: Sequence[str]) -> tuple[int, str]:
        """`wiiiiide submit …`: the job's number, and what was said of it."""
        self.stop.check()
        try:
            result = self.wiiiiide("submit", *arguments)
        except subprocess.TimeoutExpired:
            raise Failed(f"`wiiiiide submit` took over {COMMAND_S:.0f} s.", []) from None
        self.stop.check()
        self.check()
        if result.returncode != 0:
            sentence = f"`wiiiiide submit` ended with code {result.returncode}."
            raise Failed(sentence, result.stderr.splitlines()[-QUOTED_LINES:])
        return int(result.stdout), result.stderr.strip()

    # ---- the end

    def close(self) -> None:
        self.cancel_jobs()
        self.stop_daemon()
        self.end_shims()
        shutil.rmtree(self.home, ignore_errors=True)

    def cancel_jobs(self) -> None:
        """The jobs that still run or wait; a daemon that is dead or stuck is passed over."""
        if self.process is None or self.process.poll() is not None:
            return
        try:
            left = [str(job.id) for job in self.client.jobs().jobs]
            if left:
                self.wiiiiide("cancel", "--now", *left)
        except (ClientError, subprocess.TimeoutExpired):
            pass

    def stop_daemon(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def end_shims(self) -> None:
        """Nothing to do unless the daemon died: a shim ends its ranks, then itself."""
        begun = time.monotonic()
        while shims := self.shims():
            waited_s = time.monotonic() - begun
            if waited_s > 2 * LEAVE_S:
                break
            for pid in shims:
                try:
                    # Killed, it cannot see to its ranks; the kernel ends them then.
                    os.kill(pid, signal.SIGTERM if waited_s < LEAVE_S else signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)

    def shims(self) -> list[int]:
        jobs = os.fsencode(self.home / "jobs")
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                words = (directory / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended
            is_shim = any(word.endswith(b"cluster/shim/run.py") for word in words)
            if is_shim and any(word.startswith(jobs) for word in words):
                found.append(int(directory.name))
        return found


def describe_end(code: int) -> str:
    """How a process ended, after its name."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
