"""No, as an answer: a code, a sentence, and what to do instead."""

from __future__ import annotations

from wiiiiided.cluster.rpc.connection import Caller
from wiiiiided.domain.exit_codes import NOT_ALLOWED
from wiiiiided.errors import WiiiiideError


class Refuse(WiiiiideError):
    """The answer is no; becomes a Refusal."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


def only_admin(caller: Caller, what: str) -> None:
    """Refuse a caller who may not change machines: one sentence for all such requests."""
    if not caller.admin:
        text = f"only root, or the daemon's own user, may {what}: {caller.user} is neither"
        raise Refuse(NOT_ALLOWED, text)
