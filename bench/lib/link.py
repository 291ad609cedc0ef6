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
from collections.abc import Callable, Mapping
from typing import Any

NAME = "BENCH_LINK"
LINE = "BENCH_LINE"  # the file descriptor of an inherited end
Message = dict[str, Any]
Handler = Callable[[Message], Message]
_PR_SET_PDEATHSIG = 1


def address(name: str) -> str:
    """A leading zero byte makes a Unix socket's address one without a file."""
    return f"\0{name}"


def die_with_parent() -> None:
    """Even a killed benchmark must leave no ranks behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(rank: int, handlers: Mapping[str, Handler]) -> None:
    """Answers one line of JSON per line received, until told to stop."""
    with _line() as line, line.makefile("rw") as stream:
        _say(stream.write, stream.flush, {"rank": rank, "pid": os.getpid()})
        for text in stream:
            message: Message = json.loads(text)
            answer = _answer(handlers, message)
            _say(stream.write, stream.flush, answer)
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


def _answer(handlers: Mapping[str, Handler], message: Message) -> Message:
    try:
        return handlers[message["do"]](message)
    except Exception as problem:
        first_line = (str(problem).strip().splitlines() or ["no message"])[0]
        return {"error": f"{type(problem).__name__}: {first_line}"}


def _say(write: Callable[[str], int], flush: Callable[[], None], message: Message) -> None:
    write(json.dumps(message) + "\n")
    flush()
