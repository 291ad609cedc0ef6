"""A rank's end of the line to the program that measures.

A rank that is not being measured must cost nothing, or it slows whoever is. So it waits in a
socket read, which sleeps, and never inside a collective: Open MPI spins there.
"""

import ctypes
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

NAME = "BENCH_LINK"
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
    """Answers whoever started this rank, until told to stop."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address(os.environ[NAME]))
        serve_on(line, rank, handlers)


def serve_on(line: socket.socket, rank: int, handlers: Mapping[str, Handler]) -> None:
    """Answers one line of JSON per line received, until told to stop."""
    with line.makefile("rw") as stream:
        _say(stream.write, stream.flush, {"rank": rank, "pid": os.getpid()})
        for text in stream:
            message: Message = json.loads(text)
            answer = _answer(handlers, message)
            _say(stream.write, stream.flush, answer)
            if message["do"] == "stop":
                return
    # The measuring program is gone. Leaving the ordinary way could wait for other ranks.
    os._exit(1)


def _answer(handlers: Mapping[str, Handler], message: Message) -> Message:
    try:
        return handlers[message["do"]](message)
    except Exception as problem:
        first_line = (str(problem).strip().splitlines() or ["no message"])[0]
        return {"error": f"{type(problem).__name__}: {first_line}"}


def _say(write: Callable[[str], int], flush: Callable[[], None], message: Message) -> None:
    write(json.dumps(message) + "\n")
    flush()
