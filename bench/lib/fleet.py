"""Starts the ranks of one contender's side, talks to them, and ends them whatever happens.

One class serves ranks started directly and ranks under mpirun: both connect back over a Unix
socket, which also tells at once when a rank died.
"""

import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from lib import link
from lib.link import Message

HERE = Path(__file__).resolve().parents[1]  # where `lib` is importable from
START_SECONDS = 90.0
ANSWER_SECONDS = 180.0
# After one rank reported an error, the others may be waiting for it for ever.
GRACE_SECONDS = 10.0
_LEAVE_SECONDS, _END_SECONDS = 8.0, 3.0
_LAST_LINES = 12


class FleetError(Exception):
    """A sentence for the benchmark's user."""


class RankFailed(FleetError):
    """A rank reported an error, but every rank answered: the ranks can be used further."""


class FleetLost(FleetError):
    """A rank died or hangs: these ranks are of no more use."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_program(name: str) -> list[str]:
    """The command of one of lib's programs; HERE must be on its PYTHONPATH."""
    return [sys.executable, "-m", f"lib.{name}"]


class Fleet:
    """The ranks of one program; `launcher` is a command such as mpirun that starts them all.

    `hosts`: the ranks pretend to be on so many, evenly, and talk over TCP where those differ.
    """

    def __init__(
        self, program: str, ranks: int, launcher: Sequence[str] = (), *, hosts: int = 1
    ) -> None:
        self.ranks = ranks
        self._program, self._pretended = program, hosts
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: dict[int, socket.socket] = {}
        self._pidfds: list[int] = []
        # Neither the log nor the socket has a name in the file system: nothing can be left over.
        self._log = os.memfd_create("ranks.log")
        try:
            self._start(launcher)
        except BaseException:
            self.close(politely=False)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # Interrupted ranks may sit in a call that never returns.
        self.close(politely=kind is None)

    def ask(
        self, message: Message, only: Sequence[int] = (), seconds: float = ANSWER_SECONDS
    ) -> list[Message]:
        """Sends one message to all ranks (or `only` these) and returns their answers in order."""
        asked = list(only) or list(range(self.ranks))
        data = json.dumps(message).encode() + b"\n"
        for rank in asked:
            try:
                self._lines[rank].sendall(data)
            except OSError:
                raise FleetLost(f"rank {rank} of {self._program} is gone") from None
        answers = self._collect(asked, seconds)
        errors = [f"rank {rank}: {answers[rank]['error']}" for rank in asked if _bad(answers[rank])]
        if errors:
            raise RankFailed(errors[0])
        return [answers[rank] for rank in asked]

    def close(self, politely: bool = True) -> None:
        """Asks the ranks to leave, unless they are known to hang, and ends those that do not."""
        if politely:
            for line in self._lines.values():
                try:
                    line.sendall(b'{"do": "stop"}\n')
                except OSError:
                    pass
            self._wait(_LEAVE_SECONDS)
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        # mpirun ends its ranks when it is told to end.
        self._wait(_END_SECONDS)
        for pidfd in self._pidfds:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.close(pidfd)
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for line in self._lines.values():
            line.close()
        self._lines, self._pidfds, self._processes = {}, [], []
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def last_words(self) -> str:
        """The end of what the ranks wrote, for the terminal only: it may hold paths."""
        # Not seek and read: the ranks write at the same position.
        text = os.pread(self._log, os.fstat(self._log).st_size, 0).decode(errors="replace")
        return "\n".join(text.splitlines()[-_LAST_LINES:])

    def _start(self, launcher: Sequence[str]) -> None:
        name = f"bench-{os.getpid()}-{secrets.token_hex(8)}"
        port = str(free_port())
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(link.address(name))
            listener.listen(self.ranks)
            common = os.environ | {
                "PYTHONPATH": str(HERE),
                link.NAME: name,
                "WORLD_SIZE": str(self.ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",  # as torchrun sets it
            }
            rank_command = rank_program(self._program)
            starts: list[tuple[list[str], dict[str, str]]]
            if launcher:
                starts = [([*launcher, *rank_command], common)]
            else:
                each = [self._identity(rank) for rank in range(self.ranks)]
                starts = [(rank_command, common | own) for own in each]
            for words, environment in starts:
                self._processes.append(
                    subprocess.Popen(
                        words,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=self._log,
                        stderr=self._log,
                        # Ctrl-C is for the measuring program; it then ends its ranks itself.
                        start_new_session=True,
                    )
                )
            self._accept(listener)

    def _identity(self, rank: int) -> dict[str, str]:
        here = self.ranks // self._pretended
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank % here)}
        return own | ({"WIIIIIDE_HOST_ID": str(rank // here)} if self._pretended > 1 else {})

    def _accept(self, listener: socket.socket) -> None:
        listener.settimeout(0.2)
        deadline = time.monotonic() + START_SECONDS
        while len(self._lines) < self.ranks:
            try:
                line, _ = listener.accept()
            except TimeoutError:
                ended = [p.returncode for p in self._processes if p.poll() is not None]
                if ended:
                    reason = f"ended with code {ended[0]} while starting"
                elif time.monotonic() > deadline:
                    reason = f"did not start within {START_SECONDS:.0f} s"
                else:
                    continue
                raise FleetLost(self._sentence(reason)) from None
            line.settimeout(None)
            hello: dict[str, Any] = json.loads(_read_line(line, deadline))
            self._lines[hello["rank"]] = line
            self._pidfds.append(os.pidfd_open(hello["pid"]))

    def _collect(self, asked: Sequence[int], seconds: float) -> dict[int, Message]:
        deadline = time.monotonic() + seconds
        answers: dict[int, Message] = {}
        failed = ""
        while waiting := [rank for rank in asked if rank not in answers]:
            lines = [self._lines[rank] for rank in waiting]
            left = deadline - time.monotonic()
            ready = select.select(lines, [], [], max(left, 0.0))[0]
            if not ready:
                reason = failed or f"rank {waiting[0]} gave no answer within {seconds:.0f} s"
                raise FleetLost(self._sentence(reason))
            for rank in waiting:
                if self._lines[rank] not in ready:
                    continue
                text = _read_line(self._lines[rank], deadline)
                if not text:
                    raise FleetLost(self._sentence(failed or f"rank {rank} died"))
                answers[rank] = json.loads(text)
                if _bad(answers[rank]) and not failed:
                    failed = f"rank {rank}: {answers[rank]['error']}"
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        return answers

    def _sentence(self, reason: str) -> str:
        words = self.last_words()
        if words:
            print(f"--- last output of {self._program}:\n{words}\n---", file=sys.stderr)
        return reason

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(p.poll() is None for p in self._processes):
            time.sleep(0.02)


def _bad(answer: Message) -> bool:
    return "error" in answer


def _read_line(line: socket.socket, deadline: float) -> bytes:
    """One answer; empty when the rank is gone. A rank sends nothing further unasked."""
    parts: list[bytes] = []
    while not parts or not parts[-1].endswith(b"\n"):
        if not select.select([line], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            return b""
        try:
            part = line.recv(1 << 20)
        except ConnectionResetError:
            return b""
        if not part:
            return b""
        parts.append(part)
    return b"".join(parts)
