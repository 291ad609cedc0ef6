"""One question to the daemon, one connection: what everything that can be asked is made of."""

from __future__ import annotations

from typing import TypeVar

from wiiiiided.client.connection import ANSWER_S, Connection, Notice, connect, expect
from wiiiiided.config import Paths
from wiiiiided.wire import messages as m

Result = TypeVar("Result")


class Asking:
    """Opens the socket, says Hello, asks, reads the answer and closes. `notice` hears sentences
    worth a person's eye."""

    def __init__(self, paths: Paths, notice: Notice = lambda _: None) -> None:
        self.paths = paths
        self._notice = notice

    def status(self, within_s: float = ANSWER_S) -> m.DaemonStatus:
        return self._ask(m.Status(), m.DaemonStatus, within_s)

    def _ask(
        self, request: m.Request, kind: type[Result], timeout_s: float | None = ANSWER_S
    ) -> Result:
        with self._open(request, timeout_s) as connection:
            return expect(connection.answer(), kind)

    def _open(
        self, request: m.Request, timeout_s: float | None = ANSWER_S, raw: bool = False
    ) -> Connection:
        """`raw`: notices come as answers, for a screen of its own."""
        notice = None if raw else self._notice
        connection = Connection(connect(self.paths), timeout_s, notice)
        try:
            connection.begin(request)
        except BaseException:
            connection.close()
            raise
        return connection
