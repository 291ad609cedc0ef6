"""A rank's end of the line to the program that measures.

A rank that is not being measured must cost nothing, or it slows the others. So it waits in a
socket read, which sleeps, and never inside a collective: Open MPI spins there.

A Unix socket's abstract name is seen only within its network namespace. A rank on a host of its
own is therefore not given a name to connect to: it inherits its end of a pair.
"""

import ctypes
import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Protocol, TextIO

NAME = "BENCH_LINK"
LINE = "BENCH_LINE"  # the file descriptor of an inherited end
Message = dict[str, Any]
_PR_SET_PDEATHSIG = 1


def address(name: str) -> str:
    """A leading zero byte makes a Unix socket's address one without a file."""
    return f"\0{name}"


def die_with_parent() -> None:
    """Even a killed benchmark must leave no ranks behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class BenchRank(Protocol):
    """A rank's number, and its answers: `{"do": "measure", …}` calls `measure`."""

    rank: int

    def stop(self, message: Message) -> Message: ...


def run(kind: Callable[[], BenchRank]) -> None:
    """Makes this process's rank and answers one line of JSON per line received, until `stop`."""
    die_with_parent()
    rank = kind()
    with _line() as line, line.makefile("rw") as stream:
        _send(stream, {"rank": rank.rank, "pid": os.getpid()})
        for text in stream:
            message: Message = json.loads(text)
            _send(stream, _answer(rank, message))
            if message["do"] == "stop":
                return
    # The measuring program is gone. Leaving the ordinary way could wait for other ranks.
    os._exit(1)


def _line() -> socket.socket:
    if LINE in os.environ:
        return socket.socket(fileno=int(os.environ[LINE]))
    line = socket.socket(socket.AF_UNIX)
    line.connect(address(os.environ[NAME]))
    return line


def _answer(rank: BenchRank, message: Message) -> Message:
    try:
        answer: Message = getattr(rank, message["do"])(message)
        return answer
    except Exception as problem:
        first_line = (str(problem).strip().splitlines() or ["no message"])[0]
        return {"error": f"{type(problem).__name__}: {first_line}"}


def _send(stream: TextIO, message: Message) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()
